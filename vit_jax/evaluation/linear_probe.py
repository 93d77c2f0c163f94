"""Classes from a few features by a closed form (arXiv:2010.11929, Sec. 4.1).

A regularised least-squares problem maps whitened features and a bias column,
Z, to targets Y in {-1, 1}^K:

  W = argmin |Z W - Y|^2 + l2 |W|^2 = (Z^T Z + l2 I)^-1 Z^T Y.

`l2` is added to the eigenvalues of Z^T Z, whose sum is N (D + 1) for N
examples of D features. It stands for all of W, the bias included.

In NumPy and float64: those eigenvalues span more than float32 can tell apart,
and an accelerator has no float64 worth using.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int

L2S = tuple(2.0**power for power in range(-10, 21))

_EPSILON = 1e-6  # Added to the standard deviation of each feature.
_MOST_HELD_OUT = 5_000  # Examples that the choice of L2 is made by.
_MOST_SCORES = 1 << 22  # Numbers in one block of scores, 32 MB.


@dataclasses.dataclass(frozen=True)
class Probe:
  """A linear classifier: scores [(x - mean) / scale, 1] W.

  Attributes:
    mean: Of each feature of the shots it was fitted to.
    scale: Their standard deviation, and a little more.
    W: The weights, the bias being the last row.
    l2: They were regularised with.
  """

  mean: Float[np.ndarray, " D"]
  scale: Float[np.ndarray, " D"]
  W: Float[np.ndarray, "D+1 K"]
  l2: float

  def scores(
    self, features: Float[np.ndarray, "N D"]
  ) -> Float[np.ndarray, "N K"]:
    """One number a class, near 1 for the likely and -1 for the others."""
    return whiten(features, self.mean, self.scale) @ self.W

  def predict(
    self, features: Float[np.ndarray, "N D"]
  ) -> Int[np.ndarray, " N"]:
    """The class of the highest score."""
    return self.scores(features).argmax(axis=1)


def whitening(
  features: Float[np.ndarray, "N D"],
) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, " D"]]:
  """What `whiten` takes off each feature, and what it divides it by."""
  x = features.astype(np.float64)
  return x.mean(axis=0), x.std(axis=0) + _EPSILON


def whiten(
  features: Float[np.ndarray, "N D"],
  mean: Float[np.ndarray, " D"],
  scale: Float[np.ndarray, " D"],
) -> Float[np.ndarray, "N D+1"]:
  """Z: each feature on its own to mean 0 and deviation 1, and a bias of 1."""
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
  """The probe that solves the problem above for one value of L2."""
  return _Path(features, labels, num_classes).probe(l2)


def fit_shots(
  features: Float[np.ndarray, "K n D"], l2s: Sequence[float] = L2S
) -> Probe:
  """The probe of n shots a class, with the L2 that `choose_l2` takes."""
  K, n, D = features.shape
  l2 = choose_l2(features, l2s)
  return fit(features.reshape(K * n, D), _labels(K, n), K, l2)


def choose_l2(
  features: Float[np.ndarray, "K n D"], l2s: Sequence[float] = L2S
) -> float:
  """The L2 that classifies held-out shots best.

  One shot of each class is held out in turn, and predicted by a probe of the
  others, whitening and all. The most right answers win, and among equals the
  lowest squared error. With many classes some turns are enough: the first that
  hold out 5,000 examples. With one shot a class there is none to hold out, and
  L2 is D, about the mean eigenvalue of Z Z^T.
  """
  K, n, D = features.shape
  if n == 1:
    return float(D)  # Near the best on three data sets, by 20 draws of each.
  turns = min(n, -(-_MOST_HELD_OUT // K))
  right, error = np.zeros(len(l2s), np.int64), np.zeros(len(l2s))
  for turn in range(turns):
    others = np.delete(features, turn, axis=1).reshape(-1, D)
    path = _Path(others, _labels(K, n - 1), K)
    for i, scores, labels in path.try_out(features[:, turn], l2s):
      right[i] += (scores.argmax(axis=1) == labels).sum()
      error[i] += _squared_error(scores, labels)
  best = min(range(len(l2s)), key=lambda i: (-right[i], error[i]))
  return float(l2s[best])


class _Path:
  """The solutions of one problem for every L2, by one factorisation.

  With Z^T Z = V diag(s) V^T the solution is V (V^T Z^T Y / (s + l2)). With
  fewer examples than features the smaller Z Z^T = U diag(s) U^T does it:
  Z^T U (U^T Y / (s + l2)). Both are basis (coordinates / (s + l2)).
  """

  def __init__(
    self,
    features: Float[np.ndarray, "N D"],
    labels: Int[np.ndarray, " N"],
    num_classes: int,
  ):
    self.mean, self.scale = whitening(features)
    Z = whiten(features, self.mean, self.scale)
    Y = np.full((len(labels), num_classes), -1.0)
    Y[np.arange(len(labels)), labels] = 1
    if len(Z) < Z.shape[1]:
      s, U = np.linalg.eigh(Z @ Z.T)
      self._basis, self._coordinates = Z.T @ U, U.T @ Y
    else:
      s, V = np.linalg.eigh(Z.T @ Z)
      self._basis, self._coordinates = V, V.T @ (Z.T @ Y)
    self._s = np.maximum(s, 0)  # None is negative but by rounding.

  def probe(self, l2: float) -> Probe:
    """The solution for one L2."""
    W = self._basis @ (self._coordinates / (self._s + l2)[:, None])
    return Probe(self.mean, self.scale, W, l2)

  def try_out(
    self, features: Float[np.ndarray, "K D"], l2s: Sequence[float]
  ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(place in `l2s`, scores, labels) of an example a class, in blocks."""
    K = len(features)
    Z = whiten(features, self.mean, self.scale) @ self._basis
    rows = max(1, _MOST_SCORES // K)
    for i, l2 in enumerate(l2s):
      shrunken = self._coordinates / (self._s + l2)[:, None]
      for first in range(0, K, rows):
        labels = np.arange(first, min(first + rows, K))
        yield i, Z[labels] @ shrunken, labels


def _labels(num_classes: int, shots: int) -> Int[np.ndarray, " N"]:
  """Of features (K, n, D), once they are (K n, D)."""
  return np.repeat(np.arange(num_classes), shots)


def _squared_error(scores: np.ndarray, labels: np.ndarray) -> float:
  """Sum of squares of scores - Y, which is not built."""
  own = scores[np.arange(len(labels)), labels]
  return float(np.sum((scores + 1) ** 2) - 4 * np.sum(own))
