"""The meaning of masks' numbers and colours: from a file to classes."""

import dataclasses

import numpy as np
from jaxtyping import Int

from vit_jax.data.reading.masks.classes import (
  CLASSES,
  IGNORED,
  NO_CLASS,
  NONE,
  Classes,
  ignored_label,
)
from vit_jax.data.reading.masks.files import (
  MOST_NUMBER,
  StoredMask,
  as_numbers,
  no_numbers_message,
  read_stored,
)
from vit_jax.runtime.printable import printable_path as text

OF_PALETTES = ("bits", "grey", "palette")  # Kinds of numbers with a colour.
WHITE = (255, MOST_NUMBER)  # In 8 and in 16 bits.
STRANGE = -2  # In place of a class, for an unknown number or colour.
_PIXELS = 1 << 20  # Pixels whose colours are looked up at once.


@dataclasses.dataclass(frozen=True)
class Meaning:
  """How the masks of a folder are read.

  Attributes:
    classes: The names, numbers and colours of the classes; without a file of
      them, the names are numbers.
    by_colour: The kinds of masks of numbers whose colours are read, "bits",
      "grey" and "palette".
    white: Whether white is class 1 of two, and no pixel is ignored.
    doubtful: Whether white could be class 1 of two or no class, and is refused.
    earlier: Whether files are read as by earlier versions.
  """

  classes: Classes
  by_colour: frozenset[str] = frozenset()
  white: bool = False
  doubtful: bool = False
  earlier: bool = False

  @classmethod
  def numbered(cls, count: int) -> "Meaning":
    """The meaning of masks of `count` classes that no file names."""
    names = tuple(map(str, range(count)))
    return cls(Classes(names, tuple(range(count)), {}))

  @property
  def count(self) -> int:
    """The number of classes."""
    return len(self.classes.names)

  def read(self, path: bytes) -> Int[np.ndarray, "h w"]:
    """The class of each pixel of a file, int32.

    Pixels of no class have `ignored_label`. Raises UnreadableImageError and
    ValueError as `read_stored` does, and ValueError if a pixel has an unknown
    number or colour.
    """
    return self.labels(path, read_stored(path, self.earlier))

  def labels(self, path: bytes, stored: StoredMask) -> Int[np.ndarray, "h w"]:
    """The class of each pixel, as `read` gives it, of a mask that is read.

    Raises ValueError if a pixel has an unknown number or colour.
    """
    if stored.kind == "colours" and not self.classes.colours:
      if self.earlier:
        raise ValueError(no_numbers_message(path, "RGB"))
      stored = as_numbers(path, stored)
    if stored.palette is not None and stored.kind in self.by_colour:
      labels = self.classes_of_palette(stored.palette)[stored.values]
    elif stored.kind == "colours":
      labels = self._classes_by_colour(stored.values)
    else:
      labels = self.classes_of_numbers(stored.kind)[stored.values]
    if labels.min() == STRANGE:
      first = int((labels == STRANGE).argmax())
      row, column = divmod(first, labels.shape[1])
      raise ValueError(self._strange_message(path, stored, row, column))
    return labels

  def classes_of_palette(self, palette: Int[np.ndarray, " n"]) -> np.ndarray:
    """The class of each number by its colour; `STRANGE` if that is unknown."""
    none = ignored_label(self.count)
    classes = [self.classes.colours.get(c, STRANGE) for c in palette.tolist()]
    return np.array([none if k == NONE else k for k in classes], np.int32)

  def classes_of_numbers(self, kind: str) -> Int[np.ndarray, " n"]:
    """The class of each number in masks of a kind; `STRANGE` if unknown."""
    none = ignored_label(self.count)
    size = MOST_NUMBER + 1 if kind == "wide" else IGNORED + 1
    numbers = np.array(self.classes.numbers[:size], np.int32)
    table = np.full(size, STRANGE, np.int32)
    table[: len(numbers)] = np.where(numbers == NONE, none, numbers)
    if self.white:
      # The number 1 is class 1 in masks of 1 bit, where it is white.
      table[1] = 1 if kind == "bits" else STRANGE
      table[[number for number in WHITE if number < size]] = 1
      return table
    if self.doubtful:  # White stays unknown.
      return table
    if len(numbers) <= IGNORED or self.earlier:
      table[IGNORED] = none
    if kind == "wide":
      table[MOST_NUMBER] = none
    return table

  def _classes_by_colour(
    self, codes: Int[np.ndarray, "h w"]
  ) -> Int[np.ndarray, "h w"]:
    """The class of each pixel by its colour; `STRANGE` if that is unknown.

    Few rows are looked up at once, to save memory.
    """
    known = np.array(sorted(self.classes.colours), np.int32)
    classes = self.classes_of_palette(known)
    labels = np.empty(codes.shape, np.int32)
    rows = max(1, _PIXELS // codes.shape[1])
    for first in range(0, len(codes), rows):
      some = codes[first : first + rows]
      places = np.searchsorted(known, some).clip(0, len(known) - 1)
      labels[first : first + rows] = np.where(
        known[places] == some, classes[places], STRANGE
      )
    return labels

  def _strange_message(
    self, path: bytes, stored: StoredMask, row: int, column: int
  ) -> str:
    """The message for a pixel whose number or colour is unknown."""
    number = int(stored.values[row, column])
    place = f"in row {row}, column {column}"
    if stored.kind == "colours" or stored.kind in self.by_colour:
      code = number
      if stored.palette is not None:
        code = int(stored.palette[number])
      if code < 0:
        return (
          f"{text(path)} has a transparent colour {place}, which is not a "
          "class: save it without transparency."
        )
      colour = ", ".join(str(code >> bits & 255) for bits in (16, 8, 0))
      return (
        f"{text(path)} has the colour ({colour}) {place}, which is not a class "
        f"of {CLASSES}: add it, or {NO_CLASS!r} with it."
      )
    if self.white:
      return (
        f"{text(path)} has the number {number} {place}, and masks that were "
        f"looked at hold 0 and {IGNORED} alone, which were taken for the two "
        "classes: number all masks alike, or set "
        "--config.data.mask_values=index."
      )
    if self.doubtful and number in WHITE:
      return (
        f"{text(path)} has the number {number} {place}, which may be class 1 "
        "or no class, as the masks that were looked at hold 0 alone: number "
        "the classes 0 and 1, or set --config.data.mask_values=index, and "
        f"{number} is no class."
      )
    last = len(self.classes.numbers) - 1
    doubt = ""
    if number == last + 1 and not self.earlier:
      doubt = (
        f"; if 0 is no class, {NO_CLASS!r} in the first line of {CLASSES} says "
        "so"
      )
    return (
      f"{text(path)} has the class {number}, and the classes are 0 to {last}: "
      f"name it in a further line of {CLASSES} (without the file, the classes "
      f"are those of the training masks); a pixel of no class is "
      f"{ignored_label(last + 1)}{doubt}."
    )
