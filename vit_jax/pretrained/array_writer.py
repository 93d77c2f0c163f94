"""Writes named arrays to an .npz or a .safetensors file."""

import errno
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy


def save_arrays(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes a file in the format that its name ends in.

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
  # The library ignores strides and writes the memory as it is.
  assert all(array.flags.c_contiguous for array in arrays.values())
  # It makes a file that only its owner may read (safetensors' issue 782).
  mode = path.stat().st_mode
  try:
    # Hugging Face's libraries look for the framework in the metadata.
    safetensors.numpy.save_file(arrays, path, {"format": "pt"})
  except safetensors.SafetensorError as error:
    number = re.search(r"os error (\d+)", str(error))
    code = int(number[1]) if number else errno.EIO
    raise OSError(code, str(error), str(path)) from error
  path.chmod(mode)
