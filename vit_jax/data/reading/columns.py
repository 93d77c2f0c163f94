"""Encodes labels that have a column each: numbers, or bits, 0 and 1."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vit_jax.data.reading.cells import Row, has_decimal_comma
from vit_jax.data.reading.tables import fail, list_columns

_BINARY = {
  **dict.fromkeys(("1", "true", "yes", "y", "on"), 1),
  **dict.fromkeys(("0", "false", "no", "n", "off"), 0),
}
_EMPTY = ("", "nan", "none", "null", "na", "n/a")  # Empty cells.
_LARGEST = 3e38  # In float32.
UNKNOWN = math.nan
"""The value of a cell that does not say whether an image has a label.

NaN differs from itself, so compare by `is`.
"""
UNCERTAIN = "-1"
"""A cell whose label its annotator was not sure of, as in CheXpert."""


def is_empty(value: Any) -> bool:
  """Whether a cell has no value, as spreadsheets and pandas write it."""
  return str(value).strip().lower() in _EMPTY


def plain(value: Any) -> str:
  """A cell as it is compared: in lower case, and with -1 for -1.0."""
  return str(value).strip().lower().removesuffix(".0")


def unknown_cells(text: str | None) -> frozenset[str]:
  """The cells that `data.unknown` lists, as `plain` writes them."""
  return frozenset(map(plain, (text or "").split(","))) - {""}


def as_bit(value: Any) -> int | None:
  """The 0 or 1 in a cell; None if it holds neither."""
  return _BINARY.get(plain(value))


def read_bit(row: Row, name: str, value: Any, advice: str = "") -> np.uint8:
  """The 0 or 1 in a cell; an empty cell is 0.

  Raises ValueError, which ends with `advice`, for any other cell.
  """
  bit = 0 if is_empty(value) else as_bit(value)
  if bit is None:
    fail(row.place, f"has {name}={value!r}, which is not 0 or 1{advice}")
  return np.uint8(bit)


def places_of_ones(columns: Sequence[str], rows: Sequence[Row]) -> np.ndarray:
  """The place, among the columns, of the only 1 in each row, int32 (N,).

  Raises ValueError if a row has no 1 or several, or a cell is not 0 or 1.
  """
  try:
    bits = in_columns(columns, read_bit, rows).reshape(len(rows), len(columns))
  except ValueError as error:
    raise ValueError(
      f"data.label_columns has {len(columns)} columns, and "
      "data.task=classification takes one, or those of 0 and 1 with a single 1 "
      f"in each row: {str(error).removesuffix('.')}; data.task=regression "
      "takes columns of numbers."
    ) from None
  counts = bits.sum(axis=1)
  odd = np.flatnonzero(counts != 1)
  if len(odd):
    first = odd[0]
    what = f"{counts[first]} times 1" if counts[first] else "no 1"
    fail(
      rows[first].place,
      f"has {what} in the columns "
      f"{list_columns(columns)}, and {len(odd):,} of {len(rows):,} rows have "
      "none or several; data.task=classification takes a single 1 in each row: "
      "data.task=multilabel takes any number",
    )
  return bits.argmax(axis=1).astype(np.int32)


def read_number(row: Row, column: str, value: Any) -> np.float32:
  """The number in a cell; raises ValueError if it holds no finite number."""
  if has_decimal_comma(row, value):
    value = value.replace(",", ".")
  try:
    number = math.nan if isinstance(value, bool) else float(value)
  except (TypeError, ValueError, OverflowError):
    number = math.nan
  if not abs(number) < _LARGEST:  # NaN is not below it.
    problem = f"has {column}={value!r}, which is not a number such as 3.5"
    advice = "data.label_columns chooses the columns"
    if is_empty(value):
      advice = "fill it in, or leave out the line"
    elif isinstance(value, str) and "," in value:
      advice = "write a point for the fraction, and no mark for thousands"
    fail(row.place, f"{problem}: {advice}")
  return np.float32(number)


def in_columns(
  columns: Sequence[str], read: Callable[..., np.generic], rows: Sequence[Row]
) -> np.ndarray:
  """The values of rows (N, K), as `read(row, column, cell)` gives them."""
  table = []
  for row in rows:
    cells = zip(columns, row.values, strict=True)
    table.append([read(row, column, cell) for column, cell in cells])
  return np.array(table)
