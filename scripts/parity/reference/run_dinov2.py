"""Runs DINOv2's own SSLMetaArch, its heads, losses and parameter groups.

Its step is that of dinov2/train/train.py, on one CPU: nothing is sharded, and
attention is its own without xFormers. `fmha`, which only joins and splits
rows, is written here.
"""

import copy
import math
import os
import sys
import types
from functools import partial
from types import SimpleNamespace as Fields
from typing import Any

import numpy as np
import torch
from common import Job, Stubs

os.environ["XFORMERS_DISABLED"] = "1"


class Rows:
  """Stands for xFormers' BlockDiagonalMask."""

  def __init__(self, sizes: list[int]):
    self.sizes = sizes

  @classmethod
  def from_tensor_list(cls, parts: list[Any]) -> Any:
    return cls([x.shape[1] for x in parts]), torch.cat(parts, dim=1)

  def split(self, x: Any) -> list[Any]:
    return list(x.split(self.sizes, dim=1))


def stand_in() -> None:
  """Puts stand-ins for libraries that a step on a CPU does not need."""
  ops: Any = types.ModuleType("xformers.ops")
  ops.fmha = Fields(BlockDiagonalMask=Rows)
  xformers: Any = types.ModuleType("xformers")
  xformers.ops = ops
  sys.modules |= {"xformers": xformers, "xformers.ops": ops}
  Stubs("fvcore", "omegaconf", "torchvision")
  tensor: Any = torch.Tensor
  tensor.cuda = lambda x, *_, **__: x


stand_in()

from dinov2.models import vision_transformer as vits  # noqa: E402
from dinov2.train import ssl_meta_arch  # noqa: E402
from dinov2.utils.utils import CosineScheduler  # noqa: E402


def configured(c: dict[str, Any]) -> Any:
  """The part of ssl_default_config.yaml that the model reads."""
  head = dict(
    head_n_prototypes=c["prototypes"],
    head_bottleneck_dim=c["bottleneck"],
    head_nlayers=3,
    head_hidden_dim=c["head"],
    loss_weight=1.0,
  )
  student = Fields(
    arch="vit_tiny",
    patch_size=c["patch"],
    drop_path_rate=0.0,
    layerscale=1e-5,
    drop_path_uniform=True,
    pretrained_weights="",
    ffn_layer="mlp",
    block_chunks=0,
    qkv_bias=True,
    proj_bias=True,
    ffn_bias=True,
    num_register_tokens=0,
    interpolate_antialias=False,
    interpolate_offset=0.0,
  )
  return Fields(
    compute_precision=Fields(grad_scaler=False),
    dino=Fields(**head, koleo_loss_weight=0.1),
    ibot=Fields(
      **head,
      mask_ratio_min_max=(0.1, 0.5),
      mask_sample_probability=0.5,
      separate_head=False,
    ),
    train=Fields(centering="centering"),
    student=student,
    crops=Fields(global_crops_size=c["side"], local_crops_number=c["small"]),
    optim=Fields(layerwise_decay=0.9, patch_embed_lr_mult=0.2),
  )


def make_model(c: dict[str, Any]) -> Any:
  vits.vit_tiny = partial(
    vits.DinoVisionTransformer,
    embed_dim=c["hidden"],
    depth=c["layers"],
    num_heads=c["heads"],
    mlp_ratio=c["mlp"] / c["hidden"],
    block_fn=partial(vits.Block, attn_class=vits.MemEffAttention),
  )

  def each(self: Any, crops: Any, masks: Any) -> Any:
    pairs = zip(crops, masks, strict=True)
    return [self.forward_features(*pair) for pair in pairs]

  vits.DinoVisionTransformer.forward_features_list = each
  ssl_meta_arch.get_fsdp_modules = lambda m: [Fields(params=[*m.parameters()])]
  model = ssl_meta_arch.SSLMetaArch(configured(c))
  model.need_to_synchronize_fsdp_streams = False
  return model


def crops_of(job: Job, t: int) -> dict[str, Any]:
  """A batch as dinov2/data/collate.py has it: all first crops, all second."""

  def stacked(x: np.ndarray) -> Any:
    rows = torch.tensor(x).swapaxes(0, 1).flatten(0, 1)
    return rows.permute(0, 3, 1, 2).contiguous() if rows.ndim == 4 else rows

  pair = np.stack([job.images[t], job.extra["second"][t]], axis=1)
  masks = stacked(job.extra["masks"][t])
  places = masks.flatten().nonzero().flatten()
  weight = 1 / masks.sum(-1).clamp(min=1.0)
  return {
    "collated_global_crops": stacked(pair),
    "collated_local_crops": stacked(job.extra["small"][t]),
    "collated_masks": masks,
    "mask_indices_list": places,
    "masks_weight": weight.unsqueeze(-1).expand_as(masks)[masks],
    "upperbound": masks.numel(),
    "n_masked_patches": torch.full((1,), len(places)),
  }


