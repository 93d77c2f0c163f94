"""What an evaluation is said to be worth, for every task."""

import math
from unittest import mock

import numpy as np
import pytest
from sklearn import metrics

from vit_jax.tasks import choose, scores
from vit_jax.tasks.classification.task import ClassificationTask
from vit_jax.tasks.dense_regression.task import DenseRegressionTask
from vit_jax.tasks.multilabel.task import MultiLabelTask
from vit_jax.tasks.regression.task import RegressionTask
from vit_jax.tasks.scores import FoldAnswers, FoldScore
from vit_jax.tasks.table import ALL_TASKS

# Five folds of 48 images; Wilson's interval of 6 of 12 is 25.4 to 74.6 %.
FOLDS = FoldScore.of_shares([0.8, 0.9, 0.8, 0.9, 0.8], 48).metrics()
BY_FOLDS = "top-1 84% (95 % interval 64 to 94 %) by five folds of the 48 trai"


def _verdict(top1, count, **folds):
  found = {"eval/top1": top1, "eval/examples": count}
  return ClassificationTask().scores.verdict(found | FOLDS | folds)


@pytest.mark.parametrize(
  "top1, count, says",
  [
    (0.65, 12, "Believe the folds: each training image was judged by a head "),
    (0.83, 12, "and 12 held-out images are too few to judge by."),
    (0.8, 100, "Believe the held-out images: they judge the trained model"),
    (0.5, 12, "below the interval of the folds, which judge the head that "),
    (0.0, 12, "The two do not fit together: the folds judge the head that"),
    (0.3, 100, "The two do not fit together"),
  ],
)
def test_of_two_numbers_one_is_to_be_believed(top1, count, says):
  said = str(_verdict(top1, count))
  assert said.startswith(BY_FOLDS)
  assert f", and {top1:.0%} (" in said and f" on {count} held-out im" in said
  assert says in said and said.endswith(_verdict(top1, count).advice)


def test_folds_of_the_start_are_not_said_to_be_believed():
  start = FoldScore.of_shares([0.8, 0.9, 0.8, 0.9, 0.8], 48).metrics(
    of_start=True
  )
  advice = _verdict(0.75, 12, **start).advice
  assert "Believe" not in advice
  assert advice.startswith("The folds judge the head that the run started from")


def test_folds_of_an_older_run_do_not_say_how_many_they_are():
  folds = {"folds/top1": 0.76, "folds/low": 0.667, "folds/high": 0.84}
  found = {"eval/top1": 0.75, "eval/examples": 8}
  said = str(ClassificationTask().scores.verdict(found | folds))
  assert said.startswith(
    "top-1 76% (95 % interval 67 to 84 %) by five folds of the training images,"
    " and 75% (41 to 93 %) on 8 held-out images. Believe the folds"
  )


def test_a_row_without_folds_does_not_hide_those_of_one_before():
  rows = [{"step": 1}, {"step": 2, "eval/top1": 0.5} | FOLDS, {"step": 3}]
  assert scores.kept_folds(rows) == FOLDS
  assert scores.kept_folds(rows[::2]) == {}


@pytest.mark.parametrize("score", [None, math.nan])
def test_nothing_is_said_of_what_was_not_measured(score):
  verdict = _verdict(score, 12)
  assert (str(verdict), verdict.aside, verdict.advice) == ("", "", "")


@pytest.mark.parametrize(
  "task, count, scores_of, alike",
  [
    (ClassificationTask, 49, (0.9, 0.2), True),
    (ClassificationTask, 50, (0.9, 0.2), False),
    (ClassificationTask, 100, (0.86, 0.80), True),
    (ClassificationTask, 1000, (0.86, 0.80), False),
    (ClassificationTask, 1000, (math.nan, 0.80), False),
    (RegressionTask, 49, (0.9, 0.2), True),  # It has no interval.
    (RegressionTask, 50, (0.9, 0.8), False),
  ],
)
def test_two_models_are_alike_if_the_images_cannot_tell(
  task, count, scores_of, alike
):
  told = task().scores
  one, other = (
    told.verdict({told.key: score, "eval/examples": count})
    for score in scores_of
  )
  assert one.is_like(other) == other.is_like(one) == alike


@pytest.mark.parametrize("name", sorted(ALL_TASKS))
def test_few_images_are_too_few_for_every_task(name):
  told = choose.task_class(name)().scores
  found = {f"eval/{metric.key}": 0.9766 for metric in told.metrics}
  few = found | {"eval/examples": 2}
  enough = found | {"eval/examples": 50}
  assert "2 evaluated images" in str(told.verdict(few))
  assert "fewer than 50" in str(told.verdict(few))
  assert "fewer than 50" not in str(told.verdict(enough))
  # The headline of a task may take what is not among its metrics.
  with mock.patch.object(type(told), "result", lambda *_: "a result"):
    assert "to judge by)" in told.headline(few)
    assert "too few" not in told.headline(enough)


