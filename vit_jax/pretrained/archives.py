"""Named arrays in files: NumPy's .npz and .safetensors, whole or in shards.

The files may come from anywhere, so nothing in them is believed, run or written
to disk. Opening one checks all that it says of itself against its length, in
memory bounded by the constants below; an array is read when it is asked for,
and no claim is allocated that was not checked. Arrays are of booleans,
integers or floats of up to 64 bits, bfloat16 among them.

An .npz file has a checksum of each array, so a damaged one is noticed when it
is read. A .safetensors file has none: damage to its data cannot be noticed.

`numpy.savez` writes bfloat16 as unnamed items of two bytes ("V2"), and so does
big_vision; such items are read as bfloat16.
"""

import contextlib
import dataclasses
import io
import json
import math
import os
import pathlib
import secrets
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Protocol

import ml_dtypes
import numpy as np
import safetensors

MAX_DIRECTORY_BYTES = 4 << 20
"""Most bytes of names and shapes in a file: those of 30,000 arrays or so."""

MAX_UNPACKED_RATIO = 10
"""Weights hardly compress, so an .npz may hold this many times its size."""

MAX_UNPACKED_BYTES = 256 << 20
"""What any .npz may hold: zero-initialised heads compress a thousandfold."""

_CHUNK_BYTES = 1 << 20  # Stays in a core's cache between reading and checksum.
_MAX_NPY_HEADER_BYTES = 2048
_ALIGNMENT = 64
_MAX_RANK = 32
_NPY_READERS = {
  (1, 0): np.lib.format.read_array_header_1_0,
  (2, 0): np.lib.format.read_array_header_2_0,
}
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_DTYPES = {
  "F64": np.dtype("<f8"),
  "I64": np.dtype("<i8"),
  "U64": np.dtype("<u8"),
  "F32": np.dtype("<f4"),
  "I32": np.dtype("<i4"),
  "U32": np.dtype("<u4"),
  "F16": np.dtype("<f2"),
  "BF16": _BFLOAT16,
  "I16": np.dtype("<i2"),
  "U16": np.dtype("<u2"),
  "I8": np.dtype("i1"),
  "U8": np.dtype("u1"),
  "BOOL": np.dtype("?"),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}

# The parts of the .zip format that `zipfile` keeps to itself.
_LOCAL_HEADER = struct.Struct("<4s2xHH16xHH")
_MAX_DESCRIPTOR_BYTES = 24  # Sizes repeated behind a member, if streamed.
_ENCRYPTED = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 13  # Or a patch to another file.
_UTF8_NAME = 1 << 11

_TORCH_ADVICE = (
  "unpickling runs code, so it is refused; convert it once where PyTorch is: "
  'python -c "import torch, safetensors.torch as s; '
  "s.save_file(torch.load('F.pth', map_location='cpu', weights_only=True), "
  "'F.safetensors')\""
)
_OTHER_FILES = {
  b"\x89HDF": "an HDF5 file (such as Keras's .h5)",
  b"\x93NUMPY": "a single array (.npy) without a name",
  b"\x1f\x8b": "a gzip file, to unpack first",
  b"version https://git-lfs": "a Git LFS pointer, to replace by `git lfs pull`",
  b"<": "a web page or an error in XML, not the file that was asked for",
}


class UnreadableFileError(ValueError):
  """A file of arrays that cannot be read; one line says which and why."""


class _RefusalError(Exception):
  """Why a file is refused, without its name."""


class _Source(Protocol):
  def readinto(self, buffer: memoryview, /) -> int | None: ...


@dataclasses.dataclass(frozen=True)
class _Slot:
  """Where an array lies in a file, and as what.

  Attributes:
    start: Of the array's bytes; of a compressed .npz member, of the whole.
    packed: Bytes of a compressed member, else None.
    header: The bytes before the array's in a compressed member.
    crc: Checksums of the member's header and of the whole, where there are any.
  """

  path: pathlib.Path
  file: io.BufferedReader
  dtype: np.dtype
  shape: tuple[int, ...]
  start: int
  fortran: bool = False
  packed: int | None = None
  header: int = 0
  crc: tuple[int, int] | None = None


