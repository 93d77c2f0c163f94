"""Counts gathered in batches, against NumPy on the whole split at once."""

import functools
import operator

import numpy as np
import pytest
from sklearn.metrics import (
  balanced_accuracy_score,
  confusion_matrix,
  f1_score,
  precision_recall_fscore_support,
)

from vit_jax.tasks.classification.confusion import BINS, ConfusionMatrix
from vit_jax.tasks.classification.eval_step import Predictions

N, K = 230, 6


@pytest.fixture(scope="module")
def answers():
  """Random answers, the last ten of which are not counted."""
  rng = np.random.default_rng(0)
  label = rng.integers(0, K, N)
  answer = np.where(rng.random(N) < 0.6, label, rng.integers(0, K, N))
  probability = np.float32(rng.uniform(1 / K, 1, N).round(3))
  right = label == answer
  loss = np.where(right, -np.log(probability), rng.uniform(0.7, 5, N))
  return Predictions(
    label, answer, probability, np.float32(loss), np.arange(N) < N - 10
  )


def rows(answers, chosen):
  return Predictions(
    *(
      getattr(answers, name)[chosen]
      for name in ("label", "answer", "probability", "loss", "counted")
    )
  )


@pytest.fixture(scope="module")
def tally(answers):
  starts = range(0, N, 32)
  parts = (rows(answers, slice(start, start + 32)) for start in starts)
  return functools.reduce(operator.add, map(ConfusionMatrix.of, parts, starts))


def test_confusion_is_scikit_learns(tally, answers):
  label, answer = answers.label[:-10], answers.answer[:-10]
  expected = confusion_matrix(label, answer, labels=range(K))
  np.testing.assert_array_equal(tally.matrix(range(K)), expected)
  some = [4, 0, 2]
  np.testing.assert_array_equal(
    tally.matrix(some), expected[np.ix_(some, some)]
  )
  np.fill_diagonal(expected, 0)
  commonest = tally.most_confused(3)
  assert [n for *_, n in commonest] == sorted(expected.ravel())[:-4:-1]
  assert all(expected[label, answer] == n for label, answer, n in commonest)


def _assert_scores(tally, expected):
  found = [
    (score.precision, score.recall, score.f1, score.examples)
    for score in tally.class_scores().values()
  ]
  np.testing.assert_allclose(np.transpose(found), expected)


def test_scores_of_classes_are_scikit_learns(tally, answers):
  label, answer = answers.label[:-10], answers.answer[:-10]
  expected = precision_recall_fscore_support(label, answer)
  _assert_scores(tally, expected)
  assert tally.macro_f1() == pytest.approx(
    f1_score(label, answer, average="macro")
  )
  expected = balanced_accuracy_score(label, answer)
  assert tally.balanced_accuracy() == pytest.approx(expected)


def test_classes_that_are_only_answered_or_only_occur_score_0():
  label, answer = np.array([0, 0, 1, 3]), np.array([0, 2, 2, 3])
  every = label, answer, np.ones(4), np.ones(4), np.array([1, 1, 1, 1])
  tally = ConfusionMatrix.of(Predictions(*every))
  expected = precision_recall_fscore_support(label, answer, zero_division=0)
  _assert_scores(tally, expected)
  none = Predictions(*(x[:0] for x in every))
  assert np.isnan(ConfusionMatrix.of(none).macro_f1())
  assert np.isnan(ConfusionMatrix.of(none).balanced_accuracy())
  assert tally.balanced_accuracy() == pytest.approx((1 / 2 + 0 + 1) / 3)


def test_calibration_by_a_loop_over_the_bins(tally, answers):
  p = np.float64(answers.probability[:-10])
  right = (answers.label == answers.answer)[:-10]
  expected, error = [], 0.0
  for b in range(BINS):
    inside = (b / BINS < p) & (p <= (b + 1) / BINS)
    if inside.any():
      row = inside.sum(), right[inside].mean(), p[inside].mean()
      expected.append(row)
      error += row[0] / len(p) * abs(row[1] - row[2])
  np.testing.assert_allclose(tally.calibration(), expected)
  assert tally.calibration_error() == pytest.approx(error)


def test_the_most_telling_examples_are_kept(tally, answers):
  right = answers.label == answers.answer
  index = np.arange(N - 10)
  wrong = index[~right[:-10]]
  by_loss = wrong[np.argsort(answers.loss[wrong])]
  sure = index[right[:-10]]
  sure = sure[np.argsort(-answers.probability[sure], kind="stable")]
  for kind, expected in {
    "surest": sure[:6],
    "nearest": by_loss[:6],
    "worst": by_loss[:-7:-1],
  }.items():
    kept = tally.kinds[kind]
    assert [one.index for one in kept] == expected.tolist()
    for one in kept:
      assert one.label == answers.label[one.index]
      assert one.answer == answers.answer[one.index]
      assert one.loss == pytest.approx(answers.loss[one.index])
      assert one.probability == pytest.approx(answers.probability[one.index])


def test_a_model_that_answers_nan_is_not_right(answers):
  broken = rows(answers, np.arange(20))  # A copy.
  broken.probability[:5] = np.nan
  tally = ConfusionMatrix.of(broken)
  assert tally.unanswered == 5
  assert sum(tally.pairs.values()) == 15
  assert np.isfinite(tally.calibration_error())


def test_a_wide_head_shows_the_classes_that_occur(tally):
  assert tally.classes_to_draw(K, most=K) == [*range(K)]
  assert tally.classes_to_draw(1000, most=K) == [*range(K)]  # Only these occur.
  assert tally.classes_to_draw(K, most=K - 1) == []


def test_nothing_answered_has_no_calibration(answers):
  nothing = ConfusionMatrix.of(rows(answers, slice(0, 0)))
  assert np.isnan(nothing.calibration_error())


def test_many_parts_are_few_counts(answers):
  """Adding to a count of all pairs would copy it for each part."""
  one = [rows(answers, slice(k, k + 1)) for k in range(N - 10)]
  tally = functools.reduce(operator.add, map(ConfusionMatrix.of, one))
  assert len(tally.pieces) <= 1 + np.log2(K * K)
  assert sum(tally.pairs.values()) == N - 10
