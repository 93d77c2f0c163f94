"""Reads images, and the numbers of their pixels from a folder beside them."""

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import numpy as np
from jaxtyping import Float

from vit_jax.data.batch import ArraySpec
from vit_jax.data.example import UnreadableImageError
from vit_jax.data.reading import folders
from vit_jax.data.reading.image_files import counts_of
from vit_jax.data.reading.labels import Labels, Names
from vit_jax.data.reading.masks import names as mask_names
from vit_jax.data.reading.masks.beside import NUMBERS as NUMBER_FILES
from vit_jax.data.reading.masks.beside import NUMBERS_AS_MASKS, PairedFiles
from vit_jax.data.reading.paired_folder import (
  WHOLE,
  PairedFolder,
  open_split_like_train,
  open_splits_like_train,
)
from vit_jax.data.reading.pixel_numbers.files import Reading, read_values
from vit_jax.data.reading.pixel_numbers.statistics import Statistics
from vit_jax.data.reading.split_names import words
from vit_jax.data.settings import DataSettings
from vit_jax.runtime.printable import printable_path as text

LOOKED_AT = 48  # Files that are read as a folder is opened.
# Beginnings of the names of targets in which 0 usually means unknown.
_ZERO_IS_UNKNOWN = ("depth", "disparit")
_LEVELS = 255  # The greatest value of 8 bits.
_FEW = 4  # Files of a folder of masks that are looked at.
_MOST_CLASSES = 256  # The most values of a picture that may be classes.
NO_VALUE = "none"
"""The value of `data.unknown` with which every number of a file counts."""


class PixelNumbers(Labels):
  """A picture of numbers, NaN where they are unknown."""

  reader = "number_folder"
  singular = "target"
  heading = "target"
  copies_alike = "twice"
  copies_unlike = "there with different targets"
  records = ""
  pixels_may_be_unknown = True

  def spec(self, count: int) -> ArraySpec:
    """A label of any height and width; a transform gives it a size."""
    del count
    return ArraySpec((0, 0), np.float32)

  def summarise(self, label: np.ndarray, count: int) -> np.ndarray:
    """The least, the greatest, the sum and the count of the known numbers.

    A fifth number is the count of all pixels.
    """
    del count
    known = label[~np.isnan(label)].astype(np.float64)
    ends = (known.min(), known.max()) if known.size else (np.inf, -np.inf)
    return np.array([*ends, known.sum(), known.size, label.size])

  def overview(self, summaries: np.ndarray, names: Names) -> dict[str, str]:
    """The least, the greatest and the mean number, and the unknown share.

    `summaries` has the five numbers of `summarise` for each label, (N, 5).
    """
    least = summaries[:, 0].min()
    most = summaries[:, 1].max()
    total, known, pixels = summaries[:, 2:].sum(axis=0)
    if not known:
      return {names[0]: "unknown"}
    words = f"{least:.6g} to {most:.6g}, mean {total / known:.6g}"
    if known < pixels:
      words += f", {1 - known / pixels:.1%} unknown"
    return {names[0]: words}

  def spread(self, summaries: np.ndarray, names: Names) -> str:
    return ""

  def about_other_names(self, names: Names, new: bool) -> str:
    """The advice to name the folder of the numbers as in the run."""
    del new
    return (
      " The numbers are named after their folder: if these measure the same "
      f"as those of the run, rename the folder to {names[0]}."
    )

  def label_text(self, label: np.ndarray, names: Names) -> str:
    """As `describe`."""
    return self.describe(label, names)

  def describe(self, label: Any, names: Sequence[str]) -> str:
    """The name of the target, and the range of its known numbers."""
    numbers = np.asarray(label)
    known = numbers[~np.isnan(numbers)]
    name = names[0] if len(names) else "numbers"
    if not known.size:
      return f"{name} unknown"
    return f"{name} {known.min():.4g} to {known.max():.4g}"


PIXEL_NUMBERS = PixelNumbers("targets")


