"""Linear probes of several labels: ridge regression on features, per label.

Each label has a probe of its own, that of `linear_probe`, fitted to the
examples for which the label is known: its targets are 0 and 1, less their mean.
One L2 serves all labels. Each fold is answered by probes of the other folds,
and the L2 has the lowest squared error, summed over all folds, and over the
labels in units of their variance.

Such a score estimates a probability, and may lie below 0 or above 1. Its logit
is a (score - p) + b, as Platt scaling has it: p is the label's share, and a and
b are those with the lowest cross-entropy on the held-out folds. a is a multiple
of 1 / p (1 - p), the slope of the logit at p.
"""

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import expit

from vit_jax.tasks.probes.linear_probe import (
  L2S,
  SHARPNESS,
  HeldOut,
  Kind,
  Probe,
  Solutions,
  standardization,
  standardize,
)
from vit_jax.tasks.scores import FoldAnswers

_HALVINGS = 40  # The interval that holds b shrinks to 1e-12 of its length.
_SURE = 30.0  # The logit of a probability of almost 1.


@dataclasses.dataclass(frozen=True)
class LabelSolutions:
  """The solutions of all labels for every L2.

  Labels that are known for the same examples are solved together.

  Attributes:
    share: The mean of each label's targets; 0 if it is never known.
    parts: The indices of labels that are solved together, and their solutions.
  """

  share: Float[np.ndarray, " K"]
  parts: Sequence[tuple[Int[np.ndarray, " k"], Solutions]]

  @classmethod
  def of_examples(
    cls, features: Float[np.ndarray, "N D"], labels: Float[np.ndarray, "N K"]
  ) -> "LabelSolutions":
    """The solutions for examples whose unknown labels are NaN."""
    without_targets = Solutions.of_targets(features, np.zeros((len(labels), 0)))
    mean, scale = without_targets.mean, without_targets.scale
    Z = standardize(features, mean, scale)
    known = ~np.isnan(labels)
    share = _share(np.nansum(labels, axis=0), known.sum(axis=0))
    columns, column_of = np.unique(known, axis=1, return_inverse=True)
    parts = []
    for number, rows in enumerate(columns.T):
      group = np.flatnonzero(column_of.reshape(-1) == number)
      Y = labels[rows][:, group].astype(np.float64) - share[group]
      parts.append((group, Solutions.of_rows(mean, scale, Z[rows], Y)))
    return cls(share, parts)

  def probe(self, l2: float) -> Probe:
    """The probe for an L2; its scores estimate probabilities, unbounded."""
    _, first = self.parts[0]
    W = np.empty((len(first.mean) + 1, len(self.share)))
    for group, solutions in self.parts:
      W[:, group] = solutions.probe(l2).W
    W[-1] += self.share
    return Probe(first.mean, first.scale, W, l2)


@dataclasses.dataclass(frozen=True)
class SeveralLabels(Kind):
  """Labels (N, K) of 0, 1, or NaN where unknown; the answers are logits."""

  def moments(self, num_features: int) -> "LabelMoments":
    return LabelMoments(num_features)

  def solutions(
    self, features: np.ndarray, labels: np.ndarray
  ) -> LabelSolutions:
    return LabelSolutions.of_examples(features, labels)

  def choose(self, whole: LabelSolutions, held_out: HeldOut) -> Probe:
    """The probe of all examples; among equal errors, that of the largest L2."""
    y = np.concatenate([fold.labels for fold in held_out])
    known = ~np.isnan(y)
    share = _share(np.nansum(y, axis=0), known.sum(axis=0))
    variance = share * (1 - share)
    weight = np.divide(1, variance, where=variance > 0, out=0 * variance)

    def scores(l2: float) -> np.ndarray:
      return np.concatenate([fold.scores(l2) for fold in held_out])

    def error(l2: float) -> float:
      squares = np.where(known, scores(l2) - np.nan_to_num(y), 0) ** 2
      return float((squares.sum(axis=0) * weight).sum())

    l2 = min(reversed(L2S), key=error)
    a, b = logits_of(scores(l2), np.nan_to_num(y), known)
    probe = whole.probe(l2)
    W = probe.W * a
    W[-1] += b
    answered = [FoldAnswers(fold.scores(l2), fold.labels) for fold in held_out]
    return dataclasses.replace(probe, W=W, folds=tuple(answered))


def logits_of(
  scores: Float[np.ndarray, "N K"],
  labels: Float[np.ndarray, "N K"],
  known: Bool[np.ndarray, "N K"],
) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
  """The factor a and the offset b that turn each label's scores into logits.

  If a label is known for n examples and m of them have it, the targets are
  (m + 1) / (m + 2) and 1 / (n - m + 2), as Platt has them, so that no answer
  becomes certain from few examples.
  """
  n = known.sum(axis=0)
  m = (labels * known).sum(axis=0)
  targets = np.where(labels > 0, (m + 1) / (m + 2), 1 / (n - m + 2)) * known
  # The logit of a label that is never known is 0.
  p = np.where(n > 0, targets.sum(axis=0) / np.maximum(n, 1), 0.5)
  lowest = np.full(len(p), np.inf)
  best_a = np.zeros(len(p))
  best_b = np.zeros(len(p))
  for t in SHARPNESS:
    a = t / (p * (1 - p))
    b = _offset(a * scores, p, known)
    logits = a * scores + b
    terms = np.where(known, np.logaddexp(0, logits) - targets * logits, 0)
    loss = terms.sum(axis=0)
    is_better = loss < lowest
    lowest = np.where(is_better, loss, lowest)
    best_a = np.where(is_better, a, best_a)
    best_b = np.where(is_better, b, best_b)
  return best_a, best_b


