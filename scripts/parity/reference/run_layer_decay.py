"""Runs fine-tuning with layer decay: timm's groups, or those of BeiT.

The model, Mixup, the criterion and the schedule are timm's, the optimizer is
torch's, and the groups are those of `timm.optim` or of microsoft/unilm's
`beit/optim_factory.py`. timm's schedule multiplies each group's rate by its
`lr_scale`.
"""

import math
import sys
from typing import Any
from unittest import mock

import torch
from common import Job, Stubs
from torch_draws import (
  Draws,
  arrays_of,
  keep,
  load,
  mixer,
  rates,
  sizes,
  tensors,
)

import timm  # isort: skip
from timm.loss import SoftTargetCrossEntropy
from timm.models.vision_transformer import VisionTransformer
from timm.optim import param_groups_layer_decay
from timm.scheduler.cosine_lr import CosineLRScheduler


def timms_groups(c: dict, model: Any) -> Any:
  groups = param_groups_layer_decay(
    model,
    c["weight_decay"],
    no_weight_decay_list=model.no_weight_decay(),
    layer_decay=c["layer_decay"],
  )
  if c["norm"] == "last block":  # As timm has it.
    return groups
  norm = {id(p) for p in model.norm.parameters()}
  for group in groups:
    group["params"] = [p for p in group["params"] if id(p) not in norm]
  last = {"params": [*model.norm.parameters()], "weight_decay": 0.0}
  return [*groups, {**last, "lr_scale": 1.0}]


def beits_groups(c: dict, model: Any) -> Any:
  sys.path.insert(0, f"{c['reference']}/beit")
  # It imports optimizers that timm has dropped or renamed, and uses none here.
  own = ("adafactor", "adahessian", "adamp", "lookahead", "nadam", "novograd")
  others = ("nvnovograd", "radam", "rmsprop_tf", "sgdp")
  for name in (*own, *others):
    sys.modules[f"timm.optim.{name}"] = mock.MagicMock()
  import optim_factory

  L = c["layers"]
  values = [c["layer_decay"] ** (L + 1 - i) for i in range(L + 2)]
  assigner = optim_factory.LayerDecayValueAssigner(values)
  return optim_factory.get_parameter_groups(
    model,
    c["weight_decay"],
    model.no_weight_decay(),
    assigner.get_layer_id,
    assigner.get_scale,
  )


def beits_schedule(c: dict, steps: int) -> Any:
  """The schedule of BeiT's `utils`, by step."""
  Stubs("torch._six", "modeling_discrete_vae", "tensorboardX")
  sys.path.insert(0, f"{c['reference']}/beit")
  import utils

  return utils.cosine_scheduler(
    c["rate"], 1e-6, 10, steps // 10, warmup_epochs=1, warmup_steps=c["warmup"]
  )


def main() -> None:
  job = Job()
  c, draws = job.config, Draws(job.masks[1:])
  model = VisionTransformer(**sizes(c), drop_path_rate=c["drop_path"])
  load(model, job.params)
  groups = (beits_groups if c["groups"] == "beit" else timms_groups)(c, model)
  optimizer = torch.optim.AdamW(groups, lr=c["rate"], eps=1e-8)
  for group in optimizer.param_groups:
    group.setdefault("lr_scale", 1.0)
  scheduler = CosineLRScheduler(
    optimizer,
    t_initial=job.steps - c["warmup"],
    lr_min=1e-6,
    warmup_t=c["warmup"],
    warmup_prefix=True,
    t_in_epochs=False,
  )
  own = beits_schedule(c, job.steps) if c["schedule"] == "beit" else None
  mix_at, criterion = mixer(job, smoothing=0.1), SoftTargetCrossEntropy()
  images, labels, probe = tensors(job)
  model.train()
  for t in range(job.steps):
    draws.step = t
    scheduler.step_update(t)
    if own is not None:
      for group in optimizer.param_groups:
        group["lr"] = float(own[t]) * group["lr_scale"]
    samples, targets = mix_at(t, images[t].clone(), labels[t])
    loss = criterion(model(samples), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    assert math.isfinite(loss.item())
    job.log(loss.item(), *rates(optimizer, model))
    keep(job, model, arrays_of(model), lambda: model(probe))
  job.save(torch, timm)


if __name__ == "__main__":
  main()
