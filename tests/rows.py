"""Which rows of a parametrised test are slow."""

import pytest


def some_slow(rows, fast):
  """The rows, slow but for those in `fast`."""
  return [
    row if row in fast else pytest.param(row, marks=pytest.mark.slow)
    for row in rows
  ]


def first_fast(rows, column):
  """The rows, which are tuples, slow but for the first of each kind.

  Rows that have the same value in this column are of one kind.
  """
  kinds = [row[column] for row in rows]
  return [
    pytest.param(*row, marks=pytest.mark.slow)
    if row[column] in kinds[:i]
    else row
    for i, row in enumerate(rows)
  ]