class NumberFolder(PairedFolder):
  """One split of a folder of images and the numbers of their pixels.

  The folder holds `images`, and `depth` (or `height`, `density`, `targets` and
  the like, or `masks`) in the layouts of segmentation. The file beside an image
  is a PNG of 8 or 16 bits, a TIFF, or an .npy file of one array.

  Attributes:
    label_spec: The shape and type of a label: float32, (height, width), or (0,
      0) for any size.
    reading: How files become numbers.
    statistics: The statistics of some files of the training split.
    is_whole: Whether the values of these files are whole numbers.
  """

  def __init__(
    self,
    settings: DataSettings,
    split: str,
    size: tuple[int, int] | None = None,
    train: Optional["NumberFolder"] = None,
  ):
    """Lists the files, and looks at some of them.

    If the training split is open already, as `train`, its reading and its
    statistics are taken instead of looking. Raises ValueError if a folder or
    an image's file of numbers is missing, a file that is looked at does not
    have a number for each pixel, or all numbers in these files are unknown.
    """
    kind = train._kind if train else _find_kind(settings)
    super().__init__(settings, split, kind, size)
    if train:
      self.reading, self.is_whole = train.reading, train.is_whole
      self.statistics = train.statistics
    else:
      self._look(settings)
    self.class_names = (self.reading.name,)
    self.label_spec = ArraySpec(size or (0, 0), np.float32)

  def _read(self, path: bytes) -> Float[np.ndarray, "h w"]:
    return self.reading.read(path)

  def _look(self, settings: DataSettings) -> None:
    """Reads some files, and sets how all are read, `statistics` and lines.

    Raises ValueError if `data.unknown` lists no numbers, a file does not have a
    number for each pixel, or no number is known.
    """
    inside = os.path.relpath(self.beside, self._root)
    self.reading, is_guess = _choose_reading(settings, inside)
    seen = _ValueFacts()
    self.statistics = Statistics.of(self._read_some(seen))
    self.is_whole = seen.are_whole
    self._lines += [
      *_range_line(self.reading, self.statistics, len(self._pairs)),
      *_zero_lines(self.reading, seen.zeros / seen.pixels, is_guess, settings),
      *_filler_lines(self.reading, seen, settings),
      *self._rotation_lines(),
    ]
    if seen.are_whole and settings.target_scale is None and seen.most > _LEVELS:
      self._lines.append(
        f"targets are whole numbers of up to {seen.most:,.0f}, and 1 is taken "
        "for one unit: data.target_scale=0.001 turns millimetres into metres."
      )

  def _read_some(
    self, seen: "_ValueFacts"
  ) -> Iterator[Float[np.ndarray, "h w"]]:
    """Yields the numbers of some files, and adds their values' facts to `seen`.

    Files that cannot be read are left out, as training may skip them. Raises
    UnreadableImageError if none can be read.
    """
    # Rounded down, as in runs of earlier versions: their statistics must stay.
    count = min(LOOKED_AT, len(self._pairs))
    places = np.linspace(0, len(self._pairs) - 1, count).astype(int)
    unreadable = None
    for place in places.tolist():
      try:
        values = read_values(self._pairs[place][1])
      except UnreadableImageError as error:
        unreadable = error
        continue
      seen.look(values)
      yield self.reading.numbers(values)
    if unreadable and not seen.pixels:
      raise unreadable


# Values that programs write where nothing was measured.
_FILLERS = (-9_999.0, -99_999.0, -32_767.0, -32_768.0, 65_535.0)


@dataclasses.dataclass
class _ValueFacts:
  """Facts about the values of the files that were looked at."""

  are_whole: bool = True
  most: float = 0.0
  zeros: int = 0
  pixels: int = 0
  fillers: dict[float, int] = dataclasses.field(default_factory=dict)

  def look(self, values: np.ndarray) -> None:
    """Adds the values of a file."""
    self.are_whole &= values.dtype.kind != "f"
    self.most = max(self.most, float(values.max()))
    self.zeros += int((values == 0).sum())
    for filler in _FILLERS:
      if count := int((values == filler).sum()):
        self.fillers[filler] = self.fillers.get(filler, 0) + count
    self.pixels += values.size


def _find_kind(settings: DataSettings) -> PairedFiles:
  """The kind of paired files in the folder of targets, by the folder's name.

  It is `NUMBERS_AS_MASKS` for a folder that is named like one of masks.
  """
  root = os.fsencode(settings.root or "")
  try:
    mask_names.find_places(root, kind=NUMBER_FILES)
  except ValueError:
    try:
      mask_names.find_places(root, kind=NUMBERS_AS_MASKS)
    except ValueError:
      return NUMBER_FILES  # Listing these says what is missing.
    return NUMBERS_AS_MASKS
  return NUMBER_FILES


def _choose_reading(
  settings: DataSettings, folder: bytes
) -> tuple[Reading, bool]:
  """How files are read, and whether only the folder's name makes 0 unknown.

  Raises ValueError if `data.unknown` does not list numbers.
  """
  own = [word for word in words(folder) if word in NUMBER_FILES.words]
  name = own[0] if own else "target"
  scale = settings.target_scale or 1.0
  if settings.unknown is None and name.startswith(_ZERO_IS_UNKNOWN):
    return Reading(name, scale, (0.0,)), True
  return Reading(name, scale, _parse_unknown(settings.unknown)), False


def _parse_unknown(given: str | None) -> tuple[float, ...]:
  """The values in files that stand for no number, which `data.unknown` lists.

  Raises ValueError if that does not list numbers.
  """
  if given is None or given.strip().lower() == NO_VALUE:
    return ()
  try:
    return tuple(float(part) for part in given.split(","))
  except ValueError:
    raise ValueError(
      f"data.unknown={given!r}: give the values that stand for no number in "
      f"the files, such as 0 or 0,65535, or {NO_VALUE!r}."
    ) from None