class Arrays(Mapping[str, np.ndarray]):
  """The named arrays of a file (or several), each read when it is asked for.

  An array has the type that was stored, in this machine's byte order. Reading
  one that is damaged raises a ValueError. Not for several threads at once.

  Attributes:
    path: The file, for messages.
    shapes: Every array's shape, in stored order, known without reading any.
  """

  def __init__(
    self,
    path: pathlib.Path,
    slots: dict[str, _Slot],
    files: contextlib.ExitStack,
  ):
    self.path = path
    self.shapes = {name: slot.shape for name, slot in slots.items()}
    self._slots = slots
    self._files = files

  def __getitem__(self, key: str) -> np.ndarray:
    slot = self._slots[key]
    if slot.file.closed:
      raise UnreadableFileError(f"{str(slot.path)!r}: it is closed already.")
    with _naming(slot.path):
      return _read(slot, key)

  def __len__(self) -> int:
    return len(self._slots)

  def __iter__(self) -> Iterator[str]:
    return iter(self._slots)

  def __contains__(self, key: object) -> bool:
    return key in self._slots  # Mapping's own would read the array.

  def close(self) -> None:
    self._files.close()

  def __enter__(self) -> "Arrays":
    return self

  def __exit__(self, *_: object) -> None:
    self.close()


def open_arrays(path: pathlib.Path) -> Arrays:
  """Opens an .npz or .safetensors file, or the index of a sharded one.

  Which of these it is, its content tells, not its name. An index (JSON, as in
  model.safetensors.index.json) lies beside the shards that it names.

  Raises:
    UnreadableFileError: a ValueError; the file is none of these, incomplete,
      damaged, of absurd size, or a pickle. The message is one line.
    OSError: what the system says.
  """
  with contextlib.ExitStack() as files:
    slots = _open(pathlib.Path(path), files)
    return Arrays(pathlib.Path(path), slots, files.pop_all())


