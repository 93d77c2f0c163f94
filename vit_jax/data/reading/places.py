"""Tells what a path leads to: images, packed images, or a file of labels."""

import os
from typing import Any, NamedTuple

from vit_jax.data.reading.folders import images_below, subfolders
from vit_jax.data.settings import LABEL_FILES, DataSettings
from vit_jax.runtime.printable import printable_path


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
    """Whether the place is a folder of packed images."""
    return self.key == "dir"

  @property
  def is_file(self) -> bool:
    """Whether the place is a file of labels."""
    return self.key == "labels_file"


def place_of(path: str) -> Place | None:
  """The kind of place that a path leads to; None if it is of no such kind.

  Only the ending of a file tells whether it has labels. Raises ValueError for
  the folder of a run.
  """
  if os.path.isfile(os.path.join(path, "dataset_info.json")):
    return Place("dir", "the packed folder")
  refuse_run(path)
  if os.path.isdir(path):
    return Place("root", "the folder")
  if os.path.isfile(path) and path.lower().endswith(LABEL_FILES):
    return Place("labels_file", "the file of labels")
  return None


def settings_of(path: str | os.PathLike[str]) -> DataSettings:
  """The settings of the data at a path, or of the digits, by their name.

  A path to anything else becomes `root`, and opening the data says what is
  wrong with it. Raises ValueError as `place_of` does.
  """
  path = os.path.expanduser(os.fspath(path))
  if path == "digits" and not os.path.lexists(path):
    return DataSettings(name=path)
  place = place_of(path)
  field: Any = {place.key if place else "root": path}
  return DataSettings(**field)


def refuse_run(path: str) -> None:
  """Raises ValueError if a folder holds a run's checkpoints."""
  checkpoints = os.fsencode(os.path.join(path, "checkpoints"))
  if not os.path.isdir(checkpoints) or any(images_below(checkpoints)):
    return
  if not any(name.isdigit() for name in subfolders(checkpoints)):
    return
  run = printable_path(os.fsencode(path))
  raise ValueError(
    f"{run!r} is the folder of a run, not of images: give the images or the "
    "configuration that it was trained on. With these, its settings and "
    f"--workdir {run} you can go on with its training; --pretrained {run} "
    "starts another run from its weights."
  )
