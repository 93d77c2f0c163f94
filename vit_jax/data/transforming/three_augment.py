"""Augmentations of colours, 3-Augment and jitter of DeiT III, and erasing."""

import math

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from vit_jax.data.settings import TrainTransformSettings
from vit_jax.data.transforming.randaugment import rand_augment

_BLUR = 0.1, 2.0  # Least and greatest radius of the blur, in pixels.
# Random erasing: its box's share of the image and its ratio of sides.
_AREA, _RATIO = (0.02, 1 / 3), (0.3, 1 / 0.3)
_TRIES = 10  # Draws of a box that has to fit into the image.


def augment(
  image: np.ndarray, rng: np.random.Generator, settings: TrainTransformSettings
) -> np.ndarray:
  """Changes the colours, then erases a box, as far as the settings say so."""
  return erase(coloured(image, rng, settings), rng, settings.erase)


def coloured(
  image: np.ndarray, rng: np.random.Generator, settings: TrainTransformSettings
) -> np.ndarray:
  """Applies the augmentations for colours; a grey image is taken as RGB."""
  if not settings.colour_changes:
    return image
  C = image.shape[2]
  if C == 1:
    image = np.repeat(image, 3, axis=2)
  if settings.three_augment:
    image = three_augment(image, rng)
  image = colour_jitter(image, rng, settings.colour_jitter)
  image = rand_augment(
    image,
    rng,
    settings.randaugment_layers,
    settings.randaugment_magnitude,
    settings.as_published,
  )
  return image[..., :C]


def three_augment(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Makes the image grey, solarizes it from 128 on, or blurs it.

  Each is as likely as the others (arXiv:2204.07118, Section 3).

  Args:
    image: uint8 of shape (H, W, 3).
    rng: Draws the operation, and the radius of the blur.
  """
  pixels = Image.fromarray(image)
  choice = rng.integers(3)
  if choice == 0:
    pixels = pixels.convert("L").convert("RGB")
  elif choice == 1:
    pixels = ImageOps.solarize(pixels)
  else:
    pixels = pixels.filter(ImageFilter.GaussianBlur(rng.uniform(*_BLUR)))
  return np.asarray(pixels)


def colour_jitter(
  image: np.ndarray, rng: np.random.Generator, strength: float
) -> np.ndarray:
  """Changes brightness, contrast and saturation, in a random order.

  Args:
    image: uint8 of shape (H, W, 3).
    rng: Draws the order, and each factor from 1 - strength to 1 + strength.
    strength: The largest change, 0 to 1; with 0 the image stays as it is.
  """
  if not strength:
    return image
  pixels = Image.fromarray(image)
  kinds = ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color
  for index in rng.permutation(len(kinds)):
    factor = rng.uniform(1 - strength, 1 + strength)
    pixels = kinds[index](pixels).enhance(factor)
  return np.asarray(pixels)


def erase(
  image: np.ndarray, rng: np.random.Generator, probability: float
) -> np.ndarray:
  """Fills a random box with noise, with some probability (arXiv:1708.04896).

  The box covers 2 to 33 % of the image. An image into which no box fits stays
  as it is.

  Args:
    image: uint8 of shape (H, W, C).
    rng: Draws whether and where, and the noise, uniform in 0 to 255.
    probability: Share of the images that lose a box; 0 is off.
  """
  if not probability or rng.random() >= probability:
    return image
  H, W, C = image.shape
  for _ in range(_TRIES):
    area = H * W * rng.uniform(*_AREA)
    ratio = math.exp(rng.uniform(*np.log(_RATIO)))
    h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
    if 0 < h < H and 0 < w < W:
      top, left = rng.integers(H - h + 1), rng.integers(W - w + 1)
      image = image.copy()
      noise = rng.integers(256, size=(h, w, C), dtype=np.uint8)
      image[top : top + h, left : left + w] = noise
      break
  return image
