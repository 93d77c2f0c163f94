"""Runs Muon by NumPy or by torch, and torch's AdamW for all other arrays.

NumPy's is written from arXiv:2502.16982 and optax's description: Nesterov's
momentum, whose two parts are corrected for their start, five steps of the
quintic iteration, and 0.2 times the root of the longer side. torch's corrects
nothing and iterates in bfloat16.
"""

import math
from typing import Any

import numpy as np
import torch
from common import Job
from hf_vit import make_model, today
from torch_draws import keep, load, rising_then_cosine, tensors

_COEFFICIENTS = 3.4445, -4.7750, 2.0315


def orthogonal(x: np.ndarray) -> np.ndarray:
  """About the nearest orthogonal matrix of a matrix."""
  a, b, c = _COEFFICIENTS
  tall = x.shape[0] > x.shape[1]
  x = x.T if tall else x
  x = x / (np.linalg.norm(x) + 1e-8)
  for _ in range(5):
    gram = x @ x.T
    x = a * x + (b * gram + c * gram @ gram) @ x
  return x.T if tall else x


class Muon:
  """Muon of one matrix, in float64."""

  def __init__(self, c: dict):
    self.c, self.average, self.t = c, 0.0, 0

  def step(self, p: Any, rate: float) -> None:
    c, m = self.c, self.c["momentum"]
    g = p.grad.numpy().astype(np.float64)
    self.t += 1
    self.average = m * self.average + (1 - m) * g
    first, second = 1.0, 1.0
    if c["muon"] == "numpy":
      first, second = 1 - m ** (self.t + 1), 1 - m**self.t
    update = orthogonal(m * self.average / first + (1 - m) * g / second)
    update = 0.2 * math.sqrt(max(update.shape)) * update
    new = p.detach().numpy() - rate * (update + c["decay"] * p.detach().numpy())
    with torch.no_grad():
      p.copy_(torch.tensor(new.astype(np.float32)))


def main() -> None:
  job = Job()
  c = job.config
  model = make_model(c)
  names = {today(name, model): name for name in job.params}
  load(model, {new: job.params[name] for new, name in names.items()})
  own = dict(model.named_parameters())
  matrices = [k for k, p in own.items() if ".layers." in k and p.ndim == 2]
  decays = [*matrices, "classifier.weight"]
  decays.append("vit.embeddings.patch_embeddings.projection.weight")
  rest = [k for k in own if k not in matrices]
  groups = [
    {"params": [own[k] for k in rest if (k in decays) == on], "weight_decay": w}
    for on, w in ((True, c["decay"]), (False, 0.0))
  ]
  adam = torch.optim.AdamW(groups, lr=c["rate"], eps=1e-8)
  muons = {k: Muon(c) for k in matrices}
  theirs = torch.optim.Muon(
    [own[k] for k in matrices],
    weight_decay=c["decay"],
    momentum=c["momentum"],
    adjust_lr_fn="match_rms_adamw",
  )
  images, labels, probe = tensors(job)
  factor = rising_then_cosine(c, job.steps)
  model.train()
  for t in range(job.steps):
    rate = c["rate"] * factor(t)
    loss = torch.nn.functional.cross_entropy(
      model(pixel_values=images[t]).logits, labels[t]
    )
    model.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(own.values(), 1.0)
    for group in (*adam.param_groups, *theirs.param_groups):
      group["lr"] = rate
    adam.step()
    if c["muon"] == "torch":
      theirs.step()
    else:
      for k, muon in muons.items():
        muon.step(own[k], rate)
    decay = {names[k]: rate * c["decay"] * (k in decays) for k in own}
    job.log(loss.item(), rate, decay)
    arrays = {names[k]: p.detach().numpy() for k, p in own.items()}
    keep(job, model, arrays, lambda: model(pixel_values=probe).logits)
  job.save(torch, np)


if __name__ == "__main__":
  main()
