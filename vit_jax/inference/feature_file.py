"""Writes the features of many images to an .npz file in bounded memory."""

import contextlib
import json
import math
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from typing import IO

import numpy as np

from vit_jax.runtime.files import output_file, replacing


class FeatureFile:
  """Collects features on disk until their number, `count`, is known.

  `rows` and `names` are empty temporary files, open to be written and read.
  """

  def __init__(self, rows: IO[bytes], names: IO[str]):
    self.count = 0
    self._rows = rows
    self._names = names
    self._shapes: list[tuple[int, ...]] = []  # That of each image's features.
    self._longest = 0  # Characters of the longest name.

  def add(self, image: str, features: np.ndarray) -> None:
    """Appends the features of an image."""
    self._rows.write(features.astype("<f4").tobytes())
    # JSON escapes line breaks, which a file's name may contain.
    self._names.write(json.dumps(image) + "\n")
    self.count += 1
    self._shapes.append(features.shape)
    self._longest = max(self._longest, len(image))

  def __str__(self) -> str:
    """The shape of all features so far, or their names if it differs."""
    if len({*self._shapes}) > 1:
      return f"features_1 to features_{self.count}, of different shapes,"
    return f"features {(self.count, *self._shapes[0])}"

  def write(self, file: IO[bytes], layers: Sequence[int] = ()) -> None:
    """Writes the .npz file, with the numbers of the layers if there are any.

    Raises ValueError if there are no features.
    """
    if not self.count:
      raise ValueError("no image could be read: there are no features.")
    dtype = f"<U{self._longest}"
    self._rows.seek(0)
    self._names.seek(0)
    with zipfile.ZipFile(file, "w") as archive:
      if len({*self._shapes}) == 1:
        shape = self.count, *self._shapes[0]
        with _member(archive, "features", "<f4", shape) as to:
          shutil.copyfileobj(self._rows, to)
      else:
        for number, shape in enumerate(self._shapes, 1):
          with _member(archive, f"features_{number}", "<f4", shape) as to:
            to.write(self._rows.read(4 * math.prod(shape)))
      with _member(archive, "images", dtype, (self.count,)) as to:
        for line in self._names:
          to.write(np.array(json.loads(line), dtype).tobytes())
      if layers:
        with _member(archive, "layers", "<i8", (len(layers),)) as to:
          to.write(np.array(layers, "<i8").tobytes())


@contextlib.contextmanager
def feature_file(
  path: str, layers: Sequence[int] = ()
) -> Iterator[FeatureFile]:
  """Opens an .npz file of `features`, (n, ...), and the names `images`, (n,).

  Features of different shapes are `features_1` to `features_n` instead.
  If `layers` are given, their numbers are a third array, `layers`. The file
  appears at `path` only when the block ends without an exception. Until then,
  the rows are kept in unnamed temporary files in its folder. Raises ValueError
  if `path` cannot be such a file, and at the end if there are no features.
  """
  target, _ = output_file(path, {"NumPy arrays": (".npz",)})
  with (
    replacing(target) as file,
    tempfile.TemporaryFile(dir=target.parent) as rows,
    tempfile.TemporaryFile("w+", dir=target.parent) as names,
  ):
    collected = FeatureFile(rows, names)
    yield collected
    collected.write(file, layers)


@contextlib.contextmanager
def _member(
  archive: zipfile.ZipFile, name: str, dtype: str, shape: tuple[int, ...]
) -> Iterator[IO[bytes]]:
  """Writes an array's header to an .npz file, and yields it for the items."""
  header = {"descr": dtype, "fortran_order": False, "shape": shape}
  with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
    np.lib.format.write_array_header_1_0(member, header)
    yield member
