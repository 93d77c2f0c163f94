"""Turns encoded images into the pixels that a model sees."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np

from vit_jax.data.decoding.decode import decode_box, decode_image
from vit_jax.data.image import RGB, ImageSpec, by_fours
from vit_jax.data.settings import EvalTransformSettings, TrainTransformSettings
from vit_jax.data.transforming.resize import (
  filtered,
  resize,
  resize_fast,
  resized_shape,
)

TrainTransform = Callable[[bytes, np.random.Generator], np.ndarray]
EvalTransform = Callable[[bytes], np.ndarray]


def make_train_transform(
  image_size: int | tuple[int, int],
  settings: TrainTransformSettings = TrainTransformSettings(),
  spec: ImageSpec = RGB,
) -> TrainTransform:
  """Builds the training transform: decode, crop, resize, flip, augment.

  The crop "inception" is a random box; "pad" resizes, adds black pixels at each
  edge and crops at random (for small images); "resize" takes the whole image.

  Args:
    image_size: Height and width of the result, or one number for both.

  Returns:
    A picklable function (encoded, rng) -> uint8 (H, W, channels).

  Raises:
    ValueError: if the size is not positive, or as `check_colours` does.
  """
  check_colours(settings, spec.channels)
  return _TrainTransform(_height_width(image_size), settings, spec)


def make_eval_transform(
  image_size: int | tuple[int, int],
  settings: EvalTransformSettings = EvalTransformSettings(),
  spec: ImageSpec = RGB,
) -> EvalTransform:
  """Builds the evaluation transform, which draws nothing at random.

  The crop "resize" takes the whole image, whatever its shape; "center" resizes
  it to cover `resize_ratio` times the size and cuts out the centre (256 / 224
  keeps 7/8 of the short side); "squash" resizes it to exactly that, and cuts.

  Args:
    image_size: Height and width of the result, or one number for both.

  Returns:
    A picklable function encoded -> uint8 (H, W, channels).

  Raises:
    ValueError: if the size is not positive.
  """
  return _EvalTransform(_height_width(image_size), settings, spec)


def check_colours(settings: TrainTransformSettings, channels: int) -> None:
  """Raises ValueError for augmentations that need other channels.

  They are defined for RGB, and for grey as for RGB of three equal channels.
  """
  for name, value in settings.colour_changes.items():
    if channels not in (1, 3):
      raise ValueError(
        f"train_transform.{name}={value} is defined for images of 1 or 3 "
        f"channels, and these have {channels}: leave it out."
      )


def upper_left(transform: Any, size: tuple[int, int]) -> Any:
  """A transform that keeps the upper-left part, (H, W), of another's result."""
  return functools.partial(_upper_left, transform=transform, size=size)


def _upper_left(
  encoded: bytes, *rng: np.random.Generator, transform: Any, size: tuple
) -> np.ndarray:
  return transform(encoded, *rng)[: size[0], : size[1]]


def _height_width(image_size: int | tuple[int, int]) -> tuple[int, int]:
  size = image_size
  if isinstance(size, int):
    size = (size, size)
  if len(size) != 2 or min(size) < 1:
    raise ValueError(
      f"image_size={image_size!r}; it has to be one positive number of pixels "
      "or (height, width)."
    )
  return int(size[0]), int(size[1])


@dataclasses.dataclass(frozen=True)
class _TrainTransform:
  """See `make_train_transform`."""

  size: tuple[int, int]
  settings: TrainTransformSettings
  spec: ImageSpec

  def __call__(self, encoded: bytes, rng: np.random.Generator) -> np.ndarray:
    settings = self.settings
    if settings.crop == "inception":
      image = self._random_box(encoded, rng)
    else:
      image = resize(decode_image(encoded, self.spec), self.size)
    if settings.crop == "pad" and settings.pad:
      image = _pad_crop(image, settings.pad, rng)
    if settings.flip and rng.random() < 0.5:
      image = by_fours(lambda part: cv2.flip(part, 1), image)
    if settings.colour_changes or settings.erase:
      from vit_jax.data.transforming.three_augment import augment

      image = augment(image, rng, settings)
    return image

  def _random_box(self, encoded: bytes, rng: np.random.Generator) -> np.ndarray:
    """Returns a random box, resized, and decodes no more than it shows."""
    from vit_jax.data.transforming.boxes import inception_box, published_box

    draw = published_box if self.settings.as_published else inception_box
    least = self.settings.min_area
    box = decode_box(
      encoded, self.size, lambda h, w: draw(h, w, least, rng), self.spec
    )
    return resize_fast(box, self.size)


def _pad_crop(
  image: np.ndarray, pad: int, rng: np.random.Generator
) -> np.ndarray:
  """Shifts by up to `pad` pixels each way, filling up with black."""
  H, W, _ = image.shape
  top, left = rng.integers(2 * pad, endpoint=True, size=2)
  padded = by_fours(
    lambda part: cv2.copyMakeBorder(
      part, pad, pad, pad, pad, cv2.BORDER_CONSTANT
    ),
    image,
  )
  return padded[top : top + H, left : left + W]


@dataclasses.dataclass(frozen=True)
class _EvalTransform:
  """See `make_eval_transform`."""

  size: tuple[int, int]
  settings: EvalTransformSettings
  spec: ImageSpec

  def __call__(self, encoded: bytes) -> np.ndarray:
    image = decode_image(encoded, self.spec)
    (H, W), (h, w) = self.size, image.shape[:2]
    h, w = resized_shape((h, w), self.size, self.settings)
    image = filtered(image, (h, w), self.settings)
    half = round if self.spec.corner == "even" else math.floor
    top, left = half((h - H) / 2), half((w - W) / 2)
    return image[top : top + H, left : left + W]
