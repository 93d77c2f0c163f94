"""Prithvi-EO as its authors save it; its encoder is only read.

Prithvi (arXiv:2412.02732, as terratorch has it) is a masked autoencoder of
images with six bands at several times. Its names are timm's, below `encoder.`
since release 2. A patch covers one time. Only the positions of the first time
are read, which are those of a single image. The inputs of time and place of
some models (`TL` in the name) are left out.
"""

import dataclasses
from typing import Any

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.settings import EvalTransformSettings
from vit_jax.models import BaseVit
from vit_jax.pretrained.formats import timm
from vit_jax.pretrained.formats.architecture import Architecture, need, section
from vit_jax.pretrained.formats.mapping import Rule, Shapes, axis_sizes
from vit_jax.runtime import checks
from vit_jax.runtime.checks import checked

_KERNEL, _POSITIONS = "patch_embed.proj.weight", "pos_embed"
_ENCODER = "encoder."
# Arrays beside those of an encoder of images.
_UNUSED = ("mask_token", "decoder", "temporal_embed", "location_embed")
# The value of a reflectance of 1 in the files that Prithvi was trained on.
_WHITE = 10_000
_NOTE = (
  "the values of its images are reflectances times 10,000: 10,000 and more is "
  "white"
)


def prefix(shapes: Shapes) -> str | None:
  """The prefix of the encoder's names; None for other formats."""
  for before in (_ENCODER, ""):
    if len(shapes.get(before + _KERNEL, ())) == 5:
      return before
  return None


def unused(shapes: Shapes) -> list[str]:
  """Names of the arrays that only pre-training, time and place need."""
  return [name for name in shapes if name.startswith(_UNUSED)]


def infer(shapes: Shapes, config: Any = None, grid: Any = None) -> Architecture:
  """Infers the encoder of these arrays.

  Args:
    shapes: The shape of each array.
    config: The config.json beside it, if there is one.
    grid: The patches of an image along height and width, if a user gives them.

  Raises:
    ValueError: if a patch covers images of several times, if nothing tells how
      many positions one image has, or as `timm.infer` does.
  """
  _, channels, times, P, _ = need(shapes, _KERNEL, 5)
  if times != 1:
    raise ValueError(
      f"each of its patches covers {times} images of different times, and "
      "models here take single images."
    )
  published = section("pretrained_cfg", (config or {}).get("pretrained_cfg"))
  published = published or config or {}
  side = checked(
    "img_size", int | None, published.get("img_size"), checks.COUNT
  )
  if grid is None and side is not None:
    grid = (side // P, side // P)
  stored = need(shapes, _POSITIONS, 3)[1] - 1
  if grid is None or stored % (grid[0] * grid[1]):
    raise ValueError(
      f"its {stored} positions are those of one or of several images, and no "
      "img_size in a config.json tells which: give grid=(h, w), the number of "
      "patches of one image along height and width."
    )
  tokens = grid[0] * grid[1]
  heads = published.get("num_heads")
  arguments: dict[str, Any] = {"global_pool": "token"}
  if heads is not None:
    arguments["num_heads"] = heads
  architecture = timm.infer(
    _as_timms(shapes, tokens), {"model_args": arguments}, grid
  )
  mean, std = (_in_white(published, key, channels) for key in ("mean", "std"))
  guessed = {
    *(architecture.guessed & {"num_heads"}),
    *(name for name in ("mean", "std") if not published.get(name)),
    "crop",
  }
  return dataclasses.replace(
    architecture,
    format="prithvi",
    fields={**architecture.fields, "layer_norm_epsilon": 1e-5},
    tokens=tokens,
    image_size=(grid[0] * P, grid[1] * P),
    preprocessing=Preprocessing(
      None,
      EvalTransformSettings("resize"),
      mean=mean,
      std=std,
      window=(0, _WHITE),
    ),
    interpolation="bicubic_corners",
    guessed=frozenset(guessed),
    notes=(_NOTE,),
  )


def rules(vit: BaseVit, shapes: Shapes | None = None) -> list[Rule]:
  """The rules for all arrays of a checkpoint to read.

  Raises ValueError if the positions are missing or have other axes.
  """
  shapes = shapes or {}
  stored = need(shapes, _POSITIONS, 3)[1]
  sizes = axis_sizes(vit)
  tokens = sizes["y"] * sizes["x"]
  changes: dict[str, Any] = {
    _KERNEL: dict(pattern="D C 1 P Q -> (P Q C) D"),
    _POSITIONS: dict(stored_rows=stored, rows=1 + tokens),
  }
  return [
    dataclasses.replace(rule, **changes.get(rule.theirs, {}))
    for rule in timm.rules(vit, _as_timms(shapes, tokens))
  ]


def _as_timms(shapes: Shapes, tokens: int) -> Shapes:
  """The shapes that timm's model of one image of `tokens` patches has."""
  D, C, _, P, Q = shapes[_KERNEL]
  return {
    **shapes,
    _KERNEL: (D, C, P, Q),
    _POSITIONS: (1, 1 + tokens, D),
  }


def _in_white(published: Any, key: str, channels: int) -> tuple[float, ...]:
  """A published mean or deviation, in units of a reflectance of 1.

  It is a half for each channel if `published` has none. Raises ValueError if
  the numbers are invalid.
  """
  value = published.get(key) or [_WHITE / 2] * channels
  rule = checks.CHANNELS if key == "mean" else checks.POSITIVE_CHANNELS
  return tuple(x / _WHITE for x in checked(key, checks.PerChannel, value, rule))
