"""Which rows of a parametrised test are slow."""

import pytest


def some_slow(rows, fast):
  """The rows, slow but for those in `fast`; a tuple has several values."""
  return [row if row in fast else _slow(row) for row in rows]


def _slow(row):
  values = row if isinstance(row, tuple) else (row,)
  return pytest.param(*values, marks=pytest.mark.slow)


def first_fast(rows, column):
  """The rows, which are tuples, slow but for the first of each kind.

  Rows that have the same value in this column are of one kind.
  """
  kinds = [row[column] for row in rows]
  return [
    _slow(row) if row[column] in kinds[:i] else row
    for i, row in enumerate(rows)
  ]
