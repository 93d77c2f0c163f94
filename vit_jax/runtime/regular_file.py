"""Opens and reads regular files alone, of a size that is bounded.

Whatever a stranger's folder holds is read through here. A FIFO would make its
reader wait for ever, a device such as /dev/zero never ends, and a file of
gigabytes in the place of a short text fills the memory.
"""

import errno
import io
import os
import pathlib
import stat
from typing import IO

from etils import epath

Path = str | os.PathLike[str]
MOST_TEXT = 64 * 2**20  # Bytes of a text: JSON, rows, names, sums.

_KINDS = {
  stat.S_IFDIR: "a folder",
  stat.S_IFIFO: "a FIFO",
  stat.S_IFSOCK: "a socket",
  stat.S_IFCHR: "a device",
  stat.S_IFBLK: "a device",
}


class NotRegularError(OSError):
  """A path that leads to something else than a regular file."""


class TooLargeError(OSError):
  """A file that holds more bytes than its purpose can need."""


def open_regular(path: Path, at_most: int | None = None) -> io.BufferedReader:
  """Opens a local file to read bytes.

  Links are followed. Nothing is waited for: a FIFO without a writer is refused
  at once.

  Raises:
    NotRegularError: the path leads to a folder, FIFO, socket or device.
    TooLargeError: the file has more than `at_most` bytes.
    OSError: as `open`, such as FileNotFoundError.
  """
  _check_regular(os.stat(path), path)  # Opening some devices changes them.
  # Between the two calls, the file may have been replaced.
  flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | os.O_CLOEXEC
  file = os.fdopen(os.open(path, flags), "rb")
  try:
    status = os.fstat(file.fileno())
    _check_regular(status, path)
    _check_size(status.st_size, path, at_most)
  except BaseException:
    file.close()
    raise
  return file


def open_anywhere(path: Path) -> IO[bytes]:
  """Opens a local file as `open_regular`, or one at an address such as gs://."""
  if "://" in os.fspath(path):
    return epath.Path(path).open("rb")
  return open_regular(path)


def read_regular(path: Path, at_most: int = MOST_TEXT) -> bytes:
  """A file's bytes, of which there are at most `at_most`.

  The path may be an address such as gs://bucket/name.

  Raises:
    NotRegularError: the path leads to a folder, FIFO, socket or device.
    TooLargeError: the file has more than `at_most` bytes.
    OSError: as `open`, such as FileNotFoundError; a bucket's library may raise
      its own errors.
  """
  if "://" in os.fspath(path):
    remote = epath.Path(path)
    _check_size(int(remote.stat().length), path, at_most)
    return remote.read_bytes()
  with open_regular(path, at_most) as file:
    size = os.fstat(file.fileno()).st_size
    content = file.read(size + 1)  # Memory is taken for as much as is asked.
    if len(content) > size:  # The file grows, or is of /proc and says 0 bytes.
      content += file.read(at_most + 1 - len(content))
  _check_size(len(content), path, at_most)
  return content


def _check_regular(status: os.stat_result, path: Path) -> None:
  if stat.S_ISREG(status.st_mode):
    return
  kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no file")
  place = pathlib.Path(path)
  link = " (by a link)" if place.is_symlink() else ""
  number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
  raise NotRegularError(number, f"{kind}{link}, not a regular file", str(path))


def _check_size(size: int, path: Path, at_most: int | None) -> None:
  if at_most is not None and size > at_most:
    why = f"larger than the {at_most:,} bytes that such a file may have"
    raise TooLargeError(errno.EFBIG, why, str(path))
