"""The class of each pixel of an image of any size, whole or by windows.

Symbols: P is the model's patch size; h x w patches cover an image or a window.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped, UInt8

from vit_jax.data.example import UnreadableImageError
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.transforming.transforms import resize_by_settings
from vit_jax.runtime.checks import MAX_PIXELS
from vit_jax.tasks.finite import check_finite
from vit_jax.tasks.segmentation.pictures import make_logits

_ROWS = 4  # Windows that the model is given at once.
MOST_VALUES = 1 << 24  # The most logits of pixels in memory at once.
MOST_PATCHES = 1 << 14  # The most patches of an image that is seen whole.
MOST_LOGITS = 1 << 27  # The most logits for all patches of an image.

Pixels = UInt8[np.ndarray, "H W C"]
Logits = Float[np.ndarray, "h w K"]


def make_mark(
  model: Any,
  preprocessing: Preprocessing,
  short_side: int | None = None,
  answer: Callable[[Logits, int, int], np.ndarray] | None = None,
) -> Callable[..., Shaped[np.ndarray, "H W"]]:
  """Returns a function from parameters and an image to the class of each pixel.

  If the image may lack bands, a third argument, booleans (C,), says which of
  them it has.

  The whole image is resized to the model's size, or, if the preprocessing has
  an `own_size`, to a size of its own. With `short_side`, the image's shorter
  side is brought to that length instead, in about the same proportions, and the
  logits of overlapping windows of the model's size are averaged. `answer` is a
  function from the logits of patches, and the image's height and width, to what
  is answered for its pixels; by default `classes`.

  Raises ValueError if `short_side` is less than a side of a window. The
  function raises ValueError if the model's outputs are not finite, and
  UnreadableImageError if the image would be too large at that length or at its
  own size.
  """
  size, P = preprocessing.image_size, model.stride
  if short_side is not None and short_side < max(size):
    raise ValueError(
      f"short_side={short_side} is less than the windows of {size[0]} x "
      f"{size[1]}, the size of the model's images: set it to {max(size)} or "
      "more."
    )
  logits_of = make_logits(model, preprocessing)
  answer = answer or classes

  def mark_at_own_size(params: Any, image: Pixels, bands: Any = None) -> Any:
    """The answer for an image that is seen whole, at a size of its own."""
    own: Any = preprocessing.own_size
    seen = image
    seen_size = own.of(image.shape[:2])
    _check_patches(seen_size, P)
    if seen_size != image.shape[:2]:
      seen = resize_by_settings(image, seen_size, preprocessing.crop)
    (logits,) = np.asarray(
      logits_of(params, seen[None], bands, own.padding(seen_size))
    )
    check_finite(logits)
    return answer(logits, *image.shape[:2])

  def mark(
    params: Any, image: Pixels, bands: Any = None
  ) -> Shaped[np.ndarray, "H W"]:
    """The answer for an image that is resized, or seen by windows."""
    seen_size = size if short_side is None else _sides(image, short_side, P)
    seen = image
    if image.shape[:2] != seen_size:
      _check_size(seen_size, short_side)
      seen = resize_by_settings(image, seen_size, preprocessing.crop)
    logits_of_bands = partial(logits_of, params, bands=bands)
    windows = _windows(logits_of_bands, seen, size, P)
    if seen_size == size:
      _, _, logits = next(windows)
    else:
      logits = _mean_of_windows(windows, seen, size, P, short_side)
    check_finite(logits)
    return answer(logits, *image.shape[:2])

  at_own_size = preprocessing.own_size is not None and short_side is None
  return mark_at_own_size if at_own_size else mark


def _check_patches(sides: tuple[int, int], P: int) -> None:
  """Raises UnreadableImageError if an image is too large to be seen whole."""
  height, width = sides
  patches = -(-height // P) * -(-width // P)
  if patches > MOST_PATCHES:
    raise UnreadableImageError(
      f"its {width:,} x {height:,} pixels are {patches:,} patches, more than "
      f"{MOST_PATCHES:,}: give --short_side, which reads it by windows, or a "
      "smaller image."
    )


def _windows(
  logits_of: Callable[[UInt8[np.ndarray, "B H W C"]], Any],
  image: Pixels,
  size: tuple[int, int],
  P: int,
) -> Iterator[tuple[int, int, Logits]]:
  """The place, in patches, and the logits of each window of an image.

  A place is the number of patches above the window, and left of it.
  """
  H, W = image.shape[:2]
  places = [
    (top, left)
    for top in starts(H, size[0], P)
    for left in starts(W, size[1], P)
  ]
  rows = min(_ROWS, len(places))
  for first in range(0, len(places), rows):
    batch_places = places[first : first + rows]
    batch = np.zeros((rows, *size, image.shape[2]), np.uint8)
    for row, (top, left) in enumerate(batch_places):
      batch[row] = image[top : top + size[0], left : left + size[1]]
    logits = np.asarray(logits_of(batch))
    for (top, left), window in zip(batch_places, logits, strict=False):
      yield top // P, left // P, window


def _mean_of_windows(
  windows: Iterator[tuple[int, int, Logits]],
  image: Pixels,
  size: tuple[int, int],
  P: int,
  short_side: int | None,
) -> Logits:
  """The mean of the logits of all windows of an image.

  Raises UnreadableImageError if the image would have too many logits.
  """
  h, w = (side // P for side in size)  # The patches of a window.
  total = np.zeros(0)
  count = np.zeros(0)
  for top, left, logits in windows:
    # Windows begin at patches, so a patch's side has a whole number of cells.
    cells = max(1, logits.shape[0] // h)
    K = logits.shape[2]
    if not count.size:
      rows, columns = (side // P * cells for side in image.shape[:2])
      _check_size(image.shape[:2], short_side, rows * columns * K)
      total = np.zeros((rows, columns, K), np.float32)
      count = np.zeros((rows, columns, 1), np.float32)
    y, x = top * cells, left * cells
    height, width = h * cells, w * cells
    place = slice(y, y + height), slice(x, x + width)
    total[place] += resize_logits(logits, height, width)
    count[place] += 1
  return total / count


def _check_size(
  sides: tuple[int, int], short_side: int | None, logits: int = 0
) -> None:
  """Raises UnreadableImageError if an image is too large for windows.

  Without `short_side` there are no windows, and any image is allowed.
  """
  height, width = sides
  if short_side is None:
    return
  too_many = ""
  if height * width > MAX_PIXELS:
    too_many = f"more than {MAX_PIXELS:,} of them"
  elif logits > MOST_LOGITS:
    too_many = f"and {logits:,} logits, more than {MOST_LOGITS:,}"
  if too_many:
    raise UnreadableImageError(
      f"at short_side={short_side} it would have {width:,} x {height:,} "
      f"pixels, {too_many}: give a smaller --short_side, or none, or cut the "
      "image."
    )


def starts(length: int, window: int, P: int) -> list[int]:
  """Where windows begin along a side, all in pixels: at edges of patches.

  Neighbouring windows of two patches a side or more overlap by a third or more.

  >>> from vit_jax.tasks.segmentation.marking import starts
  >>> starts(64, window=32, P=8), starts(32, window=32, P=8)
  ([0, 16, 32], [0])
  """
  stride = max(P, window * 2 // 3 // P * P)
  return [*range(0, length - window, stride), length - window]


def _sides(image: Pixels, short_side: int, P: int) -> tuple[int, int]:
  """The height and width at which windows see an image, multiples of P.

  The shorter is `short_side`, rounded up.
  """
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


def resize_logits(
  logits: Logits, height: int, width: int
) -> Float[np.ndarray, "height width K"]:
  """Interpolates logits bilinearly to another number of cells."""
  if logits.shape[:2] == (height, width):
    return logits
  tall = _interpolate(logits, np.arange(height), height, axis=0)
  return _interpolate(tall, np.arange(width), width, axis=1)


def enlarged_in_strips(
  logits: Logits, height: int, width: int
) -> Iterator[tuple[slice, Float[np.ndarray, "s width K"]]]:
  """Enlarges logits bilinearly, strip by strip, to save memory.

  Yields the rows of each strip of the image, and the logits of its pixels.
  """
  _, _, K = logits.shape
  strip = max(1, MOST_VALUES // (width * K))
  for first in range(0, height, strip):
    rows = np.arange(first, min(first + strip, height))
    tall = _interpolate(logits, rows, height, axis=0)
    values = _interpolate(tall, np.arange(width), width, axis=1)
    yield slice(first, first + len(rows)), values


def _interpolate(
  values: np.ndarray, numbers: np.ndarray, length: int, axis: int
) -> np.ndarray:
  """Interpolates values (h, w, K) linearly along one axis, 0 or 1.

  The axis is stretched to `length` pixels; the result has the pixels with these
  `numbers` alone.
  """
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
