"""Resizes images of any number of channels.

For training, shrinking averages areas (`cv2.INTER_AREA`) and enlarging is
bilinear (`cv2.INTER_LINEAR`); if one axis shrinks and the other grows, each is
resized in its own way. Random boxes are resized faster and a little less
exactly. For evaluation, the settings choose the filter; by default it is
Pillow's, which gives the pixels that PyTorch's libraries give.
"""

import cv2
import numpy as np
from PIL import Image

from vit_jax.data.image import by_fours
from vit_jax.data.settings import EvalTransformSettings


def resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
  """Resizes (h, w, C) to (H, W, C), by areas or bilinear for each axis."""
  least = min(image.shape[0], size[0]), min(image.shape[1], size[1])
  if least != image.shape[:2]:
    image = _resized(image, least, cv2.INTER_AREA)
  if least != size:
    image = _resized(image, size, cv2.INTER_LINEAR)
  return image


def _resized(
  image: np.ndarray, size: tuple[int, int], interpolation: int
) -> np.ndarray:
  return by_fours(
    lambda part: cv2.resize(part, size[::-1], interpolation=interpolation),
    image,
  )


def resize_fast(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
  """Resizes (h, w, C) to (H, W, C) in a quarter of the time of `resize`.

  Shrinking bilinearly to less than half would ignore pixels. So it only goes to
  a multiple of `size`, and averaging whole lines does the rest.
  """
  (h, w, _), (H, W) = image.shape, size
  several = -(-h // (2 * H)) * H, -(-w // (2 * W)) * W
  if several != (h, w):
    image = _resized(image, several, cv2.INTER_LINEAR)
  if several != size:
    image = _resized(image, size, cv2.INTER_AREA)
  return image


def resized_shape(
  shape: tuple[int, int], size: tuple[int, int], settings: EvalTransformSettings
) -> tuple[int, int]:
  """Height and width that an image is resized to, before the crop.

  Where it is cropped to a square, the long side is rounded down, as
  torchvision and Hugging Face do; with areas it is rounded to the nearest, as
  big_vision does.
  """
  if settings.crop == "resize":
    return size
  H, W = (round(settings.resize_ratio * side) for side in size)
  if settings.crop == "squash":
    return H, W
  h, w = shape
  if settings.interpolation == "area":
    scale = settings.resize_ratio * max(size[0] / h, size[1] / w)
    return max(round(h * scale), size[0]), max(round(w * scale), size[1])
  if H == W:
    return int(H * h / min(h, w)), int(W * w / min(h, w))
  ratio = min(h / H, w / W)
  return round(h / ratio), round(w / ratio)


def filtered(
  image: np.ndarray, size: tuple[int, int], settings: EvalTransformSettings
) -> np.ndarray:
  """Resizes (h, w, C) to (H, W, C) by the filter of the settings."""
  name = settings.interpolation
  if image.shape[:2] == size:
    return image
  if name == "area":
    return resize(image, size)
  if not settings.antialias and name in ("bilinear", "bicubic"):
    few = cv2.INTER_LINEAR if name == "bilinear" else cv2.INTER_CUBIC
    return _resized(image, size, few)
  pillow = Image.Resampling[name.upper()]

  def one(pixels: np.ndarray) -> np.ndarray:
    height, width = size
    return np.asarray(Image.fromarray(pixels).resize((width, height), pillow))

  if image.shape[2] == 3:
    return one(image)
  # Each alone, since Pillow would weight colours by what it takes for alpha.
  return np.stack([one(band) for band in np.moveaxis(image, 2, 0)], axis=2)
