"""Linear probes fitted in closed form (arXiv:2010.11929, Sec. 4.1).

A probe solves a regularised least-squares problem from the matrix Z of
standardised features and a bias column to targets Y in {-1, 1}^K:

  W = argmin |Z W - Y|^2 + l2 |W|^2 = (Z^T Z + l2 I)^-1 Z^T Y.

`l2` is added to the eigenvalues of Z^T Z, whose sum is N (D + 1) for N
examples of D features. It regularises all of W, the bias included.

The solver runs in NumPy and float64, because those eigenvalues span more than
float32 resolves, and float64 is slow or absent on accelerators.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from vit_jax.tasks.scores import FoldAnswers

L2S = tuple(2.0**power for power in range(-10, 21))

SHARPNESS = tuple(2.0 ** (power / 2) for power in range(-4, 13))
"""Factors that may turn scores into logits."""
_EPSILON = 1e-6  # Added to the standard deviation of each feature.
MOST_HELD_OUT = 5_000  # Held-out examples that suffice to choose L2.
MOST_SCORES = 1 << 22  # Scores per block; as float64 they take 32 MB.


@dataclasses.dataclass(frozen=True)
class Probe:
  """A linear classifier with the scores [(x - mean) / scale, 1] W.

  Attributes:
    mean: Mean of each feature over the examples.
    scale: Standard deviation of each feature over the examples, plus 1e-6.
    W: The weights; the last row is the bias.
    l2: The L2 regularisation that the weights were fitted with.
    sharpness: The factor that turns scores into logits; 1 unless folds chose
      it.
    folds: For each fold that chose L2, the answers to it by a probe of all
      others; empty without folds.
    judged: Number of images in these folds.
  """

  mean: Float[np.ndarray, " D"]
  scale: Float[np.ndarray, " D"]
  W: Float[np.ndarray, "D+1 K"]
  l2: float
  sharpness: float = 1.0
  folds: tuple[FoldAnswers, ...] = ()
  judged: int = 0

  def scores(
    self, features: Float[np.ndarray, "N D"]
  ) -> Float[np.ndarray, "N K"]:
    """Scores per class: near 1 for likely classes, near -1 for the others."""
    return standardize(features, self.mean, self.scale) @ self.W

  def predict(
    self, features: Float[np.ndarray, "N D"]
  ) -> Int[np.ndarray, " N"]:
    """The class with the highest score."""
    return self.scores(features).argmax(axis=1)

  def head(self) -> dict[str, np.ndarray]:
    """The kernel (D, K) and bias (K,) of a model's head with these answers."""
    kernel = self.sharpness * self.W[:-1] / self.scale[:, None]
    bias = self.sharpness * self.W[-1] - self.mean @ kernel
    return {"head/kernel": kernel, "head/bias": bias}


def standardize(
  features: Float[np.ndarray, "N D"],
  mean: Float[np.ndarray, " D"],
  scale: Float[np.ndarray, " D"],
) -> Float[np.ndarray, "N D+1"]:
  """Z: every feature standardised by itself, and a bias column of ones."""
  Z = np.ones((len(features), features.shape[1] + 1))
  np.subtract(features, mean, out=Z[:, :-1])
  Z[:, :-1] /= scale
  return Z


def fit(
  features: Float[np.ndarray, "N D"],
  labels: Int[np.ndarray, " N"],
  num_classes: int,
  l2: float,
) -> Probe:
  """Fits a probe of classes to examples, for one value of L2.

  >>> import numpy as np
  >>> from vit_jax.tasks.probes import linear_probe
  >>> features = np.array([[0.0], [1.0], [10.0], [11.0]])
  >>> labels = np.array([0, 0, 1, 1])
  >>> probe = linear_probe.fit(features, labels, num_classes=2, l2=1.0)
  >>> probe.predict(np.array([[2.0], [9.0]])).tolist()
  [0, 1]
  """
  return Solutions.of_examples(features, labels, num_classes).probe(l2)


def fit_shots(features: Float[np.ndarray, "K n D"]) -> Probe:
  """Fits a probe to n shots per class, with the L2 that `choose_l2` picks.

  >>> import numpy as np
  >>> from vit_jax.tasks.probes import linear_probe
  >>> shots = np.array([[[0.0], [1.0]], [[10.0], [11.0]]])  # (K, n, D)
  >>> probe = linear_probe.fit_shots(shots)
  >>> probe.predict(np.array([[2.0], [9.0]])).tolist()
  [0, 1]
  """
  K, n, D = features.shape
  labels = np.repeat(np.arange(K), n)
  return fit(features.reshape(-1, D), labels, K, choose_l2(features))