def save_npz(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes an uncompressed .npz file, whole or not at all.

  Equal arrays in the same order give equal bytes, whatever the date.
  """
  with _replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
    for name in arrays:
      array = _storable(path, name, arrays[name])
      member = zipfile.ZipInfo(f"{name}.npy")  # Dated 1980, always.
      member.create_system = 3  # Unix, whatever system this is.
      member.external_attr = 0o644 << 16
      with archive.open(member, "w", force_zip64=True) as out:
        np.lib.format.write_array(out, array, allow_pickle=False)


def save_safetensors(
  path: pathlib.Path,
  arrays: Mapping[str, np.ndarray],
  metadata: dict[str, str] | None = None,
) -> None:
  """Writes a .safetensors file, whole or not at all.

  The widest items come first, so that all are aligned. Equal input in the same
  order gives equal bytes; the safetensors package shuffles the metadata, and
  needs all arrays in memory at once.
  """
  stored = {}
  for name in arrays:
    array = _storable(path, name, arrays[name])
    stored[name] = array.dtype, array.shape, array.nbytes
  names = sorted(stored, key=lambda name: -stored[name][0].itemsize)
  header: dict[str, object] = {}
  if metadata:
    if not all(isinstance(word, str) for word in metadata.values()):
      raise ValueError(f"metadata for {str(path)!r} has to be of strings.")
    header["__metadata__"] = metadata
  end = 0
  for name in names:
    dtype, shape, size = stored[name]
    header[name] = {
      "dtype": _CODES[dtype],
      "shape": shape,
      "data_offsets": (end, end + size),
    }
    end += size
  text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
  text += b" " * (-len(text) % 8)
  if len(text) > MAX_DIRECTORY_BYTES:
    raise ValueError(
      f"names, shapes and metadata for {str(path)!r} take {len(text)} bytes; "
      f"at most {MAX_DIRECTORY_BYTES} can be read back."
    )
  with _replacing(path) as file:
    file.write(struct.pack("<Q", len(text)) + text)
    for name in names:
      array = _storable(path, name, arrays[name])
      file.write(array.reshape(-1).view(np.uint8).data)


@contextlib.contextmanager
def _naming(path: pathlib.Path) -> Iterator[None]:
  """Turns whatever goes wrong with a file into one line that names it."""
  name = repr(str(path))
  try:
    yield
  except UnreadableFileError:  # Of a shard, which is named already.
    raise
  except _RefusalError as error:
    raise UnreadableFileError(f"{name}: {error}") from None
  except Exception as error:
    if isinstance(error, OSError) and error.errno is not None:
      raise OSError(error.errno, error.strerror, str(path)) from error
    raise UnreadableFileError(
      f"{name}: it cannot be read ({type(error).__name__}: {_line(error)}); "
      "get it again."
    ) from error


def _line(error: Exception) -> str:
  """What a library says, which may quote the file, in a line of fair length."""
  text = "".join(c if c.isprintable() else " " for c in str(error))
  return _short(text).rstrip(". ")


def _short(text: object) -> str:
  text = str(text)
  return text if len(text) <= 120 else f"{text[:117]}..."


def _open(
  path: pathlib.Path, files: contextlib.ExitStack, is_shard: bool = False
) -> dict[str, _Slot]:
  with _naming(path):
    if path.exists() and not path.is_file():
      raise _RefusalError("it is a folder or a device; a file is needed.")
    file = files.enter_context(open(path, "rb"))
    head = file.read(512)
    if head.startswith((b"PK\3\4", b"PK\5\6")):
      return _npz_slots(path, file)
    if head.lstrip().startswith(b"{") and b"\0" not in head[:8]:
      if is_shard:
        raise _RefusalError(
          "it is text; a shard has to be a .safetensors file."
        )
      return _sharded_slots(path, file, files)
    if head[8:9] == b"{":
      return _safetensors_slots(path, file, head)
    raise _RefusalError(_what_else(head))


def _what_else(head: bytes) -> str:
  """What a file seems to be that is neither .npz nor .safetensors."""
  if head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5"):
    return f"it is a pickle (such as PyTorch's); {_TORCH_ADVICE}"
  if head[257:262] == b"ustar":
    return f"it is a tar file (such as PyTorch's first); {_TORCH_ADVICE}"
  seen = f"starts with {head[:8]}" if head else "is empty"
  for start, words in _OTHER_FILES.items():
    if head.startswith(start):
      seen = f"is {words}"
  return f"it {seen}; an .npz or a .safetensors file is needed."


def _size(file: io.BufferedReader) -> int:
  return os.fstat(file.fileno()).st_size


def _check_array(
  name: str, dtype: np.dtype, shape: tuple[int, ...], size: int
) -> None:
  """Raises unless an array of this type and shape has `size` bytes."""
  label = f"array {_short(repr(name))}"
  if dtype != _BFLOAT16 and (dtype.kind not in "biuf" or dtype.itemsize > 8):
    raise _RefusalError(
      f"{label} holds items of type {_short(dtype)}; booleans, integers or "
      "floats of up to 64 bits are needed, and pickled objects are refused."
    )
  if (
    len(shape) > _MAX_RANK
    or not all(type(d) is int and d >= 0 for d in shape)  # No bool either.
    # NumPy counts the strides of an empty array too.
    or math.prod(d for d in shape if d) * dtype.itemsize >= 1 << 63
  ):
    raise _RefusalError(f"{label} has the impossible shape {_short(shape)}.")
  if math.prod(shape) * dtype.itemsize != size:
    raise _RefusalError(
      f"{label} of shape {_short(shape)} and type {dtype} does not take the "
      f"{size} bytes that it has; the file is damaged, get it again."
    )


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
        raise _RefusalError(
          f"it is damaged ({error}); get it again."
        ) from error
      buffer[: len(out)] = out
      if out or not packed:
        return len(out)
    return 0


def _fill(source: _Source, view: memoryview, crc: int | None) -> int | None:
  """Fills `view` in pieces; goes on with the checksum `crc` where given."""
  at = 0
  while at < len(view):
    piece = view[at : at + _CHUNK_BYTES]
    count = source.readinto(piece)
    if not count:
      raise _RefusalError("it ends too early; get it again.")
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


def _read(slot: _Slot, name: str) -> np.ndarray:
  flat = _empty(math.prod(slot.shape), slot.dtype)
  slot.file.seek(slot.start)
  source: _Source = slot.file
  if slot.packed is not None:
    source = _Inflater(slot.file, slot.packed)
  _fill(source, memoryview(bytearray(slot.header)), None)
  header_crc, whole_crc = slot.crc or (None, None)
  if _fill(source, flat.view(np.uint8).data, header_crc) != whole_crc:
    raise _RefusalError(
      f"array {_short(repr(name))} does not match its checksum; the file is "
      "damaged, get it again."
    )
  if not slot.dtype.isnative:
    flat = flat.byteswap(inplace=True).view(slot.dtype.newbyteorder("="))
  if slot.fortran:
    return flat.reshape(slot.shape[::-1]).T
  return flat.reshape(slot.shape)


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
      raise _RefusalError(
        f"its list of members takes {size} bytes; at most "
        f"{MAX_DIRECTORY_BYTES} are read. It holds no model of ours."
      )
    return self._file.read(size)


def _npz_slots(path: pathlib.Path, file: io.BufferedReader) -> dict[str, _Slot]:
  try:
    with zipfile.ZipFile(_BoundedFile(file)) as archive:
      members, end = archive.infolist(), archive.start_dir
  except zipfile.BadZipFile as error:
    raise _RefusalError(
      f"it is an .npz file cut short or damaged ({_line(error)}); get it again."
    ) from error
  _check_members(members, _size(file))
  starts = _data_starts(file, members, end)
  return {
    member.orig_filename.removesuffix(".npy"): _npy_slot(
      path, file, member, starts[member.orig_filename]
    )
    for member in members
  }


def _check_members(members: list[zipfile.ZipInfo], file_size: int) -> None:
  names = [member.orig_filename for member in members]
  for name in names:
    if name.rpartition("/")[2] == "data.pkl":
      raise _RefusalError(f"it is a pickle of PyTorch's; {_TORCH_ADVICE}")
  for name in names:
    if not name.endswith(".npy") or "\0" in name:
      raise _RefusalError(
        f"it is a .zip file that holds {_short(repr(name))}; in an .npz file "
        "every name ends in .npy, as numpy.savez writes it."
      )
  if len(set(names)) < len(names):
    raise _RefusalError("two of its arrays have the same name; get it again.")
  for member in members:
    is_stored = member.compress_type == zipfile.ZIP_STORED
    if is_stored and member.compress_size != member.file_size:
      raise _RefusalError("its list of members is damaged; get it again.")
    is_readable = is_stored or member.compress_type == zipfile.ZIP_DEFLATED
    if not is_readable or member.flag_bits & _ENCRYPTED:
      raise _RefusalError(
        "it is encrypted or packed as numpy.savez and numpy.savez_compressed "
        "do not; write it with one of these."
      )
  unpacked = sum(member.file_size for member in members)
  limit = MAX_UNPACKED_BYTES + MAX_UNPACKED_RATIO * file_size
  if unpacked > limit:
    raise _RefusalError(
      f"its {file_size} bytes claim to unpack to {unpacked}, as no weights do; "
      f"at most {limit} are read. Write it with numpy.savez if it is in order."
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
      raise _RefusalError(
        f"member {_short(repr(member.orig_filename))} is not what its list "
        "says; it is damaged, get it again."
      )
    start = member.header_offset + _LOCAL_HEADER.size + name_size + extra_size
    starts[member.orig_filename] = start
    free = start + member.compress_size
  _check_adjoins(free, end)
  return starts


def _check_adjoins(free: int, start: int) -> None:
  if not free <= start <= free + _MAX_DESCRIPTOR_BYTES:
    raise _RefusalError(
      "its members overlap, or its list leaves some out; get it again."
    )


def _npy_slot(
  path: pathlib.Path,
  file: io.BufferedReader,
  member: zipfile.ZipInfo,
  start: int,
) -> _Slot:
  name = member.orig_filename.removesuffix(".npy")
  is_stored = member.compress_type == zipfile.ZIP_STORED
  packed = None if is_stored else member.compress_size
  head = bytearray(min(member.file_size, _MAX_NPY_HEADER_BYTES))
  file.seek(start)
  source = file if packed is None else _Inflater(file, packed)
  _fill(source, memoryview(head), None)
  shape, fortran, dtype, size = _npy_header(name, head)
  _check_array(name, dtype, shape, member.file_size - size)
  return _Slot(
    path,
    file,
    dtype,
    shape,
    start=start + size if is_stored else start,
    fortran=fortran,
    packed=packed,
    header=0 if is_stored else size,
    crc=(zlib.crc32(head[:size]), member.CRC),
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
    raise _RefusalError(
      f"array {_short(repr(name))} has no header as numpy.savez writes it "
      f"({_line(error)}); get the file again."
    ) from error
  # The subarrays and structures that share this kind have a base or names.
  is_plain = dtype.subdtype is None and dtype.names is None
  if dtype.kind == "V" and dtype.itemsize == 2 and is_plain:
    dtype = _BFLOAT16
  return shape, fortran, dtype, stream.tell()


def _safetensors_slots(
  path: pathlib.Path, file: io.BufferedReader, head: bytes
) -> dict[str, _Slot]:
  size = int.from_bytes(head[:8], "little")
  if size > min(_size(file) - 8, MAX_DIRECTORY_BYTES):
    raise _RefusalError(
      f"its header claims {size} of the file's {_size(file)} bytes, and at "
      f"most {MAX_DIRECTORY_BYTES} are read; get the file again."
    )
  try:
    with safetensors.safe_open(path, framework="np") as checked:
      # These lie side by side without gaps, or they would have been refused.
      slices = {name: checked.get_slice(name) for name in checked.offset_keys()}
  except safetensors.SafetensorError as error:
    raise _RefusalError(
      f"it is no .safetensors file, or an incomplete one ({_line(error)}); get "
      "it again."
    ) from error
  slots, start = {}, 8 + size
  for name, tensor in slices.items():
    dtype, shape = _DTYPES.get(tensor.get_dtype()), tuple(tensor.get_shape())
    if dtype is None:
      raise _RefusalError(
        f"array {_short(repr(name))} holds items of type {tensor.get_dtype()}; "
        f"one of {', '.join(_DTYPES)} is needed."
      )
    _check_array(name, dtype, shape, math.prod(shape) * dtype.itemsize)
    slots[name] = _Slot(path, file, dtype, shape, start)
    start += math.prod(shape) * dtype.itemsize
  return slots


def _sharded_slots(
  path: pathlib.Path, file: io.BufferedReader, files: contextlib.ExitStack
) -> dict[str, _Slot]:
  shard_of = _weight_map(file)
  slots = {}
  for shard in sorted(set(shard_of.values())):
    shard_path = path.parent / shard
    if not shard_path.is_file():
      raise _RefusalError(
        f"it names the shard {_short(repr(shard))}, which is not beside it; "
        "get that file too."
      )
    found = _open(shard_path, files, is_shard=True)
    named = {name for name, where in shard_of.items() if where == shard}
    if named != set(found):
      name = min(named ^ set(found))
      raise _RefusalError(
        f"it and the shard {_short(repr(shard))} disagree on whether array "
        f"{_short(repr(name))} is in there; get both again."
      )
    slots |= found
  return {name: slots[name] for name in shard_of}


def _weight_map(file: io.BufferedReader) -> dict[str, str]:
  """The shard that holds each array, as an index says; plain file names."""
  if _size(file) > MAX_DIRECTORY_BYTES:
    raise _RefusalError(
      f"it is text of {_size(file)} bytes; an index of shards has at most "
      f"{MAX_DIRECTORY_BYTES}."
    )
  file.seek(0)
  try:
    shard_of = json.loads(file.read().decode())["weight_map"]
    names = set(shard_of.values())
    is_plain = all(name and not set(name) & set("/\\:\0") for name in names)
  except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
    raise _RefusalError(
      'it is text, but no JSON with a "weight_map" from arrays to shards; an '
      ".npz or a .safetensors file or the index of one is needed."
    ) from None
  if not is_plain or names & {".", ".."}:
    raise _RefusalError(
      "it names shards in other folders; they have to be beside it."
    )
  return shard_of


def _storable(path: pathlib.Path, name: str, array: np.ndarray) -> np.ndarray:
  """The array as files hold it: little-endian and in C's order."""
  array = np.asarray(array)
  if "\0" in name or name == "__metadata__":
    raise ValueError(
      f"{str(path)!r} cannot hold an array called {name!r}; rename it."
    )
  dtype = array.dtype.newbyteorder("<")
  if dtype not in _CODES:
    raise ValueError(
      f"{str(path)!r} cannot hold array {name!r} of type {array.dtype}; "
      "convert it to booleans, integers or floats of up to 64 bits."
    )
  return np.asarray(array, dtype, order="C")


@contextlib.contextmanager
def _replacing(path: pathlib.Path) -> Iterator[io.BufferedWriter]:
  """A file to write that takes the place of `path` once it is complete."""
  path = pathlib.Path(path)
  part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
  try:
    with open(part, "xb") as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(part, path)
  except BaseException as error:
    part.unlink(missing_ok=True)
    if isinstance(error, OSError) and error.errno is not None:
      raise OSError(error.errno, error.strerror, str(path)) from error
    raise
