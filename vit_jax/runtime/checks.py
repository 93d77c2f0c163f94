"""Checks values from configurations, flags and publishers' files.

Only the standard library is imported, so that settings modules may use it.
"""

import contextlib
import dataclasses
import numbers
import re
import types
import typing
from collections.abc import Callable
from typing import Any

from vit_jax.runtime.printable import quoted

Sides = tuple[int, int]
PerChannel = tuple[float, ...]
MAX_PIXELS = 89_478_485
"""Larger images are refused before decoding; the limit is Pillow's own.

JPEG files may have four times as many pixels, as they can be reduced while
decoding.
"""
_MOST_FLOAT = 3.4e38
"""Larger numbers overflow in float32, in which models compute."""
_NEEDED = {int: "a whole number", float: "a finite number"}
_NEEDED |= {bool: "True or False", str: "a text"}


@dataclasses.dataclass(frozen=True)
class Rule:
  """A condition on a value.

  Attributes:
    text: The end of a message that says what the value "must ...".
    holds: Whether a value meets the condition.
  """

  text: str
  holds: Callable[[Any], bool]


def up_to(most: float, why: str, least: int = 1) -> Rule:
  """A rule for a size from `least` to `most`; `why` explains the limit."""
  text = f"be {least} or more, and at most {most:,}: {why}"
  return Rule(text, lambda x: least <= x <= most)


def _is_pattern(text: str) -> bool:
  """Whether a text is a regular expression."""
  try:
    return re.compile(text) is not None
  except re.error:
    return False


COUNT = Rule("be 1 or more", lambda x: x >= 1)
_WIDEST = "the widest ViT known has an MLP of 24,576"
WIDTH = up_to(65_536, _WIDEST)
IN_ORDER = Rule(
  "be different numbers from 1 on, in ascending order",
  lambda x: list(x) == sorted({*x}) and min(x, default=1) > 0,
)
WIDTH_OR_0 = up_to(65_536, _WIDEST, 0)
DEPTH = up_to(1_000, "no known Transformer has more layers")
CLASSES = up_to(10_000_000, "the head has a column for each")
_HELD = "a batch is held in memory"
BATCH = up_to(2**20, _HELD)
BATCH_OR_0 = up_to(2**20, _HELD, 0)
SHARE = Rule("lie in (0, 1]", lambda x: 0 < x <= 1)
RATIO = up_to(64, "a crop of a larger image would show less than 1/4096 of it")
BANDS = up_to(1_024, "no camera is known to have more bands")
PATTERN = Rule("be a regular expression", _is_pattern)
POSITIVE = Rule("be more than 0", lambda x: x > 0)
NOT_NEGATIVE = Rule("not be negative", lambda x: x >= 0)
BELOW_1 = Rule("be in [0, 1)", lambda x: 0 <= x < 1)
BETWEEN_0_AND_1 = Rule("lie between 0 and 1", lambda x: 0 < x < 1)
SIDES = Rule(
  "be a height and a width, as in (224, 224), or one number for both, of at "
  f"most {MAX_PIXELS:,} pixels, as no larger image is decoded",
  lambda size: min(size) >= 1 and size[0] * size[1] <= MAX_PIXELS,
)
_EACH = "for each channel, such as red, green and blue"
CHANNELS = Rule(f"be a finite number {_EACH}", bool)
POSITIVE_CHANNELS = Rule(
  f"be a number above 0 {_EACH}", lambda values: min(values, default=0) > 0
)
# The type and the rule of keywords and flags about images.
IMAGE_VALUES = {
  "image_size": (Sides, SIDES),
  "grid": (Sides, SIDES),
  "mean": (PerChannel, CHANNELS),
  "std": (PerChannel, POSITIVE_CHANNELS),
}


def checked(
  name: str,
  kind: Any,
  value: Any,
  must: Rule | None = None,
  choices: tuple[str, ...] = (),
) -> Any:
  """The value, converted to a type: a list to a tuple, an int to a float.

  The type is `int`, `float`, `bool`, `str` or a tuple type such as
  `tuple[int, int]`, for which one number stands for both, or
  `tuple[float, ...]`; with `| None`, None is accepted as well. `must` is a
  condition on the converted value. Raises ValueError, which names `name`, if
  the value is of another type, breaks the rule or is not among `choices`.
  """
  kind, optional = without_none(kind)
  if value is None and optional:
    return None
  try:
    result = _convert(kind, value)
  except TypeError as error:
    several = typing.get_origin(kind) is tuple
    needed = must.text if must and several else f"be {error}"
    raise ValueError(f"{name}={quoted(value)} must {needed}.") from None
  if must is not None and not must.holds(result):
    raise ValueError(f"{name}={quoted(value)} must {must.text}.")
  if choices and result not in choices:
    raise ValueError(
      f"{name}={quoted(value)} is unknown; choose one of {', '.join(choices)}."
    )
  return result


def without_none(kind: Any) -> tuple[Any, bool]:
  """An annotation without its `| None`, and whether it had one."""
  if not isinstance(kind, types.UnionType):
    return kind, False
  (inner,) = (k for k in typing.get_args(kind) if k is not types.NoneType)
  return inner, True


def _convert(kind: Any, value: Any) -> Any:
  """The value as another type; raises TypeError with what is needed instead."""
  if typing.get_origin(kind) is tuple:
    return _convert_tuple(typing.get_args(kind), value)
  if isinstance(value, bool) and kind is not bool:
    value = None  # Python counts True and False as numbers.
  if kind is int and isinstance(value, numbers.Integral):
    return int(value)
  if kind is float and isinstance(value, numbers.Real):
    with contextlib.suppress(OverflowError):  # Too large for a float.
      number = float(value)
      if abs(number) <= _MOST_FLOAT:  # False for NaN.
        return number
  if kind in (bool, str) and isinstance(value, kind):
    return value
  raise TypeError(_NEEDED[kind])


def _convert_tuple(kinds: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
  """The value as a tuple of these types; raises as `_convert` does."""
  if hasattr(value, "tolist"):  # A NumPy array.
    value = value.tolist()
  if kinds == (int, int) and isinstance(value, numbers.Integral):
    value = (value, value)
  if kinds[-1] is Ellipsis and isinstance(value, list | tuple):
    kinds = kinds[:1] * len(value)
  if not isinstance(value, list | tuple) or len(value) != len(kinds):
    raise TypeError(f"{len(kinds)} numbers")
  return tuple(map(_convert, kinds, value))
