"""Average precision and thresholds, against loops and scikit-learn."""

import numpy as np
import pytest

from vit_jax.tasks.average_precision import (
  average_precision,
  best_threshold,
  f1,
)


def precision_by_loop(label, score):
  """Average precision: at each distinct score, precision by rise of recall."""
  total, before = 0.0, 0.0
  for level in sorted({*score.tolist()}, reverse=True):
    given = score >= level
    recall = (label * given).sum() / label.sum()
    total += (recall - before) * (label * given).sum() / given.sum()
    before = recall
  return total


@pytest.mark.parametrize("seed", range(5))
def test_average_precision(seed):
  rng = np.random.default_rng(seed)
  label = (rng.random(40) < 0.3).astype(float)
  score = rng.normal(label).round(1)  # With ties.
  found = average_precision(label, score)
  assert found == pytest.approx(precision_by_loop(label, score), abs=1e-12)
  try:
    from sklearn.metrics import average_precision_score
  except ImportError:
    return
  assert found == pytest.approx(average_precision_score(label, score))


def test_average_precision_at_the_edges():
  label = np.array([1.0, 0, 1, 0])
  assert average_precision(label, np.array([4.0, 1, 3, 2])) == 1
  assert average_precision(label, np.zeros(4)) == 0.5
  assert np.isnan(average_precision(np.zeros(4), np.arange(4.0)))
  last = average_precision(label, np.array([np.nan, 0.5, 0.9, 0.1]))
  assert last == pytest.approx(0.5 * 1 + 0.5 * 2 / 4)


@pytest.mark.parametrize("seed", range(5))
def test_the_threshold_has_the_highest_f1(seed):
  rng = np.random.default_rng(seed)
  label = (rng.random(30) < 0.3).astype(float)
  score = rng.uniform(size=30).round(1)
  threshold = best_threshold(label, score)

  def rate(level):
    given = score >= level
    return 2 * (label * given).sum() / (label.sum() + given.sum())

  assert rate(threshold) == max(rate(level) for level in score)
  assert threshold not in score or threshold == score.min()
  assert f1(label > 0, score >= threshold) == pytest.approx(rate(threshold))


def test_without_positives_there_is_no_best_threshold():
  assert best_threshold(np.zeros(3), np.array([0.1, 0.2, 0.9])) == 0.5
  assert f1(np.zeros(3, bool), np.zeros(3, bool)) == 0
