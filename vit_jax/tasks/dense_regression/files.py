"""The numbers of an image's pixels as a file, and in colours."""

import dataclasses
from typing import IO

import numpy as np
from jaxtyping import Float
from PIL import Image

from vit_jax.tasks.dense_regression.pictures import heat, span
from vit_jax.tasks.pictures import Photograph

_MOST = (1 << 16) - 1

Numbers = Float[np.ndarray, "H W"]


@dataclasses.dataclass
class NumberFiles:
  """Writes files of numbers, with statistics; see `Answers.pixel_files`.

  A file is a PNG of 16 bits if the training targets were multiples of `level`,
  the number that one of its levels stands for, and otherwise, with `level` 0, a
  TIFF of float32. `cut` counts the numbers that 16 bits cannot hold.
  """

  name: str
  unit: str
  level: float
  one: str = "target"
  least: float = np.inf
  most: float = -np.inf
  total: float = 0.0
  pixels: int = 0
  cut: int = 0

  @property
  def folder(self) -> str:
    return "numbers"

  @property
  def ending(self) -> str:
    return ".png" if self.level else ".tif"

  def add(self, numbers: Numbers) -> None:
    """Adds the numbers of one more image to the statistics."""
    least, most = span(numbers)
    self.least = min(self.least, least)
    self.most = max(self.most, most)
    self.total += float(numbers.sum(dtype=np.float64))
    self.pixels += numbers.size
    if self.level:
      beyond = (numbers < 0) | (numbers > _MOST * self.level)
      self.cut += int(beyond.sum())

  def save(self, numbers: Numbers, out: IO[bytes]) -> None:
    """Writes the numbers of an image to an open file."""
    if not self.level:
      Image.fromarray(numbers.astype(np.float32)).save(out, "TIFF")
      return
    levels = np.rint(numbers / np.float32(self.level)).clip(0, _MOST)
    Image.fromarray(levels.astype(np.uint16)).save(out, "PNG")

  def overlay(self, image: Photograph, numbers: Numbers) -> Photograph:
    """The numbers in colours, from the image's least to its greatest."""
    del image
    return heat(numbers, *span(numbers))

  def lines(self) -> list[str]:
    """Lines with the statistics of the files."""
    if not self.pixels:
      return []
    unit = f" {self.unit}" if self.unit else ""
    kind = "floats in TIFF files"
    if self.level:
      kind = f"PNG files of 16 bits, whose levels are {self.level:g}{unit} each"
    line = (
      f"{self.name}: {self.least:.6g} to {self.most:.6g}{unit}, mean "
      f"{self.total / self.pixels:.6g}, as {kind}."
    )
    if not self.cut:
      return [line]
    share = self.cut / self.pixels
    return [
      line,
      f"{share:.2%} of the numbers are beyond what 16 bits hold, and are cut.",
    ]
