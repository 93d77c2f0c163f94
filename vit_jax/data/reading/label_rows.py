"""Reads the rows of a CSV or JSONL file of labels."""

import csv
import dataclasses
import io
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from vit_jax.data.reading.folders import split_named
from vit_jax.data.settings import DataSettings

_FILE = ("file", "file_name", "filename", "path", "image")
_LABEL = ("label", "labels", "class")
_SPLIT = "split"


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of a file of labels.

  Attributes:
    place: The file of labels and the line, for messages.
    file: The image, from the root on.
    split: "train", "val" or "test"; None if there is no such column.
    values: The value of each column of labels.
  """

  place: str
  file: str
  split: str | None
  values: Sequence[Any]


def fail(place: str, said: str) -> NoReturn:
  raise ValueError(f"{place} {said}.")


def read_rows(path: str, settings: DataSettings) -> tuple[list[str], list[Row]]:
  """The names of the label columns, and the rows of a file."""
  read = _json_rows if path.lower().endswith((".jsonl", ".json")) else _csv_rows
  columns: list[str] = []
  key, rows = "", []
  for number, cells in read(path):
    place = f"{path}, line {number}"
    if not columns:
      key, columns = _columns(place, [*cells], settings)
    if missing := [name for name in (key, *columns) if name not in cells]:
      fail(place, f"has no {missing[0]!r}")
    file, split = cells[key], cells.get(_SPLIT)
    if not isinstance(file, str) or not file or "\0" in file:
      fail(place, f"names no file: {key}={file!r}")
    if "\\" in file and not os.path.isfile(
      os.path.join(settings.root or ".", file)
    ):
      file = file.replace("\\", "/")  # As Windows writes paths.
    if _SPLIT in cells:
      split = split_named(os.fsencode(str(cells[_SPLIT]).strip()))
      if split is None:
        fail(place, f"split={cells[_SPLIT]!r} is not train, val or test")
    rows.append(Row(place, file, split, [cells[name] for name in columns]))
  if not rows:
    fail(
      path, "has no rows; give it the line file,label and one for each image"
    )
  return columns, rows


def _columns(
  place: str, found: list[str], settings: DataSettings
) -> tuple[str, list[str]]:
  """The name of the column of files, and of those of labels."""
  key = next((name for name in _FILE if name in found), None)
  if key is None:
    fail(place, f"has no column 'file'; its columns are {', '.join(found)}")
  rest = [name for name in found if name not in (key, _SPLIT)]
  if settings.label_columns:
    columns = [name.strip() for name in settings.label_columns.split(",")]
  elif settings.task == "regression":
    columns = rest
  else:
    columns = [name for name in _LABEL if name in rest][:1]
  lacks = [name for name in columns or _LABEL[:1] if name not in rest]
  if lacks:
    fail(
      place,
      f"has no column {lacks[0]!r}; its columns are {', '.join(found)}, and "
      "data.label_columns chooses those of the labels",
    )
  return key, columns


def _csv_rows(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields the line number and the cells, by column, of each row."""
  text = _text(path)
  first = text.split("\n", 1)[0]
  delimiter = next((mark for mark in ",;\t" if mark in first), ",")
  file = io.StringIO(text, newline="")
  reader = csv.reader(file, delimiter=delimiter, strict=True)
  names: list[str] = []
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
        continue
      if len(cells) != len(names):
        fail(
          place,
          f"has {len(cells)} cells and not {len(names)}: put double quotes "
          f"around a cell with {delimiter!r}",
        )
      yield reader.line_num, dict(zip(names, cells, strict=True))
  except csv.Error as error:
    fail(f"{path}, line {reader.line_num}", f"is not CSV: {error}")


def _json_rows(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
  for number, line in enumerate(_text(path).split("\n"), 1):
    if not line.strip():
      continue
    try:
      row = json.loads(line)
    except (ValueError, RecursionError) as error:
      fail(f"{path}, line {number}", f"is not JSON: {error}")
    if not isinstance(row, dict):
      fail(f"{path}, line {number}", "is not an object with keys such as file")
    yield number, row


def _text(path: str) -> str:
  """The content of a file, without a byte order mark."""
  with open(path, "rb") as file:
    content = file.read()
  try:
    return content.decode("utf-8-sig")
  except UnicodeDecodeError as error:
    fail(path, f"is not UTF-8 (at byte {error.start:,}): save it as UTF-8")
