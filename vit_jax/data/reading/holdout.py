"""Chooses the images to hold out from data that come without splits."""

import hashlib
import os
import posixpath
import unicodedata
import zlib
from collections.abc import Collection


def held_out(
  files: Collection[bytes],
  fraction: float,
  by: str = "name",
  root: bytes | None = None,
) -> set[bytes]:
  """Chooses about a fraction of the files of a class, by their names.

  By "name", each file is chosen or not by its own name: if the hash of the
  name, a number in [0, 1), is below the fraction. So it keeps its side whatever
  files are added or removed, and the share of N files is near the fraction
  only, with a standard deviation of sqrt(fraction (1 - fraction) / N). No rule
  can keep every file on its side and also fix the share: a side that does not
  depend on other files depends on a file's own name, and by their names all
  files may fall on one side.

  Of two files or more, at least one is chosen and one is not. If names leave a
  side empty, the file whose hash is nearest to the fraction moves there. That
  file cannot be fixed: as a small class grows, another may be nearer, and once
  names fill both sides it is back on its own. A single file is not chosen.

  By "rank", as in earlier versions, the files of the lowest CRC-32 are chosen,
  as many as are nearest to the fraction; some change sides as files are added.

  Args:
    files: Names, relative to one folder.
    root: The folder, which is needed only if some names are full paths: these
      have the hash of their part below it.
  """
  if len(files) < 2:
    return set()
  if by == "rank":
    count = min(max(round(fraction * len(files)), 1), len(files) - 1)
    ranked = sorted(files, key=lambda file: (zlib.crc32(file), file))
    return {*ranked[:count]}
  top = None if root is None else posixpath.join(_plain(_absolute(root)), "")
  hashes = {file: _hash(file, top) for file in files}
  chosen = {file for file in files if hashes[file] < fraction}
  if not chosen:
    return {min(files, key=lambda file: (hashes[file], file))}
  if len(chosen) == len(files):
    chosen.remove(max(files, key=lambda file: (hashes[file], file)))
  return chosen


def _hash(file: bytes, top: str | None) -> float:
  """The BLAKE2b hash of a name, 64 bits, as a number in [0, 1].

  It is the same on all platforms, and however a path is written.
  """
  name = _plain(file)
  if top is not None:
    name = name.removeprefix(top)
  encoded = name.encode("utf-8", "surrogateescape")
  digest = hashlib.blake2b(encoded, digest_size=8).digest()
  return int.from_bytes(digest, "big") / 2**64


def _plain(path: bytes) -> str:
  """A path with composed accents (NFC), "/" for a backslash, and no "./"."""
  name = path.decode("utf-8", "surrogateescape").replace("\\", "/")
  return posixpath.normpath(unicodedata.normalize("NFC", name))


def _absolute(folder: bytes) -> bytes:
  return os.path.abspath(os.path.expanduser(folder))
