"""Facts about the data of a run: counts, sizes and augmented examples."""

import contextlib
import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Int

from vit_jax.data.batching.batches import TrainBatches
from vit_jax.data.decoding.decode import image_size
from vit_jax.data.example import Source, UnreadableImageError, evenly_spread
from vit_jax.data.reading.sources import check_same_classes, open_source
from vit_jax.data.transforming.patches import pictures
from vit_jax.inspection.photograph import Photograph
from vit_jax.run.saved import SavedRun

_SIZED = 200  # The most files of a split whose size is looked up.
_AUGMENTED = 12  # Examples shown as the model was trained on them.


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of some files of a split, spread evenly over it.

  Attributes:
    examples: Number of examples of the split.
    sides: Width and height of each file's image, in pixels.
    weights: Size of each file, in bytes.
  """

  examples: int
  sides: list[tuple[int, int]]
  weights: list[int]


@dataclasses.dataclass(frozen=True)
class Dataset:
  """The data of a run.

  Attributes:
    counts: Training examples of each class; None if the examples would have to
      be read to be counted, or labels are not single classes.
    augmented: The first training examples, as augmented for the first batch,
      with their labels.
  """

  train: Sizes
  evaluation: Sizes
  counts: Int[np.ndarray, " K"] | None
  augmented: list[tuple[Photograph, Any]]


def look_at(run: SavedRun) -> Dataset:
  """Collects the facts about the data of a run.

  Raises ValueError if the training split cannot be opened or read, or has other
  classes than the checkpoint.
  """
  settings = run.settings
  names = run.source.class_names
  train = open_source("train", settings.data, run.task.labels)
  check_same_classes(
    names, "the checkpoint", train.class_names, "the training split"
  )
  labels = getattr(train, "labels", None)
  counts = None
  if labels is not None and run.task.labels.are_classes:
    counts = np.bincount(labels(range(len(train))), minlength=len(names))
  preprocessing = run.loaded.preprocessing
  size = settings.batch_size
  batches = TrainBatches(
    source=train,
    transform=run.task.train_transform(preprocessing, settings.train_transform),
    batch_size=size,
    rows=range(min(_AUGMENTED, size)),
    seed=settings.seed,
    skip=True,
  )
  first = batches.compute(0)
  images = pictures(first, preprocessing.channels)
  return Dataset(
    train=_sizes(train),
    evaluation=_sizes(run.source),
    counts=counts,
    augmented=[*zip(images, first["label"], strict=True)],
  )


def _sizes(source: Source) -> Sizes:
  """Sizes of readable files; only their headers are decoded."""
  sides, weights = [], []
  for index in evenly_spread(_SIZED, len(source)):
    # A file that cannot be read has no size to show here.
    with contextlib.suppress(UnreadableImageError, OSError, ValueError):
      encoded = source[index]["image"]
      height, width = image_size(encoded)
      sides.append((width, height))
      weights.append(len(encoded))
  return Sizes(len(source), sides, weights)