def choose_l2(features: Float[np.ndarray, "K n D"]) -> float:
  """Chooses the L2 that classifies held-out shots best.

  One shot of each class is held out in turn and predicted by a probe that is
  fitted, standardisation included, to the other shots. The L2 with the most
  right answers wins; ties go to the lowest squared error. With many classes,
  turns stop once 5,000 examples have been held out. With one shot per class
  there is none to hold out, and L2 is D, about the mean eigenvalue of Z Z^T.
  """
  K, n, D = features.shape
  if n == 1:
    return float(D)  # Near the best in 20 draws from each of three data sets.
  turns = min(n, -(-MOST_HELD_OUT // K))
  other_labels = np.repeat(np.arange(K), n - 1)
  right = np.zeros(len(L2S), np.int64)
  error = np.zeros(len(L2S))
  for turn in range(turns):
    others = np.delete(features, turn, axis=1).reshape(-1, D)
    path = Solutions.of_examples(others, other_labels, K)
    for i, scores, labels in path.try_out(features[:, turn]):
      right[i] += (scores.argmax(axis=1) == labels).sum()
      # The squares of scores - Y, summed without building Y.
      right_scores = scores[np.arange(len(labels)), labels]
      error[i] += np.sum((scores + 1) ** 2) - 4 * np.sum(right_scores)
  best = min(range(len(L2S)), key=lambda i: (-right[i], error[i]))
  return L2S[best]


class HeldOutFold(NamedTuple):
  """A fold, and the solutions of the problem without it."""

  solutions: Any
  features: np.ndarray
  labels: np.ndarray

  def scores(self, l2: float) -> np.ndarray:
    """The scores of the fold's examples, by the probe of all others."""
    return self.solutions.probe(l2).scores(self.features)


HeldOut = Sequence[HeldOutFold]


class _Standardization(NamedTuple):
  """Mean and scale of each feature, and Z^T Z of standardised features."""

  mean: np.ndarray
  scale: np.ndarray
  ZtZ: Float[np.ndarray, "D+1 D+1"]


def standardization(
  total: Float[np.ndarray, " D"],
  squares: Float[np.ndarray, "D D"],
  count: float,
) -> _Standardization:
  """The standardisation of the features, from sums over `count` examples."""
  mean = total / count
  covariance = squares / count - np.outer(mean, mean)
  scale = np.sqrt(np.maximum(covariance.diagonal(), 0)) + _EPSILON
  ZtZ = np.zeros((len(mean) + 1, len(mean) + 1))
  ZtZ[:-1, :-1] = count * covariance / np.outer(scale, scale)
  ZtZ[-1, -1] = count
  return _Standardization(mean, scale, ZtZ)


class Moments:
  """Sums over examples, from which a probe is fitted without the examples."""

  def __init__(self, num_features: int, num_classes: int):
    D, K = num_features, num_classes
    self._total = np.zeros(D)
    self._squares = np.zeros((D, D))
    self._by_class = np.zeros((K, D))
    self._counts = np.zeros(K)

  def add(
    self, features: Float[np.ndarray, "N D"], labels: Int[np.ndarray, " N"]
  ) -> None:
    """Adds examples."""
    x = features.astype(np.float64)
    self._total += x.sum(axis=0)
    self._squares += x.T @ x
    np.add.at(self._by_class, labels, x)
    np.add.at(self._counts, labels, 1)

  def without(self, features: np.ndarray, labels: np.ndarray) -> "Moments":
    """The sums without some of the examples."""
    difference = Moments(features.shape[1], self._counts.size)
    difference.add(features, labels)
    for name, total in vars(self).items():
      setattr(difference, name, total - vars(difference)[name])
    return difference

  def path(self) -> "Solutions":
    """The solutions for every L2 of the probe of all examples added so far."""
    count = self._counts.sum()
    mean, scale, ZtZ = standardization(self._total, self._squares, count)
    # Y is 2 for the example's class and 0 for the others, minus 1; the sum of
    # the centred features is 0.
    class_sums = (self._by_class - self._counts[:, None] * mean) / scale
    ZtY = np.concatenate([2 * class_sums.T, (2 * self._counts - count)[None]])
    return Solutions.of_sums(mean, scale, ZtZ, ZtY)


class Kind:
  """A kind of labels: how they enter the problem, and how L2 is chosen."""

  def moments(self, num_features: int) -> Any:
    """Empty sums, as `Moments`, of examples with such labels."""
    raise NotImplementedError

  def solutions(self, features: np.ndarray, labels: np.ndarray) -> Any:
    """The solutions of all examples for every L2, as `Solutions`."""
    raise NotImplementedError

  def choose(self, whole: Any, held_out: HeldOut) -> Probe:
    """The probe of all examples, with the L2 that is best on held-out folds."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Classes(Kind):
  """Labels that are indices of classes; so are the answers to folds."""

  num_classes: int

  def moments(self, num_features: int) -> Moments:
    return Moments(num_features, self.num_classes)

  def solutions(self, features: np.ndarray, labels: np.ndarray) -> "Solutions":
    return Solutions.of_examples(features, labels, self.num_classes)

  def choose(self, whole: "Solutions", held_out: HeldOut) -> Probe:
    return _by_lowest_loss(whole, held_out)


def fit_in_parts(
  parts: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]], num_classes: int
) -> Probe:
  """Fits a probe of classes to examples; see `fit_any_labels`."""
  return fit_any_labels(parts, Classes(num_classes))


def fit_any_labels(
  parts: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]], kind: Kind
) -> Probe:
  """Fits a probe to examples with labels of any kind, which come in parts.

  Only examples in folds are kept in memory. Each fold is held out in turn and
  predicted by a probe of all other examples. For classes, the lowest
  cross-entropy chooses the L2 and the probe's `sharpness`; for numbers and for
  several labels, the lowest squared error chooses the L2. `parts` are features
  (N, D), labels (N, ...), and the fold of each, int (N,); -1 is never held out.
  If all examples are in folds, and are fewer than their features, they are
  fitted as by `fit_in_folds`, which is then faster.
  """
  remaining = iter(parts)
  in_memory, count = [], 0
  for part in remaining:
    features, labels, folds = part
    in_memory.append(part)
    count += len(labels)
    if count >= features.shape[1] or (folds < 0).any():
      return _fit_by_sums(itertools.chain(in_memory, remaining), kind)
  features, labels, folds = map(np.concatenate, zip(*in_memory, strict=True))
  return _fit_in_folds(features, labels, folds, kind)


def _fit_by_sums(
  parts: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]], kind: Kind
) -> Probe:
  """As `fit_any_labels`, from sums; a held-out fold's sums are subtracted."""
  whole: Any = None
  by_fold = collections.defaultdict(list)
  for features, labels, folds in parts:
    if whole is None:
      whole = kind.moments(features.shape[1])
    whole.add(features, labels)
    for fold in {*folds.tolist()} - {-1}:
      by_fold[fold].append((features[folds == fold], labels[folds == fold]))
  held_out = []
  for pieces in by_fold.values():
    features, labels = map(np.concatenate, zip(*pieces, strict=True))
    solutions = whole.without(features, labels).path()
    held_out.append(HeldOutFold(solutions, features, labels))
  return kind.choose(whole.path(), held_out)


def fit_in_folds(
  features: Float[np.ndarray, "N D"],
  labels: Int[np.ndarray, " N"],
  folds: Int[np.ndarray, " N"],
  num_classes: int,
) -> Probe:
  """Fits the probe of `fit_in_parts` to examples that are all in memory.

  This is fast if there are fewer examples than features.
  """
  return _fit_in_folds(features, labels, folds, Classes(num_classes))


def _fit_in_folds(
  features: Float[np.ndarray, "N D"],
  labels: np.ndarray,
  folds: Int[np.ndarray, " N"],
  kind: Kind,
) -> Probe:
  """As `fit_in_folds`, for labels of any kind."""
  held_out = []
  for fold in {*folds.tolist()} - {-1}:
    is_out = folds == fold
    solutions = kind.solutions(features[~is_out], labels[~is_out])
    held_out.append(HeldOutFold(solutions, features[is_out], labels[is_out]))
  return kind.choose(kind.solutions(features, labels), held_out)


def _by_lowest_loss(whole: "Solutions", held_out: HeldOut) -> Probe:
  """The probe whose L2 and sharpness give the lowest loss on held-out folds."""
  candidates = []
  y = np.concatenate([fold.labels for fold in held_out])
  for l2 in L2S:
    scores = np.concatenate([fold.scores(l2) for fold in held_out])
    # A row's highest score becomes 0, so that no exponential overflows.
    scores -= scores.max(axis=1, keepdims=True)
    right = scores[np.arange(len(y)), y]
    for t in SHARPNESS:
      loss = np.sum(np.log(np.exp(t * scores).sum(axis=1)) - t * right)
      candidates.append((loss, l2, t))
  _, l2, sharpness = min(candidates)
  answered = [
    FoldAnswers(fold.scores(l2).argmax(axis=1), fold.labels)
    for fold in held_out
  ]
  return dataclasses.replace(
    whole.probe(l2), sharpness=sharpness, folds=tuple(answered)
  )


@dataclasses.dataclass(frozen=True)
class Solutions:
  """Solutions of one problem for every L2, from one factorisation.

  With Z^T Z = V diag(s) V^T the solution is V (V^T Z^T Y / (s + l2)). With
  fewer examples than features, Z Z^T = U diag(s) U^T is smaller, and the
  solution is Z^T U (U^T Y / (s + l2)). Both have the form
  basis (coordinates / (s + l2)).
  """

  mean: np.ndarray
  scale: np.ndarray
  s: np.ndarray
  basis: np.ndarray
  coordinates: np.ndarray

  @classmethod
  def of_examples(
    cls,
    features: Float[np.ndarray, "N D"],
    labels: Int[np.ndarray, " N"],
    num_classes: int,
  ) -> "Solutions":
    """The solutions for examples of classes."""
    Y = np.full((len(labels), num_classes), -1.0)
    Y[np.arange(len(labels)), labels] = 1
    return cls.of_targets(features, Y)

  @classmethod
  def of_targets(
    cls, features: Float[np.ndarray, "N D"], Y: Float[np.ndarray, "N K"]
  ) -> "Solutions":
    """The solutions for features and targets."""
    x = features.astype(np.float64)
    mean = x.mean(axis=0)
    scale = x.std(axis=0) + _EPSILON
    return cls.of_rows(mean, scale, standardize(features, mean, scale), Y)

  @classmethod
  def of_rows(
    cls, mean: np.ndarray, scale: np.ndarray, Z: np.ndarray, Y: np.ndarray
  ) -> "Solutions":
    """The solutions for standardised features (N, D+1) and targets (N, K)."""
    if len(Z) >= Z.shape[1]:
      return cls.of_sums(mean, scale, Z.T @ Z, Z.T @ Y)
    s, U = np.linalg.eigh(Z @ Z.T)
    return cls(mean, scale, s, Z.T @ U, U.T @ Y)

  @classmethod
  def of_sums(
    cls, mean: np.ndarray, scale: np.ndarray, ZtZ: np.ndarray, ZtY: np.ndarray
  ) -> "Solutions":
    """The solutions from Z^T Z and Z^T Y."""
    s, V = np.linalg.eigh(ZtZ)
    return cls(mean, scale, s, V, V.T @ ZtY)

  def probe(self, l2: float) -> Probe:
    """The probe for an L2."""
    W = self.basis @ self._shrunken(l2)
    return Probe(self.mean, self.scale, W, l2)

  def _shrunken(self, l2: float) -> np.ndarray:
    """coordinates / (s + l2); `basis` times these is the weights."""
    s = np.maximum(self.s, 0)  # Rounding can make an eigenvalue negative.
    return self.coordinates / (s + l2)[:, None]

  def try_out(
    self, features: Float[np.ndarray, "K D"]
  ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Scores one example per class with every L2, in blocks.

    Yields:
      (index into `L2S`, scores, labels) of each block.
    """
    K = len(features)
    Z = standardize(features, self.mean, self.scale) @ self.basis
    rows = max(1, MOST_SCORES // K)
    for i, l2 in enumerate(L2S):
      shrunken = self._shrunken(l2)
      for first in range(0, K, rows):
        labels = np.arange(first, min(first + rows, K))
        yield i, Z[labels] @ shrunken, labels
