"""Image files with labels, by index.

`ImageFiles` is a source of a training run: its `__getitem__` reads the bytes of
a file. The files are listed by its subclasses, in `image_folder`, `label_file`
and `imagenet_sets`. `named_images.find_images` finds files without labels.
"""

import collections
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from vit_jax.data.batch import label_spec
from vit_jax.data.example import (
  MAX_BYTES,
  Example,
  Source,
  UnreadableImageError,
  refuse_text,
)
from vit_jax.data.reading.holdout import Holdout
from vit_jax.runtime.files import open_regular
from vit_jax.runtime.printable import composed, counted, first_of
from vit_jax.runtime.printable import printable_path as text

# Names of classes that look like a missing label, in lower case.
_MISSING = ("nan", "na", "n/a", "null", "none", "<na>", "?")
_FEW = 5  # With fewer images, a class can hardly be learned.


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
  _paths: bytes  # Relative to the folder, one after the other.
  _ends: np.ndarray  # Where each path ends in `_paths`.
  _labels: np.ndarray

  def __len__(self) -> int:
    return len(self._labels)

  def __getitem__(self, index: int) -> Example:
    """The example at `index`; raises UnreadableImageError as `read_file`."""
    refuse_text(index)
    path = self._path(index)
    label = self._labels[index]
    label = label.astype(label_spec(self).dtype) if label.ndim else int(label)
    return {"image": read_file(path), "label": label, "id": text(path)}

  def _set_files(
    self, folder: bytes, files: Sequence[bytes], labels: np.ndarray
  ) -> None:
    """Sets the files, by paths relative to the folder, and their labels."""
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
    """The path of a file, relative to the folder."""
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
    """Warnings about classes that may be a mistake, a line each."""
    lines = []
    counts = np.bincount(self._labels, minlength=len(self.class_names))
    few = np.flatnonzero(counts < _FEW)
    if len(few) and len(counts) > 1:  # A single class stands for no labels.
      named = [f"{self.class_names[i]} ({counts[i]})" for i in few.tolist()]
      lines.append(
        f"{len(few):,} of {len(counts):,} classes have fewer than {_FEW} "
        f"training images: {first_of(named, 5)}."
      )
    lines += name_warnings(self.class_names)
    return lines


def read_file(path: bytes) -> bytes:
  """Reads a file; raises UnreadableImageError if that fails."""
  try:
    with open_regular(os.fsdecode(path), MAX_BYTES) as file:
      return file.read()
  except OSError as error:
    raise UnreadableImageError(f"{text(path)}: {error.strerror}.") from error


def counts_of(splits: Sequence[Any]) -> str:
  """The number of images in each split, such as "train 8, test 2 images".

  `splits` are sources that have the name of their split as `split`.
  """
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
