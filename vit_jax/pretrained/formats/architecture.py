"""What can be known of a model from its arrays' shapes and its configuration.

A configuration comes from anywhere: `whole`, `number`, `triple`, `sides` and
`section` take nothing from it that is not what they are named after.
"""

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from vit_jax.pretrained.formats.names import Shapes
from vit_jax.runtime.printable import quoted

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
T = TypeVar("T")
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
    ValueError: if it is missing, has another number of axes, or is empty: then
      its axes may claim any length, as they take no byte of the file.
  """
  shape = shapes.get(name)
  if shape is None:
    raise ValueError(f"it has no array {name!r}, which tells the model's size.")
  if len(shape) != ndim:
    raise ValueError(f"its array {name!r} is {shape}, not of {ndim} axes.")
  if not all(shape):
    raise ValueError(f"its array {name!r} is {shape}, which is empty.")
  return shape


def length(shapes: Shapes, name: str, default: T) -> int | T:
  """Of an array of one axis; the default where it is missing."""
  return need(shapes, name, 1)[0] if name in shapes else default


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


def whole(name: str, value: Any) -> int:
  """A whole number of 1 or more.

  Raises:
    ValueError: if the value, which has that name, is none.
  """
  if not _is_whole(value):
    raise _refusal(name, value, "a whole number, 1 or more")
  return int(value)


def number(name: str, value: Any) -> float:
  """A finite number above 0; raises as `whole` does."""
  if not _is_finite(value) or value <= 0:
    raise _refusal(name, value, "a number above 0")
  return float(value)


def triple(
  name: str, value: Any, *, positive: bool = False
) -> tuple[float, ...]:
  """Three finite numbers, one for each channel; raises as `whole` does."""
  values = _values(value)
  if (
    len(values) != 3
    or not all(map(_is_finite, values))
    or (positive and min(values) <= 0)
  ):
    above = " above 0" if positive else ""
    raise _refusal(name, value, f"three numbers{above}, as of red, green, blue")
  return tuple(map(float, values))


def sides(name: str, value: Any) -> tuple[int, int]:
  """Height and width, given as both or as one; raises as `whole` does."""
  values = (value, value) if _is_whole(value) else _values(value)
  if len(values) != 2 or not all(map(_is_whole, values)):
    needed = "a height and a width, whole numbers of 1 or more, or one for both"
    raise _refusal(name, value, needed)
  return int(values[0]), int(values[1])


def optional(check: Callable[[str, Any], T], name: str, value: Any) -> T | None:
  """What a check makes of a value; None stays None."""
  return None if value is None else check(name, value)


def section(name: str, value: Any) -> Mapping[str, Any]:
  """A JSON object, empty in the place of null; raises as `whole` does."""
  if value is not None and not isinstance(value, dict):
    raise _refusal(name, value, "a JSON object")
  return value or {}


def _refusal(name: str, value: Any, needed: str) -> ValueError:
  return ValueError(f"{name}={quoted(value)} must be {needed}: correct it.")


def _values(value: Any) -> tuple[Any, ...]:
  """What a list or an array holds; nothing of what is neither."""
  is_list = isinstance(value, list | tuple | np.ndarray)
  return tuple(value) if is_list else ()


def _is_whole(value: Any) -> bool:
  is_int = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  return is_int and int(value) >= 1


def _is_finite(value: Any) -> bool:
  try:
    return not isinstance(value, bool) and math.isfinite(value)
  except (TypeError, OverflowError):  # No number, or too large a one.
    return False
