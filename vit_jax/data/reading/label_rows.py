"""The rows of a file of labels: each an image, its split and its labels."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from vit_jax.data.reading import cells
from vit_jax.data.reading.cells import Row
from vit_jax.data.reading.columns import is_empty
from vit_jax.data.reading.folders import EXTENSIONS
from vit_jax.data.reading.lookup import Lookup
from vit_jax.data.reading.split_names import split_named
from vit_jax.data.reading.tables import (
  FILE,
  cells_of,
  column_of_files,
  fail,
  listed,
)
from vit_jax.data.settings import DataSettings
from vit_jax.runtime.printable import printable, quoted

_ENDINGS = tuple(map(os.fsdecode, EXTENSIONS))
_SPLIT = "split"
# The columns of Open Images, where a confidence of 0 denies the label.
_CONFIDENCE = "Confidence"
_OPEN_IMAGES = frozenset(("ImageID", "Source", "LabelName", _CONFIDENCE))


Columns = Callable[[Sequence[str]], Sequence[str]]
"""The names of the columns of a file to those that have labels."""
Guess = Callable[[Mapping[str, Any]], Sequence[str]]
"""The cells of the first row to the columns that have labels; may be none."""


def read_rows(
  path: str,
  settings: DataSettings,
  default_columns: Columns,
  guess: Guess | None = None,
  notes: list[str] | None = None,
) -> tuple[list[str], list[Row]]:
  """The names of the label columns, and the rows of a file.

  `default_columns` gives the label columns if the settings do not, from the
  names of all columns but that of the files and `split`; where they are not
  there, `guess` does. `notes` is extended by a line on rows that are left out.
  Raises ValueError, which names the line, for a row that cannot be read.
  """
  key = ""
  columns: list[str] = []
  rows: list[Row] = []
  denied = 0
  separator = None
  lookup = Lookup(os.fsencode(settings.root or "."))
  for where, by_column, comma in cells_of(
    path, settings.file_column, lambda name: bool(lookup.find(name.encode()))
  ):
    place = f"{path}, {where}"
    if not columns:
      key, columns = _columns(
        place, by_column, settings, default_columns, guess
      )
      separator = settings.label_separator
      if notes is not None:
        read = (key, *columns, settings.group_column)
        notes += _not_read(by_column, read)
      if len(columns) > 1 and separator != cells.AS_BEFORE:
        separator = None  # Each has a cell of its own.
    if missing := [name for name in (key, *columns) if name not in by_column]:
      fail(place, f"has no {missing[0]!r}")
    if _CONFIDENCE in by_column and _is_denied(by_column):
      denied += 1
      continue
    file = _file(place, key, by_column[key], settings)
    split = None
    if _SPLIT in by_column:
      split = split_named(os.fsencode(str(by_column[_SPLIT]).strip()))
      if split is None:
        fail(place, f"split={by_column[_SPLIT]!r} is not train, val or test")
    values = [by_column[name] for name in columns]
    for k, value in enumerate(values):
      if isinstance(value, str):
        try:
          values[k] = cells.values_of(value, separator)
        except ValueError as error:
          fail(place, f"has {columns[k]}={quoted(value)}, which {error}")
    group = _group(place, by_column, settings.group_column)
    rows.append(Row(place, file, split, values, comma, group))
  if not rows:
    advice = "write the line file,label and a line for each image"
    fail(path, f"has no rows; {advice}")
  if denied and notes is not None:
    notes.append(
      f"rows with {_CONFIDENCE}=0, by which Open Images says that a label is "
      f"absent, are left out: {denied:,}."
    )
  return columns, rows


def columns_of(path: str) -> list[str]:
  """The columns of a file, or the keys of its first row if it is JSON."""
  for row in cells_of(path):
    return [*row.by_column]
  return []


def _group(place: str, row: Mapping[str, Any], column: str | None) -> str:
  """The group of an image, "" without a column; raises ValueError if empty."""
  if column is None:
    return ""
  if column not in row:
    raise ValueError(
      f"data.group_column={column!r} is not a column: {place} has "
      f"{listed([*row])}."
    )
  group = str(row[column]).strip()
  if is_empty(group):
    fail(place, f"has no {column}: give each image a group, if need be its own")
  return group


def _not_read(
  first: Mapping[str, Any], read: Collection[str | None]
) -> list[str]:
  """A line on a column that names splits but is not called so, if any.

  `first` has the cells of the first row, and `read` the columns that are read.
  """
  if _SPLIT in first:
    return []
  return [
    f"the column {name!r} seems to name splits, and is not read: rename it "
    f"{_SPLIT} to use it."
    for name, value in first.items()
    if name not in read
    and isinstance(value, str)
    and split_named(os.fsencode(value.strip())) is not None
  ]


def _is_denied(row: Mapping[str, Any]) -> bool:
  """Whether a row of Open Images says that its label is absent."""
  denies = str(row[_CONFIDENCE]) in ("0", "0.0")
  return denies and row.keys() >= _OPEN_IMAGES


def _file(place: str, key: str, file: Any, settings: DataSettings) -> str:
  """The name of a row's file; raises ValueError if it is none or outside."""
  if isinstance(file, int) and not isinstance(file, bool):
    file = str(file)  # An id in JSON.
  if not isinstance(file, str) or not file or "\0" in file:
    fail(place, f"names no file: {key}={file!r}")
  if not (file.isascii() or _is_encodable(file)):
    half = "with half a character (a lone surrogate): write it whole"
    fail(place, f"names '{printable(file)}', {half}")
  root = settings.root or "."
  if not settings.outside and not _inside(root, file.replace("\\", "/")):
    fail(
      place,
      f"names {file!r}, which is outside of {root!r}: set data.root to a "
      "folder above it, or if you trust the file data.outside=True "
      "(--outside of vit_jax.pack)",
    )
  return file


def _is_encodable(file: str) -> bool:
  try:
    return bool(os.fsencode(file))
  except UnicodeEncodeError:
    return False


def _inside(root: str, file: str) -> bool:
  """Whether a path names something in a folder; links may lead elsewhere."""
  if not os.path.isabs(file) and ".." not in file:
    return True
  top = os.path.join(os.path.abspath(root), "")
  return os.path.abspath(os.path.join(top, file)).startswith(top)


def _columns(
  place: str,
  first: Mapping[str, Any],
  settings: DataSettings,
  default_columns: Columns,
  guess: Guess | None,
) -> tuple[str, list[str]]:
  """The column of files, and those of labels.

  `first` has the cells of the first row.
  """
  header = [*first]
  key = column_of_files(header, settings.file_column)
  if key is None:
    name = settings.file_column or FILE[0]
    problem = f"has no column {name!r}; its columns are {listed(header)}"
    advice = "data.file_column names the column of the files"
    if any(ending in cell.lower() for cell in header for ending in _ENDINGS):
      advice = "a first line such as file,label has to name them"
    fail(place, f"{problem}, and {advice}")
  apart = (key, _SPLIT, settings.group_column)
  others = [name for name in header if name not in apart]
  if settings.label_columns:
    columns = [name.strip() for name in settings.label_columns.split(",")]
  else:
    columns = [*default_columns(others)]
    if guess is not None and not {*columns} <= {*others}:
      columns = [*guess({name: first[name] for name in others})] or columns
  there = {*others}
  if lacks := [name for name in columns if name not in there]:
    problem = f"has no column {lacks[0]!r}; its columns are {listed(header)}"
    fail(
      place,
      (f"{problem}, and data.label_columns names the columns of the labels"),
    )
  return key, columns
