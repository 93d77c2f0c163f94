"""Arrays of `flax_model.msgpack`, as transformers 4 saved its Flax models.

The tree has the names of the PyTorch model except for their last part, and its
kernels have their input axis first. Both are converted, so that the file is
read like one of the PyTorch model.
"""

import functools
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from flax import serialization

from vit_jax.pretrained import msgpack_items
from vit_jax.pretrained.npz import Stored, UnreadableFileError
from vit_jax.runtime.files import read_regular
from vit_jax.runtime.printable import quoted

FILE = "flax_model.msgpack"
_MOST_BYTES = 2**36
# The last part of a name, in Flax and in PyTorch.
_LAST = {"kernel": "weight", "scale": "weight", "embedding": "weight"}
# The transposition of a kernel to PyTorch's order, by its number of axes.
_AXES = {2: (1, 0), 4: (3, 2, 0, 1)}
_WRAPPER = "params"


def begins_as_flax(head: bytes) -> bool:
  """Whether a file's first bytes are a small map of msgpack, keyed by text."""
  return len(head) > 1 and 0x80 < head[0] < 0x90 and 0xA0 <= head[1] < 0xC0


def open_flax(path: pathlib.Path) -> dict[str, Stored]:
  """Reads a whole file, and returns its arrays by their names in PyTorch.

  Raises UnreadableFileError if something in it is no array of numbers, it has
  too many parts, or it ends early. For a file with other damage, it raises
  ValueError or another error of msgpack's.
  """
  content = read_regular(path, _MOST_BYTES)
  msgpack_items.check(content)
  try:
    tree: Any = serialization.msgpack_restore(content)
  except (AttributeError, TypeError) as error:
    raise ValueError(str(error)) from error
  if isinstance(tree, dict) and [*tree] == [_WRAPPER]:
    tree = tree[_WRAPPER]
  stored = {}
  for name, array in _leaves(tree, ""):
    stem, _, last = name.rpartition(".")
    if last == "kernel" and array.ndim in _AXES:
      array = array.transpose(_AXES[array.ndim])
    theirs = ".".join(filter(None, (stem, _LAST.get(last, last))))
    read = functools.partial(_get, array)
    stored[theirs] = Stored(path, array.shape, array.dtype.name, read)
  return stored


def _leaves(tree: Any, prefix: str) -> Iterator[tuple[str, np.ndarray]]:
  """The arrays of a tree, with the parts of their names joined by dots.

  Raises UnreadableFileError if a leaf is not an array of numbers.
  """
  if isinstance(tree, Mapping):
    for key, value in tree.items():
      yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
    return
  if not isinstance(tree, np.ndarray) or tree.dtype.hasobject:
    raise UnreadableFileError(
      f"{quoted(prefix) if prefix else 'it'} is not an array of numbers: a "
      f"{FILE} of transformers is needed."
    )
  yield prefix, tree


def _get(array: np.ndarray) -> np.ndarray:
  """Returns the array, which is in memory already, as `Stored.read`."""
  return array