def _offset(
  z: Float[np.ndarray, "N K"],
  p: Float[np.ndarray, " K"],
  known: Bool[np.ndarray, "N K"],
) -> Float[np.ndarray, " K"]:
  """The b for which the mean of sigmoid(z + b) over known examples is p."""
  low = -z.max(axis=0, where=known, initial=-np.inf) - _SURE
  high = -z.min(axis=0, where=known, initial=np.inf) + _SURE
  none = ~known.any(axis=0)
  low = np.where(none, 0, low)
  high = np.where(none, 0, high)
  n = known.sum(axis=0)
  for _ in range(_HALVINGS):
    b = (low + high) / 2
    above = np.where(known, expit(z + b), 0).sum(axis=0) > n * p
    low = np.where(above, low, b)
    high = np.where(above, b, high)
  return (low + high) / 2


class LabelMoments:
  """Sums over examples with several labels, as `linear_probe.Moments`.

  A label that is unknown for some examples takes D^2 further numbers.
  """

  def __init__(self, num_features: int):
    D = num_features
    self._count = 0.0
    self._total = np.zeros(D)
    self._squares = np.zeros((D, D))
    # Each is 0 until the first examples tell the number of labels, K.
    self._known: Any = 0  # Examples whose label is known, (K,).
    self._positives: Any = 0  # Examples that have the label, (K,).
    self._known_total: Any = 0  # Features, where the label is known, (D, K).
    self._products: Any = 0  # Features of those that have the label, (D, K).
    # By label: the squares of the examples for which it is unknown.
    self._unknown: dict[int, np.ndarray] = {}

  def add(
    self,
    features: Float[np.ndarray, "N D"],
    labels: Float[np.ndarray, "N K"],
    sign: int = 1,
  ) -> None:
    """Adds examples; with `sign` -1 it takes them away."""
    x = features.astype(np.float64)
    known = ~np.isnan(labels)
    y = np.nan_to_num(labels.astype(np.float64))
    self._count += sign * len(x)
    self._total = self._total + sign * x.sum(axis=0)
    self._squares = self._squares + sign * (x.T @ x)
    self._known = self._known + sign * known.sum(axis=0)
    self._positives = self._positives + sign * y.sum(axis=0)
    self._known_total = self._known_total + sign * (x.T @ known)
    self._products = self._products + sign * (x.T @ y)
    for k in np.flatnonzero(~known.all(axis=0)).tolist():
      unknown = x[~known[:, k]]
      squares = sign * (unknown.T @ unknown)
      self._unknown[k] = self._unknown.get(k, 0) + squares

  def without(self, features: np.ndarray, labels: np.ndarray) -> "LabelMoments":
    """The sums without some of the examples."""
    # A shallow copy is enough, as `add` replaces sums and changes none.
    others = copy.copy(self)
    others._unknown = dict(self._unknown)
    others.add(features, labels, sign=-1)
    return others

  def path(self) -> LabelSolutions:
    """The solutions for every L2 of the probe of all examples added so far."""
    mean, scale, ZtZ = standardization(self._total, self._squares, self._count)
    share = _share(self._positives, self._known)
    # The sums of standardised features over the examples whose label is known.
    sums = (self._known_total - np.outer(mean, self._known)) / scale[:, None]
    products = self._products - np.outer(mean, self._positives)
    products = products / scale[:, None] - share * sums
    ZtY = np.concatenate([products, np.zeros((1, len(share)))])
    complete = [k for k in range(len(share)) if k not in self._unknown]
    parts = []
    if complete:
      group = np.array(complete)
      solutions = Solutions.of_sums(mean, scale, ZtZ, ZtY[:, group])
      parts.append((group, solutions))
    for k, unknown in self._unknown.items():
      total = self._known_total[:, k]
      n = self._known[k]
      cross = np.outer(total, mean)
      squares = self._squares - unknown - cross - cross.T
      # Z^T Z over the examples whose label k is known.
      known_ZtZ = np.empty_like(ZtZ)
      known_ZtZ[:-1, :-1] = squares + n * np.outer(mean, mean)
      known_ZtZ[:-1, :-1] /= np.outer(scale, scale)
      known_ZtZ[:-1, -1] = known_ZtZ[-1, :-1] = sums[:, k]
      known_ZtZ[-1, -1] = n
      group = np.array([k])
      solutions = Solutions.of_sums(mean, scale, known_ZtZ, ZtY[:, group])
      parts.append((group, solutions))
    return LabelSolutions(share, parts)


def _share(positives: np.ndarray, known: np.ndarray) -> np.ndarray:
  """The share of positives among the known examples; 0 if none is known."""
  return positives / np.maximum(known, 1)
