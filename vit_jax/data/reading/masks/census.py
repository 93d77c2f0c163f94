"""Looks at masks as a folder is opened, and counts what is in them."""

import collections
import os
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int

from vit_jax.data.example import UnreadableImageError, evenly_spread
from vit_jax.data.reading.masks.classes import Classes
from vit_jax.data.reading.masks.files import (
  MOST_NUMBER,
  StoredMask,
  as_numbers,
  read_stored,
)
from vit_jax.data.reading.masks.meaning import STRANGE, Meaning

LOOKED_AT = 48  # Masks that are read, if a file names the classes.
# Besides these, the 16 largest of 512 other files are read.
LARGEST, _WEIGHED = 16, 512
_PIXELS = 1 << 20  # Pixels that are counted at once.

Key = tuple[str, bytes]
"""A kind of masks, and the bytes of their palette.

The bytes are empty if the masks have no palette, or if no file names the
colours of the classes.
"""


class Census:
  """The contents of the masks that were looked at.

  Attributes:
    num_masks: The number of masks of the folder.
    num_looked_at: The number of those that were looked at.
    counts: How many pixels have each number, by kind and palette.
    first: The first mask that has a number, by kind and palette and number.
    colours: How many pixels have each label, in masks of colours.
    palettes_differ: Two files in which a number has two colours; else None.
    grey: The first mask of equal channels whose colours no file names; else
      None.
  """

  def __init__(self, num_masks: int, classes: Classes | None):
    """`classes` are those that a file names; None without the file."""
    self.num_masks = num_masks
    self.num_looked_at = 0
    self.counts: dict[Key, np.ndarray] = {}
    self.colours: collections.Counter[int] = collections.Counter()
    self.first: dict[tuple[Key, int], bytes] = {}
    self.palettes_differ: tuple[bytes, bytes] | None = None
    self.grey: bytes | None = None
    self._classes = classes
    self._has_colours = bool(classes and classes.colours)
    # For each number, its first colour, and the file that has this colour.
    self._palette = np.full(256, STRANGE, np.int32)
    self._palette_files: dict[int, bytes] = {}

  def look(self, path: bytes) -> None:
    """Counts the pixels of a mask.

    Raises as `read_stored` does, and ValueError for a colour that no class has.
    """
    stored = read_stored(path)
    self.num_looked_at += 1
    if stored.kind == "colours" and self._has_colours:
      self._look_at_colours(path, stored)
      return
    if stored.kind == "colours":
      stored = as_numbers(path, stored)
      self.grey = self.grey or path
    palette = stored.palette if self._has_colours else None
    key = stored.kind, b"" if palette is None else palette.tobytes()
    size = MOST_NUMBER + 1 if stored.kind == "wide" else 256
    found = _count_values(stored.values, size)
    before = self.counts.setdefault(key, np.zeros(size, np.int64))
    used = np.flatnonzero(found)
    for number in used[before[used] == 0].tolist():
      self.first[key, number] = path
    before += found
    if stored.kind == "palette" and stored.palette is not None:
      self._compare_palettes(path, stored.palette, used)

  def numbers(
    self, *, bits: bool, leave_out: frozenset[str] = frozenset()
  ) -> set[int]:
    """The numbers in masks of 1 bit if `bits`, else in masks of other kinds.

    Kinds in `leave_out` do not count.
    """
    numbers: set[int] = set()
    for (kind, _), counts in self.counts.items():
      if (kind == "bits") == bits and kind not in leave_out:
        numbers |= {*np.flatnonzero(counts).tolist()}
    return numbers

  def first_with(self, number: int) -> bytes:
    """The first mask that has a number."""
    return next(p for (_, n), p in self.first.items() if n == number)

  def _look_at_colours(self, path: bytes, stored: StoredMask) -> None:
    """Counts the pixels of each label in a mask of colours.

    Raises ValueError for a colour that no class has.
    """
    assert self._classes is not None
    labels = Meaning(self._classes).labels(path, stored)
    found = _count_values(labels, MOST_NUMBER + 1)
    used = np.flatnonzero(found)
    self.colours.update(dict(zip(used.tolist(), found[used], strict=True)))

  def _compare_palettes(
    self, path: bytes, palette: Int[np.ndarray, " n"], used: np.ndarray
  ) -> None:
    """Notes the first two files in which a number has two colours.

    `palette` has the colours of a file's numbers, of which it uses `used`.
    """
    known = self._palette[used]
    differ = used[(known != STRANGE) & (known != palette[used])].tolist()
    if differ and self.palettes_differ is None:
      self.palettes_differ = self._palette_files[differ[0]], path
    new = used[known == STRANGE]
    self._palette[new] = palette[new]
    self._palette_files |= dict.fromkeys(new.tolist(), path)


def take_census(masks: Sequence[bytes], classes: Classes | None) -> Census:
  """Looks at all masks, or at some if a file names the classes.

  In the second case it looks at evenly spaced masks, and at the largest files
  among many others, as large files likely have the most values. Raises
  ValueError for a file that is not a mask.
  """
  found = Census(len(masks), classes)
  if classes is None:
    for path in masks:
      found.look(path)
    return found
  even = {*_evenly_spaced(masks, LOOKED_AT)}
  _look_at_readable(found, sorted(even))
  others = sorted({*_evenly_spaced(masks, _WEIGHED)} - even)
  largest = sorted(others, key=_size, reverse=True)[:LARGEST]
  _look_at_readable(found, largest)
  return found


def _look_at_readable(found: Census, masks: Iterable[bytes]) -> None:
  """Counts the pixels of these masks, and leaves out unreadable files."""
  for path in masks:
    try:
      found.look(path)
    except UnreadableImageError:
      continue  # Reading the mask for the run reports the error.


def _evenly_spaced(masks: Sequence[bytes], most: int) -> list[bytes]:
  """At most `most` of the masks, evenly spaced in their order."""
  return [masks[place] for place in evenly_spread(most, len(masks))]


def _size(path: bytes) -> int:
  """The bytes of a file; 0 if it cannot be read."""
  try:
    return os.stat(path).st_size
  except OSError:
    return 0


def _count_values(values: Int[np.ndarray, "h w"], size: int) -> np.ndarray:
  """The number of pixels of each value below `size`.

  The array is counted in parts, since `np.bincount` copies its argument.
  """
  counts = np.zeros(size, np.int64)
  rows = max(1, _PIXELS // values.shape[1])
  for first in range(0, len(values), rows):
    counts += np.bincount(values[first : first + rows].ravel(), minlength=size)
  return counts
