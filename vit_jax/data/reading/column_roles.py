"""Finds the column of a table that names the images, and those of the labels.

The cells decide, whatever the columns are called: a column names the images if
its cells are names of files. Its own name decides only between several columns
that fit.
"""

import csv
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from vit_jax.data.reading.columns import (
  UNCERTAIN,
  as_bit,
  is_empty,
  plain,
  unknown_cells,
)
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
"""The number of rows whose cells are looked at."""
_LOOKED_FOR = 16  # The number of rows whose files are looked for.
_MOST_FLAGS = 20  # The most columns of 0 and 1 that a message lists.
_MOST_ODD = 3  # The most values beside 0 and 1 that may all mean "unknown".
# Columns that number the rows; pandas writes the first two kinds.
_INDEX = re.compile(r"|unnamed: ?\d+|level_0|index|id|idx|no\.?|nr\.?|row|#")

Cells = Mapping[str, Any]


class Roles(NamedTuple):
  """The roles of the columns of a table.

  Attributes:
    file: The column that names the images.
    labels: The columns of the labels.
    others: The columns that may have labels, `labels` among them.
    are_named: Whether the roles follow from the columns' names or the settings.
    notes: Lines on the columns that were chosen, and on those left out.
  """

  file: str
  labels: list[str]
  others: list[str]
  are_named: bool
  notes: list[str]


def roles_of(
  place: str, rows: Sequence[Cells], settings: DataSettings, labels: Labels
) -> Roles:
  """The roles of the columns of a table, by one or more of its first rows.

  Raises ValueError, which names `place`, if no column names images, or it
  cannot be told which columns have the labels.
  """
  header = [*rows[0]]
  file, notes = _image_column_and_notes(place, rows, settings)
  others, unread = _candidates_and_notes(file, rows, settings)
  columns, are_named = _label_columns(place, others, rows, settings, labels)
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


def image_column(
  place: str, rows: Sequence[Cells], settings: DataSettings
) -> str:
  """The column that names the images; raises ValueError as `roles_of` does."""
  column, _ = _image_column_and_notes(place, rows, settings)
  return column


def label_candidates(
  place: str, rows: Sequence[Cells], settings: DataSettings
) -> list[str]:
  """The columns that may have labels; raises ValueError as `roles_of` does."""
  column = image_column(place, rows, settings)
  candidates, _ = _candidates_and_notes(column, rows, settings)
  return candidates


def names_in(text: str, header: Sequence[str]) -> list[str]:
  """The columns that `data.label_columns` lists; it may quote their names."""
  if text.strip() in header:
    return [text.strip()]
  names = next(csv.reader([text], skipinitialspace=True), [])
  return [name.strip() for name in names]


def chosen_columns(
  place: str,
  header: Sequence[str],
  text: str,
  others: Sequence[str] | None = None,
) -> list[str]:
  """The columns that `data.label_columns` lists, by its text.

  Raises ValueError if it lists a column that is not in `others`, the columns
  that may have labels; None takes all columns of the table, `header`.
  """
  others = header if others is None else others
  columns = names_in(text, others)
  for name in columns:
    if name not in others:
      problem = (
        f"has no column {name!r}; its columns are {list_columns(header)}"
      )
      advice = "data.label_columns names the columns of the labels"
      fail(place, f"{problem}, and {advice}")
  return columns


def as_text(names: Sequence[str]) -> str:
  """The text of `data.label_columns` that lists these columns."""
  listed = []
  for name in names:
    if {*',"'} & {*name}:
      name = '"{}"'.format(name.replace('"', '""'))
    listed.append(name)
  return ",".join(listed)


def _image_column_and_notes(
  place: str, rows: Sequence[Cells], settings: DataSettings
) -> tuple[str, list[str]]:
  """The column that names the images, and a list with a line on other columns.

  The line says that others may name images too. The list is empty if none does,
  or the settings or the column's own name decide. Raises ValueError if no
  column names images.
  """
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
  cells = {name: _cells_of(name, rows) for name in header if name != SPLIT}
  fitting = [
    name for name, each in cells.items() if _mostly(_ends_like_image, each)
  ]
  lookup = Lookup(os.fsencode(settings.root or "."))

  def there(name: str) -> bool:
    first = cells[name][:_LOOKED_FOR]
    return _mostly(lambda cell: _is_there(lookup, cell), first)

  for name in called:
    if name in fitting or there(name):
      return name, []
  # Cells that end like images come first, and of these, files that are there.
  found = [*filter(there, fitting)] or fitting or [*filter(there, cells)]
  if any(_ends_like_image(name) or _is_there(lookup, name) for name in found):
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


def _fail_without_files(
  place: str,
  header: Sequence[str],
  cells: Mapping[str, Sequence[Any]],
  settings: DataSettings,
) -> NoReturn:
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


