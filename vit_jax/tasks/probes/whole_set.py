"""Representations of splits, and probes on all images of the training split.

The probes are nearest neighbours, and a linear one. Both read the training
split once. Of its representations, they keep only those that choose the linear
probe's L2.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models.model import unit
from vit_jax.runtime.display import Track, untracked
from vit_jax.tasks.finite import check_representations
from vit_jax.tasks.outcome import Stream, check_readable
from vit_jax.tasks.probes import linear_probe
from vit_jax.tasks.probes.linear_probe import Probe
from vit_jax.tasks.scores import Verdict, of_probe
from vit_jax.training import sharding
from vit_jax.training.inputs import ImageInputs, by_image

# The weight of a neighbour is exp(similarity / 0.07), as DINO has it.
TEMPERATURE = 0.07
MOST_HELD_OUT = 5_000  # Training images that choose the linear probe's L2.
_FOLDS = 5  # Folds of the training images.
_LEAST = 10  # Fewer training images give no score; a head may start from them.
_MOST_VOTES = 1 << 24  # Votes (images times classes) counted at a time.

Represented = Iterable[tuple[Array, dict[str, Array]]]
"""The representations (B, ...) of each batch, and its label, mask and skipped.
"""


def make_represent(
  represent: Callable[[Any, Array], Array],
  mesh: Mesh,
  preprocessing: Preprocessing,
) -> Callable[..., Iterator[tuple[Array, dict[str, Array]]]]:
  """Returns a function from (params, stream, what, track) to `Represented`.

  It makes one pass over a `Stream`, which `track` shows as `what`. Every device
  gets the representations of the whole batch, whose mask is 0 for padding and
  for unreadable images. `represent` maps parameters and normalised images to
  representations.
  """

  prepared = ImageInputs(**preprocessing.normalization)

  def represent_batch(params: Any, batch: dict[str, Array]):
    """The representations, and the label, mask and skipped of each row."""
    images = prepared.inputs(batch)
    row_info = {k: batch[k] for k in ("label", "mask", "skipped")}
    y = by_image(represent(params, images), images)
    return y.astype(jnp.float32), row_info

  step = sharding.jit_replicated(represent_batch, mesh)

  def read(params: Any, stream: Stream, what: str, track: Track = untracked):
    for batch in stream(track, what):
      yield step(params, batch)

  return read


class Readable:
  """Iterates over batches on the host, without images that cannot be read.

  `examples` counts the readable images so far, and `skipped` the unreadable
  ones. `places` are the places in the split of the last batch's images. Raises
  ValueError if a representation is not finite.
  """

  def __init__(self, batches: Represented):
    self._batches = batches
    self.examples = 0
    self.skipped = 0
    self.places = np.zeros(0, int)

  def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the representations and labels of each batch's readable images.

    Raises NotFiniteError for representations that are not finite.
    """
    first = 0
    for y, row_info in sharding.fetch_results(self._batches):
      readable = row_info["mask"] > 0
      self.places = first + np.flatnonzero(readable)
      first += len(readable)
      check_representations(y[readable])
      self.examples += int(readable.sum())
      self.skipped += int(row_info["skipped"].sum())
      yield y[readable], row_info["label"][readable]


@dataclasses.dataclass(frozen=True)
class Score:
  """The result of a probe; `top1` is in [0, 1].

  `skipped_images` counts the unreadable images of both splits, and `l2` is the
  linear probe's; None for nearest neighbours.
  """

  top1: float
  examples: int
  train_examples: int
  skipped_images: int
  l2: float | None = None

  @property
  def verdict(self) -> Verdict:
    """How far `top1` can be trusted."""
    return of_probe(self.top1, self.examples)


def nearest_neighbours(
  train: Represented, test: Represented, num_classes: int, k: int
) -> Score:
  """Classifies each test image by its k nearest training images.

  These have the highest cosine similarity s, and each votes for its class with
  the weight exp(s / 0.07) (arXiv:2104.14294, Section 4). The evaluation split
  is read first; representations are (B, D). Raises ValueError if a split has
  too few readable images, or a representation is not finite.
  """
  tested = Readable(test)
  y, labels = map(np.concatenate, zip(*tested, strict=True))
  check_readable(len(labels))
  queries = unit(jnp.asarray(y))
  nearest = (
    jnp.full((len(labels), k), -jnp.inf),
    jnp.full((len(labels), k), -1),
  )
  add = jax.jit(_add_neighbours)
  examples = 0
  skipped = tested.skipped
  for y, row_info in train:
    nearest = add(*nearest, queries, y, row_info)
    examples += int(row_info["mask"].sum())
    skipped += int(row_info["skipped"].sum())
  if examples < k:
    raise ValueError(
      f"neighbours={k} is more than the {examples:,} readable training images: "
      "set a lower number."
    )
  similarity, classes = jax.device_get(nearest)
  check_representations(similarity)
  right = (_vote(similarity, classes, num_classes) == labels).mean()
  return Score(
    top1=float(right),
    examples=len(labels),
    train_examples=examples,
    skipped_images=skipped,
  )


