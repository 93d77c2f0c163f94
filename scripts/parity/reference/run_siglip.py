"""Runs transformers' SigLIP, its loss, and torch's AdamW.

Its loss has equal captions of a batch as negatives of each other. Where the
recipe leaves them out, their terms are taken away from it.
"""

import torch
import torch_draws  # noqa: F401  # It lets transformers be imported.
import transformers
from common import Job
from torch_draws import arrays_of, keep, load, rates, rising_then_cosine


def make_model(c: dict) -> transformers.SiglipModel:
  tower = dict(
    hidden_size=c["hidden"],
    num_hidden_layers=c["layers"],
    num_attention_heads=c["heads"],
    intermediate_size=c["mlp"],
  )
  text = dict(
    tower,
    vocab_size=c["vocabulary"],
    max_position_embeddings=c["length"],
    projection_size=c["hidden"],
  )
  vision = dict(tower, image_size=c["side"], patch_size=c["patch"])
  config = transformers.SiglipConfig(
    text_config=text, vision_config=vision, attn_implementation="eager"
  )
  return transformers.SiglipModel(config)


def of_equal(logits: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
  """The loss's terms of images and captions that equal their own."""
  equal = (texts[:, None] == texts[None]).all(-1)
  equal &= ~torch.eye(len(texts), dtype=torch.bool)
  terms = torch.nn.functional.softplus(logits)
  return (terms * equal).sum() / len(texts)


def attended(c: dict, texts: torch.Tensor) -> torch.Tensor | None:
  """The tokens that others attend to; None, as in its own code, for all."""
  return (texts != c["pad"]).long() if c["padding"] == "left out" else None


def main() -> None:
  job = Job()
  c = job.config
  model = make_model(c)
  load(model, job.params)
  own = dict(model.named_parameters())
  tables = ("token_embedding.weight", "position_embedding.weight", "probe")
  decays = {k for k, p in own.items() if p.ndim > 1 and not k.endswith(tables)}
  if c["decayed"] == "scale and bias too":
    decays |= {"logit_scale", "logit_bias"}
  groups = [
    {"params": [own[k] for k in own if (k in decays) == on], "weight_decay": w}
    for on, w in ((True, c["decay"]), (False, 0.0))
  ]
  adam = torch.optim.AdamW(groups, lr=c["rate"], betas=(0.9, 0.95), eps=1e-8)
  images = torch.tensor(job.images).permute(0, 1, 4, 2, 3)
  probe = torch.tensor(job.probe).permute(0, 3, 1, 2)
  texts = torch.tensor(job.extra["texts"]).long()
  probed = torch.tensor(job.extra["probe"]).long()
  factor = rising_then_cosine(c, job.steps)
  model.train()
  for t in range(job.steps):
    for group in adam.param_groups:
      group["lr"] = c["rate"] * factor(t)
    told = model(
      input_ids=texts[t],
      attention_mask=attended(c, texts[t]),
      pixel_values=images[t],
      return_loss=True,
    )
    loss = told.loss
    if c["equal"] == "left out":
      loss = loss - of_equal(told.logits_per_image, texts[t])
    model.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), c["clip"])
    adam.step()
    job.log(loss.item(), *rates(adam, model))
    state = {k: v for k, v in arrays_of(model).items() if k in job.params}
    keep(
      job,
      model,
      state,
      lambda: (
        model(
          input_ids=probed,
          attention_mask=attended(c, probed),
          pixel_values=probe,
        ).logits_per_image
      ),
    )
  job.save(torch, transformers)


if __name__ == "__main__":
  main()
