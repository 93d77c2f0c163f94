"""Writes the files that grow with a run, and outlasts a full disk or network.

What cannot be written waits in memory, up to `MOST_WAITING` bytes.
"""

import collections
import time

from etils import epath

from vit_jax.workdir.read_errors import reason

MOST_WAITING = 32 * 2**20
_RETRY_AFTER = 60  # Seconds; an attempt may take as long as the network's own.


class AppendFile:
  """Appends to a file; what cannot be written now is written with the next.

  A write that stops in the middle, as the disk is full, is cut off again before
  the next. If too much waits, the oldest data are dropped.

  Args:
    path: The file, which is made on the first write.
    header: The first bytes of a new file.
  """

  def __init__(self, path: epath.Path, header: bytes = b""):
    self._path, self._header = path, header
    self._waiting: collections.deque[bytes] = collections.deque()
    self._waiting_size = 0
    self._whole: int | None = None  # The file's length before a failed write.

  def append(self, data: bytes) -> None:
    """Adds to the file.

    Raises:
      OSError: if that cannot be; the data wait for the next call.
    """
    self._waiting.append(data)
    self._waiting_size += len(data)
    while self._waiting_size > MOST_WAITING:
      self._waiting_size -= len(self._waiting.popleft())
    self.flush()

  def flush(self) -> None:
    """Writes what waits; raises OSError if that cannot be."""
    if not self._waiting:
      return
    self._path.parent.mkdir(parents=True, exist_ok=True)
    with self._path.open("ab") as file:
      if self._whole is not None:
        file.truncate(min(self._whole, file.tell()))
        file.seek(0, 2)
      self._whole = file.tell()
      if not self._whole:
        file.write(self._header)
      file.write(b"".join(self._waiting))
    self._whole, self._waiting_size = None, 0
    self._waiting.clear()


class Uploads:
  """Writes objects to a store; after a failure it leaves the store in peace.

  Attributes:
    failing: Whether the last attempt failed.
  """

  def __init__(self):
    self._error: OSError | None = None
    self._next = 0.0

  @property
  def failing(self) -> bool:
    return self._error is not None

  def write(self, path: epath.Path, content: bytes, last: bool = False) -> None:
    """Writes an object.

    Args:
      path: Its address.
      content: All of its bytes.
      last: Attempt it even if another attempt failed just now.

    Raises:
      OSError: if it cannot be written.
    """
    if self._error is not None and time.monotonic() < self._next and not last:
      raise self._error
    try:
      path.write_bytes(content)
    except Exception as error:  # Each store raises errors of its own.
      self._error = OSError(reason(error))
      self._next = time.monotonic() + _RETRY_AFTER
      raise self._error from error
    self._error = None
