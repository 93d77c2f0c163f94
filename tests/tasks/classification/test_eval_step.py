"""The eval step counts every example once, and padding never."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import SIZES, random_params
from vit_jax import init_params, make_vit
from vit_jax.tasks.classification.eval_step import (
  Predictions,
  class_accuracy,
  label_rank,
  summary,
)
from vit_jax.tasks.classification.evaluation import make_measure
from vit_jax.tasks.metrics import evaluate
from vit_jax.training import sharding

RANK = jax.jit(label_rank)


def test_rank_agrees_with_a_stable_sort():
  rng = np.random.default_rng(0)
  logits = rng.integers(0, 4, (50, 7)).astype(np.float32)  # Many are equal.
  label = rng.integers(0, 7, 50)
  order = np.argsort(-logits, axis=1, kind="stable")
  expected = [
    list(row).index(right) for row, right in zip(order, label, strict=True)
  ]
  found = RANK(logits, label)
  np.testing.assert_array_equal(found, expected)


def test_a_head_of_zeros_is_right_by_chance_only():
  label = jnp.arange(10)
  assert int((RANK(jnp.zeros((10, 10)), label) == 0).sum()) == 1


@pytest.mark.parametrize("K", [3, 7])
def test_a_row_that_is_not_finite_is_in_no_top_five(K):
  logits = np.zeros((4, K), np.float32)
  logits[:, 1] = 1, jnp.inf, 1, 1
  logits[0, 0], logits[2, 2] = jnp.nan, -jnp.inf
  rank = RANK(logits, np.array([1, 1, 1, 1]))
  assert (rank[:2] >= 5).all()
  np.testing.assert_array_equal(rank[2:], [0, 0])


@pytest.mark.parametrize("K, has_top5", [(2, False), (5, False), (6, True)])
def test_there_is_no_top_5_of_five_classes(K, has_top5):
  by_class = np.ones(K, np.float32)
  found = summary(
    {
      "loss": 1.0,
      "top5": 1.0,
      "skipped": 0,
      "count": by_class,
      "correct": by_class,
    }
  )
  assert ("top5" in found) == has_top5


def _batches(images, label, batch_size):
  """Batches padded with examples that would count if the mask were ignored."""
  for start in range(0, len(label), batch_size):
    rows = np.arange(start, start + batch_size)
    batch = {
      "image": images[rows % len(label)],
      "label": label[rows % len(label)],
    }
    batch["mask"] = (rows < len(label)).astype(np.float32)
    batch["skipped"] = rows >= len(label)
    yield batch


@pytest.mark.parametrize(
  "batch_size, loss",
  [
    (16, "softmax"),
    *(
      pytest.param(size, loss, marks=pytest.mark.slow)
      for loss in ("softmax", "sigmoid")
      for size in (8, 16, 40)
      if (size, loss) != (16, "softmax")
    ),
  ],
)
def test_metrics_agree_with_numpy_on_eight_devices(batch_size, loss):
  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, (37, 8, 8, 3), np.uint8)
  label = rng.integers(0, 7, 37).astype(np.int32)
  label[label == 6] = 0  # One class has no example.
  model = make_vit("Ti/4", num_classes=7, **SIZES)
  params = random_params(model, (8, 8), 0)

  rows = sharding.batch_sharding(sharding.make_mesh())
  batches = sharding.to_device(_batches(images, label, batch_size), rows, 1)
  measure = make_measure(model, loss=loss)
  outcome = evaluate(measure, params, batches, examples=True).result()
  seen, totals = outcome.predictions, outcome.totals

  pixels = images / np.float32(127.5) - 1
  logits = np.float64(jax.jit(model.apply)({"params": params}, pixels))
  log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
  losses = -log_p[np.arange(37), label]
  if loss == "sigmoid":
    signs = np.where(np.eye(7)[label] > 0, 1, -1)
    losses = np.log1p(np.exp(-signs * logits)).sum(1)
  order = np.argsort(-logits, axis=1)
  right = order[:, 0] == label
  found = summary(totals)
  assert found["examples"] == 37
  assert found["skipped_images"] == -37 % batch_size
  assert found["loss"] == pytest.approx(losses.mean(), rel=1e-5)
  assert found["top1"] == pytest.approx(right.mean())
  in_five = (order[:, :5] == label[:, None]).any(1)
  assert found["top5"] == pytest.approx(in_five.mean())
  names = tuple("abcdefg")
  by_class = class_accuracy(totals, names)
  assert by_class == pytest.approx(
    {names[k]: right[label == k].mean() for k in range(7) if (label == k).any()}
  )
  assert "g" not in by_class

  def counted(name):
    keep = np.concatenate([answers.counted for answers in seen])
    assert keep.sum() == 37
    return np.concatenate([getattr(answers, name) for answers in seen])[keep]

  p = 1 / (1 + np.exp(-logits)) if loss == "sigmoid" else np.exp(log_p)
  np.testing.assert_array_equal(counted("label"), label)
  np.testing.assert_array_equal(counted("answer"), order[:, 0])
  np.testing.assert_allclose(counted("probability"), p.max(1), rtol=1e-5)
  np.testing.assert_allclose(counted("loss"), losses, rtol=1e-5)


@pytest.mark.slow
def test_without_a_mask_every_row_counts():
  model = make_vit("Ti/4", num_classes=7, num_layers=1, hidden_size=12)
  params = init_params(model, jax.random.key(0), 8)
  batch = {
    "image": jnp.zeros((5, 8, 8, 3), jnp.uint8),
    "label": jnp.array([0, 1, 0, 0, 6]),
  }
  found = evaluate(make_measure(model), params, [batch]).result().scores
  assert (found["examples"], found["skipped_images"]) == (5, 0)
  assert found["top1"] == pytest.approx(3 / 5)  # Zero logits answer class 0.


@pytest.mark.parametrize("counted", [True, False])
def test_a_label_beyond_the_classes_is_refused_where_it_counts(counted):

  def step(_, batch, first):
    label = batch["label"]
    n = len(label)
    zeros = np.zeros(n, np.float32)
    mask = np.array([True] * (n - 1) + [counted])
    totals = {"loss": zeros[0]}
    return totals, Predictions(label, label, zeros, zeros, mask)

  measure = make_measure(make_vit("Ti/4", 2))
  batches = [{"label": jnp.array(label)} for label in ([0, 1], [1, 2])]
  if not counted:  # Padding may hold any label.
    metric = evaluate(measure, None, batches, compute=step)
    assert metric.parts == {"loss": 0}
    return
  with pytest.raises(
    ValueError, match="the label 2, .* has 2 classes, .*=3 or"
  ):
    evaluate(measure, None, batches, compute=step)
