"""The vectors of images, computed once and kept in a file.

A vector is kept with the size and the time of change of its image, and with the
fingerprint of what computed it.
"""

import dataclasses
import hashlib
import os
import pathlib
import zipfile
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from vit_jax.runtime.files import replacing

_ARRAYS = ("fingerprint", "files", "stamps", "vectors")


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
  """Vectors of files.

  Attributes:
    files: The files' absolute paths.
    stamps: The size and the time of change of each, when it was read.
    vectors: A row for each.
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
    """The vectors in a file; none if there is no such file.

    Raises ValueError if the file is damaged, or holds those of another model.
    """
    if not path.exists():
      return cls()
    try:
      with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in _ARRAYS}
      opened = cls(
        tuple(map(str, arrays["files"])), arrays["stamps"], arrays["vectors"]
      )
      rows = {
        len(opened.files),
        len(opened.stamps),
        len(opened.vectors),
      }
      if len(rows) != 1 or opened.vectors.ndim != 2:
        raise ValueError("its arrays differ in length")
    except (
      OSError,
      ValueError,
      KeyError,
      EOFError,
      zipfile.BadZipFile,
    ) as error:
      raise ValueError(
        f"{path} holds no vectors of images ({error}): remove it, or give "
        "another --out."
      ) from error
    if str(arrays["fingerprint"]) != fingerprint:
      raise ValueError(
        f"{path} holds vectors of another model, size or pooling: give another "
        "--out, or remove it."
      )
    return opened

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
    place = {name: row for row, name in enumerate(self.files)}
    rows = np.array([place.get(name, -1) for name in files], np.int64)
    is_known = rows >= 0
    same = (self.stamps[rows[is_known]] == stamps[is_known]).all(axis=1)
    rows[np.flatnonzero(is_known)[~same]] = -1
    return rows

  def with_rows(
    self,
    files: Sequence[str],
    stamps: Int[np.ndarray, "n 2"],
    vectors: Float[np.ndarray, "n D"],
  ) -> "KeptVectors":
    """These vectors and further ones, which replace those of the same files."""
    replaced = {*files}
    stay = [k for k, name in enumerate(self.files) if name not in replaced]
    if stay:
      vectors = np.concatenate([self.vectors[stay], vectors])
    return KeptVectors(
      files=(*(self.files[k] for k in stay), *files),
      stamps=np.concatenate([self.stamps[stay], stamps]),
      vectors=vectors,
    )
