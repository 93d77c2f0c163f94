"""Reads the rows of CSV, TSV, JSONL and JSON files, as cells by column."""

import collections
import contextlib
import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TextIO

from vit_jax.data.reading.folders import EXTENSIONS
from vit_jax.runtime.files import open_regular, read_regular
from vit_jax.runtime.printable import printable

FILE = ("file", "file_name", "filename", "path", "image", "image_id", "id")
"""Columns of the images' names, the likeliest first."""
_MORE_FILE = ("image_name", "image_path", "file_path", "image_file")
_MORE_FILE += ("image_index", "img", "img_name", "img_path")
ENDINGS = tuple(map(os.fsdecode, EXTENSIONS))
"""Endings of the names of images, in lower case."""
_MOST_BYTES = 2**30  # The largest file that is read, of ten million rows.
# The most letters of JSON in one piece; parsing takes ten times as many bytes.
_MOST_IN_ONE = 2**28
_NAMED = 12  # Columns that a message names.
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_FORMS = (
  "give CSV, TSV, JSONL with an object such as "
  '{"file": "0001.jpg", "label": "cat"} in each line, or a list of such objects'
)


class Cells(NamedTuple):
  """The cells of a row.

  Attributes:
    place: Where the row stands, such as "line 3".
    by_column: The value of each column.
    decimal_comma: Whether numbers may have a decimal comma, as where Excel puts
      semicolons between cells.
  """

  place: str
  by_column: dict[str, Any]
  decimal_comma: bool = False


def fail(place: str, problem: str) -> NoReturn:
  """Raises ValueError; the message is `place`, a space, `problem` and a stop.

  `place` is a file or one of its lines.
  """
  raise ValueError(f"{place} {problem}.")


def without_advice(lines: Iterable[str]) -> list[str]:
  """Lines on how a file is read, without the keys that would change it."""
  return [re.sub(r"; --config\..*", ".", line) for line in lines]


@contextlib.contextmanager
def advising(instead: Mapping[str, str]) -> Iterator[None]:
  """Replaces the advice in the ValueErrors of a block.

  It is for commands without keys of a configuration. `instead` has the new
  advice by the pattern of the text that advises a key.
  """
  try:
    yield
  except ValueError as error:
    message = str(error)
    for pattern, advice in instead.items():
      message = re.sub(pattern, lambda _, text=advice: text, message)
    error.args = (message,)
    raise


def cells_of(
  path: str,
  file_column: str | None = None,
  is_there: Callable[[str], bool] = lambda _: False,
) -> Iterator[Cells]:
  """Yields the rows of a file, and reads it only as far as rows are taken.

  JSON in one piece is read whole.

  Args:
    path: The file; its ending tells JSON from CSV.
    file_column: The column of the images' names, if it is given.
    is_there: Whether there is an image of a name, where a row is in doubt.

  Raises:
    ValueError: if the file is in none of these formats, or a row has a mistake.
      The message names the line.
  """
  is_json = path.lower().endswith((".jsonl", ".json"))
  newline = "\n" if is_json else ""
  try:
    with (
      open_regular(path, _MOST_BYTES) as content,
      io.TextIOWrapper(content, "utf-8-sig", newline=newline) as file,
    ):
      if is_json:
        yield from _json_cells(path, file)
      else:
        yield from _csv_cells(path, file, file_column, is_there)
  except UnicodeDecodeError as error:
    byte = _undecodable(path)
    place = f"{path} is not UTF-8 (at byte {byte:,}): save it as UTF-8."
    raise ValueError(place) from error


def column(candidates: Iterable[str], names: Sequence[str]) -> str | None:
  """The first candidate that is among the names of columns.

  If there is no such candidate, it is the first name that differs from a
  candidate only in case, spaces, "-" and "_"; or else None.
  """
  return next(iter(_matching_names(candidates, names)), None)


def columns_called_files(names: Sequence[str]) -> list[str]:
  """The columns that are named like those of images' names, likeliest first."""
  return _matching_names((*FILE, *_MORE_FILE), names)


def _matching_names(
  candidates: Iterable[str], names: Sequence[str]
) -> list[str]:
  """The candidates among the names, and then names that are spelt otherwise.

  Such a name differs from a candidate only in case, spaces, "-" and "_", and is
  left out if another name does as well.
  """
  candidates = [*candidates]
  there = {*names}
  plain: dict[str, list[str]] = collections.defaultdict(list)
  for name in names:
    plain[_plain(name)].append(name)
  matches = (plain[_plain(name)] for name in candidates)
  alike = (each[0] for each in matches if len(each) == 1)
  same = (name for name in candidates if name in there)
  return [*dict.fromkeys((*same, *alike))]


def column_of_files(names: Sequence[str], chosen: str | None) -> str | None:
  """The column of the images' names: `chosen`, or by the columns' names alone.

  None if there is no such column.
  """
  if chosen:
    return chosen if chosen in names else None
  return next(iter(columns_called_files(names)), None)


