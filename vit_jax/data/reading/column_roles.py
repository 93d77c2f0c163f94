"""Tells which column of a table names the images, and which have the labels.

The cells decide, whatever the columns are called: those of the images name
files. The name of a column decides only between several that fit.
"""

import csv
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax.data.reading.columns import as_bit, is_empty, plain, unknown_cells
from vit_jax.data.reading.labels import Labels
from vit_jax.data.reading.lookup import Lookup
from vit_jax.data.reading.split_names import split_named
from vit_jax.data.reading.tables import (
  ENDINGS,
  columns_called_files,
  fail,
  list_columns,
)
from vit_jax.data.settings import DataSettings

SPLIT = "split"
LOOKED_AT = 64
"""The rows whose cells are looked at."""
_LOOKED_FOR = 16  # Those whose files are looked for.
_MOST_ODD = 3  # Values beside 0 and 1 that may all mean "unknown".
# Columns that number the rows; pandas writes the first two kinds.
_INDEX = re.compile(r"|unnamed: ?\d+|level_0|index|id|idx|no\.?|nr\.?|row|#")

Cells = Mapping[str, Any]


class Roles(NamedTuple):
  """The roles of the columns of a table.

  Attributes:
    file: The column that names the images.
    labels: The columns of the labels.
    others: The columns that may have labels, `labels` among them.
    are_named: Whether the names of the columns, or the settings, say all this.
    notes: Lines on what was taken.
  """

  file: str
  labels: list[str]
  others: list[str]
  are_named: bool
  notes: list[str]


def roles_of(
  place: str, rows: Sequence[Cells], settings: DataSettings, labels: Labels
) -> Roles:
  """The roles of the columns of a table, by its first rows, one or more.

  Raises ValueError, which names `place`, if none has images, or it cannot be
  told which have the labels.
  """
  header = [*rows[0]]
  file, notes = _files(place, rows, settings)
  others, unread = _others(file, rows, settings)
  columns, are_named = _labels(place, others, rows, settings, labels)
  if file not in columns_called_files(header) and not settings.file_column:
    are_named = False
  if not are_named:
    what = "the labels" if len(columns) > 1 else "the label"
    verb = "are" if len(columns) > 1 else "is"
    notes.insert(
      0,
      f"the column {file!r} names the images, and {list_columns(columns)} "
      f"{verb} {what}; --config.data.file_column and "
      "--config.data.label_columns choose others.",
    )
  return Roles(file, columns, others, are_named, notes + unread)


def images_column(
  place: str, rows: Sequence[Cells], settings: DataSettings
) -> str:
  """The column that names the images; raises ValueError as `roles_of`."""
  return _files(place, rows, settings)[0]


def may_have_labels(
  place: str, rows: Sequence[Cells], settings: DataSettings
) -> list[str]:
  """The columns that may have labels; raises ValueError as `roles_of`."""
  return _others(_files(place, rows, settings)[0], rows, settings)[0]


def names_in(text: str, header: Sequence[str]) -> list[str]:
  """The columns that `data.label_columns` lists, as it may quote them."""
  if text.strip() in header:
    return [text.strip()]
  names = next(csv.reader([text], skipinitialspace=True), [])
  return [name.strip() for name in names]


def as_text(names: Sequence[str]) -> str:
  """The names of columns as `data.label_columns` lists them."""
  return ",".join(
    '"{}"'.format(name.replace('"', '""')) if {*',"'} & {*name} else name
    for name in names
  )


