"""Opens the splits of a data set, whichever reader they need."""

import dataclasses
from typing import Any, Literal

from vit_jax.data.example import Source
from vit_jax.data.settings import DataSettings
from vit_jax.runtime import extras


@dataclasses.dataclass(frozen=True)
class Splits:
  """The splits of a run.

  Attributes:
    train: The split to train on.
    eval: The split to evaluate on while training.
    test: The split to report on once, at the end; only folders may have it.
    found: A line with the numbers of images found and of files ignored.
    doubts: Warnings about what may be a mistake, a line each.
  """

  train: Source
  eval: Source
  test: Source | None
  found: str
  doubts: list[str]


def open_splits(settings: DataSettings, windowed: bool = False) -> Splits:
  """Opens the splits of a run.

  Args:
    windowed: Whether the run sets a window for images of 16 bits.

  Raises:
    ValueError: if the settings name no data, or the data are not there.
  """
  if settings.root:
    reader = _folder_reader(settings)
    opened = reader.open_folder(settings)
    if opened["eval"].split == "test":
      del opened["test"]
    found = reader.found([*opened.values()])
    train, evaluation = opened["train"], opened["eval"]
    doubts = train.doubts() + ([] if windowed else train.darkness())
    return Splits(train, evaluation, opened.get("test"), found, doubts)
  train, evaluation = (open_source(s, settings) for s in ("train", "eval"))
  counts = (
    f"{len(train):,} training examples, {len(train.class_names):,} classes"
  )
  return Splits(train, evaluation, None, f"{train.name}, {counts}", [])


def open_source(
  split: Literal["train", "eval", "test"], settings: DataSettings
) -> Source:
  """Opens a split of a folder of images, of the digits or of a TFDS data set.

  "digits" are 1,797 handwritten digits that come with the package.

  Args:
    split: "train", "eval", or "test", which only folders have.
    settings: Which data; a folder, `root`, goes before a `name`.

  Raises:
    ValueError: if the settings name no data, the data are not there, or their
      reader is not installed.
  """
  if split not in ("train", "eval", "test"):
    raise ValueError(f'split={split!r} is unknown; use "train" or "eval".')
  if settings.root:
    return _folder_reader(settings).open_split(settings, split)
  part = settings.train_split if split == "train" else settings.eval_split
  if settings.dir:
    reader = extras.load("vit_jax.data.reading.tfds_source", "tfds")
    return reader.open_prepared(settings.dir, part)
  if not settings.name:
    raise ValueError(
      "the configuration names no data: give --config.data.root=FOLDER, a "
      "folder of class folders, --config.data.dir=FOLDER, one of packed "
      "images, or --config.data.name=NAME, a TFDS data set."
    )
  part = part or "test"
  if settings.name == "digits":
    from vit_jax.data.reading.digits import Digits

    return Digits(part)
  reader = extras.load("vit_jax.data.reading.tfds_source", "tfds")
  name, label = settings.name, settings.tfds_label
  return reader.open_tfds(name, part, settings.data_dir, label)


def _folder_reader(settings: DataSettings) -> Any:
  """The module that reads a folder: by a file of labels, or by class folders.

  It is imported here, as are the other readers above, since a run takes one.
  """
  if settings.labels_file:
    from vit_jax.data.reading import label_file as reader
  else:
    from vit_jax.data.reading import image_folder as reader
  return reader


def check_classes(source: Source, what: str) -> None:
  """Raises ValueError, naming `what`, unless each label is a single class."""
  if getattr(source, "label_shape", ()):
    raise ValueError(
      f"{what} takes one class for each image, and {source.name} is read with "
      "another data.task: leave that out."
    )


def check_same_classes(
  names: tuple[str, ...], of: str, others: tuple[str, ...], of_others: str
) -> None:
  """Raises ValueError, naming both sources, if their class names differ."""
  if names != others:
    only = ", ".join(sorted(set(names) ^ set(others))[:5])
    raise ValueError(
      f"{of} has {len(names)} classes and {of_others} {len(others)}, and they "
      "must be the same, in the same order; in one of them only: "
      f"{only or 'none'}."
    )
