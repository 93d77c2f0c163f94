"""Objectives of several labels and of numbers, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.training.losses import cross_entropy
from vit_jax.training.objective import Numbers, SeveralLabels
from vit_jax.training.settings import LossSettings

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(5, 3)).astype(np.float32)
WEIGHTS = (1.0, 2.5, 0.5)


def batch_of(labels):
  return {
    "image": jnp.zeros((5, 2, 2, 3), jnp.uint8),
    "label": jnp.array(labels),
  }


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_class_weights(kind):
  targets = RNG.uniform(size=(5, 3)).astype(np.float32)
  e = np.exp(LOGITS.astype(np.float64))
  if kind == "softmax":
    p = e / e.sum(axis=1, keepdims=True)
    expected = -(targets * np.log(p) * WEIGHTS).sum(axis=1)
  else:
    p = e / (1 + e)
    terms = targets * np.log(p) * WEIGHTS + (1 - targets) * np.log(1 - p)
    expected = -terms.sum(axis=1)
  found = cross_entropy(kind, jnp.array(LOGITS), jnp.array(targets), WEIGHTS)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  ones, plain = (
    cross_entropy(kind, jnp.array(LOGITS), jnp.array(targets), weights)
    for weights in ((1.0, 1.0, 1.0), None)
  )
  np.testing.assert_allclose(ones, plain, rtol=1e-5)


def test_several_labels():
  labels = np.float32([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [1, 0, 0]])
  objective = SeveralLabels(3, LossSettings(), (0.5,) * 3, (0.5,) * 3)
  batch = batch_of(labels)
  images, targets = objective.prepare(batch, jax.random.key(0))
  assert images.shape == (5, 2, 2, 3) and float(images.max()) == -1
  loss, right = objective.loss(lambda _: jnp.array(LOGITS), images, targets)
  p = 1 / (1 + np.exp(-LOGITS.astype(np.float64)))
  log_p = np.where(labels > 0, np.log(p), np.log(1 - p))
  np.testing.assert_allclose(loss, -log_p.sum(axis=1), rtol=1e-5)
  np.testing.assert_allclose(right, ((p > 0.5) == labels).mean(axis=1))
  mixed = LossSettings(mixup_alpha=1.0)
  objective = SeveralLabels(3, mixed, (0.5,) * 3, (0.5,) * 3)
  _, targets = objective.prepare(batch, jax.random.key(1))
  share = (targets[1, 0] - 1) / -1  # Row 1 is 0 there, and its neighbour 1.
  expected = share * labels + (1 - share) * np.roll(labels, 1, axis=0)
  np.testing.assert_allclose(targets, expected, atol=1e-6)
  assert 0.5 <= share < 1


def test_numbers_are_standardised():
  mean, std = (10.0, -2.0, 500.0), (2.0, 0.5, 100.0)
  labels = (RNG.normal(size=(5, 3)) * std + mean).astype(np.float32)
  objective = Numbers(
    3,
    LossSettings(),
    (0.5,) * 3,
    (0.5,) * 3,
    target_mean=mean,
    target_std=std,
  )
  batch = batch_of(labels)
  images, targets = objective.prepare(batch, jax.random.key(0))
  loss, mae = objective.loss(lambda _: jnp.array(LOGITS), images, targets)
  error = LOGITS * np.array(std) + mean - labels  # In the user's unit.
  np.testing.assert_allclose(mae, np.abs(error).mean(axis=1), rtol=1e-4)
  np.testing.assert_allclose(loss, ((error / std) ** 2).mean(axis=1), rtol=1e-4)


@pytest.mark.parametrize("weights", ["", "1,x", "1,0", "1,-2", "inf"])
def test_weights_that_are_none(weights):
  with pytest.raises(ValueError, match=f"class_weights='{weights}' must be"):
    LossSettings(class_weights=weights)
