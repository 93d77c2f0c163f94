"""The .safetensors files of Hugging Face: a header in JSON, then the arrays."""

import io
import json
import math
import pathlib
import struct
from collections.abc import Mapping

import numpy as np
import safetensors

from vit_jax.pretrained.refusals import RefusalError, line, quoted
from vit_jax.pretrained.slots import (
  DTYPES,
  MAX_DIRECTORY_BYTES,
  Slot,
  check_array,
  file_size,
  storable,
)
from vit_jax.runtime.atomic_file import replacing

_CODES = {dtype: code for code, dtype in DTYPES.items()}


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
  entries = _entries(path, arrays)
  header: dict[str, object] = {}
  if metadata:
    if not all(isinstance(word, str) for word in metadata.values()):
      raise ValueError(f"metadata for {str(path)!r} has to be of strings.")
    header["__metadata__"] = metadata
  text = json.dumps(
    header | entries, ensure_ascii=False, separators=(",", ":")
  ).encode()
  text += b" " * (-len(text) % 8)
  if len(text) > MAX_DIRECTORY_BYTES:
    raise ValueError(
      f"names, shapes and metadata for {str(path)!r} take {len(text)} bytes; "
      f"at most {MAX_DIRECTORY_BYTES} can be read back."
    )
  with replacing(path) as file:
    file.write(struct.pack("<Q", len(text)) + text)
    for name in entries:
      array = storable(path, name, arrays[name])
      file.write(array.reshape(-1).view(np.uint8).data)


def _entries(
  path: pathlib.Path, arrays: Mapping[str, np.ndarray]
) -> dict[str, dict[str, object]]:
  """What the header says of each array, in the order in which they lie."""
  stored = {}
  for name in arrays:
    array = storable(path, name, arrays[name])
    stored[name] = array.dtype, array.shape, array.nbytes
  entries, end = {}, 0
  for name in sorted(stored, key=lambda name: -stored[name][0].itemsize):
    dtype, shape, size = stored[name]
    offsets = end, end + size
    entries[name] = dict(dtype=_CODES[dtype], shape=shape, data_offsets=offsets)
    end += size
  return entries


def safetensors_slots(file: io.BufferedReader) -> dict[str, Slot]:
  """Where the arrays of a .safetensors file lie, its header checked."""
  file.seek(0)
  size = int.from_bytes(file.read(8), "little")
  if size > min(file_size(file) - 8, MAX_DIRECTORY_BYTES):
    raise RefusalError(
      f"its header claims {size} of the file's {file_size(file)} bytes, and "
      f"at most {MAX_DIRECTORY_BYTES} are read; get the file again."
    )
  try:
    with safetensors.safe_open(file.name, framework="np") as checked:
      # These lie side by side without gaps, or they would have been refused.
      slices = {name: checked.get_slice(name) for name in checked.offset_keys()}
  except safetensors.SafetensorError as error:
    raise RefusalError(
      f"it is no .safetensors file, or an incomplete one ({line(error)}); get "
      "it again."
    ) from error
  slots, start = {}, 8 + size
  for name, tensor in slices.items():
    dtype, shape = DTYPES.get(tensor.get_dtype()), tuple(tensor.get_shape())
    if dtype is None:
      raise RefusalError(
        f"array {quoted(name)} holds items of type {tensor.get_dtype()}; one "
        f"of {', '.join(DTYPES)} is needed."
      )
    length = math.prod(shape) * dtype.itemsize
    check_array(name, dtype, shape, length)
    slots[name] = Slot(file, dtype, shape, start)
    start += length
  return slots
