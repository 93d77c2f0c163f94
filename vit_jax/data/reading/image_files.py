"""Image files with labels, by index; and image files, by names and patterns.

`ImageFiles` is a source of a training run: its `__getitem__` reads the bytes of
a file. The files are listed by its subclasses, in `image_folder`, `label_file`
and `imagenet_sets`. Below it, `find_images` finds the files that a user names,
as for `predict`, without labels.
"""

import collections
import contextlib
import glob
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from vit_jax.data.batch import label_spec
from vit_jax.data.example import (
  MAX_BYTES,
  Example,
  Source,
  UnreadableImageError,
)
from vit_jax.data.reading.folders import EXTENSIONS, HEIF, images_below
from vit_jax.data.reading.holdout import Holdout
from vit_jax.data.reading.lookup import Lookup, folders_of_all
from vit_jax.data.settings import TABLES, DataSettings
from vit_jax.runtime import hints
from vit_jax.runtime.files import open_regular
from vit_jax.runtime.printable import composed, counted, first_of, say
from vit_jax.runtime.printable import printable_path as text

# HEIC files are found without their library too: reading one says what to
# install.
_ENDINGS = tuple(dict.fromkeys((*EXTENSIONS, *HEIF)))
_LOOKED_AT = 8  # Images whose range of values is looked at.
_MISSING = ("nan", "na", "n/a", "null", "none", "<na>", "?")
_FEW = 5  # With fewer images, a class can hardly be learned.


Path = str | os.PathLike[str]


class ImageFiles(Source):
  """Image files with labels, whose paths share one block of bytes.

  Example i has the bytes of file i, its label and its path; `__getitem__` reads
  the bytes. A subclass lists the files: `ImageFolder` by class folders,
  `LabelledImages` by a table.
  """

  name: str
  split: str
  root: str
  class_names: tuple[str, ...]
  # The rule by which a part is held out, if there is one.
  held_out: Holdout | None = None
  _folder: bytes
  _paths: bytes  # From the folder on, one after the other.
  _ends: np.ndarray  # Where each path ends in `_paths`.
  _labels: np.ndarray

  def __len__(self) -> int:
    return len(self._labels)

  def __getitem__(self, index: int) -> Example:
    path = self._path(index)
    label = self._labels[index]
    label = label.astype(label_spec(self).dtype) if label.ndim else int(label)
    return {"image": read_file(path), "label": label, "id": text(path)}

  def _set_files(
    self, folder: bytes, files: Sequence[bytes], labels: np.ndarray
  ) -> None:
    """Sets the files, by their paths from the folder on, and their labels."""
    self._folder = folder
    self._paths = b"".join(files)
    self._ends = np.cumsum([*map(len, files)])
    self._labels = labels

  def _keep(self, indices: Int[np.ndarray, " n"]) -> None:
    """Keeps only the files with these indices."""
    files = [self._file(index) for index in indices.tolist()]
    self._paths = b"".join(files)
    self._ends = np.cumsum([*map(len, files)], dtype=np.int64)
    self._labels = self._labels[indices]

  def _file(self, index: int) -> bytes:
    """The path of a file, from the folder on."""
    start = int(self._ends[index - 1]) if index else 0
    return self._paths[start : int(self._ends[index])]

  def _path(self, index: int) -> bytes:
    return os.path.join(self._folder, self._file(index))

  def ids(self, indices: Sequence[int]) -> list[str]:
    """Returns the ids of some examples without reading any file."""
    return [text(self._path(int(i))) for i in indices]

  def files(self) -> list[str]:
    """The paths of all files, as they are opened."""
    return [os.fsdecode(self._path(i)) for i in range(len(self))]

  def labels(self, indices: Sequence[int]) -> np.ndarray:
    """Returns the labels of some examples without reading any file."""
    return self._labels[np.asarray(indices, np.int64)]

  def warnings(self) -> list[str]:
    """Warnings about what may be a mistake in the layout, a line each."""
    lines = []
    counts = np.bincount(self._labels, minlength=len(self.class_names))
    few = np.flatnonzero(counts < _FEW)
    if len(few) and len(counts) > 1:  # With labels.
      named = [f"{self.class_names[i]} {counts[i]}" for i in few.tolist()]
      lines.append(
        f"{len(few):,} of {len(counts):,} classes have fewer than {_FEW} "
        f"training images: {first_of(named, 5)}."
      )
    lines += name_warnings(self.class_names)
    return lines

  def exposure_warnings(self) -> list[str]:
    """A warning if 16-bit images use less than an eighth of their range."""
    from vit_jax.data.decoding.pillow import brightest

    indices = np.unique(np.linspace(0, len(self) - 1, _LOOKED_AT).astype(int))
    wide = []
    for index in indices.tolist():
      with contextlib.suppress(UnreadableImageError):
        value = brightest(self[index]["image"])
        if value is not None:
          wide.append(value)
    if not wide or max(wide) >= 2**16 / 8:
      return []
    white = 2 ** max(1, int(max(wide)).bit_length()) - 1
    line = (
      f"{len(wide)} of {len(indices)} images looked at have 16 bits and reach "
      f"{max(wide):,.0f} of 65,535, which is nearly black; set "
      f"--config.normalization.window='(0,{white})'."
    )
    return [line]