class Gram:
  """Adds DINOv3's GramLoss of the student's patches of large crops."""

  def __init__(self, model: Any, c: dict[str, Any]):
    from dinov3.loss.gram_loss import GramLoss

    self.compare = GramLoss(apply_norm=True, img_level=True, remove_neg=False)
    self.weight = c["gram"]
    self.earlier: Any = None
    self.crops: Any = None
    self.student: Any = None
    model.student.backbone.register_forward_hook(self.keep)

  def keep(self, _: Any, inputs: Any, outputs: Any) -> None:
    if isinstance(outputs, list):  # Of all crops, the large ones first.
      self.student = outputs[0]["x_norm_patchtokens"]

  def renew(self, teacher: Any) -> None:
    self.earlier = copy.deepcopy(teacher.backbone).eval()

  def __call__(self) -> Any:
    with torch.no_grad():
      told = self.earlier(self.crops, is_training=True)
    patches = told["x_norm_patchtokens"]
    return self.weight * self.compare(self.student, patches)


def schedules(c: dict[str, Any], steps: int) -> dict[str, Any]:
  """As in dinov2/train/train.py, but that the rate rises as t / w."""
  warm, w = c["temperature_warmup"], c["warmup"]

  def rate(t: int) -> float:
    share = (1 + math.cos(math.pi * (t - w) / (steps - w))) / 2
    falling = 1e-6 + (c["rate"] - 1e-6) * share
    return c["rate"] * t / w if t < w else falling

  return {
    "rate": [rate(t) for t in range(steps)],
    "decay": CosineScheduler(0.04, 0.4, steps),
    "momentum": CosineScheduler(0.992, 1, steps),
    "temperature": CosineScheduler(
      0.07, 0.07, warm, warmup_iters=warm, start_warmup_value=0.04
    ),
  }


def main() -> None:
  torch.manual_seed(0)
  torch.set_num_threads(1)
  job = Job()
  c = job.config
  model = make_model(c)
  student, teacher = model.student, model.teacher
  arrays = {k: torch.tensor(v) for k, v in job.params.items()}
  for network in (student, teacher):
    network.load_state_dict(arrays)
  losses: list[Any] = []

  gram = Gram(model, c) if "gram" in c else None

  def backward(loss: Any) -> None:
    if gram:
      loss = loss + gram()
    losses.append(loss.item())
    loss.backward()

  model.backprop_loss = backward
  optimizer = torch.optim.AdamW(model.get_params_groups(), betas=(0.9, 0.999))
  names = {id(p): name for name, p in student.named_parameters()}
  at = schedules(c, job.steps)
  model.train()
  probe = torch.tensor(job.probe).permute(0, 3, 1, 2)
  for t in range(job.steps):
    rates, decays = {}, {}
    for group in optimizer.param_groups:
      held = group["is_last_layer"] and t < c["held"]
      group["weight_decay"] = at["decay"][t] * group["wd_multiplier"]
      group["lr"] = 0.0 if held else at["rate"][t] * group["lr_multiplier"]
      for p in group["params"]:
        rates[names[id(p)]] = group["lr"]
        decays[names[id(p)]] = group["lr"] * group["weight_decay"]
    optimizer.zero_grad(set_to_none=True)
    crops = crops_of(job, t)
    if gram:
      gram.crops = crops["collated_global_crops"]
      if t % c["renewed"] == 0:
        gram.renew(teacher)
    model.forward_backward(crops, at["temperature"][t])
    for network in student.values():
      torch.nn.utils.clip_grad_norm_(network.parameters(), 3.0)
    optimizer.step()
    model.update_teacher(at["momentum"][t])
    job.log(losses[-1], rates, decays)
    if job.due():
      for kind, network in (("params", student), ("averaged", teacher)):
        state = network.state_dict()
        job.keep(kind, {k: v.detach().numpy() for k, v in state.items()})
      for centered in (model.dino_loss, model.ibot_patch_loss):
        centered.apply_center_update()
      with torch.no_grad():
        told = student.dino_head(student.backbone(probe))
      centers = model.dino_loss.center, model.ibot_patch_loss.center[0]
      job.keep("logits", {"": torch.cat([told, *centers]).numpy()})
  job.save(torch)


if __name__ == "__main__":
  main()
