"""Opens the splits of a data set, whichever reader they need."""

import dataclasses
from typing import Any, Literal

from vit_jax.data import image_folder, label_file
from vit_jax.data.example import Source
from vit_jax.data.loader import EvalPasses, make_loader
from vit_jax.data.pillow_decode import Window
from vit_jax.data.settings import (
  DataSettings,
  EvalTransformSettings,
  LoaderSettings,
  TrainTransformSettings,
)
from vit_jax.data.transforms import make_eval_transform, make_train_transform
from vit_jax.data.workers import BatchIterator
from vit_jax.runtime import extras


@dataclasses.dataclass(frozen=True)
class Splits:
  """The splits of a run.

  Attributes:
    train: To train on.
    eval: To evaluate on while training.
    test: To report on once, at the end; only folders may have it.
    found: Images found and files ignored, in a line.
    doubts: Lines about what may be a mistake.
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
    reader: Any = label_file if settings.labels_file else image_folder
    opened = reader.open_folder(settings)
    if opened["eval"].split == "test":
      del opened["test"]
    doubts = reader.doubts(opened["train"])
    if not windowed:
      doubts += image_folder.darkness(opened["train"])
    found = reader.found([*opened.values()])
    return Splits(
      opened["train"], opened["eval"], opened.get("test"), found, doubts
    )
  train, evaluation = (open_source(s, settings) for s in ("train", "eval"))
  classes = f"{len(train.class_names):,} classes"
  line = f"{train.name}, {len(train):,} training examples, {classes}"
  return Splits(train, evaluation, None, line, [])


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
    reader = label_file if settings.labels_file else image_folder
    return reader.open_split(settings, split)
  train = split == "train"
  if settings.dir:
    reader = extras.load("vit_jax.data.tfds_source", "tfds")
    chosen = settings.train_split if train else settings.eval_split
    return reader.open_prepared(settings.dir, chosen)
  if not settings.name:
    raise ValueError(
      "the configuration names no data: give --config.data.root=FOLDER, a "
      "folder of class folders, --config.data.dir=FOLDER, one of packed "
      "images, or --config.data.name=NAME, a TFDS data set."
    )
  tfds_split = settings.train_split if train else settings.eval_split or "test"
  if settings.name == "digits":
    from vit_jax.data.digits import Digits

    return Digits(tfds_split)
  reader = extras.load("vit_jax.data.tfds_source", "tfds")
  return reader.open_tfds(
    settings.name, tfds_split, settings.data_dir, settings.tfds_label
  )


def open_data(
  split: Literal["train", "eval", "test"],
  data: DataSettings,
  image_size: tuple[int, int],
  batch_size: int,
  *,
  transform: TrainTransformSettings | EvalTransformSettings | None = None,
  window: Window | None = None,
  channels: int = 3,
  loader: LoaderSettings = LoaderSettings(num_workers=0),
  seed: int = 0,
  first_batch: int = 0,
  process_index: int = 0,
  process_count: int = 1,
) -> tuple[Source, BatchIterator | EvalPasses]:
  """Opens a split and its batches, for a training loop of your own.

  Batch k of "train" depends on the seed and k alone, so a loop that stopped
  before batch k goes on with `first_batch=k`. "eval" can be iterated over as
  often as needed, and every pass has each example once. Close the batches when
  you are done with them.

  Args:
    split: "train", "eval", or "test", which only folders have.
    data: Which data, as in `DataSettings(root="my_photos")`.
    image_size: Height and width of the images.
    batch_size: Examples of a batch, over all hosts.
    transform: Crop and augmentation; by default those of the settings' class.
    window: The values of images of more than 8 bits that become black and
      white; by default their whole range.
    channels: See `decode_image`.
    loader: How the images are read; by default by a thread. Processes are
      faster on photographs, and a script that asks for them must keep its work
      under `if __name__ == "__main__":`, since each process imports the script.
    seed: Seed of the order and the augmentation of "train".
    first_batch: Number of the first batch of "train".
    process_index: Number of this host, `jax.process_index()`.
    process_count: Number of hosts, `jax.process_count()`.

  Returns:
    The split, with its `class_names` and its length, and dictionaries of
    `image`, uint8 (b, H, W, C), `label`, int32 (b,), and what
    `training.step.make_train_step` or `evaluation.eval_step.make_eval_step`
    may take besides.

  Raises:
    ValueError: if an argument is out of range, or as `open_source` does.
  """
  source = open_source(split, data)
  opened = make_loader(
    loader,
    photographs=data.photographs,
    image_size=image_size,
    process_index=process_index,
    process_count=process_count,
  )
  if split != "train":
    chosen = transform or EvalTransformSettings()
    if not isinstance(chosen, EvalTransformSettings):
      raise ValueError(f'transform of "{split}" must be EvalTransformSettings.')
    return source, opened.evaluate(
      source,
      make_eval_transform(image_size, chosen, window=window, channels=channels),
      batch_size,
    )
  chosen = transform or TrainTransformSettings()
  if not isinstance(chosen, TrainTransformSettings):
    raise ValueError('transform of "train" must be TrainTransformSettings.')
  return source, opened.train(
    source,
    make_train_transform(image_size, chosen, window, channels),
    batch_size=batch_size,
    seed=seed,
    first_batch=first_batch,
    repeats=chosen.repeats,
  )


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
  """Raises ValueError, saying whose the lists are, unless they are equal."""
  if names != others:
    only = ", ".join(sorted(set(names) ^ set(others))[:5])
    raise ValueError(
      f"{of} has {len(names)} classes and {of_others} {len(others)}, and they "
      "must be the same, in the same order; in one of them only: "
      f"{only or 'none'}."
    )
