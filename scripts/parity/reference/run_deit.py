"""Runs facebookresearch/deit: DeiT, DeiT III and distillation.

The epochs are those of its `engine.train_one_epoch`; optimizer, schedule,
criterion and Mixup are built as its `main` does. Models have its classes and
tiny sizes.
"""

import argparse
import functools
import math
from typing import Any

import torch
from common import Job, Stubs
from torch_draws import Draws, arrays_of, load, mixing, rates

Stubs("submitit")

import engine  # noqa: E402
import models  # noqa: E402
import models_v2  # noqa: E402
import timm  # noqa: E402
from losses import DistillationLoss  # noqa: E402
from timm.data import Mixup  # noqa: E402
from timm.loss import SoftTargetCrossEntropy  # noqa: E402
from timm.optim import create_optimizer  # noqa: E402
from timm.scheduler import create_scheduler  # noqa: E402
from timm.utils import ModelEma, NativeScaler  # noqa: E402

torch.cuda.synchronize = lambda *_: None  # There is no such device.


def make_model(c: dict, kind: str) -> Any:
  sizes: Any = dict(
    img_size=c["side"],
    patch_size=c["patch"],
    num_classes=c["classes"],
    embed_dim=c["hidden"],
    depth=c["layers"],
    num_heads=c["heads"],
    mlp_ratio=c["mlp"] / c["hidden"],
    qkv_bias=True,
    norm_layer=functools.partial(torch.nn.LayerNorm, eps=1e-6),
  )
  if kind == "deit3":
    block = models_v2.Layer_scale_init_Block
    rate = c["drop_path"]
    return models_v2.vit_models(
      block_layers=block, drop_path_rate=rate, **sizes
    )
  if kind == "deit_distilled":
    return models.DistilledVisionTransformer(
      drop_path_rate=c["drop_path"], **sizes
    )
  rate = c["drop_path"] if kind == "deit" else 0.0
  return models.VisionTransformer(drop_path_rate=rate, **sizes)


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


def main() -> None:
  job = Job()
  c, draws = job.config, Draws(job.masks[1:])
  model = make_model(c, c["model"])
  load(model, {theirs(k): x for k, x in job.params.items()})
  average = ModelEma(model, decay=c["ema"]) if c["ema"] else None
  epochs = job.steps // c["epoch_steps"]
  args = argparse.Namespace(
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
  optimizer = create_optimizer(args, model)
  scheduler, _ = create_scheduler(args, optimizer)
  criterion: Any = SoftTargetCrossEntropy()
  if c["bce"]:
    criterion = torch.nn.BCEWithLogitsLoss()
  teacher = None
  if c["distillation"] != "none":
    teacher = make_model(c, "teacher").eval()
    load(teacher, job.extra)
  criterion = DistillationLoss(
    criterion, teacher, c["distillation"], c["alpha"], c["tau"]
  )
  mixup = Mixup(
    mixup_alpha=0.8,
    cutmix_alpha=1.0,
    cutmix_minmax=None,
    prob=1.0,
    switch_prob=0.5,
    mode="batch",
    label_smoothing=c["smoothing"],
    num_classes=c["classes"],
  )
  scaler, images = (
    NativeScaler(),
    torch.tensor(job.images).permute(0, 1, 4, 2, 3),
  )
  labels, probe = torch.tensor(job.labels), torch.tensor(job.probe)
  seen: list[float] = []

  def scaled(loss: Any, optimizer: Any, **options: Any) -> None:
    seen.append(loss.item())
    scaler(loss, optimizer, **options)

  def mix(samples: Any, targets: Any) -> Any:
    t = draws.step
    with mixing(job.mixing[t], bool(job.masks[0][t])):
      return mixup(samples, targets)

  def kept() -> None:
    """After a step, with its average."""
    found = rates(optimizer, model)
    job.log(seen[-1], *(ours(x) for x in found))
    if job.due():
      job.keep("params", ours(arrays_of(model)))
      if average is not None:
        job.keep("averaged", ours(arrays_of(average.ema)))
      model.eval()
      with torch.no_grad():
        job.keep("logits", {"": model(probe.permute(0, 3, 1, 2)).numpy()})
      model.train()

  class Batches(list):
    def __iter__(self) -> Any:
      for t in super().__iter__():
        draws.step = t
        yield images[t].clone(), labels[t].long()
        kept()

  for epoch in range(epochs):
    first = epoch * c["epoch_steps"]
    batches = Batches(range(first, first + c["epoch_steps"]))
    engine.train_one_epoch(
      model,
      criterion,
      batches,
      optimizer,
      torch.device("cpu"),
      epoch,
      scaled,
      c["clip"],
      average,
      mix,
      set_training_mode=True,
      args=args,
    )
    scheduler.step(epoch)
  assert math.isfinite(seen[-1])
  job.facts = {"torch": torch.__version__, "timm": timm.__version__}
  job.save()


if __name__ == "__main__":
  main()
