"""Tells what a path leads to: images, packed images, or a file of labels."""

import os
from typing import NamedTuple

from vit_jax.data.settings import LABEL_FILES


class Place(NamedTuple):
  """The kind of a place: images, packed images, or a file of labels.

  Attributes:
    key: The key of `data` whose value the path can be: "dir", "root" or
      "labels_file".
    words: The words for such a place, as "the folder".
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
  """The kind of place that a path leads to; None if it is none of them.

  Only the ending of a file tells whether it has labels.
  """
  if os.path.isfile(os.path.join(path, "dataset_info.json")):
    return Place("dir", "the packed folder")
  if os.path.isdir(path):
    return Place("root", "the folder")
  if os.path.isfile(path) and path.lower().endswith(LABEL_FILES):
    return Place("labels_file", "the file of labels")
  return None