def list_columns(names: Sequence[str]) -> str:
  """The names of columns, of which a message shows the first."""
  shown = printable(", ".join(names[:_NAMED]))
  if len(names) > _NAMED:
    shown += f", ... ({len(names):,} columns)"
  return shown


def _plain(name: str) -> str:
  """A name without spaces, "-" and "_", in lower case."""
  return re.sub(r"[-_\s]", "", name).casefold()


def _csv_cells(
  path: str, file: TextIO, chosen: str | None, is_there: Callable[[str], bool]
) -> Iterator[Cells]:
  """Yields the rows of CSV after the first, which names the columns.

  Raises ValueError, which names the line, for a row that does not fit them.
  """
  delimiter = _delimiter(file.readline())
  file.seek(0)
  names: list[str] = []
  lines = _Lines(file)
  for cells in _Records(path, lines, delimiter, chosen, is_there):
    cells = [cell.strip() for cell in cells]
    if not any(cells):
      continue
    place = f"line {lines.number}"
    if not names:
      names = cells
      counts = collections.Counter(names)
      if twice := [name for name in names if counts[name] > 1]:
        fail(f"{path}, {place}", f"has two columns {twice[0]!r}")
    elif len(cells) == len(names):
      row = dict(zip(names, cells, strict=True))
      yield Cells(place, row, delimiter not in ",|")
    else:
      problem = f"has {len(cells)} cells, not {len(names)}"
      advice = f"put double quotes around a cell with {delimiter!r}"
      if len(lines.taken) > 1:
        advice = f"a double quote opens {_first_line_of(lines)}: close it there"
      fail(f"{path}, {place}", f"{problem}: {advice}")


def _delimiter(first: str) -> str:
  """The mark between the cells of the first line."""
  head = re.sub(r'"[^"]*"', "", first)  # A quoted name may hold any mark.
  delimiter = max(",;\t", key=head.count)
  return "|" if "|" in head and delimiter not in head else delimiter


class _Lines:
  """The lines of a file, of which the last ones may be put back.

  Attributes:
    taken: The lines that were read since this list was last cleared.
    number: The number of the last line that was read.
  """

  def __init__(self, file: TextIO):
    self._file = file
    self._again: collections.deque[str] = collections.deque()
    self.taken: list[str] = []
    self.number = 0

  def __iter__(self) -> Iterator[str]:
    return self

  def __next__(self) -> str:
    line = self._again.popleft() if self._again else next(self._file)
    self.taken.append(line)
    self.number += 1
    return line

  def put_back(self) -> str:
    """Puts back all taken lines but the first, and returns the first."""
    first, *others = self.taken
    self._again.extendleft(reversed(others))
    self.number -= len(others)
    self.taken = [first]
    return first


class _Records:
  """Iterates over the cells of each row; a quoted cell may have several lines.

  If a double quote is still open at the end of its line, the cell might take in
  what looks like further rows. In a file with tabs or "|" between its cells,
  such a quote is part of the text; in other files it raises ValueError.
  """

  def __init__(
    self,
    path: str,
    lines: _Lines,
    delimiter: str,
    chosen: str | None,
    is_there: Callable[[str], bool],
  ):
    """`chosen` and `is_there` are `cells_of`'s `file_column` and `is_there`."""
    self._path = path
    self._lines = lines
    self._delimiter = delimiter
    self._chosen = chosen
    self._is_there = is_there
    self._width = 0
    self._key = 0  # The place of the column of the images' names.

  def __iter__(self) -> Iterator[list[str]]:
    """Yields the cells of each row, the first of which names the columns.

    Raises ValueError, which names the line, for a row that is not CSV or whose
    quoted cell seems to take in further rows.
    """
    reader = self._reader()
    while True:
      self._lines.taken.clear()
      try:
        cells = next(reader, None)
        problem = (
          self._problem_with(cells) if len(self._lines.taken) > 1 else ""
        )
      except csv.Error as error:
        cells, problem = [], f"is not CSV: {error}"
        if len(self._lines.taken) > 1:
          problem += f"; a double quote opens {_first_line_of(self._lines)}"
      if cells is None:
        return
      if problem and self._delimiter in "\t|":
        cells = self._without_quotes(self._lines.put_back())
        reader = self._reader()
      elif problem:
        fail(f"{self._path}, line {self._lines.number}", problem)
      if not self._width and any(map(str.strip, cells)):
        names = [cell.strip() for cell in cells]
        self._width = len(names)
        key = column_of_files(names, self._chosen)
        self._key = 0 if key is None else names.index(key)
      yield cells

  def _reader(self) -> Iterator[list[str]]:
    return csv.reader(self._lines, delimiter=self._delimiter, strict=True)

  def _problem_with(self, cells: list[str] | None) -> str:
    """The problem of a row of several lines; "" if there is none."""
    if not cells or not self._width:
      return ""
    start = self._lines.number - len(self._lines.taken) + 1
    file = cells[self._key].strip() if self._key < len(cells) else ""
    for number, line in enumerate(self._lines.taken[1:], start + 1):
      parts = self._without_quotes(line)
      if len(parts) < max(2, self._key + 1):
        continue
      other = parts[self._key].strip(' "')
      is_row = len(parts) == self._width
      if _are_alike(file, other, is_row) or (
        is_row and (self._delimiter == "\t" or self._is_there(other))
      ):
        return (
          f"is within a double quote that opens in line {start}, and line "
          f"{number} seems to be a row of its own, of {other!r}: write two "
          "double quotes for each that is part of a text, and the text between "
          "double quotes"
        )
    plain = self._delimiter in "\t|"
    return "takes in other rows" if plain and len(cells) != self._width else ""

  def _without_quotes(self, line: str) -> list[str]:
    """The cells of a line in which a quote is part of the text.

    A cell that is quoted as a whole loses its quotes all the same.
    """
    cells = line.rstrip("\r\n").split(self._delimiter)
    return [
      cell[1:-1].replace('""', '"') if _QUOTED.fullmatch(cell) else cell
      for cell in cells
    ]


