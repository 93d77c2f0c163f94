"""Reads and writes named arrays: .npz and .safetensors, whole or in shards.

A `flax_model.msgpack` is read as well, as a whole into memory.

Files come from anywhere. Nothing in them is run, and what they claim is
compared with their length before memory is taken for it. An array holds
booleans, integers or floats of up to 64 bits, bfloat16 among them; an object
array, which is a pickle, is refused.

An .npz file has a checksum of each array, so reading a damaged one fails. A
.safetensors file has none: damage to its numbers goes unnoticed.
"""

import collections
import contextlib
import errno
import functools
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import safetensors.numpy

from vit_jax.pretrained.flax_arrays import begins_as_flax, open_flax
from vit_jax.pretrained.known import TORCH_ADVICE
from vit_jax.pretrained.npz import (
  MAX_DIRECTORY_BYTES,
  Stored,
  UnreadableFileError,
  open_npz,
)
from vit_jax.runtime.files import TooLargeError, open_regular, read_regular
from vit_jax.runtime.printable import one_line, quoted

# Name of a type in .safetensors files -> NumPy's name of the type.
_SAFETENSORS_DTYPES = {
  "BOOL": "bool",
  **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
  **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
  **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
  "BF16": "bfloat16",
}
_EXPORTED = "give the run or the weights that it was exported from"
# Pattern of a file's first bytes -> a description that follows "it" in errors.
_OTHER_FILES = {
  rb"\x80[\2-\5]": f"is a pickle (such as PyTorch's); {TORCH_ADVICE}",
  rb".{257}ustar": f"is a tar file (such as PyTorch's first); {TORCH_ADVICE}",
  rb"\x89HDF": "is an HDF5 file (such as Keras's .h5)",
  rb"\x93NUMPY": "is a single array (.npy) without a name",
  rb"\x1f\x8b": "is a gzip file, to unpack first",
  rb"version https://git-lfs": "is a Git LFS pointer; run `git lfs pull`",
  rb"\s*<[!?a-z]": "is a web page or an error in XML, not what was asked for",
  rb"\x08.\x12": f"is an ONNX file, which onnxruntime runs; {_EXPORTED}",
  # A FlatBuffer without an identifier, whose table of offsets comes first.
  rb"[\x20-\x80]\0{3}(\0\0)?[\x20-\x80]\0[^\0]\0[^\0]\0": (
    f"is an exported program, which jax.export reads; {_EXPORTED}"
  ),
  rb"$": "is empty",
}


# The name of a shard: its number, and how many there are.
_SHARD = re.compile(
  r"(?P<name>.+)-(?P<i>[0-9]{5})-of-(?P<n>[0-9]{5})(?P<end>.+)"
)
# Raised when a text file turns out not to be an index of shards.
_INDEX_ERRORS = (TooLargeError, ValueError, RecursionError)
# No damaged file makes the libraries that read it raise these: they are faults
# of ours, and come out as they are.
_FAULTS = (AssertionError, AttributeError, NameError, TypeError)
_MOST_SHARDS = 1_000


class Arrays(collections.UserDict[str, np.ndarray]):
  """The arrays of a file, or of its shards, each read when it is asked for.

  Reading a damaged array raises an UnreadableFileError. `shapes` has every
  array's shape and `dtypes` NumPy's name of its type, in stored order, without
  reading any.
  """

  def __init__(self, stored: Mapping[str, Stored]):
    self.data: dict[str, Any] = dict(stored)
    self.shapes = {name: array.shape for name, array in stored.items()}
    self.dtypes = {name: array.dtype for name, array in stored.items()}

  def renamed(self, names: Mapping[str, str]) -> "Arrays":
    """Some of the arrays under other names; `names` maps new names to old."""
    return Arrays({new: self.data[old] for new, old in names.items()})

  def __getitem__(self, key: str) -> np.ndarray:
    stored = self.data[key]
    with _name_in_errors(stored.path):
      return stored.read()


