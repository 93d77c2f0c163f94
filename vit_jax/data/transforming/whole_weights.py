"""Filters whose weights are whole numbers, as torchvision's are for 8 bits.

Pillow's weights have 22 bits. torchvision's have fewer, so that the largest
weight fits into 16 bits with a sign, and its pixels differ from Pillow's by a
level or two of 255. The width is resized first, and each axis is rounded to 8
bits.
"""

import numpy as np
from jaxtyping import Float, Int, UInt8

_MOST_BITS = 21
_AT_ONCE = 1024  # Columns whose sums stay in a core's cache.
Pixels = UInt8[np.ndarray, "h w C"]


def _triangle(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
  """The bilinear kernel, 1 - |x| within one pixel."""
  return np.maximum(1 - np.abs(x), 0)


def _cubic(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
  """Cubic convolution (Keys, 1981) with a = -1/2."""
  x = np.abs(x)
  near = (1.5 * x - 2.5) * x**2 + 1
  far = ((-0.5 * x + 2.5) * x - 4) * x + 2
  return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _lanczos(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
  """sinc(x) sinc(x / 3) within three pixels."""
  return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0.0)


# The interpolation -> its kernel, and how many pixels to each side it covers.
KERNELS = {"bilinear": (_triangle, 1), "bicubic": (_cubic, 2)}
KERNELS["lanczos"] = (_lanczos, 3)


def resize(image: Pixels, size: tuple[int, int], interpolation: str) -> Pixels:
  """Resizes (h, w, C) to (H, W, C) by one of `KERNELS`."""
  wide = _resize_first_axis(image.swapaxes(0, 1), size[1], interpolation)
  return _resize_first_axis(wide.swapaxes(0, 1), size[0], interpolation)


def resize_nearest(image: Pixels, size: tuple[int, int]) -> Pixels:
  """Resizes (h, w, C) to (H, W, C) by the pixels that the new centres lie in.

  Where a centre lies between two pixels, rounding to 32 bits decides, as in
  torchvision.
  """
  places = []
  for old, new in zip(image.shape, size, strict=False):
    scale = np.float32(old) / np.float32(new)
    centres = (np.arange(new, dtype=np.float32) + np.float32(0.5)) * scale
    places.append(centres.astype(np.int64))
  return image[np.ix_(*places)]


def _resize_first_axis(lines: Pixels, count: int, interpolation: str) -> Pixels:
  """Resizes the first axis of `lines` to `count` lines."""
  if count == len(lines):
    return lines
  places, weights, bits = _weights(len(lines), count, interpolation)
  flat = np.ascontiguousarray(lines).reshape(len(lines), -1)
  result = np.empty((count, flat.shape[1]), np.uint8)
  half = 1 << bits - 1
  for start in range(0, flat.shape[1], _AT_ONCE):
    columns = slice(start, start + _AT_ONCE)
    some = flat[:, columns].astype(np.int32)
    total = np.full((count, some.shape[1]), half, np.int32)
    for place, weight in zip(places.T, weights.T, strict=True):
      total += some[place] * weight[:, None]
    result[:, columns] = (total >> bits).clip(0, 255)
  return result.reshape(count, *lines.shape[1:])


def _weights(
  old: int, new: int, interpolation: str
) -> tuple[Int[np.ndarray, "new taps"], Int[np.ndarray, "new taps"], int]:
  """The old lines that each new line sums up, their weights, and `bits`.

  The weights of a new line are whole numbers that add up to 2^bits, but for
  rounding. An old line beyond the edge has a weight of 0.
  """
  kernel, reach = KERNELS[interpolation]
  wider = max(old / new, 1.0)
  centres = old / new * (np.arange(new) + 0.5)
  first = np.maximum((centres - reach * wider + 0.5).astype(int), 0)
  end = np.minimum((centres + reach * wider + 0.5).astype(int), old)
  places = first[:, None] + np.arange((end - first).max())
  exact = kernel((places - centres[:, None] + 0.5) / wider)
  exact = np.where(places < end[:, None], exact, 0.0)
  exact /= exact.sum(axis=1, keepdims=True)
  bits = 0
  while bits < _MOST_BITS and exact.max() * 2 ** (bits + 1) + 0.5 < 2**15:
    bits += 1
  halves = np.where(exact < 0, -0.5, 0.5)
  whole = np.trunc(exact * 2**bits + halves).astype(np.int32)
  return np.minimum(places, old - 1), whole, bits