def _files(
  place: str, rows: Sequence[Cells], settings: DataSettings
) -> tuple[str, list[str]]:
  """The column that names the images, and a line if another may do so too."""
  header = [*rows[0]]
  if settings.file_column:
    if settings.file_column in header:
      return settings.file_column, []
    fail(
      place,
      f"has no column {settings.file_column!r}; its columns are "
      f"{list_columns(header)}, and data.file_column names the column of the "
      "files",
    )
  called = columns_called_files(header)
  cells = {name: _filled(name, rows) for name in header if name != SPLIT}
  fitting = [name for name, each in cells.items() if _mostly(_ends, each)]
  lookup = Lookup(os.fsencode(settings.root or "."))

  def there(name: str) -> bool:
    return _mostly(lambda cell: _is_there(lookup, cell), cells[name], True)

  for name in called:
    if name in fitting or there(name):
      return name, []
  found = [*filter(there, fitting)] or fitting or [*filter(there, cells)]
  if any(_ends(name) or _is_there(lookup, name) for name in found):
    fail(
      place,
      f"follows a line that names no columns ({list_columns(header)}): a first "
      "line such as file,label has to name them",
    )
  if found:
    # A number may happen to name a file as well, but it repeats.
    found.sort(key=lambda name: -len({*map(str, cells[name])}))
    line = (
      f"the columns {list_columns(sorted(found, key=header.index))} name "
      f"images, and {found[0]!r} is taken; --config.data.file_column chooses "
      "another."
    )
    return found[0], [line] if found[1:] else []
  if called:  # A message then says which files are missing.
    return called[0], []
  _fail_without_files(place, header, cells, settings)
  raise AssertionError


def _fail_without_files(
  place: str,
  header: Sequence[str],
  cells: Mapping[str, Sequence[Any]],
  settings: DataSettings,
) -> None:
  """Raises ValueError for a table without a column of images."""
  problem = (
    f"has no column that names images; its columns are {list_columns(header)}"
  )
  advice = (
    f"names are read from the folder {settings.root or '.'!r} on: "
    "--config.data.root gives another, and --config.data.file_column the column"
  )
  addresses = [n for n, each in cells.items() if _mostly(_is_address, each)]
  if addresses:
    advice = (
      f"those in {addresses[0]!r} are addresses: download the images, and name "
      "the files"
    )
  fail(place, f"{problem}, and {advice}")


def _others(
  file: str, rows: Sequence[Cells], settings: DataSettings
) -> tuple[list[str], list[str]]:
  """The columns that may have labels, and lines on what is left out.

  They are all but those of the images, splits and groups, and of the numbers of
  the rows.
  """
  apart = (file, SPLIT, settings.group_column)
  names = [name for name in rows[0] if name not in apart]
  lines: list[str] = []
  if settings.label_columns:
    chosen = {*names_in(settings.label_columns, names)}
    read = [name for name in names if name in chosen]
  else:
    read = names
    splits = [n for n in names if _all(_is_split, _filled(n, rows))]
    index = [n for n in names if n not in splits and _is_index(n, rows)]
    if left := [n for n in names if n not in (*splits, *index)]:
      read = left
      lines += [
        f"the column {name!r} numbers the rows, and is no label."
        for name in index
      ]
  if SPLIT not in rows[0]:
    lines += [
      f"the column {name!r} seems to name splits, and is not read: rename it "
      f"{SPLIT} to use it."
      for name in names
      if name not in read and _all(_is_split, _filled(name, rows))
    ]
  return (names if settings.label_columns else read), lines


def _labels(
  place: str,
  others: Sequence[str],
  rows: Sequence[Cells],
  settings: DataSettings,
  labels: Labels,
) -> tuple[list[str], bool]:
  """The columns of the labels, and whether they are called so.

  Raises ValueError if it cannot be told which they are.
  """
  header = [*rows[0]]
  there = {*others}
  if settings.label_columns:
    columns = names_in(settings.label_columns, others)
    if lacks := [name for name in columns if name not in there]:
      _fail_without(place, lacks[0], header)
    return columns, True
  columns = [*labels.columns(others)]
  if {*columns} <= there:
    return columns, True
  if len(others) == 1:
    return [*others], False
  if not labels.may_be_several and (odd := _in_bits(others, rows)):
    flag = f"--config.data.unknown={shlex.quote(','.join(odd))}"
    fail(
      place,
      f"has no column {columns[0]!r}; {list_columns(others)} have 0 and 1, and "
      f"{' and '.join(map(repr, odd))} besides. Several labels of an image, of "
      f"which some are unknown, are learned with "
      f"--config.data.task=multilabel {flag}",
    )
  first = {name: _first(name, rows, settings) for name in others}
  if guessed := labels.guessed(first):
    return [*guessed], True  # `label_file` says so.
  if not others:
    fail(
      place,
      f"has no column {columns[0]!r}: its columns are {list_columns(header)}, "
      "and none is left for the labels; add one",
    )
  example = next((n for n in others if _repeats(_filled(n, rows))), others[0])
  fail(
    place,
    f"has no column {columns[0]!r}, and several that may be it: "
    f"{list_columns(others)}. Name the one to learn, as in "
    f"--config.data.label_columns={as_text([example])!r}; its numbers with "
    "fractions are learned as numbers, and all else as classes",
  )
  raise AssertionError


