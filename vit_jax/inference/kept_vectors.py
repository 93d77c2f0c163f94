"""The vectors of images, computed once and kept in a file.

A vector is kept with the size and the time of change of its image file. The
file of vectors has a fingerprint of the model that computed them.
"""

import dataclasses
import hashlib
import math
import os
import pathlib
import zipfile
from collections.abc import Sequence
from typing import IO, Any

import jax
import numpy as np
from jaxtyping import Float, Int

from vit_jax.runtime.files import open_regular, replacing
from vit_jax.runtime.printable import one_line, say

_ARRAYS = ("fingerprint", "files", "stamps", "vectors")
_MOST_LISTED = 2**17  # Bytes of an archive's list of arrays.


def fingerprint_of(model: Any, params: Any, preprocessing: Any) -> str:
  """A digest of the model's fields, its parameters and the preprocessing."""
  digest = hashlib.sha256()
  plain = model.clone(origin=None) if hasattr(model, "origin") else model
  digest.update(repr((plain, preprocessing)).encode())
  leaves = jax.tree_util.tree_leaves_with_path(params)
  for path, leaf in leaves:
    array = np.ascontiguousarray(jax.device_get(leaf))
    digest.update(jax.tree_util.keystr(path).encode())
    digest.update(f"{array.dtype}{array.shape}".encode())
    digest.update(array.tobytes())
  return digest.hexdigest()


def stamps_of(files: Sequence[str]) -> Int[np.ndarray, "N 2"]:
  """The size in bytes and the time of change in nanoseconds of each file."""
  stamps = np.zeros((len(files), 2), np.int64)
  for row, name in enumerate(files):
    status = os.stat(name)
    stamps[row] = status.st_size, status.st_mtime_ns
  return stamps


@dataclasses.dataclass(frozen=True)
class KeptVectors:
  """The vectors of image files.

  Attributes:
    files: The files' absolute paths.
    stamps: The size and the time of change of each file when it was read.
    vectors: A row for each file.
  """

  files: tuple[str, ...] = ()
  stamps: Int[np.ndarray, "N 2"] = dataclasses.field(
    default_factory=lambda: np.zeros((0, 2), np.int64)
  )
  vectors: Float[np.ndarray, "N D"] = dataclasses.field(
    default_factory=lambda: np.zeros((0, 0), np.float32)
  )

  @classmethod
  def read(cls, path: pathlib.Path, fingerprint: str) -> "KeptVectors":
    """The vectors in a file; no vectors if it is missing or damaged.

    A line says that a file is damaged, and that its vectors are computed anew.
    Raises ValueError if the path is a folder, or the file holds vectors of
    another model, or other arrays, which the user may need, and PermissionError
    if the file may not be read.
    """
    if path.is_dir():
      raise ValueError(f"{path} is a folder: give another --out.")
    try:
      arrays = _arrays_in(path)
    except FileNotFoundError:
      return cls()
    except PermissionError:
      raise
    # A damaged file makes its readers raise almost anything.
    except Exception as error:
      say(
        f"{path} is damaged or not a file that this command wrote "
        f"({one_line(error)}): its vectors are computed anew."
      )
      return cls()
    if arrays is None:
      raise ValueError(
        f"{path} holds no vectors of images: remove it, or give another --out."
      )
    if str(arrays["fingerprint"]) != fingerprint:
      raise ValueError(
        f"{path} holds vectors of another model, size or pooling: give another "
        "--out, or remove it."
      )
    return cls(
      tuple(map(str, arrays["files"])), arrays["stamps"], arrays["vectors"]
    )

  def write(self, path: pathlib.Path, fingerprint: str) -> None:
    """Writes the file, whole or not at all."""
    with replacing(path) as file:
      np.savez(
        file,
        fingerprint=np.array(fingerprint),
        files=np.array(self.files),
        stamps=self.stamps,
        vectors=self.vectors,
      )

  def rows_of(
    self, files: Sequence[str], stamps: Int[np.ndarray, "N 2"]
  ) -> Int[np.ndarray, " N"]:
    """The row of each file, or -1 if it is new or has changed."""
    row_of = {name: row for row, name in enumerate(self.files)}
    rows = np.array([row_of.get(name, -1) for name in files], np.int64)
    is_known = rows >= 0
    is_same = (self.stamps[rows[is_known]] == stamps[is_known]).all(axis=1)
    rows[np.flatnonzero(is_known)[~is_same]] = -1
    return rows

  def with_rows(
    self,
    files: Sequence[str],
    stamps: Int[np.ndarray, "n 2"],
    vectors: Float[np.ndarray, "n D"],
  ) -> "KeptVectors":
    """A copy with the vectors of `files`, new or in place of their old ones."""
    replaced = {*files}
    old = [row for row, name in enumerate(self.files) if name not in replaced]
    if old:
      vectors = np.concatenate([self.vectors[old], vectors])
    return KeptVectors(
      files=(*(self.files[row] for row in old), *files),
      stamps=np.concatenate([self.stamps[old], stamps]),
      vectors=vectors,
    )


