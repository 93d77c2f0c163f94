"""Tells what a path is: images, packed or not, or a file of labels."""

import os
from typing import NamedTuple

from vit_jax.data.settings import LABEL_FILES


class Place(NamedTuple):
  """Tells images, packed images and files of labels apart by a path.

  Attributes:
    key: The key of `data` that it is the value of: "dir", "root" or
      "labels_file".
    words: The words for it, as "the folder".
  """

  key: str
  words: str

  @property
  def is_packed(self) -> bool:
    """Whether it is a folder of packed images."""
    return self.key == "dir"

  @property
  def is_file(self) -> bool:
    """Whether it is a file of labels."""
    return self.key == "labels_file"


def place_of(path: str) -> Place | None:
  """The kind of a path: images, packed or not, a file of labels; or None.

  A file is one of labels by its ending alone.
  """
  if os.path.isfile(os.path.join(path, "dataset_info.json")):
    return Place("dir", "the packed folder")
  if os.path.isdir(path):
    return Place("root", "the folder")
  if os.path.isfile(path) and path.lower().endswith(LABEL_FILES):
    return Place("labels_file", "the file of labels")
  return None
