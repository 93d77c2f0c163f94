"""Draws the random boxes that the crop "inception" cuts out of images."""

import math

import numpy as np

_ATTEMPTS = 10
_LOG_RATIOS = math.log(3 / 4), math.log(4 / 3)
_PUBLISHED_ATTEMPTS = 100
_PUBLISHED_RATIOS = 0.75, 1.33


def inception_box(
  height: int, width: int, min_area: float, rng: np.random.Generator
) -> tuple[int, int, int, int]:
  """Draws a random box (top, left, h, w) inside an image.

  The box covers a fraction of the image's area that is uniform between
  `min_area` and 1, and w / h is log-uniform between 3/4 and 4/3. A box that
  does not fit is drawn again. After ten misses, as in long and thin images, the
  box is the largest central one whose ratio is allowed.
  """
  for _ in range(_ATTEMPTS):
    area = rng.uniform(min_area, 1.0) * height * width
    ratio = math.exp(rng.uniform(*_LOG_RATIOS))
    h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
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