def _first(name: str, rows: Sequence[Cells], settings: DataSettings) -> Any:
  """The first cell of a column that says something; "" if there is none."""
  unknown = unknown_cells(settings.unknown)
  told = (cell for cell in _filled(name, rows) if plain(cell) not in unknown)
  return next(told, "")


def _in_bits(others: Sequence[str], rows: Sequence[Cells]) -> list[str]:
  """The few words and marks in columns that mostly have 0 and 1; else none.

  Numbers beside 0 and 1 may be what is to be learned.
  """
  odd: set[str] = set()
  for name in others:
    cells = _filled(name, rows)
    there = [str(cell).strip() for cell in cells if as_bit(cell) is None]
    if 2 * len(there) >= len(cells) or any(map(str.isdecimal, there)):
      return []
    odd |= {*there}
  return sorted(odd) if len(others) > 1 and len(odd) <= _MOST_ODD else []


def _fail_without(place: str, name: str, header: Sequence[str]) -> None:
  problem = f"has no column {name!r}; its columns are {list_columns(header)}"
  advice = "data.label_columns names the columns of the labels"
  fail(place, f"{problem}, and {advice}")


def _filled(name: str, rows: Sequence[Cells]) -> list[Any]:
  """The cells of a column that are not empty."""
  cells = (row.get(name) for row in rows)
  return [cell for cell in cells if not is_empty(cell)]


def _all(test: Callable[[Any], bool], cells: Sequence[Any]) -> bool:
  return bool(cells) and all(map(test, cells))


def _mostly(
  test: Callable[[Any], bool], cells: Sequence[Any], few: bool = False
) -> bool:
  """Whether more than half of the cells pass, of `few` the first ones."""
  looked_at = cells[:_LOOKED_FOR] if few else cells
  return 2 * sum(map(test, looked_at)) > len(looked_at)


def _ends(cell: Any) -> bool:
  """Whether a cell ends as the name of an image file does."""
  return (
    isinstance(cell, str)
    and cell.lower().endswith(ENDINGS)
    and not _is_address(cell)
  )


def _is_address(cell: Any) -> bool:
  return isinstance(cell, str) and "://" in cell


def _is_there(lookup: Lookup, cell: Any) -> bool:
  """Whether a cell names a file that is there."""
  if not isinstance(cell, str | int) or isinstance(cell, bool):
    return False
  text = str(cell)
  if "\0" in text or _is_address(text):
    return False
  try:
    return lookup.find(os.fsencode(text)) is not None
  except (UnicodeEncodeError, ValueError):
    return False


def _is_split(cell: Any) -> bool:
  return (
    isinstance(cell, str) and split_named(os.fsencode(cell.strip())) is not None
  )


def _is_index(name: str, rows: Sequence[Cells]) -> bool:
  """Whether a column is called as one of row numbers, and has such numbers."""
  if not _INDEX.fullmatch(name.strip().lower()):
    return False
  cells = [str(row.get(name)) for row in rows]
  return len({*cells}) == len(rows) and all(map(str.isdecimal, cells))


def _repeats(cells: Sequence[Any]) -> bool:
  return len({*map(str, cells)}) < len(cells)