@contextlib.contextmanager
def open_arrays(path: pathlib.Path) -> Iterator[Arrays]:
  """Opens an .npz, .safetensors or Flax file, or the index of a sharded one.

  The content decides which of these it is, not the name. An index (JSON, such
  as model.safetensors.index.json) lies beside the shards that it names. A file
  that is named as a shard is read with the others beside it. Raises
  UnreadableFileError if the file is none of these, or is incomplete, damaged,
  of absurd size, or a pickle, and OSError if the system cannot open or read the
  file. UnreadableFileError is a ValueError whose message is one line.
  """
  path = pathlib.Path(path)
  with contextlib.ExitStack() as files:
    shard = _SHARD.fullmatch(path.name)
    if shard and int(shard["n"]) > 1:
      yield Arrays(_open_siblings(path, shard, files))
    else:
      yield Arrays(_open(path, files))


@contextlib.contextmanager
def _name_in_errors(path: pathlib.Path) -> Iterator[None]:
  """Turns every error about a file into one line that names it."""
  try:
    yield
  except _FAULTS:
    raise
  except UnreadableFileError as error:
    raise UnreadableFileError(f"{str(path)!r}: {error}") from None
  except Exception as error:
    # A damaged file may make the reader seek to before its start (EINVAL).
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
      name = error.filename or str(path)
      raise OSError(error.errno, error.strerror, name) from error
    raise UnreadableFileError(
      f"{str(path)!r}: it is damaged or incomplete ({type(error).__name__}: "
      f"{one_line(error)}); get it again."
    ) from error


def _open(
  path: pathlib.Path, files: contextlib.ExitStack, is_shard: bool = False
) -> dict[str, Stored]:
  """The arrays of a file of any of the formats.

  With `is_shard`, an index of shards and a Flax file are refused. `files`
  closes what is opened here. Raises as `open_arrays` does.
  """
  with _name_in_errors(path):
    if path.exists() and not path.is_file():
      raise UnreadableFileError("it is a folder or a device; a file is needed.")
    with open_regular(path) as file:
      head = file.read(512)
    if head.startswith((b"PK\3\4", b"PK\5\6")):
      return open_npz(path, files)
    is_text = head.lstrip().startswith(b"{") and b"\0" not in head[:8]
    if is_text and not is_shard:
      return _open_shards(path, files)
    if head[8:9] == b"{" and not is_text:
      return _open_safetensors(path, head, files)
    if begins_as_flax(head) and not is_shard:
      return open_flax(path)
    seen = f"starts with {head[:8]}"
    for pattern, description in _OTHER_FILES.items():
      if re.match(pattern, head, re.IGNORECASE | re.DOTALL):
        seen = description
    raise UnreadableFileError(
      f"it {seen}; an .npz or a .safetensors file is needed."
    )


def _open_safetensors(
  path: pathlib.Path, head: bytes, files: contextlib.ExitStack
) -> dict[str, Stored]:
  """The arrays of a .safetensors file, which begins with `head`.

  Raises UnreadableFileError if its header is too large, or an array is of a
  type that is not read.
  """
  size = int.from_bytes(head[:8], "little")
  if size > MAX_DIRECTORY_BYTES:
    raise UnreadableFileError(
      f"its header claims {size} bytes; {MAX_DIRECTORY_BYTES} are enough for "
      "any model. Get the file again."
    )
  # By default the library maps the file, which counts as memory in use and
  # kills the process if the file is cut meanwhile.
  library_file = safetensors.safe_open(path, framework="np", backend="pread")
  file = files.enter_context(library_file)
  contents = {}
  for name in file.offset_keys():
    array = file.get_slice(name)
    dtype = _SAFETENSORS_DTYPES.get(array.get_dtype())
    if dtype is None:
      raise UnreadableFileError(
        f"array {quoted(name)} holds items of type {array.get_dtype()}; one of "
        f"{', '.join(_SAFETENSORS_DTYPES)} is needed."
      )
    read = functools.partial(file.get_tensor, name)
    contents[name] = Stored(path, tuple(array.get_shape()), dtype, read)
  return contents


