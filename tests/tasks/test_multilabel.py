"""Several labels: the objective against NumPy, and thresholds and words."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.tasks.made_up import HALF
from vit_jax.tasks.multilabel import MultiLabel, MultiLabelTask
from vit_jax.training.settings import LossSettings


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
  loss, right = objective.loss(lambda _: jnp.array(logits), images, targets)
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
  task, names = MultiLabelTask(), ("a", "b", "c", "d")
  assert task.label_text([1, 0, 0, 1], names) == "a, d"
  assert task.label_text([0, 0, 0, 0], names) == "no label"