def _candidates_and_notes(
  file: str, rows: Sequence[Cells], settings: DataSettings
) -> tuple[list[str], list[str]]:
  """The columns that may have labels, and lines on those that are left out.

  Left out are the columns of the images, of splits and groups, and of the
  numbers of the rows. Columns that only seem to be of splits or row numbers are
  kept if no other is left. If the settings choose columns, only the columns of
  the images, `split` and that of groups are left out.
  """
  apart = (file, SPLIT, settings.group_column)
  names = [name for name in rows[0] if name not in apart]
  lines: list[str] = []
  if settings.label_columns:
    chosen = {*names_in(settings.label_columns, names)}
    read = [name for name in names if name in chosen]
  else:
    read = names
    splits = [n for n in names if _all_pass(_is_split, _cells_of(n, rows))]
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
      if name not in read and _all_pass(_is_split, _cells_of(name, rows))
    ]
  return (names if settings.label_columns else read), lines


def _label_columns(
  place: str,
  others: Sequence[str],
  rows: Sequence[Cells],
  settings: DataSettings,
  labels: Labels,
) -> tuple[list[str], bool]:
  """The columns of the labels, and whether their names or the settings say so.

  If the cells tell, the second result is true as well, since `label_file`
  prints a line on that. Raises ValueError if it cannot be told which columns
  have the labels.
  """
  header = [*rows[0]]
  there = {*others}
  if settings.label_columns:
    return chosen_columns(place, header, settings.label_columns, others), True
  columns = [*labels.columns(others)]
  if {*columns} <= there:
    return columns, True
  if len(others) == 1:
    return [*others], False
  if not labels.may_be_several and (odd := _odd_cells(others, rows)):
    flag = f"--config.data.unknown={shlex.quote(','.join(odd))}"
    fail(
      place,
      f"has no column {columns[0]!r}; {list_columns(others)} have 0 and 1, and "
      f"{' and '.join(map(repr, odd))} besides. Several labels of an image, of "
      f"which some are unknown, are learned with "
      f"--config.data.task=multilabel {flag}",
    )
  first = {name: _first_known(name, rows, settings) for name in others}
  if guessed := labels.guess_columns(first):
    return [*guessed], True
  if not others:
    fail(
      place,
      f"has no column {columns[0]!r}: its columns are {list_columns(header)}, "
      "and none is left for the labels; add one",
    )
  example = next((n for n in others if _repeats(_cells_of(n, rows))), others[0])
  fail(
    place,
    f"has no column {columns[0]!r}, and several that may be it: "
    f"{list_columns(others)}. Name the one to learn, as in "
    f"--config.data.label_columns={as_text([example])!r}; a line then says "
    "whether its cells are learned as classes or as numbers, and "
    f"--config.data.task chooses{_several_advice(others, rows)}",
  )


def _several_advice(others: Sequence[str], rows: Sequence[Cells]) -> str:
  """The end of a message on how to learn columns of 0 and 1 beside others.

  It is "" unless there are at least two such columns, and few enough for a
  line.
  """
  flags = [
    name for name in others if _all_pass(_is_flag, _cells_of(name, rows))
  ]
  if not 2 <= len(flags) <= _MOST_FLAGS:
    return ""
  return (
    f". {len(flags)} columns have 0 and 1: several labels of an image are "
    "learned with --config.data.task=multilabel "
    f"--config.data.label_columns={shlex.quote(as_text(flags))}"
  )


def _is_flag(cell: Any) -> bool:
  """Whether a cell is 0 or 1, or an uncertain label."""
  return as_bit(cell) is not None or plain(cell) == UNCERTAIN


def _first_known(
  name: str, rows: Sequence[Cells], settings: DataSettings
) -> Any:
  """The first cell of a column with a known value; "" if there is none."""
  unknown = unknown_cells(settings.unknown)
  known = (cell for cell in _cells_of(name, rows) if plain(cell) not in unknown)
  return next(known, "")


def _odd_cells(others: Sequence[str], rows: Sequence[Cells]) -> list[str]:
  """The few words and marks in columns whose cells are mostly 0 and 1.

  The list is empty for other columns, for a single column, and if there are
  other numbers than 0 and 1, which may be the numbers to learn.
  """
  odd: set[str] = set()
  for name in others:
    cells = _cells_of(name, rows)
    there = [str(cell).strip() for cell in cells if as_bit(cell) is None]
    if 2 * len(there) >= len(cells) or any(map(str.isdecimal, there)):
      return []
    odd |= {*there}
  return sorted(odd) if len(others) > 1 and len(odd) <= _MOST_ODD else []


def _cells_of(name: str, rows: Sequence[Cells]) -> list[Any]:
  """The cells of a column that are not empty."""
  cells = (row.get(name) for row in rows)
  return [cell for cell in cells if not is_empty(cell)]


def _all_pass(test: Callable[[Any], bool], cells: Sequence[Any]) -> bool:
  """Whether there are cells, and all of them pass a test."""
  return bool(cells) and all(map(test, cells))


def _mostly(test: Callable[[Any], bool], cells: Sequence[Any]) -> bool:
  """Whether more than half of the cells pass a test."""
  return 2 * sum(map(test, cells)) > len(cells)


def _ends_like_image(cell: Any) -> bool:
  """Whether a cell ends like the name of an image file."""
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
  """Whether a column is named like one of row numbers, and has such numbers."""
  if not _INDEX.fullmatch(name.strip().lower()):
    return False
  cells = [str(row.get(name)) for row in rows]
  return len({*cells}) == len(rows) and all(map(str.isdecimal, cells))


def _repeats(cells: Sequence[Any]) -> bool:
  """Whether some cells are equal."""
  return len({*map(str, cells)}) < len(cells)
