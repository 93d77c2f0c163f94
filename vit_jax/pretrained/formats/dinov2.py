"""DINOv2 as facebookresearch/dinov2 saves it; it is only read.

The names are timm's, except those of the registers, of the [mask] embedding,
and of the two layers of a gated MLP, `w12` and `w3`. Registers have no
position.
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

# Parts of timm's names -> the same parts in this format.
_NAMES = {
  "reg_token": "register_tokens",
  ".mlp.fc1.": ".mlp.w12.",
  ".mlp.fc2.": ".mlp.w3.",
}
_SIGNATURES = {"mask_token", "register_tokens"}


def prefix(shapes: Shapes) -> str | None:
  """The empty prefix; None for other formats."""
  has_layer_scale = {"cls_token", "blocks.0.ls1.gamma"} <= shapes.keys()
  if not has_layer_scale or not _SIGNATURES & shapes.keys():
    return None
  return timm.prefix(shapes)


def unused(shapes: Shapes) -> list[str]:
  """The name of the array that only pre-training needs."""
  return [name for name in shapes if name == "mask_token"]


def infer(shapes: Shapes, config: Any = None, grid: Any = None) -> Architecture:
  """Infers the model of these arrays; the format has no configuration.

  Raises ValueError if the file is a DINOv3, if a configuration of another
  format lies beside it, or as `timm.infer` does.
  """
  check_timms(config or {})
  if "rope_embed.periods" in shapes:
    raise ValueError(
      "it is a DINOv3 as facebookresearch/dinov3 saves it, which is not "
      "supported: take the file that transformers or timm reads."
    )
  to_timms = {theirs: timms for timms, theirs in _NAMES.items()}
  timms_shapes = {
    _replace_parts(name, to_timms): shape for name, shape in shapes.items()
  }
  architecture = timm.infer(timms_shapes, None, grid)
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
  gated = getattr(vit, "gated_mlp", False)  # Plain MLPs have timm's names.
  names = {k: v for k, v in _NAMES.items() if gated or ".mlp." not in k}
  return [
    dataclasses.replace(rule, theirs=_replace_parts(rule.theirs, names))
    for rule in timm.rules(vit, shapes or {})
  ]


def _replace_parts(name: str, parts: Mapping[str, str]) -> str:
  """A name in which these parts are replaced."""
  for old, new in parts.items():
    name = name.replace(old, new)
  return name
