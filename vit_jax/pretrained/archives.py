"""Named arrays in files: NumPy's .npz and .safetensors, whole or in shards.

The files may come from anywhere, so nothing in them is believed, run or written
to disk. Opening one checks all that it says of itself against its length, in
memory bounded by constants (`MAX_...` here and in `npz`); an array is read when
it is asked for, and no claim is allocated that was not checked. Arrays are of
booleans, integers or floats of up to 64 bits, bfloat16 among them.

An .npz file has a checksum of each array, so a damaged one is noticed when it
is read. A .safetensors file has none: damage to its data cannot be noticed.
"""

import contextlib
import io
import json
import pathlib
from collections.abc import Iterator, Mapping

import numpy as np

from vit_jax.pretrained.npz import npz_slots, save_npz
from vit_jax.pretrained.pickles import TORCH_ADVICE
from vit_jax.pretrained.refusals import (
  RefusalError,
  UnreadableFileError,
  naming,
  quoted,
)
from vit_jax.pretrained.safetensors_file import (
  safetensors_slots,
  save_safetensors,
)
from vit_jax.pretrained.slots import MAX_DIRECTORY_BYTES, Slot, file_size

__all__ = [
  "Arrays",
  "UnreadableFileError",
  "open_arrays",
  "save_npz",
  "save_safetensors",
]

_PAGE = "a web page or an error in XML, not the file that was asked for"
_OTHER_FILES = {
  b"\x89HDF": "an HDF5 file (such as Keras's .h5)",
  b"\x93NUMPY": "a single array (.npy) without a name",
  b"\x1f\x8b": "a gzip file, to unpack first",
  b"version https://git-lfs": "a Git LFS pointer, to replace by `git lfs pull`",
  b"<!": _PAGE,
  b"<?xml": _PAGE,
  b"<html": _PAGE,
  b"<HTML": _PAGE,
  b"<Error": _PAGE,
}


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
    slots: dict[str, Slot],
    files: contextlib.ExitStack,
  ):
    self.path = path
    self.shapes = {name: slot.shape for name, slot in slots.items()}
    self._slots = slots
    self._files = files

  def __getitem__(self, key: str) -> np.ndarray:
    slot = self._slots[key]
    with naming(slot.file.name):
      if slot.file.closed:
        raise RefusalError("it is closed already.")
      return slot.read(key)

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
  path = pathlib.Path(path)
  with contextlib.ExitStack() as files:
    return Arrays(path, _open(path, files), files.pop_all())


def _open(
  path: pathlib.Path, files: contextlib.ExitStack, is_shard: bool = False
) -> dict[str, Slot]:
  with naming(str(path)):
    if path.exists() and not path.is_file():
      raise RefusalError("it is a folder or a device; a file is needed.")
    file = files.enter_context(open(path, "rb"))
    head = file.read(512)
    if head.startswith((b"PK\3\4", b"PK\5\6")):
      return npz_slots(file)
    if head.lstrip().startswith(b"{") and b"\0" not in head[:8]:
      if is_shard:
        raise RefusalError("it is text; a shard has to be a .safetensors file.")
      return _sharded_slots(path, file, files)
    if head[8:9] == b"{":
      return safetensors_slots(file)
    raise RefusalError(_what_else(head))


def _what_else(head: bytes) -> str:
  """What a file seems to be that is neither .npz nor .safetensors."""
  if head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5"):
    return f"it is a pickle (such as PyTorch's); {TORCH_ADVICE}"
  if head[257:262] == b"ustar":
    return f"it is a tar file (such as PyTorch's first); {TORCH_ADVICE}"
  seen = f"starts with {head[:8]}" if head else "is empty"
  for start, words in _OTHER_FILES.items():
    if head.startswith(start):
      seen = f"is {words}"
  return f"it {seen}; an .npz or a .safetensors file is needed."


def _sharded_slots(
  path: pathlib.Path, file: io.BufferedReader, files: contextlib.ExitStack
) -> dict[str, Slot]:
  shard_of = _weight_map(file)
  slots = {}
  for shard in sorted(set(shard_of.values())):
    shard_path = path.parent / shard
    if not shard_path.is_file():
      raise RefusalError(
        f"it names the shard {quoted(shard)}, which is not beside it; get that "
        "file too."
      )
    found = _open(shard_path, files, is_shard=True)
    named = {name for name, where in shard_of.items() if where == shard}
    if named != set(found):
      name = min(named ^ set(found))
      raise RefusalError(
        f"it and the shard {quoted(shard)} disagree on whether array "
        f"{quoted(name)} is in there; get both again."
      )
    slots |= found
  return {name: slots[name] for name in shard_of}


def _weight_map(file: io.BufferedReader) -> dict[str, str]:
  """The shard that holds each array, as an index says; plain file names."""
  size = file_size(file)
  if size > MAX_DIRECTORY_BYTES:
    raise RefusalError(
      f"it is text of {size} bytes; an index of shards has at most "
      f"{MAX_DIRECTORY_BYTES}."
    )
  file.seek(0)
  try:
    shard_of = json.loads(file.read().decode())["weight_map"]
    names = set(shard_of.values())
    is_plain = all(name and not set(name) & set("/\\:\0") for name in names)
  except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
    raise RefusalError(
      'it is text, but no JSON with a "weight_map" from arrays to shards; an '
      ".npz or a .safetensors file or the index of one is needed."
    ) from None
  if not is_plain or names & {".", ".."}:
    raise RefusalError(
      "it names shards in other folders; they have to be beside it."
    )
  return shard_of
