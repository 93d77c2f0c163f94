"""What can be known of a model from the shapes of its published arrays."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from vit_jax.pretrained.rules import Shapes

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# Head sizes of published models other than 64, by hidden size.
_HEAD_SIZES = {1152: 72, 1280: 80, 1408: 88, 1664: 104}


@dataclasses.dataclass(frozen=True)
class Facts:
  """A published model, as far as its format and its shapes tell.

  Attributes:
    format: Name of the format.
    fields: Of `Vit`.
    tokens: Patches that its positions are for; None where none are stored.
    image_size: Height and width in pixels, where the publisher says.
    mean: Of each channel, in units of full scale.
    std: The same.
    class_names: Where the publisher says.
  """

  format: str
  fields: Mapping[str, Any]
  tokens: int | None
  image_size: tuple[int, int] | None = None
  mean: tuple[float, ...] = (0.5, 0.5, 0.5)
  std: tuple[float, ...] = (0.5, 0.5, 0.5)
  class_names: tuple[str, ...] = ()


def need(shapes: Shapes, name: str, ndim: int) -> tuple[int, ...]:
  """The shape of an array that tells a size.

  Raises:
    ValueError: if it is missing or has another number of axes.
  """
  shape = shapes.get(name)
  if shape is None:
    raise ValueError(f"it has no array {name!r}, which tells the model's size.")
  if len(shape) != ndim:
    raise ValueError(f"its array {name!r} is {shape}, not of {ndim} axes.")
  return shape


def count_layers(shapes: Shapes, before: str) -> int:
  """Different numbers that follow `before` in the names."""
  return len(
    {
      name.removeprefix(before).split(".")[0]
      for name in shapes
      if name.startswith(before)
    }
  )


def guess_num_heads(hidden_size: int) -> int | None:
  """Heads by the published models' head sizes; no array tells them.

  None where there is no published model of that width.
  """
  head_size = _HEAD_SIZES.get(hidden_size, 64)
  if hidden_size < 192 or hidden_size % head_size:
    return None
  return hidden_size // head_size


def square(tokens: int) -> tuple[int, int] | None:
  """The square grid of so many patches, None if there is none."""
  side = math.isqrt(tokens)
  return (side, side) if side * side == tokens else None


def has_class_position(positions: int) -> bool:
  """Whether so many include the class token's; a square grid's do not."""
  return square(positions) is None