def _open_shards(
  path: pathlib.Path, files: contextlib.ExitStack
) -> dict[str, Stored]:
  """The arrays of all shards, from the path of their index.

  Raises UnreadableFileError if it is no index, or does not fit its shards.
  """
  shard_of: Any = None
  with contextlib.suppress(*_INDEX_ERRORS):
    index = json.loads(read_regular(path, MAX_DIRECTORY_BYTES))
    shard_of = index.get("weight_map") if isinstance(index, dict) else None
  if not isinstance(shard_of, dict):
    raise UnreadableFileError(
      'it is text, but not JSON with a "weight_map" from arrays to shards and '
      f"at most {MAX_DIRECTORY_BYTES} bytes; an .npz or a .safetensors file or "
      "the index of one is needed."
    )
  contents = {}
  for shard in sorted({str(shard) for shard in shard_of.values()}):
    is_plain = re.fullmatch(r"[\w.-]+\.safetensors", shard)
    if not is_plain or not (path.parent / shard).is_file():
      raise UnreadableFileError(
        f"it names the shard {quoted(shard)}, which is no .safetensors file "
        "beside it; get that file too."
      )
    contents |= _open(path.parent / shard, files, is_shard=True)
  if strange := contents.keys() ^ shard_of.keys():
    raise UnreadableFileError(
      f"it and its shards disagree on array {quoted(min(strange))}; get them "
      "again."
    )
  return {name: contents[name] for name in shard_of}


def _open_siblings(
  path: pathlib.Path, shard: re.Match[str], files: contextlib.ExitStack
) -> dict[str, Stored]:
  """The arrays of all shards, from the path of one and without their index.

  `shard` is the match of `_SHARD` for the file's name. Raises
  UnreadableFileError if the name says too many shards, a shard is missing, or
  two have an array of one name.
  """
  count = int(shard["n"])
  with _name_in_errors(path):
    if count > _MOST_SHARDS:
      raise UnreadableFileError(
        f"its name says {count} shards; at most {_MOST_SHARDS} are read."
      )
    contents: dict[str, Stored] = {}
    for i in range(1, count + 1):
      name = f"{shard['name']}-{i:05}-of-{count:05}{shard['end']}"
      other = path.with_name(name)
      if not other.is_file():
        raise UnreadableFileError(
          f"it is one of {count} shards, and {quoted(name)} is not beside it; "
          "get that file too."
        )
      more = _open(other, files, is_shard=True)
      if twice := contents.keys() & more.keys():
        raise UnreadableFileError(
          f"two of its shards have an array {quoted(min(twice))}; get all of "
          "them again."
        )
      contents |= more
  return contents


def save_arrays(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes a file in the format that its ending says, .npz or .safetensors.

  Equal arrays in the same order give equal bytes. Arrays are written one after
  the other, without copying them all first.
  """
  path.touch()
  named: dict[str, Any] = dict(arrays)
  if path.suffix == ".npz":
    np.savez(path, **named)
  else:
    _save_safetensors(path, named)
  with open(path, "r+b") as file:
    os.fsync(file.fileno())


def _save_safetensors(
  path: pathlib.Path, arrays: dict[str, np.ndarray]
) -> None:
  """Writes a .safetensors file; raises OSError if it cannot be written."""
  # The library ignores strides and writes the memory as it is.
  assert all(array.flags.c_contiguous for array in arrays.values())
  # It creates files that only the owner may read (safetensors' issue 782).
  mode = path.stat().st_mode
  try:
    # Hugging Face's libraries look for the framework in the metadata.
    safetensors.numpy.save_file(arrays, path, {"format": "pt"})
  except safetensors.SafetensorError as error:
    number = re.search(r"os error (\d+)", str(error))
    code = int(number[1]) if number else errno.EIO
    raise OSError(code, str(error), str(path)) from error
  path.chmod(mode)
