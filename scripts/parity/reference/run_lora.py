"""Runs LoRA: peft around the ViT of transformers, with torch's AdamW.

That model holds query, key and value by themselves, as ours does.
"""

import re
from typing import Any

import torch
from common import Job
from hf_vit import make_model, today
from torch_draws import keep, load, rising_then_cosine, tensors

import peft  # isort: skip
import transformers  # isort: skip


def adapted_model(job: Job) -> Any:
  """LoRA around the base, with the arrays of the job."""
  c = job.config
  model = make_model(c)
  heads = {k: x for k, x in job.params.items() if k.startswith("classifier")}
  load(model, {today(k, model): x for k, x in {**job.extra, **heads}.items()})
  settings = peft.LoraConfig(
    r=c["rank"],
    lora_alpha=c["alpha"],
    target_modules=r".*\.([qkvo]_proj|fc[12])",
    lora_dropout=0.0,
    modules_to_save=["classifier"],
  )
  return peft.get_peft_model(model, settings)


def main() -> None:
  job = Job()
  c, adapted = job.config, adapted_model(job)
  trained = {
    ours(name): p for name, p in adapted.named_parameters() if p.requires_grad
  }
  assert sorted(trained) == sorted(job.params), [*trained]
  with torch.no_grad():
    for name, p in trained.items():
      p.copy_(torch.tensor(job.params[name]))
  decayed = ["classifier.weight"]  # A kernel; the products are none.
  groups = [
    {"params": [trained[k] for k in decayed], "weight_decay": c["decay"]},
    {"params": [p for k, p in trained.items() if k not in decayed]},
  ]
  optimizer = torch.optim.AdamW(
    groups, lr=c["rate"], weight_decay=0.0, eps=1e-8
  )
  factor = rising_then_cosine(c, job.steps)
  schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
  images, labels, probe = tensors(job)
  adapted.train()
  for t in range(job.steps):
    logits = adapted(pixel_values=images[t]).logits
    loss = torch.nn.functional.cross_entropy(logits, labels[t])
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
    rate = optimizer.param_groups[0]["lr"]
    decay = {k: rate * c["decay"] * (k in decayed) for k in trained}
    job.log(loss.item(), rate, decay)
    optimizer.step()
    schedule.step()
    arrays = {k: p.detach().numpy() for k, p in trained.items()}
    keep(job, adapted, arrays, lambda: adapted(pixel_values=probe).logits)
  job.save(torch, peft, transformers)


def ours(name: str) -> str:
  """As the recording calls them: layer.kind.lora_a, and classifier.weight."""
  if "classifier" in name:
    return f"classifier.{name.split('.')[-1]}"
  layer = re.search(r"\.(?:layers?)\.(\d+)\.(.*?)\.lora_([AB])\.", name)
  assert layer, name
  kinds = {
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "o_proj": "out",
    "attention.output.dense": "out",
    "query": "query",
    "key": "key",
    "value": "value",
    "fc1": "expand",
    "fc2": "contract",
    "intermediate.dense": "expand",
    "output.dense": "contract",
  }
  kind = next(v for k, v in kinds.items() if layer[2].endswith(k))
  return f"{layer[1]}.{kind}.{layer[3].lower()}"


if __name__ == "__main__":
  main()
