"""Tells copies of an image from other images of the same kind, by their pixels.

Features of different photographs of one kind of thing may be as near as those
of a photograph and its copy. So images are compared as small grey thumbnails.
"""

import pathlib
from collections.abc import Iterator, Sequence

import cv2
import numpy as np
from jaxtyping import Bool, Float, Int

from vit_jax.data.decoding.decode import decode_image
from vit_jax.data.example import MAX_BYTES, ImageSpec
from vit_jax.runtime.files import read_regular

SIDE = 32  # Pixels of a thumbnail.
# A copy may show only a part of the image, of at least 4/5 of its sides. These
# are the sides that a part may have; a few sizes for a first comparison; and
# all sizes for a finer one.
_PART_SIDES = range(SIDE - 1, SIDE * 4 // 5, -1)
_COARSE = [(29, 29), (26, 26), (26, SIDE), (SIDE, 26)]
_FINE = [
  *((side, side) for side in _PART_SIDES),
  *((side, SIDE) for side in _PART_SIDES),
  *((SIDE, side) for side in _PART_SIDES),
]
# Least correlation of copies, and of pairs that are worth a finer comparison.
_LEAST, _NEAR = 0.9, 0.6
# A thumbnail whose grey levels, 0 to 255, have a smaller standard deviation has
# nothing to compare.
_FLAT = 1.0

Thumbnail = Float[np.ndarray, "s s"]


class Copies:
  """Tells whether images are copies of each other; it reads each image once."""

  def __init__(self, files: Sequence[str], spec: ImageSpec):
    self._files, self._spec = files, spec
    self._thumbnails: dict[int, Thumbnail | None] = {}

  def __call__(
    self, rows: Int[np.ndarray, " P"], others: Int[np.ndarray, " P"]
  ) -> Bool[np.ndarray, " P"]:
    """Whether the files of each pair, given by their indices, are copies."""
    is_copy: dict[tuple[int, int], bool] = {}
    pairs = np.sort(np.stack([rows, others], axis=1), axis=1).tolist()
    for one, other in pairs:
      if (one, other) not in is_copy:
        is_copy[one, other] = self._are_copies(one, other)
    return np.array([is_copy[one, other] for one, other in pairs], bool)

  def _are_copies(self, one: int, other: int) -> bool:
    """Whether two files are copies; false if one cannot be read any more."""
    first = self._thumbnail(one)
    second = self._thumbnail(other)
    if first is None or second is None:
      return False
    return are_copies(first, second)

  def _thumbnail(self, place: int) -> Thumbnail | None:
    """The thumbnail of a file; None if it cannot be read any more."""
    if place not in self._thumbnails:
      try:
        content = read_regular(pathlib.Path(self._files[place]), MAX_BYTES)
        self._thumbnails[place] = thumbnail(decode_image(content, self._spec))
      except (OSError, ValueError):
        self._thumbnails[place] = None
    return self._thumbnails[place]


def thumbnail(pixels: np.ndarray) -> Thumbnail:
  """A small grey square of an image (H, W, C), the mean of its channels."""
  grey = pixels.mean(axis=-1, dtype=np.float32)
  return cv2.resize(grey, (SIDE, SIDE), interpolation=cv2.INTER_AREA)


def are_copies(one: Thumbnail, other: Thumbnail) -> bool:
  """Whether two thumbnails are of copies.

  A copy may have another size, contrast or brightness, be mirrored or turned by
  a multiple of 90 degrees, or be cut to at least 4/5 of one or both sides. Two
  thumbnails without contrast count as copies.
  """
  are_flat = one.std() < _FLAT, other.std() < _FLAT
  if any(are_flat):
    return all(are_flat)
  highest = max(map(_correlation, _orientations(one, other)))
  highest = max(highest, *map(_correlation, _parts(one, other, _COARSE)))
  if not _NEAR <= highest < _LEAST:
    return highest >= _LEAST
  parts = _parts(one, other, _FINE)
  return any(_correlation(pair) >= _LEAST for pair in parts)


Pair = tuple[Thumbnail, Thumbnail]
"""A thumbnail of a part, and the whole that it may be cut from."""


def _correlation(pair: Pair) -> float:
  """The highest correlation of a part with any place in the whole."""
  part, whole = pair
  return float(cv2.matchTemplate(whole, part, cv2.TM_CCOEFF_NORMED).max())


def _orientations(one: Thumbnail, other: Thumbnail) -> Iterator[Pair]:
  """Pairs of one thumbnail, mirrored and turned, and the other as it is."""
  for turns in range(4):
    for view in (np.rot90(one, turns), np.rot90(one[:, ::-1], turns)):
      yield np.ascontiguousarray(view), other


def _parts(
  one: Thumbnail, other: Thumbnail, sizes: Sequence[tuple[int, int]]
) -> Iterator[Pair]:
  """Pairs of each thumbnail, resized to `sizes`, and the other as the whole.

  The resized thumbnail is also mirrored.
  """
  for part, whole in ((one, other), (other, one)):
    for view in (part, np.ascontiguousarray(part[:, ::-1])):
      for size in sizes:
        yield cv2.resize(view, size, interpolation=cv2.INTER_AREA), whole
