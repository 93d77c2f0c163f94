"""Runs facebookresearch/deit: DeiT, DeiT III and distillation.

The epochs are those of its `engine.train_one_epoch`; optimizer, schedule,
criterion and Mixup are built as its `main` does. Models have its classes and
tiny sizes.
"""

import argparse
import math
from typing import Any

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

Stubs("submitit")

import engine  # noqa: E402
import models  # noqa: E402
import models_v2  # noqa: E402
import timm  # noqa: E402
from losses import DistillationLoss  # noqa: E402
from timm.loss import SoftTargetCrossEntropy  # noqa: E402
from timm.optim import create_optimizer  # noqa: E402
from timm.scheduler import create_scheduler  # noqa: E402
from timm.utils import ModelEma, NativeScaler  # noqa: E402

torch.cuda.synchronize = lambda *_: None  # There is no such device.


def make_model(c: dict, kind: str) -> Any:
  if kind == "teacher":
    return models.VisionTransformer(**sizes(c))
  own = dict(sizes(c), drop_path_rate=c["drop_path"])
  if kind == "deit3":
    block = models_v2.Layer_scale_init_Block
    return models_v2.vit_models(block_layers=block, **own)
  if kind == "deit_distilled":
    return models.DistilledVisionTransformer(**own)
  return models.VisionTransformer(**own)


def theirs(name: str) -> str:
  """timm's names of LayerScale are newer than DeiT III's."""
  return name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2")


def ours(arrays: dict) -> dict:
  names = {"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}
  found = {}
  for name, x in arrays.items():
    for old, new in names.items():
      name = name.replace(old, new)
    found[name] = x
  return found


def arguments(c: dict, epochs: int) -> argparse.Namespace:
  """The arguments of its `main`."""
  return argparse.Namespace(
    opt=c["optimizer"],
    opt_eps=1e-8,
    opt_betas=None,
    momentum=0.9,
    weight_decay=0.05,
    lr=c["rate"],
    sched="cosine",
    epochs=epochs,
    warmup_epochs=c["warmup"] // c["epoch_steps"],
    warmup_lr=1e-6,
    min_lr=1e-5,
    decay_epochs=30,
    cooldown_epochs=10,
    patience_epochs=10,
    decay_rate=0.1,
    lr_noise=None,
    lr_noise_pct=0.67,
    lr_noise_std=1.0,
    seed=0,
    cosub=False,
    bce_loss=c["bce"],
  )


def criterion_of(job: Job) -> Any:
  c, teacher = job.config, None
  own = torch.nn.BCEWithLogitsLoss() if c["bce"] else SoftTargetCrossEntropy()
  if c["distillation"] != "none":
    teacher = make_model(c, "teacher").eval()
    load(teacher, job.extra)
  return DistillationLoss(own, teacher, c["distillation"], c["alpha"], c["tau"])


class Steps:
  """What `train_one_epoch` calls: batches, Mixup and the loss's scaler."""

  def __init__(self, job: Job, model: Any, average: Any, optimizer: Any):
    self.job, self.model, self.average = job, model, average
    self.optimizer, self.scaler = optimizer, NativeScaler()
    self.draws, self.mix_at = (
      Draws(job.masks[1:]),
      mixer(job, job.config["smoothing"]),
    )
    self.images, self.labels, self.probe = tensors(job)
    self.loss = math.nan

  def batches(self, first: int, count: int) -> Any:
    class Batches(list):
      def __iter__(own) -> Any:
        for t in range(first, first + count):
          self.draws.step = t
          yield self.images[t].clone(), self.labels[t]
          self.keep()

    return Batches(range(count))  # Its length is asked for.

  def mix(self, images: Any, labels: Any) -> Any:
    return self.mix_at(self.draws.step, images, labels)

  def scaled(self, loss: Any, optimizer: Any, **options: Any) -> None:
    self.loss = loss.item()
    self.scaler(loss, optimizer, **options)

  def keep(self) -> None:
    """After a step, with its average."""
    job, model = self.job, self.model
    assert math.isfinite(self.loss)
    job.log(self.loss, *map(ours, rates(self.optimizer, model)))
    keep(job, model, ours(arrays_of(model)), lambda: model(self.probe))
    if self.average is not None and job.due():
      job.keep("averaged", ours(arrays_of(self.average.ema)))


def main() -> None:
  job = Job()
  c, size = job.config, job.config["epoch_steps"]
  model, epochs = make_model(c, c["model"]), job.steps // size
  load(model, {theirs(k): x for k, x in job.params.items()})
  average = ModelEma(model, decay=c["ema"]) if c["ema"] else None
  args, criterion = arguments(c, epochs), criterion_of(job)
  optimizer = create_optimizer(args, model)
  scheduler, _ = create_scheduler(args, optimizer)
  steps = Steps(job, model, average, optimizer)
  for epoch in range(epochs):
    engine.train_one_epoch(
      model,
      criterion,
      steps.batches(epoch * size, size),
      optimizer,
      torch.device("cpu"),
      epoch,
      steps.scaled,
      c["clip"],
      average,
      steps.mix,
      set_training_mode=True,
      args=args,
    )
    scheduler.step(epoch)
  job.save(torch, timm)


if __name__ == "__main__":
  main()
