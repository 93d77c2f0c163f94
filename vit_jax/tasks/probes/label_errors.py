"""Likely label errors, by confident learning (arXiv:1911.00068).

Every image is answered by a linear probe that was fitted to other images, so a
wrong label cannot confirm itself. The threshold of a class is the mean
probability of that class over the images with its label (Eq. 2). An image
counts for the class whose threshold its probability reaches; if it reaches
several, it counts for its most probable class. An image is listed if it counts
for another class than its label, unless its label is its most probable class.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from vit_jax.runtime.display import Track, untracked
from vit_jax.tasks.classification.calibration import probabilities as softmax
from vit_jax.tasks.finite import check_representations
from vit_jax.tasks.probes import linear_probe
from vit_jax.tasks.probes.linear_probe import Probe

FOLDS = 5
LEAST_IMAGES = 10  # Fewer images cannot be parted into folds within folds.
_MOST_HELD_OUT = 5_000  # Images that choose the L2 of a fold's probe.
_ROWS = 4_096  # Images taken as float64 at a time.
FEW_IMAGES = 300  # Fewer images are answered by several draws of the folds.
_DRAWS = 5
_ROUNDING = 1e-6  # A probability this far below a threshold still reaches it.

NONE = -1  # In place of a class, for images that count for no class.


@dataclasses.dataclass(frozen=True)
class LabelErrors:
  """All N images in the order in which to look at their labels.

  Attributes:
    index: The images' places in the data, by margin, the lowest first.
    likely: The class that a listed image counts for, and the most probable
      class of any other image.
    margin: The probability of the image's label minus the highest probability
      of another class, in [-1, 1].
    listed: Whether another class contradicts the image's label.
  """

  index: Int[np.ndarray, " N"]
  likely: Int[np.ndarray, " N"]
  margin: Float[np.ndarray, " N"]
  listed: Bool[np.ndarray, " N"]

  def only_listed(self) -> "LabelErrors":
    """The images that are listed, without the others."""
    return LabelErrors(
      index=self.index[self.listed],
      likely=self.likely[self.listed],
      margin=self.margin[self.listed],
      listed=self.listed[self.listed],
    )


def check_enough(
  labels: Int[np.ndarray, " N"], class_names: Sequence[str]
) -> None:
  """Raises ValueError for fewer than 10 images, or a class of fewer than 2."""
  if len(labels) < LEAST_IMAGES:
    raise ValueError(
      f"{len(labels)} readable images are too few to look for label errors: "
      f"give {LEAST_IMAGES} or more."
    )
  counts = np.bincount(labels, minlength=len(class_names))
  few = np.flatnonzero(counts < 2)
  if len(few):
    name = class_names[few[0]]
    count = counts[few[0]]
    images = "image" if count == 1 else "images"
    raise ValueError(
      f"class {name!r} has {count} readable {images}, and looking for label "
      "errors takes two or more of each class: add some, or remove the class."
    )


def out_of_fold(
  features: Float[np.ndarray, "N D"],
  labels: Int[np.ndarray, " N"],
  num_classes: int,
  *,
  folds: int = FOLDS,
  seed: int = 0,
  draws: int | None = None,
  groups: Int[np.ndarray, " N"] | None = None,
  track: Track = untracked,
) -> Float[np.ndarray, "N K"]:
  """Probabilities of the classes of each image, by a probe of the other folds.

  The probe's L2, and the factor that turns its scores into logits, are chosen
  by folds within those that it is fitted to. Every class is spread evenly over
  the folds, which `seed` draws. The answers of `draws` draws are averaged: by
  default of five for fewer than 300 images, where one draw says little, and of
  one for more. Images with the same number in `groups` share a fold. `track`
  shows the folds. Raises ValueError if a feature is not finite, or there is one
  group.

  >>> import numpy as np
  >>> from vit_jax.tasks.probes.label_errors import out_of_fold
  >>> features = np.float32([[0], [1], [2], [3], [4], [20], [21], [22], [23],
  ...   [24]])
  >>> labels = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 0])  # Two are wrong.
  >>> out_of_fold(features, labels, num_classes=2).argmax(axis=1)
  array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1])
  """
  check_representations(features)
  if groups is not None and len(np.unique(groups)) < 2:
    raise ValueError(
      "data.group_column: all images are of one group, and the probe that "
      "judges an image is fitted to the images of other groups: give two "
      "groups or more."
    )
  draws = draws or (_DRAWS if len(labels) < FEW_IMAGES else 1)
  answers = np.zeros((len(labels), num_classes), np.float32)
  turns = [(draw, k) for draw in range(draws) for k in range(folds)]
  what = "fitting the probes of label errors"
  for draw, k in track(turns, what, len(turns)):
    fold = stratified_folds(labels, folds, seed + draw, groups)
    probe = _fit_probe(
      features,
      labels,
      rows=np.flatnonzero(fold != k),
      num_classes=num_classes,
      groups=groups,
    )
    for rows in _blocks(np.flatnonzero(fold == k)):
      logits = probe.sharpness * probe.scores(features[rows])
      answers[rows] += softmax("softmax", logits) / draws
  return answers


def stratified_folds(
  labels: Int[np.ndarray, " N"],
  folds: int,
  seed: int,
  groups: Int[np.ndarray, " N"] | None = None,
) -> Int[np.ndarray, " N"]:
  """The fold of each image, so that all folds have about equal class shares.

  With `groups`, the images of a group are in one fold, and the class of a group
  is that of its first image.
  """
  if groups is not None:
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    return stratified_folds(labels[first], folds, seed)[group]
  shuffled = np.random.default_rng(seed).permutation(len(labels))
  fold = np.empty(len(labels), int)
  fold[np.lexsort((shuffled, labels))] = np.arange(len(labels)) % folds
  return fold


def confident_classes(
  labels: Int[np.ndarray, " N"], probabilities: Float[np.ndarray, "N K"]
) -> Int[np.ndarray, " N"]:
  """The class whose threshold each image reaches, or `NONE`.

  An image that reaches several gets its most probable class. The threshold of a
  class is its mean probability for the images labelled so.

  >>> import numpy as np
  >>> from vit_jax.tasks.probes.label_errors import confident_classes
  >>> labels = np.array([0, 0, 0, 1, 1, 1])
  >>> p = np.array([0.9, 0.9, 0.1, 0.3, 0.2, 0.1])
  >>> confident_classes(labels, np.stack([p, 1 - p], axis=1))
  array([ 0,  0,  1, -1,  1,  1])
  """
  N, K = probabilities.shape
  self_confidence = probabilities[np.arange(N), labels]
  counts = np.bincount(labels, minlength=K)
  sums = np.bincount(labels, weights=self_confidence, minlength=K)
  thresholds = np.full(K, np.inf)  # No image reaches that of an absent class.
  np.divide(sums, counts, out=thresholds, where=counts > 0)
  reached = probabilities >= thresholds - _ROUNDING
  classes = np.where(
    reached.sum(axis=1) > 1,
    probabilities.argmax(axis=1),
    reached.argmax(axis=1),
  )
  return np.where(reached.any(axis=1), classes, NONE)


def label_errors(
  labels: Int[np.ndarray, " N"], probabilities: Float[np.ndarray, "N K"]
) -> LabelErrors:
  """Ranks the images by their labels, and lists those that are contradicted.

  The probabilities of an image have to come from a model that was not fitted
  to it, such as those of `out_of_fold`. With fewer than 300 images, whose mean
  probabilities say little, an image is listed if its most probable class is
  not its label.
  """
  others = probabilities.astype(np.float64)
  rows = np.arange(len(labels))
  self_confidence = others[rows, labels]
  others[rows, labels] = -np.inf
  margin = self_confidence - others.max(axis=1)
  most_probable = probabilities.argmax(axis=1)
  if len(labels) < FEW_IMAGES:
    likely, listed = most_probable, margin < 0
  else:
    classes = confident_classes(labels, probabilities)
    listed = (classes != NONE) & (classes != labels) & (margin < 0)
    likely = np.where(listed, classes, most_probable)
  index = np.argsort(margin, kind="stable")
  return LabelErrors(
    index=index,
    likely=likely[index],
    margin=margin[index],
    listed=listed[index],
  )


def _fit_probe(
  features: Float[np.ndarray, "N D"],
  labels: Int[np.ndarray, " N"],
  *,
  rows: Int[np.ndarray, " n"],
  num_classes: int,
  groups: Int[np.ndarray, " N"] | None = None,
) -> Probe:
  """Fits a probe to the images at `rows`.

  Folds of these images choose its L2 and its sharpness.
  """
  row_groups = None if groups is None else groups[rows]
  folds = stratified_folds(labels[rows], FOLDS, seed=0, groups=row_groups)
  if len(rows) < features.shape[1]:
    return linear_probe.fit_in_folds(
      features[rows], labels[rows], folds, num_classes
    )
  order = np.random.default_rng(0).permutation(len(rows))
  folds[order[_MOST_HELD_OUT:]] = -1  # Fitted, but never held out.
  # A block has images of all classes and folds.
  parts = (
    (features[rows[block]], labels[rows[block]], folds[block])
    for block in _blocks(order)
  )
  return linear_probe.fit_in_parts(parts, num_classes)


def _blocks(rows: Shaped[np.ndarray, " n"]) -> Iterator[np.ndarray]:
  """Cuts the rows into blocks of at most `_ROWS`."""
  for first in range(0, len(rows), _ROWS):
    yield rows[first : first + _ROWS]
