"""Reads the rows of a CSV or JSONL file, and encodes their labels as arrays."""

import csv
import dataclasses
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from vit_jax.data.reading.folders import EXTENSIONS, split_named
from vit_jax.data.settings import DataSettings
from vit_jax.runtime.files import open_regular

_FILE = ("file", "file_name", "filename", "path", "image", "image_id", "id")
_ENDINGS = tuple(map(os.fsdecode, EXTENSIONS))
_SPLIT = "split"
_MOST_BYTES = 2**30  # The largest file that is read: ten million rows.


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of a file of labels."""

  place: str  # The file of labels and the line, for messages.
  file: str  # The image, from the root on.
  # "train", "val" or "test"; None if there is no such column.
  split: str | None
  values: Sequence[Any]  # The value of each column of labels.
  decimal_comma: bool = False  # Whether a comma stands for a decimal point.


Encode = Callable[[Sequence[Row]], np.ndarray]
"""Rows to labels, one for each: an array (N, ...)."""
Columns = Callable[[Sequence[str]], Sequence[str]]
"""The names of the columns of a file to those that have labels."""


def fail(place: str, problem: str) -> NoReturn:
  """Raises ValueError; `place` is a file or one of its lines."""
  raise ValueError(f"{place} {problem}.")


def read_rows(
  path: str, settings: DataSettings, default_columns: Columns
) -> tuple[list[str], list[Row]]:
  """The names of the label columns, and the rows of a file.

  `default_columns` gives the label columns if the settings do not, from the
  names of all columns but that of the files and `split`. Raises ValueError,
  which names the line, for a row that cannot be read.
  """
  key = ""
  columns: list[str] = []
  rows: list[Row] = []
  root = settings.root or "."
  endings: list[str] = []  # The ending that names lack.
  for number, cells, comma in _rows(path):
    place = f"{path}, line {number}"
    if not columns:
      key, columns = _columns(place, [*cells], settings, default_columns)
    if missing := [name for name in (key, *columns) if name not in cells]:
      fail(place, f"has no {missing[0]!r}")
    file = cells[key]
    split = None
    if not isinstance(file, str) or not file or "\0" in file:
      fail(place, f"names no file: {key}={file!r}")
    if not settings.outside and not _inside(root, file.replace("\\", "/")):
      fail(
        place,
        f"names {file!r}, which is outside of {root!r}: set data.root to a "
        "folder above it, or if you trust the file data.outside=True "
        "(--outside of vit_jax.pack)",
      )
    file = _with_ending(os.path.join(root, ""), file, endings)
    if _SPLIT in cells:
      split = split_named(os.fsencode(str(cells[_SPLIT]).strip()))
      if split is None:
        fail(place, f"split={cells[_SPLIT]!r} is not train, val or test")
    values = [cells[name] for name in columns]
    rows.append(Row(place, file, split, values, comma))
  if not rows:
    advice = "give it the line file,label and one for each image"
    fail(path, f"has no rows; {advice}")
  return columns, rows


def columns_of(path: str) -> list[str]:
  """The columns of a file, or the keys of its first row if it is JSONL."""
  for _, cells, _ in _rows(path):
    return [*cells]
  return []


def _rows(path: str) -> Iterator[tuple[int, dict[str, Any], bool]]:
  """Yields what `_csv_rows` does, of either form."""
  is_json = path.lower().endswith((".jsonl", ".json"))
  return _json_rows(path) if is_json else _csv_rows(path)


def _inside(root: str, file: str) -> bool:
  """Whether a path names something in a folder; links may lead elsewhere."""
  if not os.path.isabs(file) and ".." not in file:
    return True
  top = os.path.join(os.path.abspath(root), "")
  return os.path.abspath(os.path.join(top, file)).startswith(top)


def _with_ending(root: str, file: str, endings: list[str]) -> str:
  """The name of a file as it is on disk, with its ending.

  `endings` holds the ending that the name before lacked, which is tried first.
  """
  if "\\" in file and not os.path.isfile(root + file):
    file = file.replace("\\", "/")  # As Windows writes paths.
  if file.lower().endswith(_ENDINGS):
    return file
  for ending in (*endings, "", *_ENDINGS, *map(str.upper, _ENDINGS)):
    if os.path.isfile(root + file + ending):
      endings[:] = [ending]
      return file + ending
  return file


def _columns(
  place: str,
  header: list[str],
  settings: DataSettings,
  default_columns: Columns,
) -> tuple[str, list[str]]:
  """The name of the column of files, and of those of labels."""
  listed = ", ".join(header)
  names = (settings.file_column,) if settings.file_column else _FILE
  key = next((name for name in names if name in header), None)
  if key is None:
    problem = f"has no column {names[0]!r}; its columns are {listed}"
    fail(place, f"{problem}, and data.file_column chooses that of the files")
  others = [name for name in header if name not in (key, _SPLIT)]
  if settings.label_columns:
    columns = [name.strip() for name in settings.label_columns.split(",")]
  else:
    columns = [*default_columns(others)]
  if lacks := [name for name in columns if name not in others]:
    problem = f"has no column {lacks[0]!r}; its columns are {listed}"
    fail(
      place, f"{problem}, and data.label_columns chooses those of the labels"
    )
  return key, columns


def _csv_rows(path: str) -> Iterator[tuple[int, dict[str, Any], bool]]:
  """Yields the line number of each row, its cells by column, and a flag.

  The flag tells whether numbers may have a decimal comma, as where Excel puts
  semicolons between cells.
  """
  text = _text(path)
  first = text.split("\n", 1)[0]
  head = re.sub(r'"[^"]*"', "", first)  # A quoted name may hold any mark.
  delimiter = max(",;\t", key=head.count)
  names: list[str] = []
  file = io.StringIO(text, newline="")
  reader = csv.reader(file, delimiter=delimiter, strict=True)
  try:
    for cells in reader:
      cells = [cell.strip() for cell in cells]
      place = f"{path}, line {reader.line_num}"
      if not any(cells):
        continue
      if not names:
        names = cells
        if twice := [name for name in names if names.count(name) > 1]:
          fail(place, f"has two columns {twice[0]!r}")
      elif len(cells) == len(names):
        row = dict(zip(names, cells, strict=True))
        yield reader.line_num, row, delimiter != ","
      else:
        problem = f"has {len(cells)} cells and not {len(names)}"
        advice = f"put double quotes around a cell with {delimiter!r}"
        fail(place, f"{problem}: {advice}")
  except csv.Error as error:
    fail(f"{path}, line {reader.line_num}", f"is not CSV: {error}")


def _json_rows(path: str) -> Iterator[tuple[int, dict[str, Any], bool]]:
  for number, line in enumerate(_text(path).split("\n"), 1):
    if not line.strip():
      continue
    try:
      row = json.loads(line)
    except (ValueError, RecursionError) as error:
      fail(f"{path}, line {number}", f"is not JSON: {error}")
    if not isinstance(row, dict):
      fail(f"{path}, line {number}", "is not an object with keys such as file")
    yield number, row, False


def _text(path: str) -> str:
  """The content of a file, without a byte order mark."""
  with open_regular(path, _MOST_BYTES) as file:
    content = file.read()
  try:
    return content.decode("utf-8-sig")
  except UnicodeDecodeError as error:
    fail(path, f"is not UTF-8 (at byte {error.start:,}): save it as UTF-8")


def has_decimal_comma(row: Row, value: Any) -> bool:
  """Whether the comma in a value such as "1,5" is that of a decimal."""
  return row.decimal_comma and isinstance(value, str) and value.count(",") == 1