def read_file(path: bytes) -> bytes:
  """Reads a file; raises UnreadableImageError if that fails."""
  try:
    with open_regular(os.fsdecode(path), MAX_BYTES) as file:
      return file.read()
  except OSError as error:
    raise UnreadableImageError(f"{text(path)}: {error.strerror}.") from error


def counts_of(splits: Sequence[Any]) -> str:
  """The number of images in each split, such as "train 8, test 2 images"."""
  *others, last = splits
  counts = [f"{split.split} {len(split):,}" for split in others]
  return ", ".join([*counts, f"{last.split} {counted(len(last), 'image')}"])


def name_warnings(names: Sequence[str]) -> list[str]:
  """Warnings about names of classes that may be a mistake, a line each."""
  lines = []
  values = [_number(name) for name in names]
  by_value: dict[float, list[str]] = collections.defaultdict(list)
  by_case: dict[str, list[str]] = collections.defaultdict(list)
  for name, value in zip(names, values, strict=True):
    by_case[composed(name).casefold()].append(name)
    if value is not None:
      by_value[value].append(name)
  for groups, what in (
    (by_value, "are the same number"),
    (by_case, "differ only in case or in how accents are encoded"),
  ):
    same = [group for group in groups.values() if len(group) > 1]
    if same:
      shown = " and ".join(map(repr, same[0]))
      more = f" ({len(same):,} such groups)" if same[1:] else ""
      lines.append(
        f"classes {shown} {what}, and are kept as different classes{more}; "
        "give them one name if they are the same."
      )
  if missing := [name for name in names if name.strip().lower() in _MISSING]:
    lines.append(
      f"class {missing[0]!r} looks like a missing label, and is kept as a "
      "class; remove its images if it is not one."
    )
  numbers = [value for value in values if value is not None]
  if names and len(numbers) == len(names) and numbers != sorted(numbers):
    lines.append(
      "the classes are named by numbers and sorted as text: "
      f"{', '.join(names[:4])}, ...; a class's index is not its name."
    )
  elif len(numbers) > 1 and numbers == [*range(1, len(names) + 1)]:
    lines.append(
      f"the classes are named {names[0]} to {names[-1]}, and their indices are "
      f"0 to {len(names) - 1}: class 0 is {names[0]!r}."
    )
  return lines


def _number(name: str) -> float | None:
  """The number that a name stands for; None unless it is a finite number."""
  try:
    value = float(name)
  except ValueError:
    return None
  return value if math.isfinite(value) else None