def _add_neighbours(
  similarity: Float[Array, "N k"],
  classes: Int[Array, "N k"],
  queries: Float[Array, "N D"],
  y: Float[Array, "B D"],
  row_info: dict[str, Array],
) -> tuple[Float[Array, "N k"], Int[Array, "N k"]]:
  """The k nearest among those so far and a batch of training images."""
  new = jnp.dot(queries, unit(y).T, precision=jax.lax.Precision.HIGHEST)
  # An image whose vector is not finite becomes the nearest of all, so that the
  # caller sees it: NaN may sort first or last.
  new = jnp.where(jnp.isfinite(y).all(axis=1)[None], new, jnp.inf)
  new = jnp.where(row_info["mask"][None] > 0, new, -jnp.inf)
  label = jnp.broadcast_to(row_info["label"][None], new.shape)
  joined = jnp.concatenate([similarity, new], axis=1)
  best, index = jax.lax.top_k(joined, similarity.shape[1])
  joined = jnp.concatenate([classes, label], axis=1)
  return best, jnp.take_along_axis(joined, index, axis=1)


def _vote(
  similarity: Float[np.ndarray, "N k"],
  classes: Int[np.ndarray, "N k"],
  num_classes: int,
) -> Int[np.ndarray, " N"]:
  """The class with the most votes; a tie goes to the first."""
  weights = np.exp(similarity / TEMPERATURE, dtype=np.float64)
  rows = max(1, _MOST_VOTES // num_classes)
  answers = []
  for first in range(0, len(classes), rows):
    part = slice(first, first + rows)
    votes = np.zeros((len(classes[part]), num_classes))
    images = np.arange(len(votes))[:, None]
    np.add.at(votes, (images, classes[part]), weights[part])
    answers.append(votes.argmax(axis=1))
  return np.concatenate(answers)


def linear(
  train: Represented, test: Represented, num_classes: int, train_examples: int
) -> Score:
  """Fits the probe of `linear_probe` to all training images, and tests it.

  At most 5,000 training images, of about `train_examples`, choose its L2 first,
  by five-fold cross-validation; then all are fitted. Raises ValueError if a
  split has too few readable images, or a representation is not finite.
  """
  trained = Readable(train)
  tested = Readable(test)
  probe = fit(
    trained,
    linear_probe.Classes(num_classes),
    train_examples,
    least=_LEAST,
    instead=", or --probe=few_shot",
  )
  right = sum((probe.predict(y) == labels).sum() for y, labels in tested)
  check_readable(tested.examples)
  return Score(
    top1=int(right) / tested.examples,
    examples=tested.examples,
    train_examples=trained.examples,
    skipped_images=trained.skipped + tested.skipped,
    l2=probe.l2,
  )


def fit(
  train: Readable,
  kind: linear_probe.Kind,
  train_examples: int,
  groups: Int[np.ndarray, " N"] | None = None,
  least: int = 2,
  instead: str = "",
) -> Probe:
  """Fits a probe of a kind to all readable training images.

  Representations are (B, D), or (B, V, D) for V views of each image.
  `train_examples` is about the number of images; if it exceeds `MOST_HELD_OUT`,
  only about `MOST_HELD_OUT` images are in folds. `groups` has the number of
  each image's group, from 0 on: no group is in two folds. Raises ValueError if
  there are fewer than `least` images, or one group, or if a representation is
  not finite; the message on too few images ends with what to do `instead`.
  """
  # One image of `every` is in a fold.
  every = max(1, -(-train_examples // MOST_HELD_OUT))
  if groups is not None:
    count = len(np.unique(groups))
    every = min(every, max(1, count // _FOLDS))
    if count < 2:
      raise ValueError(
        "data.group_column: the training images are of one group, and a linear "
        "probe needs two, to be fitted to one and tried on the other."
      )

  judged = 0

  def parts() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The features, labels and folds of each batch; counts images in folds.

    Raises ValueError at the end if the images were too few.
    """
    nonlocal judged
    for y, labels in train:
      numbers = train.examples - len(labels) + np.arange(len(labels))
      if groups is not None:
        numbers = groups[train.places]
      fold = np.where(numbers % every == 0, numbers // every % _FOLDS, -1)
      judged += int((fold >= 0).sum())
      views = 1 if y.ndim == 2 else y.shape[1]
      y = y.reshape(len(labels) * views, y.shape[-1])
      yield y, labels.repeat(views, axis=0), fold.repeat(views)
    if train.examples < least:
      raise ValueError(
        f"{train.examples} readable training images are too few for a linear "
        f"probe; give {least} or more{instead}."
      )

  probe = linear_probe.fit_any_labels(parts(), kind)
  return dataclasses.replace(probe, judged=judged)
