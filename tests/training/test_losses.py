"""Losses and targets against their formulas, in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.training import losses
from vit_jax.training.settings import LossSettings

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(4, 5)) * 3
LABEL = np.array([0, 4, 2, 2])


def test_targets_are_smoothed_one_hot_rows():
  expected = 0.9 * np.eye(5)[LABEL] + 0.1 / 5
  found = losses.make_targets(jnp.array(LABEL), 5, label_smoothing=0.1)
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_softmax_cross_entropy():
  targets = RNG.dirichlet(np.ones(5), size=4)
  log_p = LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True))
  found = losses.cross_entropy(
    "softmax", jnp.float32(LOGITS), jnp.float32(targets)
  )
  np.testing.assert_allclose(found, -(targets * log_p).sum(1), rtol=1e-5)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_class_weights(kind):
  weights = (1.0, 2.5, 0.5, 1.0, 3.0)
  targets = RNG.uniform(size=(4, 5)).astype(np.float32)
  e = np.exp(LOGITS)
  if kind == "softmax":
    p = e / e.sum(axis=1, keepdims=True)
    expected = -(targets * np.log(p) * weights).sum(axis=1)
  else:
    p = e / (1 + e)
    terms = targets * np.log(p) * weights + (1 - targets) * np.log(1 - p)
    expected = -terms.sum(axis=1)
  found, ones, plain = (
    losses.cross_entropy(kind, jnp.float32(LOGITS), jnp.array(targets), given)
    for given in (weights, (1.0,) * 5, None)
  )
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  np.testing.assert_allclose(ones, plain, rtol=1e-5)


def test_sigmoid_cross_entropy_is_a_sum_over_classes():
  targets = np.eye(5)[LABEL]
  p = 1 / (1 + np.exp(-LOGITS))
  expected = -(targets * np.log(p) + (1 - targets) * np.log(1 - p)).sum(1)
  found = losses.cross_entropy(
    "sigmoid", jnp.float32(LOGITS), jnp.float32(targets)
  )
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_mixup_mixes_images_and_targets_alike():
  images = jnp.float32(RNG.normal(size=(4, 2, 2, 1)))
  targets = jnp.float32(np.eye(4))
  mixed, mixed_targets = losses.mixup(jax.random.key(1), images, targets, 0.5)
  share = float(mixed_targets[0, 0])
  assert 0.5 <= share <= 1
  expected = share * np.eye(4) + (1 - share) * np.eye(4)[[3, 0, 1, 2]]
  np.testing.assert_allclose(mixed_targets, expected, atol=1e-6)
  neighbour = np.asarray(images)[[3, 0, 1, 2]]
  np.testing.assert_allclose(
    mixed, share * images + (1 - share) * neighbour, atol=1e-6
  )


@pytest.mark.slow
def test_cutmix_puts_a_box_of_the_neighbour_in():
  images = jnp.arange(3.0)[:, None, None, None] * jnp.ones((3, 6, 10, 1))
  draw = jax.jit(lambda key: losses.cutmix(key, images, jnp.eye(3), 1.0))
  shares = []
  for seed in range(60):
    mixed, targets = draw(jax.random.key(seed))
    box = np.asarray(mixed[1, ..., 0]) == 0  # Image 0 lies in image 1.
    rows, columns = box.any(axis=1), box.any(axis=0)
    assert (box == rows[:, None] & columns).all()  # One box.
    assert (np.diff(np.flatnonzero(rows)) == 1).all()
    share = float(targets[1, 0])
    assert share == pytest.approx(box.mean(), abs=1e-6)
    expected = (1 - share) * np.eye(3) + share * np.eye(3)[[2, 0, 1]]
    np.testing.assert_allclose(targets, expected, atol=1e-6)
    shares.append(share)
  # Edges cut boxes whose area is uniform in [0, 1].
  assert 0.15 < np.mean(shares) < 0.5 and max(shares) > 0.5


@pytest.mark.slow
def test_mixup_and_cutmix_take_turns_at_random():
  images = jnp.arange(4.0)[:, None, None, None] * jnp.ones((4, 8, 8, 1))
  draw = jax.vmap(
    lambda key: losses.mixup_or_cutmix(key, images, jnp.eye(4), 0.8, 1.0)[0]
  )
  mixed = np.asarray(jax.jit(draw)(jax.random.split(jax.random.key(0), 400)))
  cut = [set(np.unique(one[1])) <= {0.0, 1.0} for one in mixed]
  assert 0.4 < np.mean(cut) < 0.6


@pytest.mark.slow
def test_mixups_share_follows_the_beta_distribution():
  """The larger share under Beta(1, 1) is uniform on [1/2, 1], its mean 3/4."""
  images, targets = jnp.zeros((2, 1, 1, 1)), jnp.eye(2)
  keys = jax.random.split(jax.random.key(0), 4000)
  draw = jax.vmap(lambda key: losses.mixup(key, images, targets, 1.0)[1][0, 0])
  shares = np.asarray(jax.jit(draw)(keys))
  assert shares.min() >= 0.5
  assert shares.mean() == pytest.approx(0.75, abs=0.01)
  assert (shares < 0.6).mean() == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize(
  "fields, message",
  [
    (dict(kind="hinge"), "kind='hinge' is unknown; choose one of softmax"),
    (dict(label_smoothing=1.0), "label_smoothing=1.0 must be in"),
    (dict(mixup_alpha=-0.1), "mixup_alpha=-0.1 must be 0, which"),
  ],
)
def test_bad_losses_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    LossSettings(**fields)


def test_the_loss_of_a_label_beyond_the_classes_is_nan():
  label = jnp.array([1, 3, 4, -1])
  found = losses.make_targets(label, 3, label_smoothing=0.1)
  assert np.isnan(found).all(axis=1).tolist() == [False, True, True, False]
  loss = losses.cross_entropy("softmax", jnp.zeros((4, 3)), found)
  assert np.isnan(loss).tolist() == [False, True, True, False]


def test_an_objective_without_answers_learns_none_of_a_teacher():
  says = "distill.teacher has answers .* objective Objective has none: leave"
  with pytest.raises(ValueError, match=says):
    losses.Objective().with_answers(None)
