"""NumPy's .npz files: a .zip file with an .npy file for each array.

`numpy.savez` writes bfloat16 as unnamed items of two bytes ("V2"), and so does
big_vision; such items are read as bfloat16.
"""

import io
import pathlib
import struct
import warnings
import zipfile
from collections.abc import Mapping

import numpy as np

from vit_jax.pretrained.pickles import TORCH_ADVICE
from vit_jax.pretrained.refusals import (
  RefusalError,
  line,
  quoted,
)
from vit_jax.pretrained.slots import (
  BFLOAT16,
  MAX_DIRECTORY_BYTES,
  Slot,
  check_array,
  file_size,
  fill,
  storable,
  unpacked,
)
from vit_jax.runtime.atomic_file import replacing

MAX_UNPACKED_RATIO = 10
"""Weights hardly compress, so an .npz may hold this many times its size."""

MAX_UNPACKED_BYTES = 256 << 20
"""What any .npz may hold: zero-initialised heads compress a thousandfold."""

_MAX_NPY_HEADER_BYTES = 2048
_NPY_READERS = {
  (1, 0): np.lib.format.read_array_header_1_0,
  (2, 0): np.lib.format.read_array_header_2_0,
}

# The parts of the .zip format that `zipfile` keeps to itself.
_LOCAL_HEADER = struct.Struct("<4s2xHH16xHH")
_MAX_DESCRIPTOR_BYTES = 24  # Sizes repeated behind a member, if streamed.
_ENCRYPTED = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 13  # Or a patch to another file.
_UTF8_NAME = 1 << 11


