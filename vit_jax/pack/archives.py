"""Opens .tar files, whose headers may claim any size; lists their members."""

import dataclasses
import os
import tarfile
from collections.abc import Iterator
from typing import IO, Any

from etils import epath

from vit_jax.data.reading.folders import EXTENSIONS, is_byproduct
from vit_jax.runtime.printable import counted, one_line, say

MOST_TEXT = 2**24
"""The most bytes of a member that is read whole; headers may claim any size."""
IMAGES = tuple(ending.decode() for ending in EXTENSIONS)
"""Endings of images, in lower case."""
_DAMAGED = (tarfile.TarError, OverflowError, RecursionError)


@dataclasses.dataclass
class HiddenImages:
  """The number of images that are left out as hidden, and the first one."""

  count: int = 0
  first: str = ""

  def say(self) -> None:
    """Prints a line about the hidden images, if there are any."""
    if self.count:
      say(
        "hidden files and by-products of a system are left out, as in folders: "
        f"{counted(self.count, 'image')}, such as {self.first}."
      )


def open_archive(file: IO[bytes], path: epath.Path) -> tarfile.TarFile:
  """Opens an archive; raises ValueError unless it is an uncompressed .tar."""
  bounded: Any = _Bounded(file, path)
  try:
    return tarfile.open(fileobj=bounded, mode="r:")
  except _DAMAGED as error:
    raise ValueError(
      f"{path} is not an uncompressed .tar file ({error}): decompress it, or "
      "get it again."
    ) from error


def members(
  tar: tarfile.TarFile, path: epath.Path, hidden: HiddenImages
) -> Iterator[tarfile.TarInfo]:
  """Yields the members of an archive that are not hidden.

  Hidden images are counted in `hidden`. Raises ValueError for a sparse member,
  whose bytes are not stored as they are and may claim any size, and for an
  archive that is cut or damaged.
  """
  for member in _all_members(tar, path):
    if is_byproduct(os.fsencode(member.name)):
      if member.isfile() and member.name.lower().endswith(IMAGES):
        hidden.count += 1
        hidden.first = hidden.first or f"{path}: {member.name}"
      continue
    if member.issparse():
      raise ValueError(
        f"{path}: {member.name} is stored without its zeros; write the archive "
        "again, without --sparse."
      )
    yield member


def _all_members(
  tar: tarfile.TarFile, path: epath.Path
) -> Iterator[tarfile.TarInfo]:
  """Yields all members; raises ValueError if the archive is damaged."""
  try:
    yield from tar
  except _DAMAGED as error:
    raise ValueError(
      f"{path} is damaged ({one_line(error)}): get it again."
    ) from error


class _Bounded:
  """A file that refuses large reads, whatever size an archive claims.

  A header may say that gigabytes follow, such as a member's long name.
  """

  def __init__(self, file: IO[bytes], path: epath.Path):
    self._file = file
    self._path = path
    self.seek = file.seek
    self.tell = file.tell
    self.seekable = file.seekable

  def read(self, size: int) -> bytes:
    """Reads up to `size` bytes; raises ValueError beyond `MOST_TEXT`."""
    if not 0 <= size <= MOST_TEXT:
      raise ValueError(
        f"{self._path} is damaged: a header takes {size:,} bytes, more than "
        f"{MOST_TEXT:,}; get it again."
      )
    return self._file.read(size)