def find_images(names: Path | Iterable[Path]) -> Iterator[str]:
  """Yields the image files that names stand for, in the order of the names.

  `names` are several names, or a single one. A name is that of a file with any
  extension; of a file of labels, such as a CSV file, for the images that it
  names; of a folder, which is searched at any depth for images of all kinds
  that are read; or a pattern such as "photos/**/*.jpg" that matches such files
  and folders. Hidden files have to be named in full.
  """
  for name in _as_paths(names):
    yield from _files_of(os.path.expanduser(name))


def say_missing(names: Path | Iterable[Path]) -> bool:
  """Prints a line for each name that stands for no image.

  Returns whether there was such a name. Raises ValueError, with the first line,
  if no name stands for an image.
  """
  paths = [*_as_paths(names)]
  empty = [path for path in paths if next(find_images([path]), None) is None]
  lines = [_missing_line(name) for name in empty]
  if lines and len(lines) == len(paths):
    raise ValueError(lines[0])
  for line in lines:
    say(line)
  return bool(lines)


def _missing_line(name: str) -> str:
  """The message for a name that stands for no image."""
  if os.path.isdir(os.path.expanduser(name)):
    endings = os.fsdecode(b", ".join(EXTENSIONS))
    return f"folder {name!r} holds no images ({endings})."
  hint = "" if glob.has_magic(name) else hints.hint_for_path(name)
  hint = hint or "give files, folders or quoted patterns."
  if name.isidentifier():  # As "digits", which has no files.
    hint += (
      " If it is the data set of a run, `vit_jax evaluate RUN --per_class` "
      "tells what the run answers."
    )
  return f"{name!r} matches no image: {hint}"


def _as_paths(names: Path | Iterable[Path]) -> Iterator[str]:
  """Yields each name as text; `names` may be a single name."""
  if isinstance(names, str | os.PathLike):
    names = [names]
  for name in names:
    yield os.fspath(name)


def _files_of_table(path: str) -> Iterator[str]:
  """The paths of the files that a file of labels names relative to its folder.

  Raises ValueError if it names images and none of them is there.
  """
  from vit_jax.data.reading.label_rows import image_names

  root = os.path.dirname(path)
  names = [*image_names(path, DataSettings(labels_file=path))]
  holding = folders_of_all(root, [*map(os.fsencode, names)])
  if len(holding) == 1:  # As in training.
    root = os.path.join(root, os.fsdecode(holding[0]))
  lookup = Lookup(os.fsencode(root or "."))
  places = [lookup.find(os.fsencode(name)) for name in names]
  first = os.path.join(root, names[0]) if names else root
  if not any(places) and not os.path.exists(first):
    raise ValueError(
      f"{path} names {counted(len(names), 'image')}, such as {names[0]!r}, and "
      f"none of them is in {root or '.'}: move the file to the folder from "
      "which it names them."
    )
  for name, place in zip(names, places, strict=True):
    yield os.path.join(root, name if place is None else os.fsdecode(place))


def _files_of(path: str) -> Iterator[str]:
  """Yields the image files that one name stands for; see `find_images`."""
  if os.path.isdir(path):
    yield from _files_below(path)
  elif os.path.isfile(path) and path.lower().endswith(TABLES):
    yield from _files_of_table(path)
  elif os.path.exists(path):  # Even if the name could be read as a pattern.
    yield path
  else:
    searched = None
    matches = [m.split(os.sep) for m in glob.glob(path, recursive=True)]
    # Sorted by parts, a folder comes right before its content.
    for match in map(os.sep.join, sorted(matches)):
      if searched is not None and match.startswith(searched):
        continue
      name = os.fsencode(match).lower()
      if os.path.isdir(match):
        searched = os.path.join(match, "")
        yield from _files_below(match)
      elif name.endswith(_ENDINGS) and os.path.isfile(match):
        yield match


def _files_below(folder: str) -> Iterator[str]:
  for path in images_below(os.fsencode(folder), endings=_ENDINGS):
    yield os.path.join(folder, os.fsdecode(path))
