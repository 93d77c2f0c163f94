"""A model that answers NaN scores worst, and evaluations say so: every task."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rows import some_slow
from tests.tasks.answering import (
  FIRST,
  FLAGS,
  HALF,
  LABELS,
  MULTI,
  RNG,
  SIDE,
  SOFTMAX,
  TASKS,
  K,
  N,
  OneBatch,
  rows_of,
)
from tests.tasks.made_up import evaluator
from vit_jax.tasks import finite
from vit_jax.tasks.classification import calibration
from vit_jax.tasks.multilabel.task import MultiLabel
from vit_jax.tasks.probes import (
  few_shot,
  label_errors,
  linear_probe,
  segmentation,
  whole_set,
)
from vit_jax.tasks.segmentation.objective import PixelClasses
from vit_jax.training.losses import Classification

FOR = ("train", "test")
REPRESENTS = "the model represents images by NaN: its parameters are damaged"


@pytest.mark.parametrize("name", some_slow(TASKS, FIRST))
def test_an_answer_that_is_none_scores_worst(name):
  """By every metric, also if only some answers are none, and it is said."""
  given, model, label = TASKS[name]()
  evaluate = evaluator(given, model, OneBatch(label))
  good = rows_of(given, model, label)

  def measured(rows):
    outcome = evaluate(jnp.asarray(rows, jnp.float32), detail=True)
    each = {m: outcome.scores.get(m.key) for m in given.scores.metrics}
    signs = {True: 1, False: -1}
    return outcome, {
      m.key: finite.comparable(signs[m.higher_is_better] * score)
      for m, score in each.items()
      if score is not None and m.higher_is_better is not None
    }

  outcome, best = measured(good)
  assert not outcome.unanswered and not outcome.broken and not outcome.constant
  for count, value in itertools.product((N // 2, N), (np.nan, np.inf, -np.inf)):
    rows = good.copy()
    rows[:count] = value
    outcome, found = measured(rows)
    assert outcome.unanswered == count
    said = f"The model answers NaN to {count} examples."
    assert outcome.remarks[0] == said and outcome.broken == [said]
    assert found.keys() == best.keys() and given.scores.best in found
    for key, score in found.items():
      assert score < best[key], (key, value, count)
      if count == N:
        assert score <= (outcome.chance or 0), (key, value)


@pytest.mark.parametrize("name", some_slow(sorted({*TASKS} - {"own"}), FIRST))
def test_one_answer_for_all_examples_is_said(name):
  given, model, label = TASKS[name]()
  evaluate = evaluator(given, model, OneBatch(label))
  rows = np.ones((N, math.prod(model.shape)), np.float32)
  outcome = evaluate(jnp.asarray(rows), detail=True)
  lines = "\n".join(outcome.remarks)
  if name in ("self_distillation", "lejepa"):
    assert "all images get nearly the same" in lines
  else:
    assert outcome.constant
    assert "The model gives all 8 examples the same answer." in lines
  if outcome.chance is not None:
    assert outcome.scores[given.scores.best] <= outcome.chance + 1e-6


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
  "objective, shape, targets",
  [
    (Classification(K, SOFTMAX, HALF, HALF), (K,), np.eye(K)[LABELS]),
    (Classification(K, MULTI, HALF, HALF), (K,), np.eye(K)[LABELS]),
    (MultiLabel(K, MULTI, HALF, HALF), (K,), np.zeros((N, K))),
    (PixelClasses(HALF, HALF), (2, 2, K), np.zeros((N, 2, 2), int)),
  ],
)
def test_in_training_such_an_answer_is_wrong(objective, shape, targets, value):
  logits = jnp.full((N, *shape), value)
  pixels = isinstance(objective, PixelClasses)
  compare = objective.compare if pixels else objective.loss_and_score
  _, score = jax.jit(compare)(logits, targets)
  assert not np.asarray(score).any()


def batches(y, labels):
  info = {"label": labels, "mask": np.ones(len(y)), "skipped": np.zeros(len(y))}
  yield jnp.asarray(y), {k: jnp.asarray(v) for k, v in info.items()}


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("bad", ["train", "test"])
@pytest.mark.parametrize("probe", ["knn", "linear", "segment", "errors"])
def test_probes_of_such_representations_are_one_line(probe, bad, value):
  """Also where the images of one split alone have them."""
  y = {key: RNG.normal(size=(30, 4)).astype(np.float32) for key in FOR}
  y[bad][7] = value
  labels = np.arange(30) % K
  train, test = (batches(y[key], labels) for key in FOR)
  with pytest.raises(finite.NotFiniteError, match=REPRESENTS):
    if probe == "knn":
      whole_set.nearest_neighbours(train, test, K, 5)
    elif probe == "linear":
      whole_set.linear(train, test, K, 30)
    elif probe == "errors":
      label_errors.out_of_fold(y[bad], labels, K)
    else:
      masks = np.broadcast_to(labels[:, None, None], (30, 4, 4))
      maps = [np.tile(y[key][:, None, None], (2, 2, 1)) for key in FOR]
      train, test = (batches(some, masks) for some in maps)
      segmentation.segment(train, test, [str(k) for k in range(K)])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_calibration_and_masks_of_such_answers_are_one_line(value):
  logits = np.full((200, K), value)
  says = "the model answers with NaN: its parameters are damaged, or its tr"
  with pytest.raises(finite.NotFiniteError, match=says):
    calibration.fit("softmax", logits, np.tile(FLAGS, (25, 1)))
  given, model, label = TASKS["segmentation"]()
  mark = given.answers.marker(model, OneBatch(label).preprocessing)
  assert mark is not None
  with pytest.raises(finite.NotFiniteError, match=says):
    params = jnp.full((N, 4 * K), value)
    mark(params, np.zeros((SIDE, SIDE, 3), np.uint8))


def test_few_shots_of_such_representations_are_one_line():
  """The shots are checked as they are read, and the images to test on here."""
  probe = linear_probe.fit_shots(RNG.normal(size=(K, 2, 4)))
  names = ("mean", "scale", "W")
  fitted = {name: np.stack([getattr(probe, name)]) for name in names}
  y = np.where(np.arange(N)[:, None] < 3, np.nan, np.ones((N, 4), np.float32))
  ((_, info),) = batches(y, LABELS)
  counts = jax.jit(few_shot.count_right)(fitted, y, info)
  assert counts["unanswered"] == 3 and counts["examples"] == N
