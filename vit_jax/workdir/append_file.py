"""Appends to the files of a run, and survives a full disk or a lost network.

Data that cannot be written waits in memory, up to `MOST_WAITING` bytes.
"""

import collections
import time

from etils import epath

from vit_jax.workdir import bucket
from vit_jax.workdir.read_errors import reason

MOST_WAITING = 32 * 2**20
UPLOAD_EVERY = 60  # Seconds between two attempts to add to an object.


class AppendFile:
  """Appends to a file; data that cannot be written waits for the next append.

  A partial write, as on a full disk, is truncated before the next. If too much
  data waits, the oldest is dropped. Objects on gs:// are appended to once a
  minute.

  Args:
    path: The file, which is made on the first write.
    header: The first bytes of a new file.
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
    """Adds to the file.

    Raises:
      OSError: if it cannot be written; the data waits for the next call.
    """
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
      self._error = OSError(reason(error))
      raise self._error from error
