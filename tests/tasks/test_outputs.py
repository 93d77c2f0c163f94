"""Scores of several labels and of numbers, against loops and scikit-learn."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest
from vit_jax.evaluation.answer_list import write_outputs
from vit_jax.evaluation.targets import (
  Outputs,
  TargetEvaluator,
  average_precision,
  best_threshold,
  f1,
)

from vit_jax.training.objective import Numbers
from vit_jax.training.settings import LossSettings


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


def test_numbers_of_which_one_is_nan_are_infinitely_wrong():
  label = np.array([[1.0, 5], [2, 7], [4, 6]])
  output = np.array([[1.0, 5], [3, np.nan], [4, 6]])
  found = Outputs(np.arange(3), label, output, np.zeros(3), 0)
  evaluator = SimpleNamespace(_objective=Numbers(2, LossSettings(), (), ()))
  scores = TargetEvaluator.scores(evaluator, found)
  np.testing.assert_allclose(scores["mae"], [1 / 3, np.inf])
  deviation = ((label[:, 0] - label[:, 0].mean()) ** 2).sum()
  np.testing.assert_allclose(scores["r2"], [1 - 1 / deviation, -np.inf])


class Files:
  def __init__(self, *names):
    self.class_names = names

  def ids(self, indices):
    return [f"{k}.png" for k in indices]


def test_answers_are_written_with_the_highest_loss_first(tmp_path):
  found = Outputs(
    index=np.array([0, 2]),
    label=np.array([[1.0, 0], [1, 1]]),
    output=np.array([[0.75, 0.25], [0.25, 0.5]]),
    loss=np.array([0.5, 2.0]),
    skipped=1,
  )
  write_outputs(tmp_path / "out.csv", Files("a", "b"), found, 0.5)
  with (tmp_path / "out.csv").open() as file:
    rows = list(csv.reader(file))
  assert rows == [
    ["file", "labels", "answers", "a", "b", "loss"],
    ["2.png", "a;b", "b", "0.25", "0.5", "2"],
    ["0.png", "a", "a", "0.75", "0.25", "0.5"],
  ]
  write_outputs(tmp_path / "out.csv", Files("x", "y"), found)
  with (tmp_path / "out.csv").open() as file:
    rows = list(csv.reader(file))
  assert rows[:2] == [
    ["file", "x", "y", "x_predicted", "y_predicted", "loss"],
    ["2.png", "1", "1", "0.25", "0.5", "2"],
  ]
