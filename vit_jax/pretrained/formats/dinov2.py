"""DINOv2 as facebookresearch/dinov2 saves it; it is only read.

The names are timm's but for the registers, which have no position here, the
[mask] embedding, and the two layers of a gated MLP, `w12` and `w3`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vit_jax.models import BaseVit
from vit_jax.pretrained.formats import timm
from vit_jax.pretrained.formats.architecture import (
  Architecture,
  check_timms,
  need,
)
from vit_jax.pretrained.formats.mapping import Rule, Shapes

# timm's names of some arrays, and theirs here.
_NAMES = {
  "reg_token": "register_tokens",
  ".mlp.fc1.": ".mlp.w12.",
  ".mlp.fc2.": ".mlp.w3.",
}
_OWN = {"mask_token", "register_tokens"}


def prefix(shapes: Shapes) -> str | None:
  """The empty prefix; None for other formats."""
  scaled = {"cls_token", "blocks.0.ls1.gamma"} <= shapes.keys()
  if not scaled or not _OWN & shapes.keys():
    return None
  return timm.prefix(shapes)


def unused(shapes: Shapes) -> list[str]:
  """The name of the array that only pre-training needs."""
  return [name for name in shapes if name == "mask_token"]


def infer(shapes: Shapes, config: Any = None, grid: Any = None) -> Architecture:
  """Infers the model of these arrays; the format has no configuration.

  Raises ValueError if the file is a DINOv3, if a configuration lies beside it
  that is of another format, or as `timm.infer` does.
  """
  check_timms(config or {})
  if "rope_embed.periods" in shapes:
    raise ValueError(
      "it is a DINOv3 as facebookresearch/dinov3 saves it, which is not "
      "supported: take the file that transformers or timm reads."
    )
  timms = dict(zip(_NAMES.values(), _NAMES, strict=True))
  renamed = {_renamed(name, timms): shape for name, shape in shapes.items()}
  architecture = timm.infer(renamed, None, grid)
  registers = "register_tokens" in shapes
  changes = dict(position="learned", antialias=registers)
  return dataclasses.replace(
    architecture,
    format="dinov2",
    fields={**architecture.fields, **changes},
    tokens=need(shapes, "pos_embed", 3)[1] - 1,
    interpolation="bicubic",
  )


def rules(vit: BaseVit, shapes: Shapes | None = None) -> list[Rule]:
  """The rules for all arrays of a checkpoint to read."""
  gated = getattr(vit, "gated_mlp", False)  # Another MLP has timm's names.
  names = {k: v for k, v in _NAMES.items() if gated or ".mlp." not in k}
  return [
    dataclasses.replace(rule, theirs=_renamed(rule.theirs, names))
    for rule in timm.rules(vit, shapes or {})
  ]


def _renamed(name: str, parts: Mapping[str, str]) -> str:
  """A name in which these parts are replaced."""
  for old, new in parts.items():
    name = name.replace(old, new)
  return name