def _range_line(
  reading: Reading, seen: Statistics, num_images: int
) -> list[str]:
  """A line on the range of the numbers in the files that were looked at."""
  which = "all" if seen.files == num_images else f"{seen.files:,} of"
  unknown = ""
  if seen.unknown > 0:
    unknown = f", {seen.unknown:.1%} of the pixels unknown"
  line = (
    f"{reading.name} of {which} {num_images:,} training images: "
    f"{seen.least:.6g} to {seen.most:.6g}, mean {seen.mean:.6g}{unknown}."
  )
  return [line]


def _zero_lines(
  reading: Reading, share: float, is_guess: bool, settings: DataSettings
) -> list[str]:
  """A line on 0, if files have it and no setting says what it is."""
  line = ""
  if is_guess and share:
    line = (
      f"0 is taken for unknown {reading.name} ({share:.1%} of the pixels): "
      f"data.unknown={NO_VALUE} takes it for a number."
    )
  elif share and 0 not in reading.unknown and settings.unknown != NO_VALUE:
    line = _number_line(reading, 0, share)
  return [line] if line else []


def _filler_lines(
  reading: Reading, seen: _ValueFacts, settings: DataSettings
) -> list[str]:
  """Lines on values that often stand for no number, and are not left out."""
  if settings.unknown == NO_VALUE:
    return []
  return [
    _number_line(reading, value, count / seen.pixels)
    for value, count in seen.fillers.items()
    if value not in reading.unknown
  ]


def _number_line(reading: Reading, value: float, share: float) -> str:
  """The line that a value of the files is taken for a number."""
  listed = ",".join(f"{known:g}" for known in (*reading.unknown, value))
  return (
    f"{value:g} is taken for a number ({share:.1%} of the pixels): "
    f"data.unknown={listed} leaves it out."
  )


def open_split(
  settings: DataSettings,
  split: str,
  labels: Labels = PIXEL_NUMBERS,
  size: tuple[int, int] | None = None,
) -> NumberFolder:
  """Opens the split "train", "eval" or "test" of the folder `settings.root`.

  Targets are read as those of "train" are. They are resized to `size`; without
  it, they keep their own size. Raises ValueError if there is no such folder,
  image or target.
  """
  del labels
  return open_split_like_train(_opener(settings, size), split)


def open_folder(
  settings: DataSettings,
  labels: Labels = PIXEL_NUMBERS,
  size: tuple[int, int] | None = None,
) -> dict[str, NumberFolder]:
  """Opens "train", "eval" and, if there is one, "test"; see `open_split`."""
  del labels
  return open_splits_like_train(_opener(settings, size))


def open_whole(
  settings: DataSettings, names: tuple[str, ...] = ()
) -> NumberFolder:
  """All images of a folder without splits, or else its evaluation split.

  It is for a folder that is new to a run: how its targets are read depends on
  these targets alone. Raises ValueError as `open_split` does.
  """
  del names  # Only folders of classes may lack some of a run's classes.
  return _opener(settings, None)(WHOLE, None)


def summary(splits: Sequence[NumberFolder]) -> str:
  """A line on what was found.

  It is like "rooms: train 8, test 2 images, depth of each pixel".
  """
  counts = counts_of(splits)
  name = splits[0].reading.name
  return f"{splits[0].folder_name}: {counts}, {name} of each pixel"


def _opener(
  settings: DataSettings, size: tuple[int, int] | None
) -> Callable[[str, NumberFolder | None], NumberFolder]:
  """A function that opens a split, as `open_split_like_train` takes it.

  Raises ValueError unless the settings name a folder of images and targets.
  """
  if not settings.root or settings.labels_file:
    raise ValueError(
      "data.task=dense_regression takes --config.data.root, a folder that "
      "holds images and targets, such as images and depth."
    )

  def open_one(split: str, train: NumberFolder | None) -> NumberFolder:
    return NumberFolder(settings, split, size, train)

  return open_one


def why_numbers(root: bytes) -> str:
  """Why the files of a folder of masks seem to hold numbers; "" if they do not.

  A few files are looked at. Their values are numbers if they are floats, or if
  one picture has more than 256 different ones.
  """
  try:
    places, _ = mask_names.find_places(root, kind=NUMBERS_AS_MASKS)
  except ValueError:
    return ""
  _, folder = next(iter(places.values()))
  files = folders.images_below(folder, endings=NUMBERS_AS_MASKS.endings)
  for file in itertools.islice(files, _FEW):
    try:
      values = read_values(os.path.join(folder, file))
    except ValueError:  # The file has colours, or is damaged.
      return ""
    if values.dtype.kind == "f":
      return f"whose files have floats, such as {text(file)}"
    if len(np.unique(values)) > _MOST_CLASSES:
      return (
        f"whose files have more than {_MOST_CLASSES} different values, such as "
        f"{text(file)}"
      )
  return ""
