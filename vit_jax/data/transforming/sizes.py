"""Sizes of images that keep their proportions.

An image is resized so that a given number of patches or fewer cover it, as in
SigLIP 2 (NaFlex, arXiv:2502.14786).
"""

import dataclasses
import math

import numpy as np

from vit_jax.data.settings import TrainTransformSettings

Shape = tuple[int, int]
"""Height and width."""
Box = tuple[int, int, int, int]
"""Top, left, height and width."""

# Least and greatest scale by which an image is resized, and the error of the
# search between them.
_SMALLEST, _LARGEST = 1e-6, 100.0
_CLOSE = 1e-5


@dataclasses.dataclass(frozen=True)
class AnySize:
  """The largest size, in an image's proportions, that `tokens` patches cover.

  Both sides are multiples of `patch_size`, at least one. An image is enlarged a
  hundredfold at most.

  >>> from vit_jax.data.transforming.sizes import AnySize
  >>> size = AnySize(tokens=256, patch_size=16)
  >>> size.of((480, 640)), size.of((640, 480)), size.of((1, 1000))
  ((224, 288), (288, 224), (16, 4096))

  Attributes:
    tokens: The most patches that cover an image.
    patch_size: P, the side of a patch in pixels.
  """

  tokens: int
  patch_size: int

  def __str__(self) -> str:
    """How many patches there may be, and their size in pixels."""
    P = self.patch_size
    return f"at most {self.tokens} patches of {P} x {P}"

  @property
  def height_width(self) -> Shape:
    """Raises ValueError, as images of any size have no common size."""
    raise ValueError(
      "images that keep their proportions have no common height and width."
    )

  def of(self, shape: Shape) -> Shape:
    """The size that a box of this shape is resized to."""
    h, w = self.grid(shape)
    return h * self.patch_size, w * self.patch_size

  def grid(self, shape: Shape) -> Shape:
    """The patches along height and width that cover a box of this shape.

    The box is resized by the largest scale at which `tokens` patches or fewer
    cover it, found by bisection; both sides are rounded up to whole patches.
    """
    # At the smallest scale, one patch has to cover the longest side.
    least = min(_SMALLEST, self.patch_size / max(shape))
    most = _LARGEST
    while most - least >= _CLOSE:
      middle = (least + most) / 2
      if math.prod(self._grid_at(middle, shape)) <= self.tokens:
        least = middle
      else:
        most = middle
    return self._grid_at(least, shape)

  def _grid_at(self, scale: float, shape: Shape) -> Shape:
    """The patches along height and width of a box resized by `scale`."""
    height, width = (
      max(1, math.ceil(side * scale / self.patch_size)) for side in shape
    )
    return height, width

  def box(
    self,
    shape: Shape,
    settings: TrainTransformSettings,
    rng: np.random.Generator,
  ) -> Box:
    """Draws a random box that has the image's own proportions.

    Its share of the area is uniform between `min_area` and 1, and its place is
    uniform.
    """
    side = math.sqrt(rng.uniform(settings.min_area, 1.0))
    height, width = shape
    h, w = (max(1, round(length * side)) for length in shape)
    top = int(rng.integers(height - h, endpoint=True))
    return top, int(rng.integers(width - w, endpoint=True)), h, w


@dataclasses.dataclass(frozen=True)
class OwnSize:
  """The size to which an image is resized for an answer about each pixel.

  The sizes are those that DPT's processor chooses.

  >>> from vit_jax.data.transforming.sizes import OwnSize
  >>> as_dinov2 = OwnSize(pad_to=14)
  >>> as_dinov2.of((480, 640)), as_dinov2.padding((480, 640))
  ((480, 640), ((5, 5), (2, 2)))
  >>> as_dpt = OwnSize((384, 384), keeps_proportions=True, multiple=32)
  >>> as_dpt.of((480, 640)), as_dpt.padding((384, 512))
  ((384, 512), ((0, 0), (0, 0)))

  Attributes:
    size: The height and width to resize to; None keeps the image's own.
    keeps_proportions: Whether both sides are scaled alike, by the scale of the
      side that changes less.
    multiple: The number to whose multiples both sides are rounded.
    pad_to: The number to whose multiples both sides of the normalised image are
      then padded, by zeros around it.
  """

  size: Shape | None = None
  keeps_proportions: bool = False
  multiple: int = 1
  pad_to: int = 1

  def __str__(self) -> str:
    """How the size is chosen, in words."""
    text = "their own size"
    if self.size is not None:
      kept = " in their proportions" if self.keeps_proportions else ""
      text = "about {} x {}".format(*self.size) + kept
    if self.pad_to > 1:
      text += f", padded to multiples of {self.pad_to}"
    return text

  def of(self, shape: Shape) -> Shape:
    """The size that an image of this shape is resized to."""
    if self.size is None:
      return shape
    scales = [new / old for new, old in zip(self.size, shape, strict=True)]
    if self.keeps_proportions:
      tall, wide = scales
      scales = 2 * [wide if abs(1 - wide) < abs(1 - tall) else tall]
    m = self.multiple
    height, width = (
      max(m, round(scale * side / m) * m)
      for scale, side in zip(scales, shape, strict=True)
    )
    return height, width

  def padding(self, shape: Shape) -> tuple[tuple[int, int], tuple[int, int]]:
    """How many zeros to add to an image: (above, below), (left, right)."""
    rows, columns = (-side % self.pad_to for side in shape)
    return (
      (rows // 2, rows - rows // 2),
      (columns // 2, columns - columns // 2),
    )
