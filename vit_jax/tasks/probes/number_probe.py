"""Linear probes of numbers: ridge regression on features, in closed form.

It is the problem of `linear_probe` with standardised numbers as targets. Each
fold is answered by a probe of the other folds, and the L2 has the lowest
squared error, summed over all folds and targets.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from vit_jax.tasks.probes.linear_probe import (
  L2S,
  HeldOut,
  Kind,
  Probe,
  Solutions,
  standardization,
)
from vit_jax.tasks.scores import FoldAnswers


@dataclasses.dataclass(frozen=True)
class Numbers(Kind):
  """Labels (N, K) of numbers; the answers are standardised numbers."""

  mean: Sequence[float]
  std: Sequence[float]

  def targets(
    self, labels: Float[np.ndarray, "N K"]
  ) -> Float[np.ndarray, "N K"]:
    """The standardised numbers."""
    return (labels.astype(np.float64) - self.mean) / np.asarray(self.std)

  def moments(self, num_features: int) -> "NumberMoments":
    return NumberMoments(num_features, self)

  def solutions(self, features: np.ndarray, labels: np.ndarray) -> Solutions:
    return Solutions.of_targets(features, self.targets(labels))

  def choose(self, whole: Solutions, held_out: HeldOut) -> Probe:
    """The probe of all examples; among equal errors, that of the largest L2."""

    def error(l2: float) -> float:
      return sum(
        np.square(fold.scores(l2) - self.targets(fold.labels)).sum()
        for fold in held_out
      )

    l2 = min(reversed(L2S), key=error)
    answered = [
      FoldAnswers(fold.scores(l2), self.targets(fold.labels))
      for fold in held_out
    ]
    return dataclasses.replace(whole.probe(l2), folds=tuple(answered))


class NumberMoments:
  """Sums over examples whose labels are numbers, as `linear_probe.Moments`."""

  def __init__(self, num_features: int, kind: Numbers):
    D = num_features
    K = len(kind.std)
    self._kind = kind
    self._count = 0.0
    self._total = np.zeros(D)
    self._squares = np.zeros((D, D))
    self._targets = np.zeros(K)
    self._products = np.zeros((D, K))

  def add(
    self,
    features: Float[np.ndarray, "N D"],
    labels: Float[np.ndarray, "N K"],
    sign: int = 1,
  ) -> None:
    """Adds examples; with `sign` -1 it takes them away."""
    x = features.astype(np.float64)
    Y = self._kind.targets(labels)
    self._count += sign * len(x)
    self._total += sign * x.sum(axis=0)
    self._squares += sign * (x.T @ x)
    self._targets += sign * Y.sum(axis=0)
    self._products += sign * (x.T @ Y)

  def without(
    self, features: np.ndarray, labels: np.ndarray
  ) -> "NumberMoments":
    """The sums without some of the examples."""
    others = NumberMoments(len(self._total), self._kind)
    for name in ("_total", "_squares", "_targets", "_products"):
      setattr(others, name, getattr(self, name).copy())
    others._count = self._count
    others.add(features, labels, sign=-1)
    return others

  def path(self) -> Solutions:
    """The solutions for every L2 of the probe of all examples added so far."""
    mean, scale, ZtZ = standardization(self._total, self._squares, self._count)
    centred = (self._products - np.outer(mean, self._targets)) / scale[:, None]
    ZtY = np.concatenate([centred, self._targets[None]])
    return Solutions.of_sums(mean, scale, ZtZ, ZtY)