@pytest.mark.parametrize(
  "task, says",
  [
    (RegressionTask, "R2 is NaN: no target differs among these images, so "),
    (
      MultiLabelTask,
      "mAP is NaN: no label is known to be on some of these images",
    ),
    (ClassificationTask, ""),  # A NaN among the answers counts as wrong.
  ],
)
def test_a_score_that_is_nan_is_explained(task, says):
  told = task().scores
  found = {told.key: math.nan, "eval/examples": 99}
  said = str(told.verdict(found))
  assert said.startswith(says) and bool(said) == bool(says)
  assert str(told.verdict({"eval/examples": 99})) == ""


@pytest.mark.parametrize("task", [RegressionTask, DenseRegressionTask])
def test_an_r2_below_zero_is_explained(task):
  told = task.scores
  found = {"eval/mae": 2.0, "eval/examples": 99}
  below = str(told.verdict(found | {"eval/r2": -1.08}))
  assert below == (
    "R2 is below 0: the answers are further off than if all images got one "
    "answer, the mean of their numbers."
  )
  assert str(told.verdict(found | {"eval/r2": 0.1})) == ""
  few = found | {"eval/r2": -1.08, "eval/examples": 5}
  said = str(RegressionTask.scores.verdict(few))
  assert said.startswith("R2 -1.0800 on 5 evaluated images, which are too few")
  assert said.endswith(below)


def test_few_images_are_not_the_reason_where_they_were_trained_on():
  found = {"eval/top1": 0.96, "eval/examples": 45}
  known = "36 of these 45 images were trained on."
  said = str(ClassificationTask.scores.verdict(found, known))
  assert said.startswith(f"{known} top-1 96% (95 % interval 8")
  assert said.endswith(" on 45 evaluated images.")
  found = {"eval/r2": 0.5, "eval/examples": 5}
  assert str(RegressionTask.scores.verdict(found, known)) == known


def _folds(answers, labels):
  pairs = zip(
    np.array_split(answers, 5), np.array_split(labels, 5), strict=True
  )
  return [FoldAnswers(*pair) for pair in pairs]


@pytest.mark.parametrize("name", ["classification", "regression", "multilabel"])
def test_folds_are_judged_by_the_metric_of_the_task(name):
  rng = np.random.default_rng(0)
  if name == "classification":
    labels = rng.integers(3, size=48)
    answers = np.where(rng.random(48) < 0.8, labels, 0)
    score, shown = np.mean(answers == labels), "top-1 {:.0%}"
  elif name == "regression":
    labels = rng.normal(size=(48, 2))
    answers = labels + 0.5 * rng.normal(size=(48, 2))
    score = metrics.r2_score(labels, answers)
    shown = "R2 {:.2f}"
  else:
    labels = rng.integers(2, size=(48, 2)).astype(float)
    answers = labels + rng.normal(size=(48, 2))
    score = metrics.average_precision_score(labels, answers)
    shown = "mAP {:.0%}"
  task = choose.task_class(name)()
  found = task.score_folds(_folds(answers, labels), 48)
  assert found is not None
  assert found.score == pytest.approx(score, abs=0.01)
  assert found.interval.low < found.score < found.interval.high
  row = found.metrics() | {
    task.scores.key: found.score,
    "eval/examples": 12,
  }
  said = str(task.scores.verdict(row))
  between = (
    found.interval.as_numbers if name == "regression" else found.interval
  )
  assert said.startswith(
    f"{shown.format(found.score)} (95 % interval {between}) by five folds of "
    "the 48 training images, and "
  )
  assert said.endswith(
    " Believe the folds: each training image was judged by a head that had not "
    "seen it, and 12 held-out images are too few to judge by."
  )
  below = row | {task.scores.key: found.interval.low - 0.01}
  advice = task.scores.verdict(below).advice
  assert "Believe" not in advice and "training changed the head" in advice
  others = row | {"eval/examples": 480}
  assert "Believe the held-out images" in str(task.scores.verdict(others))
  assert task.score_folds([], 0) is None


def test_several_labels_without_a_mistake_are_as_sure_as_right_answers():
  """Each draw of perfect answers is perfect, which says nothing of others."""
  labels = np.resize([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], (96, 2))
  found = MultiLabelTask().score_folds(_folds(labels, labels), 96)
  assert found is not None and found.score == 1
  # Wilson's bounds for p = 1 are N / (N + z^2) and 1; N is 96 / (1 + 5 / 4).
  n = 96 / 2.25
  assert found.interval == pytest.approx((n / (n + 1.96**2), 1), abs=1e-4)
  assert str(found.interval) == "92 to 100 %"


def test_many_images_need_no_interval_of_drawn_answers():
  labels = np.random.default_rng(0).normal(size=(20, 1))
  task = RegressionTask()
  assert task.score_folds(_folds(labels, labels), 1_000) is not None
  assert task.score_folds(_folds(labels, labels), 1_001) is None
  assert task.score_folds(_folds(labels, 0 * labels), 20) is None  # No spread.