def save_npz(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes an uncompressed .npz file, whole or not at all.

  Equal arrays in the same order give equal bytes, whatever the date.
  """
  with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
    for name in arrays:
      array = storable(path, name, arrays[name])
      member = zipfile.ZipInfo(f"{name}.npy")  # Dated 1980, always.
      member.create_system = 3  # Unix, whatever system this is.
      member.external_attr = 0o644 << 16
      with archive.open(member, "w", force_zip64=True) as out:
        np.lib.format.write_array(out, array, allow_pickle=False)


def npz_slots(file: io.BufferedReader) -> dict[str, Slot]:
  """Where the arrays of an .npz file lie, all claims of the file checked."""
  try:
    with zipfile.ZipFile(_BoundedFile(file)) as archive:
      members, end = archive.infolist(), archive.start_dir
  except zipfile.BadZipFile as error:
    raise RefusalError(
      f"it is an .npz file cut short or damaged ({line(error)}); get it again."
    ) from error
  _check_names([member.orig_filename for member in members])
  _check_packing(members, file_size(file))
  starts = _data_starts(file, members, end)
  slots = {}
  for member in members:
    name = member.orig_filename.removesuffix(".npy")
    slots[name] = _slot(file, name, member, starts[member.orig_filename])
  return slots


class _BoundedFile:
  """What `zipfile` sees of a file: it reads the list of members in one go."""

  def __init__(self, file: io.BufferedReader):
    self._file = file

  def seek(self, offset: int, whence: int = 0, /) -> int:
    return self._file.seek(offset, whence)

  def tell(self) -> int:
    return self._file.tell()

  def read(self, size: int = -1, /) -> bytes:
    if size > MAX_DIRECTORY_BYTES:
      raise RefusalError(
        f"its list of members takes {size} bytes; at most "
        f"{MAX_DIRECTORY_BYTES} are read. It holds no model of ours."
      )
    return self._file.read(size)


def _check_names(names: list[str]) -> None:
  for name in names:
    if name.rpartition("/")[2] == "data.pkl":
      raise RefusalError(f"it is a pickle of PyTorch's; {TORCH_ADVICE}")
  for name in names:
    if not name.endswith(".npy") or "\0" in name:
      raise RefusalError(
        f"it is a .zip file that holds {quoted(name)}; in an .npz file every "
        "name ends in .npy, as numpy.savez writes it."
      )
  if len(set(names)) < len(names):
    raise RefusalError("two of its arrays have the same name; get it again.")


def _check_packing(members: list[zipfile.ZipInfo], size: int) -> None:
  for member in members:
    is_stored = member.compress_type == zipfile.ZIP_STORED
    if is_stored and member.compress_size != member.file_size:
      raise RefusalError("its list of members is damaged; get it again.")
    is_readable = is_stored or member.compress_type == zipfile.ZIP_DEFLATED
    if not is_readable or member.flag_bits & _ENCRYPTED:
      raise RefusalError(
        "it is encrypted or packed as numpy.savez and numpy.savez_compressed "
        "do not; write it with one of these."
      )
  claimed = sum(member.file_size for member in members)
  limit = MAX_UNPACKED_BYTES + MAX_UNPACKED_RATIO * size
  if claimed > limit:
    raise RefusalError(
      f"its {size} bytes claim to unpack to {claimed}, as no weights do; at "
      f"most {limit} are read. Write it with numpy.savez if it is in order."
    )


def _data_starts(
  file: io.BufferedReader, members: list[zipfile.ZipInfo], end: int
) -> dict[str, int]:
  """Where each member's data starts, as its own header says.

  Raises unless that header is the one listed, and the members fill the file up
  to `end`, where the list starts: none is part of another, none left out.
  """
  starts, free = {}, 0
  for member in sorted(members, key=lambda member: member.header_offset):
    _check_adjoins(free, member.header_offset)
    file.seek(member.header_offset)
    magic, flags, method, name_size, extra_size = _LOCAL_HEADER.unpack(
      file.read(_LOCAL_HEADER.size)
    )
    is_utf8 = bool(member.flag_bits & _UTF8_NAME)
    name = member.orig_filename.encode("utf-8" if is_utf8 else "cp437")
    if (
      magic != b"PK\3\4"
      or method != member.compress_type
      or (flags ^ member.flag_bits) & (_ENCRYPTED | _UTF8_NAME)
      or file.read(name_size) != name
    ):
      raise RefusalError(
        f"member {quoted(member.orig_filename)} is not what its list says; it "
        "is damaged, get it again."
      )
    start = member.header_offset + _LOCAL_HEADER.size + name_size + extra_size
    starts[member.orig_filename] = start
    free = start + member.compress_size
  _check_adjoins(free, end)
  return starts


def _check_adjoins(free: int, start: int) -> None:
  if not free <= start <= free + _MAX_DESCRIPTOR_BYTES:
    raise RefusalError(
      "its members overlap, or its list leaves some out; get it again."
    )


def _slot(
  file: io.BufferedReader, name: str, member: zipfile.ZipInfo, start: int
) -> Slot:
  is_stored = member.compress_type == zipfile.ZIP_STORED
  packed = None if is_stored else member.compress_size
  head = bytearray(min(member.file_size, _MAX_NPY_HEADER_BYTES))
  fill(unpacked(file, start, packed), memoryview(head))
  shape, fortran, dtype, header = _npy_header(name, head)
  check_array(name, dtype, shape, member.file_size - header)
  return Slot(
    file,
    dtype,
    shape,
    start,
    header=header,
    packed=packed,
    fortran=fortran,
    crc=member.CRC,
  )


def _npy_header(
  name: str, head: bytearray
) -> tuple[tuple[int, ...], bool, np.dtype, int]:
  """Shape, whether in Fortran's order, type, and the header's own size.

  NumPy parses the header as a literal, without running it. On a hostile one it
  raises, or warns of, almost anything.
  """
  stream = io.BytesIO(head)
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      read = _NPY_READERS[np.lib.format.read_magic(stream)]
      shape, fortran, dtype = read(stream, _MAX_NPY_HEADER_BYTES)
  except Exception as error:
    raise RefusalError(
      f"array {quoted(name)} has no header as numpy.savez writes it "
      f"({line(error)}); get the file again."
    ) from error
  # The subarrays and structures that share this kind have a base or names.
  is_plain = dtype.subdtype is None and dtype.names is None
  if dtype.kind == "V" and dtype.itemsize == 2 and is_plain:
    dtype = BFLOAT16
  return shape, fortran, dtype, stream.tell()
