"""Encodes labels as arrays: class indices, several labels, or numbers."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vit_jax.data.reading.label_rows import Row, fail
from vit_jax.runtime.printable import printable

BETWEEN = (";", "|")  # Between several labels in a cell.
_BINARY = {"1": 1, "true": 1, "0": 0, "false": 0, "": 0}
_LARGEST = 3e38  # In float32.

Encode = Callable[[Sequence[Row]], np.ndarray]
"""Rows to labels: int32 (N,), uint8 (N, K) of 0 and 1, or float32 (N, T)."""


def make_encode(
  task: str, columns: list[str], train: Sequence[Row]
) -> tuple[tuple[str, ...], Encode]:
  """The names of the classes, labels or targets, and how rows are encoded.

  Raises:
    ValueError: if a label is missing or of another kind; `Encode` does too.
  """
  if task == "regression":
    return tuple(columns), functools.partial(_numbers, columns)
  if len(columns) > 1:
    if task == "multilabel":
      return tuple(columns), functools.partial(_binary, columns)
    raise ValueError(
      f"data.label_columns has {len(columns)} columns, and "
      "data.task=classification takes one; the other tasks take several."
    )
  labels_of = _several if task == "multilabel" else _single
  names = sorted({name for row in train for name in labels_of(columns[0], row)})
  if all(name.isdecimal() for name in names):
    names.sort(key=int)
  if len(names) < (least := 1 if task == "multilabel" else 2):
    fail(
      train[0].place,
      f"and all others have {len(names)} different labels: give {least} or "
      "more",
    )
  index = {name: k for k, name in enumerate(names)}

  def encode(rows: Sequence[Row]) -> np.ndarray:
    found = [[] for _ in rows]
    for places, row in zip(found, rows, strict=True):
      for name in labels_of(columns[0], row):
        if name not in index:
          fail(row.place, f"has the label {name!r}, which no training row has")
        places.append(index[name])
    if task == "classification":
      return np.array(found, np.int32).reshape(len(rows))
    labels = np.zeros((len(rows), len(index)), np.uint8)
    for n, places in enumerate(found):
      labels[n, places] = 1
    return labels

  return tuple(names), encode


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
    for mark in BETWEEN[1:]:
      value = value.replace(mark, BETWEEN[0])
    value = [part.strip() for part in value.split(BETWEEN[0])]
  if not isinstance(value, list) or any(
    isinstance(part, list | dict | None) for part in value
  ):
    fail(row.place, f"has {column}={value!r}, which is no list of labels")
  return [printable(str(part)) for part in value if part != ""]


def _binary(columns: list[str], rows: Sequence[Row]) -> np.ndarray:
  def read(row: Row, column: str, value: Any) -> int:
    text = str(value).lower().removesuffix(".0")
    if text not in _BINARY:
      fail(row.place, f"has {column}={value!r}, which is not 0 or 1")
    return _BINARY[text]

  return _table(columns, rows, read).astype(np.uint8)


def _numbers(columns: list[str], rows: Sequence[Row]) -> np.ndarray:
  def read(row: Row, column: str, value: Any) -> float:
    try:
      found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
      found = math.nan
    if not abs(found) < _LARGEST:  # False for NaN.
      fail(
        row.place,
        f"has {column}={value!r}, which is no number such as 3.5; "
        "data.label_columns chooses the columns",
      )
    return found

  return _table(columns, rows, read).astype(np.float32)


def _table(
  columns: list[str],
  rows: Sequence[Row],
  read: Callable[[Row, str, Any], float],
) -> np.ndarray:
  cells = [
    read(row, column, value)
    for row in rows
    for column, value in zip(columns, row.values, strict=True)
  ]
  return np.array(cells, np.float64).reshape(len(rows), len(columns))
