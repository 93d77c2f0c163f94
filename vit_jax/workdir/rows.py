"""Files that a run appends to; a full disk or a lost network ends no run.

Most of these hold rows of JSON, one per line, each with its `step`. Rows are
checked here, where they are read, and need not be checked again.
"""

import collections
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from etils import epath

from vit_jax.runtime.files import commit, read_regular
from vit_jax.workdir import bucket

MOST_WAITING = 32 * 2**20  # Bytes that may wait in memory for a write.
UPLOAD_EVERY = 60  # Seconds between two attempts to add to an object.
MOST_BYTES = 2**29  # The most bytes of a file: a million rows of metrics.
_MOST_LINE = 2**24  # Bytes of a line: the scores of 100,000 classes.
_LAST_STEP = 2**31 - 1  # The step is an int32 on the devices.
_MOST_NUMBER = 1e100  # Above the squares of float32; plots can show it.

Row = dict[str, Any]


class Rows(NamedTuple):
  """Rows of a file, and the number of its broken lines, which are left out."""

  rows: list[Row]
  skipped: int

  def note(self, name: str) -> list[str]:
    """A line on the broken lines of the file `name`, if there are any."""
    if not self.skipped:
      return []
    lines = "line is" if self.skipped == 1 else "lines are"
    return [f"{name}: {self.skipped:,} broken {lines} left out."]


def read_rows(
  path: epath.Path, is_valid: Callable[[Row], bool] = lambda row: True
) -> Rows:
  """The rows of a file, as `parse_rows`; raises OSError as `read` does."""
  return parse_rows(read(path), is_valid)


def read(path: epath.Path) -> bytes:
  """A file's content, b"" without a file; raises OSError if reading fails."""
  with bucket.as_os_error():
    return read_regular(path, MOST_BYTES) if path.exists() else b""


def parse_rows(
  content: bytes, is_valid: Callable[[Row], bool] = lambda row: True
) -> Rows:
  """The rows in a file's content: JSON objects with a step that are valid.

  NaN and infinity, which are not JSON, become None.
  """
  lines = [line for line in content.split(b"\n") if line.strip()]
  rows = [row for line in lines if (row := _row(line, is_valid)) is not None]
  return Rows(rows, len(lines) - len(rows))


def _row(line: bytes, is_valid: Callable[[Row], bool]) -> Row | None:
  """The row that a line holds, or None if the line is broken."""
  if len(line) > _MOST_LINE:
    return None
  try:
    row = json.loads(line, parse_constant=lambda _: None)
  except (ValueError, RecursionError):  # Invalid UTF-8 raises ValueError.
    return None
  if not isinstance(row, dict) or not is_count(row.get("step"), _LAST_STEP):
    return None
  return row if is_valid(row) else None


def is_count(value: Any, most: int = _LAST_STEP) -> bool:
  """Whether a JSON value is a whole number from 0 to `most`."""
  whole = isinstance(value, int) and not isinstance(value, bool)
  return whole and 0 <= value <= most


def is_text(value: Any) -> bool:
  """Whether a JSON value is a text that UTF-8 can encode.

  JSON can also hold half of a pair of surrogates, which UTF-8 cannot.
  """
  if not isinstance(value, str):
    return False
  try:
    value.encode()
  except UnicodeEncodeError:
    return False
  return True


def holds_numbers(row: Row) -> bool:
  """Whether all values are numbers or None, as in rows of metrics and digests.

  The value of "time", and of a key with the word "by" in it, such as
  `eval/top1_by_class`, must be an object of such values.
  """
  return all(map(_is_metric, row.keys(), row.values()))


def _is_metric(name: str, value: Any) -> bool:
  """Whether the value of a key is one that `holds_numbers` allows."""
  if name == "time" or "by" in name.replace("/", "_").split("_"):
    return isinstance(value, dict) and all(map(_is_number, value.values()))
  return _is_number(value)


def _is_number(value: Any) -> bool:
  """Whether a JSON value is None, or a number of a plausible size."""
  is_one = isinstance(value, int | float) and abs(value) <= _MOST_NUMBER
  return value is None or is_one


