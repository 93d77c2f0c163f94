"""A row of the comparison of pixels."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

Case = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class PixelRow:
  """Changes of an image to compare.

  Attributes:
    title: What is compared, for the page.
    program: The file in `reference/` that makes the reference's pixels.
    cases: What it is told for each image; "kind" names its function, and
      "source" one of `sources`.
    ours: Makes ours of a case and its image.
    sources: The images, uint8 (H, W, 3), or files, uint8 (bytes,).
    most: The largest difference that may be, in levels of 255.
    share: The share of numbers that may differ at all.
    every: Of rows and columns of an image, one in so many is kept.
    different: What is different on purpose, in a sentence each.
  """

  title: str
  reference: str
  program: str
  cases: Callable[[], list[Case]]
  ours: Callable[[Case, Any], Any]
  sources: Callable[[], dict[str, np.ndarray]] = dict
  most: float = 0.0
  share: float = 0.0
  every: tuple[int, int] = (1, 1)
  different: tuple[str, ...] = ()

  def kept(self, found: Any) -> np.ndarray:
    """The part of a result that is recorded and compared."""
    found = np.asarray(found)
    if found.ndim != 3 or self.every == (1, 1):
      return found
    return found[:: self.every[0], :: self.every[1]]