class _Bounded:
  """A file that refuses reads of a given size of more than `limit` bytes.

  A read without a size is not refused: it takes the rest of the file.
  """

  def __init__(self, file: IO[bytes]):
    self.limit = _MOST_LISTED
    self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
    self._file = file

  def read(self, size: int = -1) -> bytes:
    """Reads; raises ValueError for more than the limit."""
    if size > self.limit:
      raise ValueError(
        f"a part of it claims {size:,} bytes, more than the {self.limit:,} "
        "that it may have"
      )
    return self._file.read(size)


def _arrays_in(path: pathlib.Path) -> dict[str, np.ndarray] | None:
  """The arrays that `KeptVectors.write` wrote; None if the file has others.

  They take no more memory than the file has bytes. Raises OSError if it cannot
  be opened, and almost any error if it is damaged.
  """
  with open_regular(path) as file:
    size = os.fstat(file.fileno()).st_size
    bounded: Any = _Bounded(file)
    with zipfile.ZipFile(bounded) as archive:
      bounded.limit = size
      members = {*archive.namelist()}
      if not {f"{name}.npy" for name in _ARRAYS} <= members:
        return None
      arrays = {name: _read_array(archive, name, size) for name in _ARRAYS}
  kinds = [(array.dtype.kind, array.ndim) for array in arrays.values()]
  rows = {len(arrays[name]) for name in _ARRAYS[1:]}
  if kinds != [("U", 0), ("U", 1), ("i", 2), ("f", 2)] or len(rows) != 1:
    raise ValueError("its arrays are of other types or lengths")
  if arrays["stamps"].shape[1] != 2 or not np.isfinite(arrays["vectors"]).all():
    raise ValueError("its arrays have other shapes, or are not finite")
  return arrays


def _read_array(archive: zipfile.ZipFile, name: str, size: int) -> np.ndarray:
  """Reads an array of an archive of `size` bytes.

  Raises ValueError if it is compressed, is of another type than texts and
  numbers, or has other bytes than it claims.
  """
  member = archive.getinfo(f"{name}.npy")
  is_stored = member.compress_type == zipfile.ZIP_STORED
  if not is_stored or member.file_size > size:
    raise ValueError(
      f"its array {name!r} is compressed, or claims more bytes than there are"
    )
  with archive.open(member) as stream:
    np.lib.format.read_magic(stream)
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    content = stream.read(member.file_size)
  if dtype.kind not in "Uif":
    raise ValueError(f"its array {name!r} holds neither texts nor numbers")
  if math.prod(shape) * dtype.itemsize != len(content):
    raise ValueError(f"its array {name!r} has other bytes than it claims")
  return np.frombuffer(content, dtype).reshape(shape)
