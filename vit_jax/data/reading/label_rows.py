"""Reads the rows of a file of labels: an image, its split and its labels."""

import itertools
import os
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from vit_jax.data.reading import cells
from vit_jax.data.reading.cells import Row
from vit_jax.data.reading.column_roles import (
  LOOKED_AT,
  SPLIT,
  image_column,
  roles_of,
)
from vit_jax.data.reading.columns import is_empty
from vit_jax.data.reading.labels import Labels
from vit_jax.data.reading.lookup import Lookup
from vit_jax.data.reading.split_names import split_named
from vit_jax.data.reading.tables import cells_of, fail, list_columns
from vit_jax.data.settings import DataSettings
from vit_jax.runtime.printable import printable, quoted

# The columns of Open Images, where a confidence of 0 denies the label.
_CONFIDENCE = "Confidence"
_OPEN_IMAGES = frozenset(("ImageID", "Source", "LabelName", _CONFIDENCE))


def read_rows(
  path: str,
  settings: DataSettings,
  labels: Labels,
  notes: list[str] | None = None,
) -> tuple[list[str], list[Row]]:
  """The names of the label columns of a file, and its rows.

  `notes` is extended by lines on what the columns are taken for, and on rows
  that are left out. Raises ValueError, which names the line, for a row that
  cannot be read.
  """
  rows: list[Row] = []
  num_denied = 0
  lookup = Lookup(os.fsencode(settings.root or "."))
  all_cells = cells_of(
    path, settings.file_column, lambda name: bool(lookup.find(name.encode()))
  )
  first = [*itertools.islice(all_cells, LOOKED_AT)]
  if not first:
    _fail_empty(path)
  roles = roles_of(
    f"{path}, {first[0].place}",
    [row.by_column for row in first],
    settings,
    labels,
  )
  key, columns = roles.file, roles.labels
  separator = settings.label_separator
  if len(columns) > 1 and separator != cells.AS_BEFORE:
    separator = None  # Each label has a cell of its own.
  if notes is not None:
    notes += roles.notes
  for where, by_column, comma in itertools.chain(first, all_cells):
    place = f"{path}, {where}"
    if missing := [name for name in (key, *columns) if name not in by_column]:
      fail(place, f"has no {missing[0]!r}")
    if _CONFIDENCE in by_column and _is_denied(by_column):
      num_denied += 1
      continue
    values = [
      _value(place, name, by_column[name], separator) for name in columns
    ]
    row = Row(
      place=place,
      file=_file_name(place, key, by_column[key], settings),
      split=_split_of(place, by_column),
      values=values,
      decimal_comma=comma,
      group=_group_of(place, by_column, settings.group_column),
    )
    rows.append(row)
  if not rows:
    _fail_empty(path)
  if num_denied and notes is not None:
    notes.append(
      f"rows with {_CONFIDENCE}=0, by which Open Images says that a label is "
      f"absent, are left out: {num_denied:,}."
    )
  return columns, rows


def _split_of(place: str, row: Mapping[str, Any]) -> str | None:
  """The split that a row names, or None without such a column.

  Raises ValueError for a name that is no split.
  """
  if SPLIT not in row:
    return None
  split = split_named(os.fsencode(str(row[SPLIT]).strip()))
  if split is None:
    fail(place, f"split={row[SPLIT]!r} is not train, val or test")
  return split


def _value(place: str, name: str, value: Any, separator: str | None) -> Any:
  """The value of a cell, or a list of the values in it.

  `place` and `name`, the row and the column, are for the message. Raises
  ValueError for a text that begins like a list and is none.
  """
  if not isinstance(value, str):
    return value
  try:
    return cells.values_of(value, separator)
  except ValueError as error:
    fail(place, f"has {name}={quoted(value)}, which {error}")


def _fail_empty(path: str) -> NoReturn:
  """Raises ValueError for a file without rows."""
  advice = "write the line file,label and a line for each image"
  fail(path, f"has no rows; {advice}")


def column_names(path: str) -> list[str]:
  """The columns of a file, or the keys of its first row if it is JSON.

  They are empty if the file has no rows. Raises ValueError as `cells_of` does.
  """
  for row in cells_of(path):
    return [*row.by_column]
  return []


def image_names(path: str, settings: DataSettings) -> Iterator[str]:
  """Yields the names of the images in a file of labels, each once.

  Raises ValueError if the file has no rows or no column names images, and as
  `cells_of` does.
  """
  all_cells = cells_of(path, settings.file_column)
  first = [*itertools.islice(all_cells, LOOKED_AT)]
  if not first:
    _fail_empty(path)
  key = image_column(
    f"{path}, {first[0].place}", [row.by_column for row in first], settings
  )
  seen: set[str] = set()
  for row in itertools.chain(first, all_cells):
    name = str(row.by_column.get(key, ""))
    if name and name not in seen:
      seen.add(name)
      yield name


def _group_of(place: str, row: Mapping[str, Any], column: str | None) -> str:
  """The group of an image, "" without a column of groups.

  Raises ValueError if there is no such column, or the cell is empty.
  """
  if column is None:
    return ""
  if column not in row:
    raise ValueError(
      f"data.group_column={column!r} is not a column: {place} has "
      f"{list_columns([*row])}; give one of these."
    )
  group = str(row[column]).strip()
  if is_empty(group):
    fail(place, f"has no {column}: give each image a group, if need be its own")
  return group


def _is_denied(row: Mapping[str, Any]) -> bool:
  """Whether a row of Open Images says that its label is absent."""
  denies = str(row[_CONFIDENCE]) in ("0", "0.0")
  return denies and row.keys() >= _OPEN_IMAGES


def _file_name(place: str, key: str, file: Any, settings: DataSettings) -> str:
  """The name of a row's file.

  Raises ValueError if `file`, the cell of the column `key`, is no name, or lies
  outside of the root and the settings do not allow that.
  """
  if isinstance(file, int) and not isinstance(file, bool):
    file = str(file)  # An id in JSON.
  if not isinstance(file, str) or not file or "\0" in file:
    fail(place, f"names no file: {key}={file!r}")
  if not (file.isascii() or _is_encodable(file)):
    half = "with half a character (a lone surrogate): write it whole"
    fail(place, f"names '{printable(file)}', {half}")
  root = settings.root or "."
  if not settings.outside and not _is_inside(root, file.replace("\\", "/")):
    is_file = os.path.isabs(file) and os.path.isfile(file)
    example = ""
    if is_file:
      folder = shlex.quote(os.path.dirname(file))
      example = f", as in --config.data.root={folder}"
    advice = (
      f"set data.root to a folder above it{example}, or if you trust the file "
      "data.outside=True (--outside of vit_jax.pack)"
    )
    if os.path.isabs(file) and not is_file:
      advice = (
        "there is no such file; if it is the path on another machine, write "
        "the names relative to the folder of the images, and give that folder "
        "as --config.data.root"
      )
    fail(place, f"names {file!r}, which is outside of {root!r}: {advice}")
  return file


def _is_encodable(file: str) -> bool:
  """Whether a name has no half of a character, and so can be that of a file."""
  try:
    return bool(os.fsencode(file))
  except UnicodeEncodeError:
    return False


def _is_inside(root: str, file: str) -> bool:
  """Whether a path, as written, lies in a folder; links may lead elsewhere."""
  if not os.path.isabs(file) and ".." not in file:
    return True
  top = os.path.join(os.path.abspath(root), "")
  return os.path.abspath(os.path.join(top, file)).startswith(top)
