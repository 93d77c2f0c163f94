"""One array in a file: what it may be, where it lies, and reading it."""

import dataclasses
import io
import math
import os
import pathlib
import zlib
from typing import Protocol

import ml_dtypes
import numpy as np

from vit_jax.pretrained.refusals import RefusalError, quoted, short

MAX_DIRECTORY_BYTES = 4 << 20
"""Most bytes of names and shapes in a file: those of 30,000 arrays or so."""

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {
  "F64": np.dtype("<f8"),
  "I64": np.dtype("<i8"),
  "U64": np.dtype("<u8"),
  "F32": np.dtype("<f4"),
  "I32": np.dtype("<i4"),
  "U32": np.dtype("<u4"),
  "F16": np.dtype("<f2"),
  "BF16": BFLOAT16,
  "I16": np.dtype("<i2"),
  "U16": np.dtype("<u2"),
  "I8": np.dtype("i1"),
  "U8": np.dtype("u1"),
  "BOOL": np.dtype("?"),
}
"""What files are written with, by the names that .safetensors has for them."""

_CHUNK_BYTES = 1 << 20  # Stays in a core's cache between reading and checksum.
_ALIGNMENT = 64
_MAX_RANK = 32


class Source(Protocol):
  """What bytes are read from, in order."""

  def readinto(self, buffer: memoryview, /) -> int | None: ...


@dataclasses.dataclass(frozen=True)
class Slot:
  """Where an array lies in a file, and as what.

  Attributes:
    start: Where its header starts or, without one, its data.
    header: Bytes to unpack before the array's own.
    packed: Bytes that header and array take where they are compressed.
    crc: Checksum of header and array, where there is one.
  """

  file: io.BufferedReader
  dtype: np.dtype
  shape: tuple[int, ...]
  start: int
  header: int = 0
  packed: int | None = None
  fortran: bool = False
  crc: int | None = None

  def read(self, name: str) -> np.ndarray:
    """The array, which `name` is for the message about."""
    flat = _empty(math.prod(self.shape), self.dtype)
    source = unpacked(self.file, self.start, self.packed)
    crc = None if self.crc is None else 0
    crc = fill(source, memoryview(bytearray(self.header)), crc)
    if fill(source, flat.view(np.uint8).data, crc) != self.crc:
      raise RefusalError(
        f"array {quoted(name)} does not match its checksum; the file is "
        "damaged, get it again."
      )
    if not self.dtype.isnative:
      flat = flat.byteswap(inplace=True).view(self.dtype.newbyteorder("="))
    if self.fortran:
      return flat.reshape(self.shape[::-1]).T
    return flat.reshape(self.shape)


def file_size(file: io.BufferedReader) -> int:
  return os.fstat(file.fileno()).st_size


def check_array(
  name: str, dtype: np.dtype, shape: tuple[int, ...], size: int
) -> None:
  """Raises unless an array of this type and shape has `size` bytes."""
  label = f"array {quoted(name)}"
  if dtype != BFLOAT16 and (dtype.kind not in "biuf" or dtype.itemsize > 8):
    raise RefusalError(
      f"{label} holds items of type {short(dtype)}; booleans, integers or "
      "floats of up to 64 bits are needed, and pickled objects are refused."
    )
  if (
    len(shape) > _MAX_RANK
    or not all(type(d) is int and d >= 0 for d in shape)  # No bool either.
    # NumPy counts the strides of an empty array too.
    or math.prod(d for d in shape if d) * dtype.itemsize >= 1 << 63
  ):
    raise RefusalError(f"{label} has the impossible shape {short(shape)}.")
  if math.prod(shape) * dtype.itemsize != size:
    raise RefusalError(
      f"{label} of shape {short(shape)} and type {dtype} does not take the "
      f"{size} bytes that it has; the file is damaged, get it again."
    )


def storable(path: pathlib.Path, name: str, array: np.ndarray) -> np.ndarray:
  """The array as files hold it: little-endian and in C's order."""
  array = np.asarray(array)
  if "\0" in name or name == "__metadata__":
    raise ValueError(
      f"{str(path)!r} cannot hold an array called {name!r}; rename it."
    )
  dtype = array.dtype.newbyteorder("<")
  if dtype not in DTYPES.values():
    raise ValueError(
      f"{str(path)!r} cannot hold array {name!r} of type {array.dtype}; "
      "convert it to booleans, integers or floats of up to 64 bits."
    )
  return np.asarray(array, dtype, order="C")


def unpacked(file: io.BufferedReader, start: int, packed: int | None) -> Source:
  """The bytes from `start` on, or those that the `packed` ones there unpack to.

  One source at a time: all move the file's position.
  """
  file.seek(start)
  return file if packed is None else _Inflater(file, packed)


class _Inflater:
  """The bytes that a compressed member unpacks to, from the file's position."""

  def __init__(self, file: io.BufferedReader, packed: int):
    self._file = file
    self._left = packed
    self._stream = zlib.decompressobj(-zlib.MAX_WBITS)

  def readinto(self, buffer: memoryview) -> int:
    while not self._stream.eof:
      packed = self._stream.unconsumed_tail
      if not packed:
        packed = self._file.read(min(self._left, _CHUNK_BYTES))
        self._left -= len(packed)
      try:  # The length is above 0, which would mean: whatever comes.
        out = self._stream.decompress(packed, len(buffer))
      except zlib.error as error:
        raise RefusalError(f"it is damaged ({error}); get it again.") from error
      buffer[: len(out)] = out
      if out or not packed:
        return len(out)
    return 0


def fill(
  source: Source, view: memoryview, crc: int | None = None
) -> int | None:
  """Fills `view` in pieces; goes on with the checksum `crc` where given."""
  at = 0
  while at < len(view):
    piece = view[at : at + _CHUNK_BYTES]
    count = source.readinto(piece)
    if not count:
      raise RefusalError("it ends too early; get it again.")
    if crc is not None:
      crc = zlib.crc32(piece[:count], crc)
    at += count
  return crc


def _empty(count: int, dtype: np.dtype) -> np.ndarray:
  """An array that `jax.device_put` takes over as it is on a CPU.

  It does so with those that start at a multiple of 64 bytes, and copies others.
  """
  size = count * dtype.itemsize
  buffer = np.empty(size + _ALIGNMENT, np.uint8)
  start = -buffer.ctypes.data % _ALIGNMENT
  return buffer[start : start + size].view(dtype)
