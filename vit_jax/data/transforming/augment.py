"""Random boxes, changes of colours (3-Augment, jitter) and random erasing."""

import math

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from vit_jax.data.settings import TrainTransformSettings
from vit_jax.data.transforming.randaugment import rand_augment

_ATTEMPTS = 10
_LOG_RATIOS = math.log(3 / 4), math.log(4 / 3)
_PUBLISHED_ATTEMPTS = 100
_PUBLISHED_RATIOS = 0.75, 1.33
_BLUR = 0.1, 2.0  # Least and greatest radius of the blur, in pixels.
# Random erasing: its box's share of the image and its ratio of sides.
_AREA = (0.02, 1 / 3)
_RATIO = (0.3, 1 / 0.3)


def inception_box(
  height: int, width: int, min_area: float, rng: np.random.Generator
) -> tuple[int, int, int, int]:
  """Draws a box (top, left, h, w) by `random_box`.

  It covers a share of the image's area of `min_area` or more.
  """
  return random_box(height, width, (min_area, 1.0), rng)


def random_box(
  height: int,
  width: int,
  areas: tuple[float, float],
  rng: np.random.Generator,
) -> tuple[int, int, int, int]:
  """Draws a random box (top, left, h, w) inside an image.

  The box covers a fraction of the image's area that is uniform between the two
  `areas`, and w / h is log-uniform between 3/4 and 4/3. A box that does not fit
  is drawn again. After ten misses, as in long and thin images, the box is the
  largest central one whose ratio is allowed.
  """
  for _ in range(_ATTEMPTS):
    area = rng.uniform(*areas) * height * width
    ratio = math.exp(rng.uniform(*_LOG_RATIOS))
    h = round(math.sqrt(area / ratio))
    w = round(math.sqrt(area * ratio))
    if 0 < h <= height and 0 < w <= width:
      top = rng.integers(height - h, endpoint=True)
      return int(top), int(rng.integers(width - w, endpoint=True)), h, w
  h = min(height, max(1, round(width * 4 / 3)))
  w = min(width, max(1, round(height * 4 / 3)))
  return (height - h) // 2, (width - w) // 2, h, w


def published_box(
  height: int, width: int, min_area: float, rng: np.random.Generator
) -> tuple[int, int, int, int]:
  """Draws a random box (top, left, h, w) as the published models' code does.

  The distribution is that of TensorFlow's `sample_distorted_bounding_box`:
  w / h is uniform between 0.75 and 1.33, and h is uniform between the height at
  which the box covers `min_area` and the one at which it just fits, so small
  boxes are likelier than in `inception_box`. After a hundred misses, the box is
  the whole image.
  """
  whole = height * width
  for _ in range(_PUBLISHED_ATTEMPTS):
    ratio = rng.uniform(*_PUBLISHED_RATIOS)
    widest = int((width + 0.5) / ratio)  # Its width rounds to the image's.
    most = min(round(math.sqrt(whole / ratio)), widest, height)
    least = min(round(math.sqrt(min_area * whole / ratio)), most)
    h = int(rng.integers(least, most, endpoint=True))
    w = round(h * ratio)
    if 0 < w <= width and min_area * whole <= h * w <= whole:
      # As in the original, a box never touches the last row or column unless
      # it spans them all.
      top = int(rng.integers(height - h)) if h < height else 0
      left = int(rng.integers(width - w)) if w < width else 0
      return top, left, h, w
  return 0, 0, height, width


def augment(
  image: np.ndarray, rng: np.random.Generator, settings: TrainTransformSettings
) -> np.ndarray:
  """Changes the colours and erases a box, as far as the settings say so.

  The image and the result are uint8 (H, W, C). To change its colours, a grey
  image is made RGB and back.
  """
  if settings.colour_changes:
    C = image.shape[2]
    if C == 1:
      image = np.repeat(image, 3, axis=2)
    if settings.three_augment:
      image = three_augment(image, rng)
    image = colour_jitter(image, rng, settings.colour_jitter)
    image = rand_augment(
      image,
      rng,
      num_layers=settings.randaugment_layers,
      magnitude=settings.randaugment_magnitude,
      as_published=settings.as_published,
      timm=settings.randaugment_timm,
    )[..., :C]
  return erase(image, rng, settings.erase)


def three_augment(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Makes the image grey, solarizes it from 128 on, or blurs it.

  Each of the three is equally likely (arXiv:2204.07118, Section 3); the radius
  of the blur is uniform. The image is uint8 (H, W, 3).
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

  Each factor is uniform from 1 - strength to 1 + strength; with 0 the image,
  uint8 (H, W, 3), stays as it is.
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

  The box covers 2 to 33 % of the image, uint8 (H, W, C), and the noise is
  uniform in 0 to 255. An image into which no box fits stays as it is.
  """
  if not probability or rng.random() >= probability:
    return image
  H, W, C = image.shape
  for _ in range(_ATTEMPTS):
    area = H * W * rng.uniform(*_AREA)
    ratio = math.exp(rng.uniform(*np.log(_RATIO)))
    h = round(math.sqrt(area * ratio))
    w = round(math.sqrt(area / ratio))
    if 0 < h < H and 0 < w < W:
      top = rng.integers(H - h + 1)
      left = rng.integers(W - w + 1)
      image = image.copy()
      noise = rng.integers(256, size=(h, w, C), dtype=np.uint8)
      image[top : top + h, left : left + w] = noise
      break
  return image
