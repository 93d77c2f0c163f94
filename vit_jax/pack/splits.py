"""The splits of a source, by the names that TFDS gives them."""

import pathlib
from collections.abc import Mapping

from vit_jax.data.example import Source
from vit_jax.data.reading.folders import NAMES

Splits = Mapping[str, Source]

# TFDS's names of our splits.
TFDS_NAMES = {"train": "train", "eval": "validation", "val": "validation"}


def split_of(name: str) -> str:
  """TFDS's name of the split that a file's name begins with; else train."""
  start = pathlib.PurePosixPath(name).name.lower()
  for split, names in NAMES.items():
    # The longer names first: "validation" begins with "val".
    for known in sorted(names, key=len, reverse=True):
      rest = start.removeprefix(known.decode())
      if rest != start and not rest[:1].isalpha():
        return TFDS_NAMES.get(split, split)
  return "train"
