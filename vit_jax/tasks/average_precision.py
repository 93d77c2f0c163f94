"""Average precision, thresholds and F1 of binary answers."""

import numpy as np
from jaxtyping import Float


def average_precision(
  label: Float[np.ndarray, " N"], score: Float[np.ndarray, " N"]
) -> float:
  """Sum of precision times the rise of recall, over the distinct scores.

  Equal scores count as one; a NaN ranks last. Without a positive it is NaN.
  """
  if not label.sum():
    return float("nan")
  precision, recall = precision_recall(label, score)
  return float((np.diff(recall, prepend=0) * precision).sum())


def precision_recall(
  label: Float[np.ndarray, " N"], score: Float[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
  """Precision and recall at each distinct score, from the highest on."""
  hits, given = _ranked(label, score)
  return hits / given, hits / max(1, label.sum())


def best_threshold(
  label: Float[np.ndarray, " N"], score: Float[np.ndarray, " N"]
) -> float:
  """The threshold of the highest F1, between two scores; 0.5 without hits."""
  hits, given = _ranked(label, score)
  rates = 2 * hits / (given + label.sum())
  if not rates.max(initial=0):
    return 0.5
  levels = np.unique(_finite(score))[::-1]
  best = int(rates.argmax())
  lower = levels[best + 1] if best + 1 < len(levels) else levels[best]
  return float((levels[best] + max(lower, 0)) / 2)


def f1(label: np.ndarray, answer: np.ndarray) -> float:
  """F1 of boolean answers; 0 if there is neither a label nor an answer."""
  total = label.sum() + answer.sum()
  return float(2 * (label & answer).sum() / total) if total else 0.0


def _ranked(
  label: np.ndarray, score: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Positives and examples at each distinct score or above, highest first."""
  score = _finite(score)
  order = np.argsort(-score, kind="stable")
  last = np.flatnonzero(np.diff(score[order], append=-np.inf))
  return label[order].cumsum()[last], last + 1


def _finite(score: np.ndarray) -> np.ndarray:
  return np.where(np.isnan(score), -1, score)
