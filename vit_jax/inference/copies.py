"""Tells copies of an image from other images of the same kind, by their pixels.

Features of different photographs of one kind of thing may be as near as those
of a photograph and its copy. Copies are compared as small grey thumbnails.
"""

import pathlib
from collections.abc import Iterator, Sequence

import cv2
import numpy as np
from jaxtyping import Bool, Float, Int

from vit_jax.data.decoding.decode import decode_image
from vit_jax.data.example import MAX_BYTES, ImageSpec
from vit_jax.runtime.files import read_regular

_SIDE = 32  # Pixels of a thumbnail.
# A copy may show only a part of the image, of at least 4/5 of its sides.
_CUT = range(_SIDE - 1, _SIDE * 4 // 5, -1)
_COARSE = [(29, 29), (26, 26), (26, _SIDE), (_SIDE, 26)]
_FINE = [
  *((side, side) for side in _CUT),
  *((side, _SIDE) for side in _CUT),
  *((_SIDE, side) for side in _CUT),
]
# Correlations of copies, and of what may be one once it is compared finely.
_LEAST, _NEAR = 0.9, 0.6
_FLAT = 1.0  # Deviation of a thumbnail on which there is nothing to compare.

Thumbnail = Float[np.ndarray, "s s"]


class Copies:
  """Whether images are copies of each other, each of which is read once."""

  def __init__(self, files: Sequence[str], spec: ImageSpec):
    self._files, self._spec = files, spec
    self._kept: dict[int, Thumbnail | None] = {}

  def __call__(
    self, rows: Int[np.ndarray, " P"], others: Int[np.ndarray, " P"]
  ) -> Bool[np.ndarray, " P"]:
    """Whether the files of each pair, given by their places, are copies."""
    found: dict[tuple[int, int], bool] = {}
    pairs = np.sort(np.stack([rows, others], axis=1), axis=1).tolist()
    for one, other in pairs:
      if (one, other) not in found:
        a, b = self._thumbnail(one), self._thumbnail(other)
        is_copy = a is not None and b is not None and alike(a, b)
        found[one, other] = is_copy
    return np.array([found[one, other] for one, other in pairs], bool)

  def _thumbnail(self, place: int) -> Thumbnail | None:
    """The thumbnail of a file; None if it cannot be read any more."""
    if place not in self._kept:
      try:
        content = read_regular(pathlib.Path(self._files[place]), MAX_BYTES)
        self._kept[place] = thumbnail(decode_image(content, self._spec))
      except (OSError, ValueError):
        self._kept[place] = None
    return self._kept[place]


def thumbnail(pixels: np.ndarray) -> Thumbnail:
  """The mean over the channels of an image (H, W, C), as a small square."""
  grey = pixels.mean(axis=-1, dtype=np.float32)
  return cv2.resize(grey, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)


def alike(one: Thumbnail, other: Thumbnail) -> bool:
  """Whether two thumbnails are of copies.

  A copy may have another size, contrast or brightness, be mirrored or turned by
  a multiple of 90 degrees, or be a part of at least 4/5 of both or one side.
  """
  flat = one.std() < _FLAT, other.std() < _FLAT
  if any(flat):
    return all(flat)
  near = max(map(_correlation, _orientations(one, other)))
  near = max(near, *map(_correlation, _parts(one, other, _COARSE)))
  if not _NEAR <= near < _LEAST:
    return near >= _LEAST
  parts = _parts(one, other, _FINE)
  return any(_correlation(pair) >= _LEAST for pair in parts)


Pair = tuple[Thumbnail, Thumbnail]
"""A part, and the thumbnail that it may be a part of."""


def _correlation(pair: Pair) -> float:
  """The highest one of a part with a place in the other thumbnail."""
  part, whole = pair
  return float(cv2.matchTemplate(whole, part, cv2.TM_CCOEFF_NORMED).max())


def _orientations(one: Thumbnail, other: Thumbnail) -> Iterator[Pair]:
  """One thumbnail, mirrored and turned, beside the other."""
  for turns in range(4):
    for view in (np.rot90(one, turns), np.rot90(one[:, ::-1], turns)):
      yield np.ascontiguousarray(view), other


def _parts(
  one: Thumbnail, other: Thumbnail, sizes: Sequence[tuple[int, int]]
) -> Iterator[Pair]:
  """Each thumbnail, also mirrored, in some sizes as a part of the other."""
  for part, whole in ((one, other), (other, one)):
    for view in (part, np.ascontiguousarray(part[:, ::-1])):
      for size in sizes:
        yield cv2.resize(view, size, interpolation=cv2.INTER_AREA), whole
