"""Numbers: the objective and the scores against NumPy."""

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from tests.models.tiny_vit import apply, images, random_params, tiny
from tests.tasks.made_up import HALF
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.pretrained.loaded import Loaded
from vit_jax.tasks.regression.task import (
  Regression,
  RegressionOutcome,
  RegressionTask,
  r_squared,
)
from vit_jax.training.losses import StepContext
from vit_jax.training.settings import LossSettings


def test_numbers_are_standardised():
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(5, 3)).astype(np.float32)
  mean, std = (10.0, -2.0, 500.0), (2.0, 0.5, 100.0)
  labels = (rng.normal(size=(5, 3)) * std + mean).astype(np.float32)
  objective = Regression(
    3, LossSettings(), HALF, HALF, target_mean=mean, target_std=std
  )
  batch = {
    "image": np.zeros((5, 2, 2, 3), np.uint8),
    "label": labels,
  }

  @jax.jit
  def computed(batch):
    images, targets = objective.prepare(batch, jax.random.key(0))
    found = objective.loss(lambda _: logits, images, targets, StepContext())
    return found.value, found.score

  loss, mae = computed(batch)
  error = logits * np.array(std) + mean - labels  # In the user's unit.
  np.testing.assert_allclose(mae, np.abs(error).mean(axis=1), rtol=1e-4)
  np.testing.assert_allclose(loss, ((error / std) ** 2).mean(axis=1), rtol=1e-4)


def test_numbers_of_which_one_is_nan_are_infinitely_wrong():
  label = np.array([[1.0, 5], [2, 7], [4, 6]])
  output = np.array([[1.0, 5], [3, np.nan], [4, 6]])
  found = np.arange(3), label, output, np.zeros(3), 0
  mae, r2 = RegressionOutcome(RegressionTask(), ("a", "b"), *found).by_target
  np.testing.assert_allclose(mae, [1 / 3, np.inf])
  deviation = ((label[:, 0] - label[:, 0].mean()) ** 2).sum()
  np.testing.assert_allclose(r2, [1 - 1 / deviation, -np.inf])


def test_a_target_that_is_the_same_for_all_images_is_left_out_of_r2():
  label = np.array([[1.0, 7], [2, 7], [4, 7]])
  found = np.arange(3), label, label + 0.5, np.zeros(3), 0
  outcome = RegressionOutcome(RegressionTask(), ("a", "b"), *found)
  deviation = ((label[:, 0] - label[:, 0].mean()) ** 2).sum()
  assert outcome.scores["r2"] == pytest.approx(1 - 0.75 / deviation)
  (line,) = outcome.notes
  assert line.startswith("R2 is the mean of 1 of 2: the other targets are the")
  assert line.endswith("(b).")


def test_the_headline_tells_each_target_as_their_units_differ():
  label = np.array([[1.0, 50], [2, 70]])
  output = np.array([[1.5, 40], [2, 70]])
  outcome = RegressionOutcome(
    RegressionTask(),
    ("length", "weight"),
    np.arange(2),
    label,
    output,
    np.zeros(2),
    0,
  )
  told = RegressionTask().scores.headline(outcome.metrics | outcome.by_class())
  errors = "0.25 (length), 5 (weight)"
  few = ", with R2 0.5000 (too few images to judge by)"
  assert told == f"Predictions are off by {errors} on average on 2 images{few}"
  alone = RegressionTask().scores.headline(
    {"eval/mae": 0.25, "eval/examples": 2}
  )
  assert alone == "Predictions are off by 0.25 on average on 2 images"


def test_a_number_in_words():
  assert RegressionTask.labels.describe([31.25], ("age",)) == "age 31.25"


@pytest.mark.slow
@pytest.mark.parametrize("block", [None, "deit"])
def test_every_head_answers_in_the_unit_of_the_targets(block):
  """DeiT's model answers with the mean of two heads."""
  model = tiny(num_classes=2, block=block)
  x = images()
  task = RegressionTask(target_mean=(3.0, -2.0), target_std=(4.0, 5.0))
  params = random_params(model, x)
  flat = flatten_dict(params, sep="/")
  loaded = Loaded(
    model=model,
    inputs={"image": Preprocessing((8, 12))},
    open_task=lambda: task,
    shapes={path: array.shape for path, array in flat.items()},
    read=lambda: flat.items(),
  ).with_scaled_head()
  found = dict(loaded.read())
  changed = {k for k in flat if not np.array_equal(found[k], flat[k])}
  heads = ["head", "head_dist"] if block else ["head"]
  assert changed == {
    f"{head}/{k}" for head in heads for k in ("kernel", "bias")
  }
  outputs = np.asarray(apply(model, params, x))
  expected = outputs * [[4.0, 5.0]] + [[3.0, -2.0]]
  answers = apply(model, unflatten_dict(found, sep="/"), x)
  np.testing.assert_allclose(answers, expected, rtol=1e-4, atol=1e-4)
  assert loaded.task == RegressionTask()


def test_equal_labels_have_no_r_squared():
  """Though their mean, 0.1 and a rounding, leaves a spread of 1e-33."""
  assert np.isnan(r_squared(np.full((3, 1), 0.3), np.full((3, 1), 0.1))).all()
