"""Infers a model's architecture from array shapes and a JSON configuration.

The configuration is untrusted: `whole`, `number`, `triple`, `sides` and
`section` validate each value that is taken from it.
"""

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from vit_jax.pretrained.formats.mapping import Shapes
from vit_jax.runtime.printable import quoted

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
T = TypeVar("T")
# Hidden size -> head size, for published models whose heads are not of size 64.
_HEAD_SIZES = {1152: 72, 1280: 80, 1408: 88, 1664: 104}


@dataclasses.dataclass(frozen=True)
class Architecture:
  """Everything that a format can tell about a published model.

  Attributes:
    format: Name of the format.
    fields: Values for the fields of `Vit`.
    tokens: Number of patches that the stored positions are for; None if no
      positions are stored.
    image_size: Height and width in pixels, if the publisher records them.
    mean: Mean of each channel, for pixel values in [0, 1].
    std: Standard deviation of each channel, for pixel values in [0, 1].
    class_names: Names of the classes, if the publisher records them.
  """

  format: str
  fields: Mapping[str, Any]
  tokens: int | None
  image_size: tuple[int, int] | None = None
  mean: tuple[float, ...] = (0.5, 0.5, 0.5)
  std: tuple[float, ...] = (0.5, 0.5, 0.5)
  class_names: tuple[str, ...] = ()


def need(shapes: Shapes, name: str, ndim: int) -> tuple[int, ...]:
  """Returns the shape of an array from which a model size is read.

  Raises:
    ValueError: if the array is missing, has another number of axes, or is
      empty. The axes of an empty array can claim any length, since they take
      no byte of the file.
  """
  shape = shapes.get(name)
  if shape is None:
    raise ValueError(
      f"it has no array {name!r}, from which the model's size is read."
    )
  if len(shape) != ndim:
    raise ValueError(
      f"its array {name!r} has the shape {shape}; {ndim} axes are needed."
    )
  if not all(shape):
    raise ValueError(
      f"its array {name!r} has the shape {shape}, so it is empty."
    )
  return shape


def length(shapes: Shapes, name: str, default: T) -> int | T:
  """The length of a one-dimensional array, or the default if it is missing."""
  return need(shapes, name, 1)[0] if name in shapes else default


def count_layers(shapes: Shapes, before: str) -> int:
  """Counts the distinct numbers that follow `before` in the array names."""
  return len(
    {
      name.removeprefix(before).split(".")[0]
      for name in shapes
      if name.startswith(before)
    }
  )


def guess_num_heads(hidden_size: int) -> int | None:
  """The number of heads that published models of this width have.

  The shape of no array reveals it. Returns None if there is no published model
  of this width.
  """
  head_size = _HEAD_SIZES.get(hidden_size, 64)
  if hidden_size < 192 or hidden_size % head_size:
    return None
  return hidden_size // head_size


def square(tokens: int) -> tuple[int, int] | None:
  """The square grid with this number of patches, or None if there is none."""
  side = math.isqrt(tokens)
  return (side, side) if side * side == tokens else None


def whole(name: str, value: Any) -> int:
  """Returns a value that must be a whole number of 1 or more.

  Raises:
    ValueError: if it is not; the message calls it `name`.
  """
  if not _is_whole(value):
    raise _refusal(name, value, "a whole number, 1 or more")
  return int(value)


def number(name: str, value: Any) -> float:
  """Returns a value that must be finite and above 0; raises as `whole` does."""
  if not _is_finite(value) or value <= 0:
    raise _refusal(name, value, "a number above 0")
  return float(value)


def triple(
  name: str, value: Any, *, positive: bool = False
) -> tuple[float, ...]:
  """Returns three finite numbers, one per channel; raises as `whole` does."""
  values = _values(value)
  if (
    len(values) != 3
    or not all(map(_is_finite, values))
    or (positive and min(values) <= 0)
  ):
    above = " above 0" if positive else ""
    needed = f"three numbers{above}, for red, green and blue"
    raise _refusal(name, value, needed)
  return tuple(map(float, values))


def sides(name: str, value: Any) -> tuple[int, int]:
  """Returns height and width, given as a pair or as one number for both.

  Raises:
    ValueError: as `whole` does.
  """
  values = (value, value) if _is_whole(value) else _values(value)
  if len(values) != 2 or not all(map(_is_whole, values)):
    needed = "a height and a width, whole numbers of 1 or more, or one for both"
    raise _refusal(name, value, needed)
  return int(values[0]), int(values[1])


def optional(check: Callable[[str, Any], T], name: str, value: Any) -> T | None:
  """Applies one of the checks above to a value, unless the value is None."""
  return None if value is None else check(name, value)


def section(name: str, value: Any) -> Mapping[str, Any]:
  """Returns a JSON object, {} for null; raises as `whole` does."""
  if value is not None and not isinstance(value, dict):
    raise _refusal(name, value, "a JSON object")
  return value or {}


def _refusal(name: str, value: Any, needed: str) -> ValueError:
  return ValueError(f"{name}={quoted(value)} must be {needed}: correct it.")


def _values(value: Any) -> tuple[Any, ...]:
  """The items of a list or an array; () for anything else."""
  is_list = isinstance(value, list | tuple | np.ndarray)
  return tuple(value) if is_list else ()


def _is_whole(value: Any) -> bool:
  is_int = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  return is_int and int(value) >= 1


def _is_finite(value: Any) -> bool:
  try:
    return not isinstance(value, bool) and math.isfinite(value)
  except (TypeError, OverflowError):  # Not a number, or too large for a float.
    return False
