"""Pictures that a task draws itself, and the functions they share."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from vit_jax.data.batch import BANDS

_GAP = 4  # Pixels between two panels.
_SIDE = 192  # Smaller images are enlarged, with their pixels as squares.

Photograph = UInt8[np.ndarray, "H W 3"]


Draw = Callable[[Any, Sequence[tuple]], list[Photograph]]
"""A function from parameters and examples to a picture of each example.

An example is what `to_draw` returns.
"""


def to_draw(index: int, row: Mapping[str, Any], label: Any) -> tuple:
  """The example of a `Draw`: its place in the split, its pixels and its label.

  Where `row`, the arrays of a batch's row, says which bands the image has,
  these booleans (C,) follow.
  """
  bands = [row[BANDS]] if BANDS in row else []
  return index, row["image"], label, *bands


@dataclasses.dataclass(frozen=True)
class Panels:
  """Pictures in which a task draws examples itself.

  Attributes:
    make: A function from the model and its objective to a `Draw`.
    title, text, alt: A heading, a sentence on the pictures, and the alternative
      text of each.
  """

  make: Callable[[Any, Any], Draw]
  title: str
  text: str
  alt: str


def as_photograph(image: np.ndarray) -> np.ndarray:
  """The first three channels of images (..., C); for C < 3 the first, as grey.

  The result is (..., 3).
  """
  channels = image.shape[-1]
  return image[..., :3] if channels >= 3 else image[..., :1].repeat(3, axis=-1)


def side_by_side(panels: Sequence[Photograph]) -> Photograph:
  """Panels of one size beside each other, with white between them."""
  times = max(1, _SIDE // max(panels[0].shape[:2]))
  large = [x.repeat(times, axis=0).repeat(times, axis=1) for x in panels]
  gap = np.full((len(large[0]), _GAP, 3), 255, np.uint8)
  parts = [part for panel in large for part in (gap, panel)]
  return np.concatenate(parts[1:], axis=1)
