"""The classes of an image's pixels as a file, and in colours on the image."""

from collections.abc import Sequence
from typing import IO

import numpy as np
from jaxtyping import Int
from PIL import Image

from vit_jax.data.reading.mask_folder import IGNORED
from vit_jax.tasks.pictures import Photograph
from vit_jax.tasks.segmentation.pictures import overlay, palette, strips
from vit_jax.tasks.task import class_name

Mask = Int[np.ndarray, "H W"]


class MaskFiles:
  """Writes masks, with counts of each class; see `Answers.pixel_files`.

  A mask is a PNG of indices with a palette, or of 16 bits for more than 255
  classes.
  """

  one, folder, ending = "mask", "masks", ".png"

  def __init__(self, names: Sequence[str]):
    self._names = names
    self.counts = np.zeros(0, np.int64)
    self.masks = 0

  def add(self, mask: Mask) -> None:
    """Counts the pixels of each class of one more mask."""
    self.masks += 1
    for rows in strips(mask.shape):
      more = np.bincount(mask[rows].ravel(), minlength=len(self.counts))
      more[: len(self.counts)] += self.counts
      self.counts = more

  def save(self, mask: Mask, out: IO[bytes]) -> None:
    """Writes a mask to an open file."""
    if len(self._names) > IGNORED or mask.max(initial=0) > IGNORED:
      Image.fromarray(mask.astype(np.uint16)).save(out, "PNG")
      return
    picture = Image.fromarray(mask.astype(np.uint8))
    picture.putpalette(palette().tobytes())
    picture.save(out, "PNG")

  def overlay(self, image: Photograph, mask: Mask) -> Photograph:
    """The image in the colours of its classes."""
    return overlay(image, mask, len(self._names))

  def lines(self) -> list[str]:
    """The share of the pixels that each class has, and its colour."""
    if not self.masks:
      return []
    total = int(self.counts.sum())
    colours = palette()
    shares = [
      f"{self.counts[k] / total:6.1%}  {_class_text(self._names, int(k))}"
      f"  #{colours[k % len(colours)].tobytes().hex()}"
      for k in np.argsort(-self.counts, kind="stable")
      if self.counts[k]
    ]
    images = "1 image" if self.masks == 1 else f"{self.masks:,} images"
    return [
      f"The pixels of {images} by class, with its colour in these files:",
      *shares,
    ]


def _class_text(names: Sequence[str], index: int) -> str:
  """The name of a class; if it is only a number, "class" before it."""
  name = class_name(names, index)
  return f"class {name}" if name.isdecimal() else name
