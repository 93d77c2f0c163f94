"""Several labels: the loss, precision and thresholds by other means; words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tasks.made_up import HALF
from vit_jax.tasks.multilabel.task import (
  MultiLabel,
  MultiLabelTask,
  average_precision,
  best_threshold,
  f1,
)
from vit_jax.training.losses import StepContext
from vit_jax.training.settings import LossSettings


@pytest.mark.slow
def test_the_loss_and_mixed_labels():
  logits = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
  labels = np.float32([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [1, 0, 0]])
  batch = {
    "image": jnp.zeros((5, 2, 2, 3), jnp.uint8),
    "label": jnp.array(labels),
  }
  objective = MultiLabel(3, LossSettings(), HALF, HALF)
  images, targets = objective.prepare(batch, jax.random.key(0))
  assert images.shape == (5, 2, 2, 3) and float(images.max()) == -1
  loss, right, *_ = objective.loss(
    lambda _: jnp.array(logits), images, targets, StepContext()
  )
  p = 1 / (1 + np.exp(-logits.astype(np.float64)))
  log_p = np.where(labels > 0, np.log(p), np.log(1 - p))
  np.testing.assert_allclose(loss, -log_p.sum(axis=1), rtol=1e-5)
  np.testing.assert_allclose(right, ((p > 0.5) == labels).mean(axis=1))
  objective = MultiLabel(3, LossSettings(mixup_alpha=1.0), HALF, HALF)
  _, targets = objective.prepare(batch, jax.random.key(1))
  share = (targets[1, 0] - 1) / -1  # Row 1 is 0 there, and its neighbour 1.
  expected = share * labels + (1 - share) * np.roll(labels, 1, axis=0)
  np.testing.assert_allclose(targets, expected, atol=1e-6)
  assert 0.5 <= share < 1


def test_a_test_split_chooses_no_threshold():
  assert MultiLabelTask().threshold is None
  assert MultiLabelTask().for_test().threshold == 0.5
  assert MultiLabelTask(threshold=0.3).for_test().threshold == 0.3


def test_labels_in_words():
  labels, names = MultiLabelTask.labels, ("a", "b", "c", "d")
  assert labels.describe([1, 0, 0, 1], names) == "a, d"
  assert labels.describe([0, 0, 0, 0], names) == "no label"


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