def to_line(row: dict[str, Any]) -> bytes:
  """A row as a line of JSON, in which NaN and infinity become null."""
  finite = {
    key: None if isinstance(v, float) and not math.isfinite(v) else v
    for key, v in row.items()
  }
  return json.dumps(finite).encode() + b"\n"


def replace(path: epath.Path, content: bytes) -> None:
  """Replaces a file atomically and durably; raises OSError if that fails."""
  if bucket.is_address(path):  # An object appears once it is complete.
    with bucket.as_os_error():
      path.write_bytes(content)
    return
  draft = path.with_name(f"{path.name}.part")
  draft.write_bytes(content)
  commit(draft, path)


class AppendFile:
  """Appends to a file; data that cannot be written waits for the next append.

  A partial write, as on a full disk, is undone before the next one. If more
  than `MOST_WAITING` bytes wait, the oldest are dropped. Objects on gs:// are
  appended to once a minute. The file is made by the first write, and begins
  with `header`.
  """

  def __init__(self, path: epath.Path, header: bytes = b""):
    self._path, self._header = path, header
    self._is_object = bucket.is_address(path)
    self._waiting: collections.deque[bytes] = collections.deque()
    self._tried = 0  # How many waiting pieces the last attempt failed to write.
    self._size: int | None = None  # The file's length before that attempt.
    self._error: OSError | None = None
    self._next_upload = 0.0

  def append(self, data: bytes) -> None:
    """Appends data to the file, or raises OSError and keeps it for later."""
    self._waiting.append(data)
    while sum(map(len, self._waiting)) > MOST_WAITING:
      self._waiting.popleft()
      self._tried = max(self._tried - 1, 0)
    if time.monotonic() >= self._next_upload:
      self.flush()
    elif self._error is not None:
      raise self._error

  def flush(self) -> None:
    """Writes the waiting data; raises OSError if that fails."""
    if not self._waiting:
      return
    if self._is_object:
      self._upload()
    else:
      self._write()
    self._size, self._tried, self._error = None, 0, None
    self._waiting.clear()

  def close(self, failed: bool) -> None:
    """Writes the waiting data, however the run has ended."""
    del failed
    self.flush()

  def _write(self) -> None:
    """Appends to a local file, once the last partial write is cut off."""
    self._path.parent.mkdir(parents=True, exist_ok=True)
    with self._path.open("ab") as file:
      if self._size is not None:
        file.truncate(min(self._size, file.tell()))
        file.seek(0, 2)
      self._size = file.tell()
      if not self._size:
        file.write(self._header)
      file.write(b"".join(self._waiting))

  def _upload(self) -> None:
    """Appends to an object, unless the last attempt did that after all.

    Raises OSError if the store cannot be used.
    """
    self._next_upload = time.monotonic() + UPLOAD_EVERY
    try:
      size = bucket.size(self._path)
      if self._size is not None and size > self._size:
        # The last attempt succeeded, and only the answer was lost.
        for _ in range(self._tried):
          self._waiting.popleft()
      self._size = size
      self._tried = len(self._waiting)
      data = b"".join(self._waiting)
      if data:
        bucket.append(self._path, data if size else self._header + data)
    except Exception as error:  # Google's libraries raise errors of all kinds.
      self._error = OSError(bucket.reason(error))
      raise self._error from error


class RowFile(AppendFile):
  """A file to which a run that starts from `first_step` adds rows.

  Rows beyond that step, which a stopped run wrote and this one will write
  again, are dropped. So are invalid lines, whose number is `skipped`. Raises
  OSError if the file cannot be read or replaced.
  """

  def __init__(self, path: epath.Path, first_step: int):
    super().__init__(path)
    content = read(path)
    rows, self.skipped = parse_rows(content)
    remaining = b"".join(to_line(r) for r in rows if r["step"] <= first_step)
    if remaining != content:
      replace(path, remaining)

  def write(self, step: int, values: Mapping[str, Any]) -> None:
    """Adds a row; raises OSError if it cannot be written."""
    self.append(to_line({"step": step, **values}))
