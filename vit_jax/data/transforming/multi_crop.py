"""Crops of two sizes of one image, to learn without labels (arXiv:2006.09882).

Two large crops and some small ones are each mirrored, changed in colour, made
grey, blurred or solarized, with the probabilities of arXiv:2006.07733.
"""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from vit_jax.data.batch import ArraySpec, Spec
from vit_jax.data.decoding.decode import by_fours, decode_image
from vit_jax.data.example import (
  RGB,
  Example,
  ImageSpec,
  Source,
  UnreadableImageError,
  evenly_spread,
)
from vit_jax.data.transforming.augment import random_box
from vit_jax.data.transforming.transforms import resize_fast

_JITTER, _GREY = 0.8, 0.2  # Probabilities of these changes.
_BRIGHTNESS = _CONTRAST = 0.4
_SATURATION, _HUE = 0.2, 0.1
_LOOKED_AT = 8  # Images whose sizes are compared with a large crop.
_RADIUS = 0.1, 2.0  # Least and greatest radius of the blur, in pixels.
# Probabilities to blur and to solarize the first, the second and a small crop.
_CHANCES = (1.0, 0.0), (0.1, 0.2), (0.5, 0.0)


@dataclasses.dataclass(frozen=True)
class MultiCrop:
  """From an example to its crops: a `data.batch.Transform`.

  A row has the large crops, `image` and `second`, uint8 (H, W, C), and the
  small ones, `small`, (n, h, w, C), unless there are none. With a `detail`, the
  row has `detailed` too: the parts of the image that the two large crops show,
  resized to that size, (2, *detail, C), mirrored as the crops are, with the
  colours of the image.

  Attributes:
    size, small: Height and width of large and of small crops.
    count: n, the number of small crops.
    areas: Shares of the image's area: a small crop covers between the first
      two, and a large one between the last two.
    flip: Whether crops are mirrored, each with probability 1/2.
    colours: Whether colours are changed.
    image_spec: How a file becomes pixels.
    chances: The probabilities of blur and of solarization, for the first large,
      the second large and a small crop.
    section: The section of the configuration that its messages name.
    detail: Height and width of the crops of `detailed`; None leaves it out.
  """

  size: tuple[int, int]
  small: tuple[int, int]
  count: int
  areas: tuple[float, float, float]
  flip: bool = True
  colours: bool = True
  image_spec: ImageSpec = RGB
  chances: tuple[tuple[float, float], ...] = _CHANCES
  section: str = "self_distillation"
  detail: tuple[int, int] | None = None

  def __post_init__(self):
    channels = self.image_spec.channels
    if self.colours and channels not in (1, 3):
      raise ValueError(
        f"{self.section}.colours=True is for images of 1 or 3 channels, and "
        f"these have {channels}: set it to False."
      )

  def __str__(self) -> str:
    """How many crops there are, and their sizes."""
    text = "2 crops of {} x {}".format(*self.size)
    if self.count:
      text += " and {} of {} x {}".format(self.count, *self.small)
    if self.detail:
      text += ", at {} x {} for the Gram teacher".format(*self.detail)
    return text

  @property
  def spec(self) -> Spec:
    """The arrays of a row; see the class."""
    C = self.image_spec.channels
    large = ArraySpec((*self.size, C))
    arrays = {"image": large, "second": large}
    if self.count:
      arrays["small"] = ArraySpec((self.count, *self.small, C))
    if self.detail:
      arrays["detailed"] = ArraySpec((2, *self.detail, C))
    return arrays

  def about(self, source: Source) -> str:
    """A line if some of a few images are smaller than a large crop, else ""."""
    height, width = self.size
    shapes = []
    for place in evenly_spread(_LOOKED_AT, len(source)):
      with contextlib.suppress(UnreadableImageError):
        image = decode_image(source[place]["image"], self.image_spec)
        shapes.append(image.shape)
    smaller = [s for s in shapes if s[0] < height or s[1] < width]
    if not smaller:
      return ""
    return (
      f"{height} x {width} is larger than {len(smaller)} of {len(shapes)} "
      "images looked at: crops of smaller images are enlarged; a smaller "
      "image_size costs less"
    )

  def row(
    self, example: Example, *rng: np.random.Generator
  ) -> Mapping[str, Any]:
    """The crops of an example.

    Raises UnreadableImageError if the image cannot be decoded.
    """
    (generator,) = rng
    image = decode_image(example["image"], self.image_spec)
    least, between, most = self.areas
    *of_large, of_small = self.chances
    row: dict[str, Any] = {}
    detailed = []
    sizes = [self.size, *([self.detail] if self.detail else [])]
    for name, chances in zip(("image", "second"), of_large, strict=True):
      crop, *larger = self._crops(image, sizes, (between, most), generator)
      row[name] = self._change_colours(crop, chances, generator)
      detailed += larger
    if self.count:
      small = []
      for _ in range(self.count):
        (crop,) = self._crops(image, [self.small], (least, between), generator)
        small.append(self._change_colours(crop, of_small, generator))
      row["small"] = np.stack(small)
    if detailed:
      row["detailed"] = np.stack(detailed)
    return row

  def _crops(
    self,
    image: np.ndarray,
    sizes: Sequence[tuple[int, int]],
    areas: tuple[float, float],
    rng: np.random.Generator,
  ) -> list[np.ndarray]:
    """A random part of the image at each size, all of them mirrored or none."""
    height, width, _ = image.shape
    top, left, h, w = random_box(height, width, areas, rng)
    part = image[top : top + h, left : left + w]
    crops = [resize_fast(part, size) for size in sizes]
    if self.flip and rng.random() < 0.5:
      crops = [by_fours(lambda x: cv2.flip(x, 1), crop) for crop in crops]
    return crops

  def _change_colours(
    self,
    crop: np.ndarray,
    chances: tuple[float, float],
    rng: np.random.Generator,
  ) -> np.ndarray:
    """The crop with its colours changed at random, if `colours` says so."""
    return change_colours(crop, chances, rng) if self.colours else crop


