"""The kinds of labels: their shape and type, and how a file gives them.

A kind of one's own derives from `Labels`, and is a task's `labels`.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from vit_jax.data.batch import CLASS, ArraySpec
from vit_jax.data.reading.cells import parts_of, put_together
from vit_jax.data.reading.columns import (
  as_bit,
  in_columns,
  is_empty,
  one_hot,
  read_bit,
  read_number,
)
from vit_jax.data.reading.image_files import doubtful_names
from vit_jax.data.reading.label_rows import Encode, Row, has_decimal_comma
from vit_jax.data.reading.tables import column, fail, listed
from vit_jax.runtime.printable import printable

_USUAL = ("label", "labels", "class")
_FURTHER = ("label_name",)
_BETWEEN = ";|"  # Between several labels in a cell.
# Smallest deviation of a target over its mean that float32 resolves well.
_LEAST_SPREAD = 1e-5

Names = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Labels:
  """A kind of labels; this one is the index of a class.

  Attributes:
    plural: The word for the names of a source with such labels.
    are_used: False if the task ignores the labels.
    reader: The module of `data.reading` that reads a folder of images with such
      labels; "" for class folders, or a file of labels.
    records: The module of `data.reading` that finds such labels in the records
      of TFDS; "" if none does, and they are in a file.
    may_be_several: Whether a cell may have several, parted by a separator.
    again: The effect of further rows of an image in words; "" if usual.
    heading: The word for a name, above all names of a table.
    twice, apart: What is said of equal images with equal labels, and with
      different ones.
  """

  plural: str = "classes"
  are_used: bool = True
  reader: ClassVar[str] = ""
  records: ClassVar[str] = "tfds.labels"
  may_be_several: ClassVar[bool] = False
  again: ClassVar[str] = "repeat an image and its label count once"
  heading: ClassVar[str] = "class"
  twice: ClassVar[str] = "twice in a class"
  apart: ClassVar[str] = "in several classes"

  @property
  def are_classes(self) -> bool:
    """Whether a label is the index of one class."""
    return self.spec(1) == CLASS

  def spec(self, count: int) -> ArraySpec:
    """Shape and type of the label of an example, if there are `count` names."""
    del count
    return CLASS

  def columns(self, names: Sequence[str]) -> Sequence[str]:
    """The columns of a file of labels that have the labels.

    `names` are those of all columns but that of the files and `split`. What is
    returned need not be among them: a message then says what is missing.
    """
    return (column((*_USUAL, *_FURTHER), names) or _USUAL[0],)

  def guessed(self, first: Mapping[str, Any]) -> Sequence[str]:
    """The columns that have the labels, if `columns` are not there.

    These are all of two or more whose cells in the first row are 0 or 1.
    `first` has these cells, without those of the files and of `split`.
    """
    are_bits = all(as_bit(value) is not None for value in first.values())
    return [*first] if are_bits and len(first) > 1 else ()

  def joined(self, rows: Sequence[Row]) -> list[Row]:
    """The rows of a file with one for each image.

    Raises ValueError if two rows of an image are of different splits, or their
    labels cannot be put together.
    """
    return joined(rows, self.together)

  def together(self, before: Row, row: Row) -> Row:
    """One row of two of the same image; raises ValueError if they disagree."""
    if before.values == row.values:
      return before
    problem = f"names {row.file!r} as {before.place} does, with another label"
    several = " (data.task=multilabel takes several)" * self.are_classes
    fail(row.place, f"{problem}: keep one row for a file{several}")

  def remarks(self, columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Lines on how all rows of a file are read, after `joined`."""
    del rows
    if len(columns) == 1 or not self.are_classes:
      return []
    why = "are the classes, as each row has a single 1"
    return [f"the columns {listed(columns)} {why}."]

  def fit(
    self, columns: Sequence[str], rows: Sequence[Row]
  ) -> tuple[Names, Encode]:
    """The names of classes, labels or targets, and how rows are encoded.

    Args:
      columns: The columns that have the labels.
      rows: The rows of the training split, in their order.

    Raises:
      ValueError: if a row has no such label. The message names its line.
    """
    if len(columns) > 1:
      encode = functools.partial(one_hot, columns)
      encode(rows)
      return tuple(columns), encode
    read = functools.partial(_single, columns[0])
    names, places = _indexed(read, rows, least=2)

    def encode(rows: Sequence[Row]) -> np.ndarray:
      return np.array([*map(places, rows)], np.int32).reshape(len(rows))

    return names, encode

  def check(self, path: str, names: Sequence[str], labels: np.ndarray) -> None:
    """Raises ValueError if nothing can be learned from the training labels.

    `path` is that of their file, and `labels` are those of all examples.
    """

  def warnings(self, names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Warnings about labels of a file that may be a mistake, a line each.

    Those about the names of any classes come from `ImageFiles.warnings`.
    """
    del rows
    if not self.are_classes:
      return []
    by = "--config.data.task=multilabel"
    odd = [name for name in names if {*_BETWEEN} & {*name}]
    if not odd:
      mark, odd = put_together(names)
      by += f" --config.data.label_separator={mark!r}"
    if not odd:
      return []
    like = f"classes, such as {odd[0]!r}, look like several labels"
    return [f"{len(odd):,} of {len(names):,} {like}, which {by} reads."]

  def kept(self, label: Any, count: int) -> np.ndarray:
    """The part of a label that an overview needs, of one shape for all labels.

    `count` is the number of names.
    """
    del count
    return np.asarray(label)

  def overview(self, kept: np.ndarray, names: Names) -> dict[str, str]:
    """A few words on each name, from what is kept of the labels of a split.

    Of the index of a class, they are how many images have it. `kept` is of
    shape (N, ...), and what is no name may follow the names.
    """
    counts = np.bincount(kept, minlength=len(names))
    return {name: f"{n:,}" for name, n in zip(names, counts, strict=True)}

  def spread(self, kept: np.ndarray, names: Names) -> str:
    """How many images the names have, where not all are listed; may be ""."""
    counts = np.bincount(kept, minlength=len(names))
    return f"{counts.min():,} to {counts.max():,} images each"

  def shown(self, label: np.ndarray, names: Names) -> str:
    """The label of an image in words, to be shown below it."""
    return names[int(label)]


class Unused(Labels):
  """Labels of a task that ignores them; all are 0."""

  heading = "images"
  twice = "twice"

  def shown(self, label: np.ndarray, names: Names) -> str:
    del label, names
    return ""


class Several(Labels):
  """For each name, 1 if an example has that label, or 0."""

  records = ""
  may_be_several = True
  again = "name an image again add their labels to it"
  heading = "label"
  twice = "twice with the same labels"
  apart = "there with different labels"
  between = _BETWEEN

  def spec(self, count: int) -> ArraySpec:
    return ArraySpec((count,), np.float32)

  def fit(
    self, columns: Sequence[str], rows: Sequence[Row]
  ) -> tuple[Names, Encode]:
    if len(columns) > 1:
      return tuple(columns), functools.partial(in_columns, columns, read_bit)
    read = functools.partial(_several, columns[0])
    names, places = _indexed(read, rows, least=1)

    def encode(rows: Sequence[Row]) -> np.ndarray:
      labels = np.zeros((len(rows), len(names)), np.uint8)
      for n, row in enumerate(rows):
        labels[n, places(row)] = 1
      return labels

    return names, encode

  def together(self, before: Row, row: Row) -> Row:
    """The row before, with the labels of both."""
    if before.values == row.values:
      return before
    if len(row.values) == 1:
      values = [[*_parts(before), *_parts(row)]]
    else:
      pairs = zip(before.values, row.values, strict=True)
      values = [
        ours if as_bit(theirs) == 0 else theirs for ours, theirs in pairs
      ]
    return dataclasses.replace(before, values=values)

  def remarks(self, columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """A line on cells that are empty."""
    if len(columns) == 1:
      none = sum(row.values[0] == "" for row in rows)
      line = f"{none:,} of {len(rows):,} images have no label: their cells of"
      return [f"{line} {columns[0]!r} are empty."] if none else []
    empty = [
      sum(is_empty(row.values[k]) for row in rows) for k in range(len(columns))
    ]
    if not any(empty):
      return []
    pairs = zip(columns, empty, strict=True)
    by_column = listed([f"{name} {count:,}" for name, count in pairs if count])
    total = f"{len(rows) * len(columns):,}"
    line = f"{sum(empty):,} of {total} cells are empty and count as 0"
    return [f"{line}: {by_column}."]

  def warnings(self, names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    return [*_may_be_apart(names, rows), *doubtful_names(names)]

  def overview(self, kept: np.ndarray, names: Names) -> dict[str, str]:
    """How many images have each label, and how many have none, if any."""
    counts = (kept > 0).sum(axis=0)
    cells = {name: f"{n:,}" for name, n in zip(names, counts, strict=True)}
    none = int((kept <= 0).all(axis=1).sum())
    return cells | ({"(no label)": f"{none:,}"} if none else {})

  def spread(self, kept: np.ndarray, names: Names) -> str:
    counts = (kept > 0).sum(axis=0)
    return f"{counts.min():,} to {counts.max():,} images each"

  def shown(self, label: np.ndarray, names: Names) -> str:
    return ", ".join(names[k] for k in np.flatnonzero(label > 0))


class Numbers(Labels):
  """Numbers, one for each column."""

  records = ""
  heading = "target"
  twice = "twice with the same targets"
  apart = "there with different targets"

  def spec(self, count: int) -> ArraySpec:
    return ArraySpec((count,), np.float32)

  def columns(self, names: Sequence[str]) -> Sequence[str]:
    return [*names] or _USUAL[:1]

  def fit(
    self, columns: Sequence[str], rows: Sequence[Row]
  ) -> tuple[Names, Encode]:
    return tuple(columns), functools.partial(in_columns, columns, read_number)

  def check(self, path: str, names: Sequence[str], labels: np.ndarray) -> None:
    """Raises ValueError for a target that hardly varies."""
    labels = labels.astype(np.float64)
    middle = np.abs(labels.mean(axis=0))
    spread = labels.std(axis=0)
    for name, mean, width in zip(names, middle, spread, strict=True):
      if width <= _LEAST_SPREAD * mean or not width:
        raise ValueError(
          f"{path} has the target {name}, which hardly varies ({width:.3g} "
          f"around {mean:.6g}): subtract a constant, or leave it out."
        )

  def warnings(self, names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    values = (
      value
      for row in rows
      for value in row.values
      if has_decimal_comma(row, value)
    )
    first = next(values, None)
    return [f"numbers such as {first!r} have a decimal comma."] if first else []

  def overview(self, kept: np.ndarray, names: Names) -> dict[str, str]:
    """The least, the mean and the largest of each target."""
    rows = kept.astype(np.float64)
    spans = zip(
      names, rows.min(axis=0), rows.mean(axis=0), rows.max(axis=0), strict=True
    )
    return {
      name: f"{least:.6g} to {most:.6g}, mean {mean:.6g}"
      for name, least, mean, most in spans
    }

  def spread(self, kept: np.ndarray, names: Names) -> str:
    return ""

  def shown(self, label: np.ndarray, names: Names) -> str:
    del names
    return ", ".join(f"{value:.6g}" for value in label)


SINGLE = Labels()
SEVERAL = Several("labels")
NUMBERS = Numbers("targets")
NONE = Unused(are_used=False)
"""Labels of a task that ignores them."""


def joined(
  rows: Iterable[Row], together: Callable[[Row, Row], Row]
) -> list[Row]:
  """One row for each image, by what makes one of two; raises ValueError too."""
  first: dict[str, Row] = {}
  for row in rows:
    file = os.path.normpath(row.file)
    before = first.setdefault(file, row)
    if before is row:
      continue
    if before.split != row.split:
      fail(
        row.place,
        f"puts {row.file!r} into another split than {before.place} does: an "
        "image has one",
      )
    first[file] = together(before, row)
  return [*first.values()]


def _indexed(
  read: Callable[[Row], list[str]], rows: Sequence[Row], least: int
) -> tuple[Names, Callable[[Row], list[int]]]:
  """The names in the rows, in their order, and the places of those of a row."""
  names = sorted({name for row in rows for name in read(row)})
  if all(name.isdecimal() for name in names):
    names.sort(key=int)
  if len(names) < least:
    problem = f"and all others have {len(names)} different labels"
    fail(rows[0].place, f"{problem}: give {least} or more")
  index = {name: k for k, name in enumerate(names)}

  def places(row: Row) -> list[int]:
    for name in read(row):
      if name not in index:
        fail(row.place, f"has the label {name!r}, which no training row has")
    return [index[name] for name in read(row)]

  return tuple(names), places


def _single(column: str, row: Row) -> list[str]:
  (value,) = row.values
  if isinstance(value, list):
    fail(row.place, f"has {column}={value!r}; data.task=multilabel takes lists")
  if isinstance(value, dict) or value in (None, ""):
    fail(row.place, f"has {column}={value!r}, which is no class")
  return [printable(str(value))]


def _several(name: str, row: Row) -> list[str]:
  parts = _parts(row)
  if any(isinstance(part, list | dict | None) for part in parts):
    fail(row.place, f"has {name}={row.values[0]!r}, which is no list of labels")
  return [printable(str(part)) for part in parts if part != ""]


def _parts(row: Row) -> list[Any]:
  """The labels in the only cell of a row, which may be no labels."""
  (value,) = row.values
  if isinstance(value, str):
    return parts_of(value, _BETWEEN)
  return value if isinstance(value, list) else [None]


def _may_be_apart(names: Sequence[str], rows: Sequence[Row]) -> list[str]:
  """A line if names look like several labels that another separator parts."""
  if not rows or len(rows[0].values) > 1:
    return []
  mark, odd = put_together(names)
  if not odd:
    mark, odd = put_together(names, of_one=True)
    if odd and any(len(_parts(row)) > 1 for row in rows):
      return []
  if not odd or any(isinstance(row.values[0], list) for row in rows):
    return []
  share = f"({len(odd):,} of {len(names):,} labels)"
  key = f"--config.data.label_separator={mark!r}"
  like = f"names such as {odd[0]!r} share parts with others {share}"
  return [f"{like}, and may be several labels each, which {key} parts."]
