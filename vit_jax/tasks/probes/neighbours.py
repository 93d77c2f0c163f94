"""Classifies some images by k nearest neighbours, at every evaluation."""

import contextlib
from functools import partial
from typing import Any

import numpy as np
from jax.sharding import Mesh

from vit_jax.data.batching.loader import Loader
from vit_jax.data.example import Source, Subset
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.sources import check_classes, check_same_classes
from vit_jax.models import Model
from vit_jax.models.model import represent
from vit_jax.runtime.display import Split, Track, untracked
from vit_jax.tasks.outcome import Stream
from vit_jax.tasks.probes.whole_set import make_represent, nearest_neighbours


def draw_examples(source: Source, most: int) -> Source:
  """The source, or `most` of its examples, drawn with the seed 0."""
  if len(source) <= most:
    return source
  draw = np.random.default_rng(0).choice(len(source), most, replace=False)
  return Subset(source, np.sort(draw))


class Neighbours:
  """Classifies by k nearest neighbours (`whole_set.nearest_neighbours`).

  The images are the same at each evaluation. Raises ValueError if the splits
  have different classes, or labels that are not single classes.

  Args:
    model: The model, with or without a head.
    train, test: The splits of neighbours, and of the images to classify.
    k: Number of neighbours that vote; all, if there are fewer.
    most: The most images to read of each split.
    pre_logits: Whether a representation layer is kept.
  """

  def __init__(
    self,
    model: Model,
    mesh: Mesh,
    train: Source,
    test: Source,
    preprocessing: Preprocessing,
    *,
    loader: Loader,
    batch_size: int,
    k: int,
    most: int,
    pre_logits: bool = True,
  ):
    check_classes(train, "a probe")
    check_same_classes(
      train.class_names,
      "the training split",
      test.class_names,
      "the evaluation split",
    )
    self._num_classes = len(train.class_names)
    self._splits = [draw_examples(split, most) for split in (train, test)]
    self._k = min(k, len(self._splits[0]))
    self._read = make_represent(
      partial(represent, model, pre_logits=pre_logits), mesh, preprocessing
    )
    rows = min(batch_size, max(map(len, self._splits)))
    self._streams = [
      Stream(split, mesh, preprocessing, loader, rows) for split in self._splits
    ]

  def __call__(self, params: Any, track: Track = untracked) -> dict[str, Any]:
    """Returns the metric by its key, "knn/top1"."""
    names = "reading neighbours", "finding neighbours"
    with contextlib.ExitStack() as stack:
      for stream in self._streams:
        stack.enter_context(contextlib.closing(stream))
      train, test = (
        self._read(params, stream, name, track)
        for stream, name in zip(self._streams, names, strict=True)
      )
      score = nearest_neighbours(train, test, self._num_classes, self._k)
    return Split.NEIGHBOURS.keyed({"top1": score.top1})
