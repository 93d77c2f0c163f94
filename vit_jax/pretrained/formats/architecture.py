"""Infers a model's architecture from array shapes and a JSON configuration.

The configuration is untrusted: `runtime.checks.checked` and `section` validate
each value that is taken from it. These and `need` raise ValueError for what a
file must not have, and so do all functions of `formats` that call them.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models import BaseVit
from vit_jax.pretrained.formats.mapping import Shapes
from vit_jax.runtime.printable import quoted

T = TypeVar("T")
# Hidden size -> head size, for published models whose heads are not of size 64.
_HEAD_SIZES = {1152: 72, 1280: 80, 1408: 88, 1664: 104}
# Beginning of transformers' `model_type` or of timm's `architecture` -> family.
UNSUPPORTED = {
  "sapiens2": "Sapiens2, whose heads share keys and values,",
}


def check_supported(config: Mapping[str, Any]) -> None:
  """Raises ValueError if a configuration names a family that is not read."""
  for key in ("model_type", "architecture"):
    name = str(config.get(key, ""))
    for start, family in UNSUPPORTED.items():
      if name.startswith(start):
        raise ValueError(
          f"its config.json says {key}={quoted(name)}: {family} is not "
          "supported."
        )


def check_timms(config: Mapping[str, Any]) -> None:
  """Raises ValueError if a configuration is of a class of transformers.

  `timm_wrapper` is allowed, since it holds a model of timm's.
  """
  kind = config.get("model_type")
  if kind not in (None, "timm_wrapper"):
    raise ValueError(
      f"its config.json says model_type={quoted(kind)}, a type that is not "
      "known here, or whose arrays are not named as timm or DINOv2 name "
      "theirs: what its models compute may differ, so it is not read."
    )


@dataclasses.dataclass(frozen=True)
class Architecture:
  """Everything that a format can say about a published model."""

  format: str  # Its name, as `Origin.format` has it.
  fields: Mapping[str, Any]  # Those of the model, for `models.from_fields`.
  # Number of patches that the stored positions are for; None if no positions
  # are stored.
  tokens: int | None
  # Height and width that the positions are for, if recorded.
  image_size: tuple[int, int] | None = None
  # How the publisher prepares a picture. If it has no size, pictures are
  # resized to `image_size`.
  preprocessing: Preprocessing = dataclasses.field(
    default_factory=lambda: Preprocessing(None)
  )
  class_names: tuple[str, ...] = ()
  # The loss that it was trained with: "softmax", "sigmoid" or "mse".
  loss: str = "softmax"
  # How the family fits its positions to other sizes.
  interpolation: str = "linear"
  # Names of the `guesses.FACTS` that no file states.
  guessed: frozenset[str] = frozenset()
  # Whether the library's model normalises its images by the mean and deviation
  # of `preprocessing`, after whatever its preprocessor does.
  normalizes: bool = False
  # Lines on what a file says that is not followed to the letter.
  notes: tuple[str, ...] = ()


def need(shapes: Shapes, name: str, ndim: int) -> tuple[int, ...]:
  """The shape of an array from which a model size is read.

  Raises ValueError if the array is missing, has another number of axes, or is
  empty. The axes of an empty array can claim any length, since they take no
  byte of the file.
  """
  if name not in shapes:
    raise ValueError(
      f"it has no array {name!r}, from which the model's size is read."
    )
  if len(shape := shapes[name]) == ndim and all(shape):
    return shape
  if len(shape) == ndim:
    why = ", so it is empty"
  else:
    why = f"; {ndim} axes are needed"
  raise ValueError(f"its array {name!r} has the shape {shape}{why}.")


def length(shapes: Shapes, name: str, default: T) -> int | T:
  """The length of a one-dimensional array, or the default if it is missing.

  Raises ValueError if the array has other axes, or is empty.
  """
  return need(shapes, name, 1)[0] if name in shapes else default


def count_layers(shapes: Shapes, before: str) -> int:
  """Counts the distinct numbers that follow `before` in the array names."""
  names = (name for name in shapes if name.startswith(before))
  return len({name.removeprefix(before).split(".")[0] for name in names})


def guess_num_heads(hidden_size: int) -> int | None:
  """The number of heads of published models of this width.

  No array's shape reveals it. It is None for a width below 192, or one that the
  size of a head, 64 or that of `_HEAD_SIZES`, does not divide.
  """
  head_size = _HEAD_SIZES.get(hidden_size, 64)
  if hidden_size < 192 or hidden_size % head_size:
    return None
  return hidden_size // head_size


def square(tokens: int) -> tuple[int, int] | None:
  """The square grid with this number of patches, or None if there is none."""
  side = math.isqrt(tokens)
  return (side, side) if side * side == tokens else None


def size_for_config(vit: BaseVit) -> int | list[int]:
  """The size in pixels that positions are for, one number if it is a square."""
  size = table_size(vit)
  assert size is not None  # A table of positions has a size.
  return size[0] if size[0] == size[1] else list(size)


def table_size(vit: Any) -> tuple[int, int] | None:
  """Height and width in pixels that the positions are for; None if not known.

  The patches may leave out the last pixels of the model's images.
  """
  size = vit.origin.image_size if vit.origin else None
  if vit.position_grid is None:
    return size
  P = vit.patch_size
  h, w = vit.position_grid
  if size and (size[0] // P, size[1] // P) == (h, w):
    return size
  return h * P, w * P


def channels_of(vit: Any) -> int:
  """The number of channels of the model's images."""
  return len(vit.origin.mean) if vit.origin else 3


def section(name: str, value: Any) -> Mapping[str, Any]:
  """Returns a JSON object, {} for null; `name` is its name in messages.

  Raises ValueError if the value is neither.
  """
  if value is not None and not isinstance(value, dict):
    raise ValueError(f"{name}={quoted(value)} must be a JSON object.")
  return value or {}
