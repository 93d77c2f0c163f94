"""Joins the rows of an image in a file of labels, and encodes their classes.

`labels.Labels` does so by these functions, and other kinds of labels use some
of them as well, such as `captions.Captions`, whose rows `join_rows` joins too.
"""

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

import numpy as np

from vit_jax.data.reading.cells import Encode, Row, several_labels_hint
from vit_jax.data.reading.columns import places_of_ones
from vit_jax.data.reading.tables import fail
from vit_jax.runtime.printable import composed, first_of, printable

Names = tuple[str, ...]
_NAMED = 12  # Labels that a message names.


def fit(columns: Sequence[str], rows: Sequence[Row]) -> tuple[Names, Encode]:
  """The names of the classes, and a function from rows to classes, int32 (N,).

  Raises ValueError if a row has no class or several, or all have the same one.
  """
  if len(columns) > 1:
    encode = functools.partial(places_of_ones, columns)
    encode(rows)
    return tuple(columns), encode

  read = functools.partial(_single, columns[0], rows=rows)
  names, places = index_names(read, rows, least=2)

  def encode(rows: Sequence[Row]) -> np.ndarray:
    return np.array([*map(places, rows)], np.int32).reshape(len(rows))

  return names, encode


def fit_to(columns: Sequence[str], names: Names) -> Encode:
  """A function that encodes rows for names that are known already.

  If the classes have a column each, raises ValueError unless all columns are
  among the names. The function raises ValueError for a class that is not among
  them.
  """
  if len(columns) == 1:
    places = finder_of_places(functools.partial(_single, columns[0]), names)
    return lambda rows: np.array([places(row)[0] for row in rows], np.int32)
  place = {composed(name): k for k, name in enumerate(names)}
  if lacks := [name for name in columns if composed(name) not in place]:
    raise ValueError(
      f"there is a column for {_unknown_label(lacks[0], names)}."
    )
  order = np.array([place[composed(name)] for name in columns], np.int32)
  return lambda rows: order[places_of_ones(columns, rows)]


def finder_of_places(
  read: Callable[[Row], list[str]],
  names: Names,
  advice: Callable[[str], str] | None = None,
) -> Callable[[Row], list[int]]:
  """A function that finds the places in `names` of the names in a row.

  `read` gives the names in a row. The function raises ValueError if one of them
  is not among `names`; `advice` then gives the end of the message.
  """
  index = {composed(name): k for k, name in enumerate(names)}

  def places(row: Row) -> list[int]:
    """The places of a row's names; raises ValueError for one not in `names`."""
    read_names = read(row)
    for name in read_names:
      if composed(name) not in index:
        problem = f"has {_unknown_label(name, names)}"
        fail(row.place, problem + (advice(name) if advice else ""))
    return [index[composed(name)] for name in read_names]

  return places


def _unknown_label(name: str, names: Names) -> str:
  """The words of a message on a label that is not among a run's names."""
  shown = first_of(names, _NAMED)
  return f"the label {name!r}, which the run does not know; the run has {shown}"


def merge_equal(before: Row, row: Row, hint: str) -> Row:
  """The first of two rows of an image.

  Raises ValueError, which ends with `hint`, if their labels differ.
  """
  if before.values == row.values:
    return before
  problem = f"names {row.file!r} as {before.place} does, with another label"
  fail(row.place, f"{problem}: keep one row for a file{hint}")


def join_rows(
  rows: Iterable[Row], merge: Callable[[Row, Row], Row]
) -> list[Row]:
  """One row for each image; `merge` makes one row of two rows of an image.

  Raises ValueError as `merge` does, and for rows of an image that name
  different splits or groups.
  """
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
        "image belongs to one",
      )
    if before.group != row.group:
      fail(
        row.place,
        f"puts {row.file!r} into the group {row.group!r}, and {before.place} "
        f"into {before.group!r}: an image belongs to one",
      )
    first[file] = merge(before, row)
  return [*first.values()]


def index_names(
  read: Callable[[Row], list[str]], rows: Sequence[Row], least: int
) -> tuple[Names, Callable[[Row], list[int]]]:
  """The names in the rows, sorted, and a function that finds those of a row.

  The function returns their places among all names, and raises ValueError for a
  name that is not among them. Raises ValueError for fewer than `least` names.
  """
  names = sorted({name for row in rows for name in read(row)})
  if all(name.isdecimal() for name in names):
    names.sort(key=int)
  if len(names) < least:
    problem = f"and all other rows have {len(names)} different labels together"
    fail(rows[0].place, f"{problem}: give {least} or more")
  index = {name: k for k, name in enumerate(names)}

  def places(row: Row) -> list[int]:
    """The places of a row's names; raises ValueError for one not in `names`."""
    for name in read(row):
      if name not in index:
        advice = "correct it, or add rows to train on that have it"
        if name.isdecimal():
          advice = "--config.data.task=regression learns numbers"
        problem = f"has the label {name!r}, which no training row has"
        fail(row.place, f"{problem}; {advice}")
    return [index[name] for name in read(row)]

  return tuple(names), places


def _single(column: str, row: Row, rows: Sequence[Row] = ()) -> list[str]:
  """The only label of a row, in a list; raises ValueError unless it has one.

  `rows` are all rows, if they are at hand, for the message on an empty cell.
  """
  (value,) = row.values
  if isinstance(value, list):
    fail(row.place, f"has {column}={value!r}; data.task=multilabel takes lists")
  if value in (None, ""):
    _fail_without_class(column, row, rows)
  if isinstance(value, dict):
    fail(row.place, f"has {column}={value!r}, which is not a class")
  return [printable(str(value))]


def _fail_without_class(column: str, row: Row, rows: Sequence[Row]) -> NoReturn:
  """Raises ValueError for an empty cell; other rows may hint at the cause."""
  (value,) = row.values
  cells = {cell for row in rows for cell in row.values if isinstance(cell, str)}
  advice = several_labels_hint(sorted(cells - {""}))
  advice = advice or "fill it in, or leave out the line"
  fail(row.place, f"has {column}={value!r}, which is not a class: {advice}")
