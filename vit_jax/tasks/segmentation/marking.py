"""The class of each pixel of an image of any size, whole or by windows.

Symbols: P is the model's patch size; h x w patches cover an image or a window.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped, UInt8

from vit_jax.data.example import UnreadableImageError
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.transforming.transforms import filtered
from vit_jax.runtime.checks import MAX_PIXELS
from vit_jax.tasks.finite import check_finite
from vit_jax.tasks.segmentation.pictures import make_logits

_ROWS = 4  # Windows that the model is given at once.
_MOST_VALUES = 1 << 24  # Logits of pixels in memory at once.
_MOST_LOGITS = 1 << 27  # For all patches of an image.

Pixels = UInt8[np.ndarray, "H W C"]
Logits = Float[np.ndarray, "h w K"]


def make_mark(
  model: Any,
  preprocessing: Preprocessing,
  short_side: int | None = None,
  answer: Callable[[Logits, int, int], np.ndarray] | None = None,
) -> Callable[[Any, Pixels], Shaped[np.ndarray, "H W"]]:
  """Returns a function from parameters and an image to the class of each pixel.

  Or `answer` makes something else of the logits of an image and its height and
  width.

  The whole image is resized to the model's size. With `short_side`, its shorter
  side is brought to that length instead, in about its own proportions, and the
  logits of overlapping windows of the model's size are averaged. Raises
  ValueError if that is less than a side of a window; the function does if the
  model's outputs are not finite, and UnreadableImageError if the image would be
  too large at that length.
  """
  size, P = preprocessing.image_size, model.stride
  if short_side is not None and short_side < max(size):
    raise ValueError(
      f"short_side={short_side} is less than the windows of {size[0]} x "
      f"{size[1]}, the size of the model's images: set it to {max(size)} or "
      "more."
    )
  logits_of = make_logits(model, preprocessing)

  def windows(params: Any, image: Pixels) -> Iterator[tuple[int, int, Logits]]:
    """The place, in patches, and the logits of each window of an image."""
    H, W = image.shape[:2]
    places = [
      (top, left)
      for top in starts(H, size[0], P)
      for left in starts(W, size[1], P)
    ]
    rows = min(_ROWS, len(places))
    for first in range(0, len(places), rows):
      some = places[first : first + rows]
      batch = np.zeros((rows, *size, image.shape[2]), np.uint8)
      for row, (top, left) in enumerate(some):
        batch[row] = image[top : top + size[0], left : left + size[1]]
      logits = np.asarray(logits_of(params, batch))
      for (top, left), one in zip(some, logits, strict=False):
        yield top // P, left // P, one

  answered = answer or classes

  def mark(params: Any, image: Pixels) -> Shaped[np.ndarray, "H W"]:
    seen = size if short_side is None else _sides(image, short_side, P)
    seen_image = image
    if image.shape[:2] != seen:
      _check_size(seen, short_side)
      seen_image = filtered(image, seen, preprocessing.crop)
    total: Any = 0.0
    count = np.zeros((seen[0] // P, seen[1] // P, 1), np.float32)
    for top, left, logits in windows(params, seen_image):
      h, w, K = logits.shape
      if not isinstance(total, np.ndarray):
        _check_size(seen, short_side, count.size * K)
        total = np.zeros((*count.shape[:2], K), np.float32)
      total[top : top + h, left : left + w] += logits
      count[top : top + h, left : left + w] += 1
    check_finite(total)
    total /= count
    return answered(total, *image.shape[:2])

  return mark


def _check_size(
  sides: tuple[int, int], short_side: int | None, logits: int = 0
) -> None:
  """Raises UnreadableImageError if an image is too large for windows."""
  height, width = sides
  if short_side is None:
    return
  too_many = ""
  if height * width > MAX_PIXELS:
    too_many = f"more than {MAX_PIXELS:,} of them"
  elif logits > _MOST_LOGITS:
    too_many = f"and {logits:,} logits, more than {_MOST_LOGITS:,}"
  if too_many:
    raise UnreadableImageError(
      f"at short_side={short_side} it would have {width:,} x {height:,} "
      f"pixels, {too_many}: give a smaller --short_side, or none, or cut the "
      "image."
    )


def starts(length: int, window: int, P: int) -> list[int]:
  """Where windows begin, a third or more of each in the next, all at patches.

  >>> from vit_jax.tasks.segmentation.marking import starts
  >>> starts(64, window=32, P=8), starts(32, window=32, P=8)
  ([0, 16, 32], [0])
  """
  stride = max(P, window * 2 // 3 // P * P)
  return [*range(0, length - window, stride), length - window]


def _sides(image: Pixels, short_side: int, P: int) -> tuple[int, int]:
  """The sides of an image for windows, multiples of P."""
  height, width = image.shape[:2]
  scale = short_side / min(height, width)
  least = -(-short_side // P) * P
  rows, columns = (
    max(least, round(side * scale / P) * P) for side in (height, width)
  )
  return rows, columns


def classes(
  logits: Logits, height: int, width: int
) -> Int[np.ndarray, "height width"]:
  """The class of each pixel, by logits enlarged bilinearly, strip by strip."""
  answer = np.empty((height, width), np.int32)
  for rows, values in enlarged_in_strips(logits, height, width):
    answer[rows] = values.argmax(axis=2)
  return answer


def enlarged_in_strips(
  logits: Logits, height: int, width: int
) -> Iterator[tuple[slice, Float[np.ndarray, "s width K"]]]:
  """The rows of strips of an image, and their logits enlarged bilinearly."""
  _, _, K = logits.shape
  strip = max(1, _MOST_VALUES // (width * K))
  for first in range(0, height, strip):
    rows = np.arange(first, min(first + strip, height))
    tall = _between(logits, rows, height, axis=0)
    values = _between(tall, np.arange(width), width, axis=1)
    yield slice(first, first + len(rows)), values


def _between(
  values: np.ndarray, numbers: np.ndarray, length: int, axis: int
) -> np.ndarray:
  """Values at pixels by their numbers along an axis of `length` pixels."""
  old = values.shape[axis]
  places = ((numbers + 0.5) * old / length - 0.5).clip(0, old - 1)
  lower = np.floor(places).astype(int)
  upper = np.minimum(lower + 1, old - 1)
  shape = [1, 1, 1]
  shape[axis] = len(numbers)
  share = (places - lower).astype(values.dtype).reshape(shape)
  return (1 - share) * values.take(lower, axis) + share * values.take(
    upper, axis
  )
