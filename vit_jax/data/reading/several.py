"""Several labels of an image: 1 for each that it has, and 0 for others."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from vit_jax.data.batch import ArraySpec
from vit_jax.data.reading.cells import Encode, Row, parts_of, put_together
from vit_jax.data.reading.columns import as_bit, in_columns, is_empty, read_bit
from vit_jax.data.reading.image_files import doubtful_names
from vit_jax.data.reading.labels import BETWEEN, Labels, Names, indexed
from vit_jax.data.reading.tables import fail, listed
from vit_jax.runtime.printable import printable


class Several(Labels):
  """For each name, 1 if an example has that label, or 0."""

  records = ""
  may_be_several = True
  again = "name an image again add their labels to it"
  heading = "label"
  twice = "twice with the same labels"
  apart = "there with different labels"

  def spec(self, count: int) -> ArraySpec:
    return ArraySpec((count,), np.float32)

  def fit(
    self, columns: Sequence[str], rows: Sequence[Row]
  ) -> tuple[Names, Encode]:
    if len(columns) > 1:
      return tuple(columns), functools.partial(in_columns, columns, read_bit)
    read = functools.partial(_several, columns[0])
    names, places = indexed(read, rows, least=1)

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


SEVERAL = Several("labels")


def _several(name: str, row: Row) -> list[str]:
  parts = _parts(row)
  if any(isinstance(part, list | dict | None) for part in parts):
    fail(
      row.place,
      (f"has {name}={row.values[0]!r}, which is not a list of labels"),
    )
  return [printable(str(part)) for part in parts if part != ""]


def _parts(row: Row) -> list[Any]:
  """The labels in the only cell of a row, which may be no labels."""
  (value,) = row.values
  if isinstance(value, str):
    return parts_of(value, BETWEEN)
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
  return [f"{like}, and may each be several labels, which {key} separates."]