def change_colours(
  image: np.ndarray, chances: tuple[float, float], rng: np.random.Generator
) -> np.ndarray:
  """Changes the colours of an image at random, then blurs and solarizes it.

  The image and the result are uint8 (H, W, C), C = 1 or 3. `chances` are the
  probabilities of the blur and of the solarization.
  """
  C = image.shape[2]
  picture = Image.fromarray(np.repeat(image, 3, axis=2) if C == 1 else image)
  if rng.random() < _JITTER:
    picture = _jitter(picture, rng)
  if rng.random() < _GREY:
    picture = picture.convert("L").convert("RGB")
  blurred, solarized = (rng.random() < chance for chance in chances)
  if blurred:
    radius = rng.uniform(*_RADIUS)
    picture = picture.filter(ImageFilter.GaussianBlur(radius))
  if solarized:
    picture = ImageOps.solarize(picture)
  return np.asarray(picture)[..., :C]


def _jitter(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
  """Changes brightness, contrast, saturation and hue, in a random order."""
  kinds = (
    (ImageEnhance.Brightness, _BRIGHTNESS),
    (ImageEnhance.Contrast, _CONTRAST),
    (ImageEnhance.Color, _SATURATION),
    (None, _HUE),
  )
  for index in rng.permutation(len(kinds)):
    kind, strength = kinds[index]
    change = rng.uniform(-strength, strength)
    if kind is None:
      picture = _turn_hue(picture, change)
    else:
      picture = kind(picture).enhance(1 + change)
  return picture


def _turn_hue(picture: Image.Image, turn: float) -> Image.Image:
  """Turns the hue by `turn`, a fraction of the colour circle."""
  hsv = np.array(picture.convert("HSV"))
  hsv[..., 0] += np.uint8(round(turn * 255) % 256)
  return Image.fromarray(hsv, "HSV").convert("RGB")
