"""The kinds of labels: their shape and type, and how a file gives them.

A kind of one's own derives from `Labels`, and is a task's `labels`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from vit_jax.data.batch import CLASS, ArraySpec
from vit_jax.data.reading.image_files import doubtful_names
from vit_jax.data.reading.label_rows import Encode, Row, fail, has_decimal_comma
from vit_jax.runtime.printable import printable

_USUAL = ("label", "labels", "class")
_BETWEEN = (";", "|")  # Between several labels in a cell.
_BINARY = {"1": 1, "true": 1, "0": 0, "false": 0, "": 0}
_LARGEST = 3e38  # In float32.
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
  """

  plural: str = "classes"
  are_used: bool = True
  reader: ClassVar[str] = ""
  records: ClassVar[str] = "tfds_labels"

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
    return [name for name in _USUAL if name in names][:1] or _USUAL[:1]

  def joined(self, rows: Sequence[Row]) -> list[Row]:
    """The rows of a file with one for each image, if several may be of one."""
    return [*rows]

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
      raise ValueError(
        f"data.label_columns has {len(columns)} columns, and "
        "data.task=classification takes one; the other tasks take several."
      )
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
    odd = [name for name in names if {*_BETWEEN} & {*name}]
    if not odd or not self.are_classes:
      return []
    doubt = (
      f"{len(odd):,} classes, such as {odd[0]!r}, look like several labels"
    )
    return [f"{doubt}, which --config.data.task=multilabel reads."]


class Several(Labels):
  """For each name, 1 if an example has that label, or 0."""

  records = ""

  def spec(self, count: int) -> ArraySpec:
    return ArraySpec((count,), np.float32)

  def fit(
    self, columns: Sequence[str], rows: Sequence[Row]
  ) -> tuple[Names, Encode]:
    if len(columns) > 1:
      return tuple(columns), functools.partial(_table, columns, _bit)
    read = functools.partial(_several, columns[0])
    names, places = _indexed(read, rows, least=1)

    def encode(rows: Sequence[Row]) -> np.ndarray:
      labels = np.zeros((len(rows), len(names)), np.uint8)
      for n, row in enumerate(rows):
        labels[n, places(row)] = 1
      return labels

    return names, encode

  def warnings(self, names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    del rows
    return doubtful_names(names)


class Numbers(Labels):
  """Numbers, one for each column."""

  records = ""

  def spec(self, count: int) -> ArraySpec:
    return ArraySpec((count,), np.float32)

  def columns(self, names: Sequence[str]) -> Sequence[str]:
    return [*names] or _USUAL[:1]

  def fit(
    self, columns: Sequence[str], rows: Sequence[Row]
  ) -> tuple[Names, Encode]:
    return tuple(columns), functools.partial(_table, columns, _number)

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


SINGLE = Labels()
SEVERAL = Several("labels")
NUMBERS = Numbers("targets")
NONE = Labels(are_used=False)
"""Labels of a task that ignores them."""


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


def _several(column: str, row: Row) -> list[str]:
  (value,) = row.values
  if isinstance(value, str):
    for separator in _BETWEEN[1:]:
      value = value.replace(separator, _BETWEEN[0])
    value = [part.strip() for part in value.split(_BETWEEN[0])]
  if not isinstance(value, list) or any(
    isinstance(part, list | dict | None) for part in value
  ):
    fail(row.place, f"has {column}={value!r}, which is no list of labels")
  return [printable(str(part)) for part in value if part != ""]


def _bit(row: Row, column: str, value: Any) -> np.uint8:
  text = str(value).lower().removesuffix(".0")
  if text not in _BINARY:
    fail(row.place, f"has {column}={value!r}, which is not 0 or 1")
  return np.uint8(_BINARY[text])


def _number(row: Row, column: str, value: Any) -> np.float32:
  if has_decimal_comma(row, value):
    value = value.replace(",", ".")
  try:
    number = math.nan if isinstance(value, bool) else float(value)
  except (TypeError, ValueError, OverflowError):
    number = math.nan
  if not abs(number) < _LARGEST:  # False for NaN.
    problem = f"has {column}={value!r}, which is no number such as 3.5"
    fail(row.place, f"{problem}; data.label_columns chooses the columns")
  return np.float32(number)


def _table(
  columns: Sequence[str], read: Callable[..., np.generic], rows: Sequence[Row]
) -> np.ndarray:
  pairs = ((row, zip(columns, row.values, strict=True)) for row in rows)
  return np.array(
    [[read(row, *cell) for cell in cells] for row, cells in pairs]
  )
