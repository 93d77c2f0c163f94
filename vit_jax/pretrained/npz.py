"""NumPy's .npz files: a .zip file with an .npy file for each array.

`zipfile` and `numpy.lib.format` parse them, as in `numpy.load`. In addition,
the sizes that a file claims are compared with its length before memory is taken
for them, and arrays are read into memory that JAX can use without a copy.
"""

import contextlib
import functools
import io
import math
import pathlib
import warnings
import zipfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0

from vit_jax.pretrained.known import TORCH_ADVICE
from vit_jax.runtime.printable import one_line, quoted

MAX_DIRECTORY_BYTES = 4 << 20  # Names and shapes of 30,000 arrays.
MAX_UNPACKED_RATIO = 10  # Unpacked over packed: weights hardly compress.
MAX_UNPACKED_BYTES = 256 << 20  # Always allowed: zeros compress a thousandfold.
_MAX_HEADER_BYTES = 2048
_CHUNK_BYTES = 1 << 18  # Stays in a core's cache between reading and checksum.
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_DTYPES = {np.dtype(code) for code in "?bBhHiIqQefd"} | {_BFLOAT16}


class UnreadableFileError(ValueError):
  """A file of arrays cannot be read; one line says which and why."""


class Stored(NamedTuple):
  """An array in a file: its shape and type, and how to read it."""

  path: pathlib.Path
  shape: tuple[int, ...]
  dtype: str  # NumPy's name, such as "float32".
  read: Callable[[], np.ndarray]


class _Layout(NamedTuple):
  """How an array is stored, from its header."""

  shape: tuple[int, ...]
  is_fortran: bool  # Whether its first index changes fastest.
  dtype: np.dtype


class _BoundedFile(io.FileIO):
  """A file that limits how many bytes one read may ask for.

  `zipfile` reads the list of members in one read, whose size the file claims. A
  read without a size is not limited.
  """

  def read(self, size: int | None = -1, /) -> bytes:
    """Reads `size` bytes, or all.

    Raises UnreadableFileError if they are more than any list of members takes.
    """
    if size is not None and size > MAX_DIRECTORY_BYTES:
      raise UnreadableFileError(
        f"its list of members takes {size} bytes; {MAX_DIRECTORY_BYTES} are "
        "enough for any model."
      )
    return super().read(size)


def open_npz(
  path: pathlib.Path, files: contextlib.ExitStack
) -> dict[str, Stored]:
  """The arrays of a file by name, after checking the sizes that it claims.

  The file stays open until `files` closes it. Raises UnreadableFileError if its
  list of members or a header is damaged.
  """
  file = files.enter_context(_BoundedFile(path))
  archive = files.enter_context(zipfile.ZipFile(file))
  members = archive.infolist()
  _check_members(members, path.stat().st_size)
  # A damaged list may seem to end early. The file's last 22 bytes hold the
  # number of members, or 65535 if only the zip64 record before them does.
  file.seek(-22, io.SEEK_END)
  if int.from_bytes(file.read()[10:12], "little") not in (len(members), 65535):
    raise UnreadableFileError("its list of members is damaged; get it again.")
  contents = {}
  for member in members:
    name = member.orig_filename.removesuffix(".npy")
    layout = _read_layout(name, archive, member)
    read = functools.partial(_read_array, archive, member, layout)
    contents[name] = Stored(path, layout.shape, layout.dtype.name, read)
  return contents


def _check_members(members: Sequence[zipfile.ZipInfo], size: int) -> None:
  """Compares what the list of members claims with the size of the file.

  Raises UnreadableFileError if the claim cannot be true, or the members are no
  arrays.
  """
  names = [member.orig_filename for member in members]
  if any(name.rpartition("/")[2] == "data.pkl" for name in names):
    raise UnreadableFileError(f"it is a PyTorch pickle; {TORCH_ADVICE}")
  packed = unpacked = 0
  for name, member in zip(names, members, strict=True):
    is_stored = member.compress_type == zipfile.ZIP_STORED
    is_packed = member.compress_type == zipfile.ZIP_DEFLATED
    is_named = name.endswith(".npy") and "\0" not in name
    if not is_named or not (is_stored or is_packed):
      raise UnreadableFileError(
        f"it is a .zip file that holds {quoted(name)}, unlike numpy.savez and "
        "numpy.savez_compressed; write it with one of these."
      )
    packed += member.file_size if is_stored else member.compress_size
    unpacked += member.file_size
  limit = MAX_UNPACKED_BYTES + MAX_UNPACKED_RATIO * size
  if packed > size or unpacked > limit:
    raise UnreadableFileError(
      f"its {size} bytes claim to hold {packed}, or {unpacked} unpacked; at "
      f"most {limit} are read, as weights hardly compress. Get it again."
    )
  if len(set(names)) < len(names):
    raise UnreadableFileError(
      "two of its arrays have the same name; get it again."
    )


def _read_layout(
  name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo
) -> _Layout:
  """Reads a member's header, and compares it with the size of the member.

  Raises UnreadableFileError if they do not fit, or the type is not supported.
  NumPy parses the header as a literal, without running it. A hostile header can
  make it raise or warn of almost anything.
  """
  with archive.open(member) as file:
    head = io.BytesIO(file.read(_MAX_HEADER_BYTES))
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      is_short = np.lib.format.read_magic(head) == (1, 0)
      parse = read_array_header_1_0 if is_short else read_array_header_2_0
      shape, is_fortran, dtype = parse(head)
  except Exception as error:
    raise UnreadableFileError(
      f"array {quoted(name)} has no header as numpy.savez writes it "
      f"({one_line(error)}); get the file again."
    ) from error
  if dtype == np.dtype("V2"):  # This is how numpy.savez writes bfloat16.
    dtype = _BFLOAT16
  if dtype.newbyteorder("=") not in _DTYPES:
    raise UnreadableFileError(
      f"array {quoted(name)} holds items of type {quoted(dtype)}; booleans, "
      "integers or floats of up to 64 bits are needed, and pickled objects are "
      "refused."
    )
  size = member.file_size - head.tell()
  if math.prod(shape) * dtype.itemsize != size or min(shape, default=0) < 0:
    raise UnreadableFileError(
      f"array {quoted(name)} of shape {quoted(shape)} and type {dtype} does "
      f"not take the {size} bytes that it has; get the file again."
    )
  return _Layout(shape, is_fortran, dtype)


def _read_array(
  archive: zipfile.ZipFile, member: zipfile.ZipInfo, layout: _Layout
) -> np.ndarray:
  """Reads an array, whose checksum `zipfile` verifies.

  The array starts at a multiple of 64 bytes, because on a CPU `jax.device_put`
  then uses its memory as it is. An array of `numpy.load` would be copied.
  """
  shape, is_fortran, dtype = layout
  size = math.prod(shape) * dtype.itemsize
  buffer = np.empty(size + 64, np.uint8)
  flat = buffer[-buffer.ctypes.data % 64 :][:size]
  with archive.open(member) as stream:
    stream.read(member.file_size - size)  # The header.
    for at in range(0, size, _CHUNK_BYTES):  # A short read raises an error.
      flat.data[at : at + _CHUNK_BYTES] = stream.read(_CHUNK_BYTES)
  array = flat.view(dtype).astype(dtype.newbyteorder("="), copy=False)
  return array.reshape(shape, order="F" if is_fortran else "C")