def _first_line_of(lines: _Lines) -> str:
  """The place of the first taken line, in words."""
  return f"in line {lines.number - len(lines.taken) + 1}"


def _are_alike(file: str, other: str, is_row: bool) -> bool:
  """Whether `other`, of a later line, seems to name a file, as `file` does.

  `is_row` tells whether the later line has as many cells as a row.
  """
  if file.lower().endswith(ENDINGS):
    return other.lower().endswith(ENDINGS)
  if not is_row or not any(map(str.isdigit, other)):
    return False
  if file.isdecimal() and other.isdecimal() and int(other) == int(file) + 1:
    return True
  return len(file) == len(other) and not any(map(str.isspace, other))


def _json_cells(path: str, file: TextIO) -> Iterator[Cells]:
  """Yields the rows of JSONL, or of JSON in one piece.

  Raises ValueError, which names the line, if the file is neither.
  """
  first = next((line for line in file if line.strip()), "")
  file.seek(0)
  if path.lower().endswith(".json") or first.lstrip().startswith("["):
    if (whole := _parse_whole(path, file.read())) is not None:
      yield from _cells_in(path, whole)
      return
    file.seek(0)
  for number, line in enumerate(file, 1):
    if not line.strip():
      continue
    row = _parse_json(f"{path}, line {number}", line)
    if not isinstance(row, dict):
      fail(f"{path}, line {number}", "is not an object with keys such as file")
    yield Cells(f"line {number}", row)


def _parse_whole(path: str, text: str) -> Any:
  """The content of JSON in one piece; None if each line is a row.

  Raises ValueError if it is too large, or not JSON.
  """
  start = re.search(r"\S", text)
  if start is None:
    return None
  if text[start.start()] != "[":
    first = text[start.start() :].split("\n", 1)[0]
    try:
      row = json.loads(first)
    except (ValueError, RecursionError):
      pass  # The object has several lines.
    else:
      is_whole = isinstance(row, dict) and (
        isinstance(row.get("images"), list)
        or (column_of_files([*row], None) is None and text.strip() == first)
      )
      return row if is_whole else None
  if len(text) > _MOST_IN_ONE:
    fail(path, f"is JSON in one piece, which is too large: {_FORMS}")
  return _parse_json(path, text)


def _parse_json(place: str, text: str) -> Any:
  """Parses JSON; raises ValueError, naming the place, if it is not JSON."""
  try:
    return json.loads(text)
  except (ValueError, RecursionError) as error:
    fail(place, f"is not JSON: {error}")


def _cells_in(path: str, content: Any) -> Iterator[Cells]:
  """Yields the rows of a list of objects, or of COCO's captions.

  Raises ValueError if `content` is neither.
  """
  if isinstance(content, list):
    for number, row in enumerate(content, 1):
      if not isinstance(row, dict):
        place = f"{path}, item {number}"
        fail(place, "is not an object with keys such as file")
      yield Cells(f"item {number}", row)
    return
  fields = content if isinstance(content, dict) else {}
  images = fields.get("images")
  annotations = fields.get("annotations")
  if not isinstance(images, list) or not isinstance(annotations, list):
    keys = "none"
    if isinstance(content, dict):
      keys = list_columns([*map(str, content)])
    fail(path, f"is one JSON object (its keys: {keys}); {_FORMS}")
  try:
    files = {image["id"]: image["file_name"] for image in images}
    for number, annotation in enumerate(annotations, 1):
      if "caption" not in annotation:
        fail(
          path,
          "has COCO's annotations of objects, and only COCO's captions are "
          f"read: for labels of whole images, {_FORMS}",
        )
      row = {
        "file": files[annotation["image_id"]],
        "caption": annotation["caption"],
      }
      yield Cells(f"annotation {number}", row)
  except (KeyError, TypeError) as error:
    fail(path, f"is not in the form of COCO's captions ({error!r}); {_FORMS}")


def _undecodable(path: str) -> int:
  """The place of the first byte of a file that is not UTF-8; 0 if all are."""
  try:
    read_regular(path, _MOST_BYTES).decode("utf-8-sig")
  except UnicodeDecodeError as error:
    return error.start
  return 0
