"""Files that a run appends to, and survives a full disk or a lost network.

Most hold rows of JSON, one a line, each with its `step`.
"""

import collections
import json
import math
import time
from collections.abc import Mapping
from typing import Any

from etils import epath

from vit_jax.runtime import atomic_file
from vit_jax.workdir import bucket

MOST_WAITING = 32 * 2**20  # Bytes that may wait in memory for a write.
UPLOAD_EVERY = 60  # Seconds between two attempts to add to an object.


def read_rows(path: epath.Path) -> list[dict[str, Any]]:
  """The rows of a file, without invalid lines; raises OSError as `read`."""
  return parse_rows(read(path))[0]


def read(path: epath.Path) -> bytes:
  """A file's content, empty if there is none; raises OSError if that fails."""
  with bucket.as_os_error():
    return path.read_bytes() if path.exists() else b""


def parse_rows(content: bytes) -> tuple[list[dict[str, Any]], int]:
  """The rows in a file's content, and the number of invalid lines."""
  lines = [line for line in content.split(b"\n") if line.strip()]
  rows = [row for line in lines if (row := _row(line)) is not None]
  return rows, len(lines) - len(rows)


def _row(line: bytes) -> dict[str, Any] | None:
  """The row that a line holds, or None if the line is invalid."""
  try:
    row = json.loads(line)
  except (ValueError, RecursionError):  # Invalid UTF-8 raises ValueError.
    return None
  step = row.get("step") if isinstance(row, dict) else None
  return row if isinstance(step, int) and not isinstance(step, bool) else None


def to_line(row: dict[str, Any]) -> bytes:
  """A row as JSON, which has no NaN and no infinity: they become null."""
  finite = {
    key: None if isinstance(v, float) and not math.isfinite(v) else v
    for key, v in row.items()
  }
  return json.dumps(finite).encode() + b"\n"


def replace(path: epath.Path, content: bytes) -> None:
  """Replaces a file atomically and for good; raises OSError if that fails."""
  if bucket.is_address(path):  # An object appears once it is complete.
    with bucket.as_os_error():
      path.write_bytes(content)
    return
  draft = path.with_name(f"{path.name}.part")
  draft.write_bytes(content)
  atomic_file.commit(draft, path)


class AppendFile:
  """Appends to a file; data that cannot be written waits for the next append.

  A partial write, as on a full disk, is truncated before the next. If more than
  `MOST_WAITING` bytes wait, the oldest are dropped. Objects on gs:// are
  appended to once a minute. The file is made on the first write; `header` are
  its first bytes.
  """

  def __init__(self, path: epath.Path, header: bytes = b""):
    self._path, self._header = path, header
    self._is_object = bucket.is_address(path)
    self._waiting: collections.deque[bytes] = collections.deque()
    self._tried = 0  # How many of these the last attempt failed to write.
    self._size: int | None = None  # The file's length before that attempt.
    self._error: OSError | None = None
    self._next_upload = 0.0

  def append(self, data: bytes) -> None:
    """Adds to the file, or raises OSError and keeps the data for later."""
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
    self._next_upload = time.monotonic() + UPLOAD_EVERY
    try:
      size = bucket.size(self._path)
      if self._size is not None and size > self._size:
        # The last attempt succeeded, and only the answer was lost.
        for _ in range(self._tried):
          self._waiting.popleft()
      self._size, self._tried = size, len(self._waiting)
      data = b"".join(self._waiting)
      if data:
        bucket.append(self._path, data if size else self._header + data)
    except Exception as error:  # Google's libraries raise errors of all kinds.
      self._error = OSError(bucket.reason(error))
      raise self._error from error


class RowFile(AppendFile):
  """A file to which a run that starts from `first_step` adds rows.

  Rows beyond it, which a run that was stopped wrote and this one will write
  again, are dropped, and so are the invalid lines, of which there were
  `skipped`; OSError says that this failed.
  """

  def __init__(self, path: epath.Path, first_step: int):
    super().__init__(path)
    content = read(path)
    rows, self.skipped = parse_rows(content)
    kept = b"".join(to_line(r) for r in rows if r["step"] <= first_step)
    if kept != content:
      replace(path, kept)

  def write(self, step: int, values: Mapping[str, Any]) -> None:
    """Adds a row; raises OSError if it cannot be written."""
    self.append(to_line({"step": step, **values}))
