"""Linear probes of numbers, against ridge regression by NumPy's solver."""

import numpy as np
import pytest

from vit_jax.tasks.probes import linear_probe
from vit_jax.tasks.probes.number_probe import Numbers

D, K, FOLDS = 6, 2, 5


@pytest.fixture(params=[4 * D, 5], ids=["many", "few"])
def examples(request):
  rng = np.random.default_rng(request.param)
  x = rng.normal(size=(request.param, D)) * np.arange(1, D + 1) + 3
  y = x @ rng.normal(size=(D, K)) + rng.normal(size=(len(x), K)) + 50
  return x.astype(np.float32), y, np.arange(len(x)) % FOLDS


def kind_of(y):
  return Numbers(y.mean(axis=0).tolist(), y.std(axis=0).tolist())


def ridge(x, y, l2):
  """The weights of standardised features and a column of ones."""
  x = x.astype(np.float64)
  mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-6

  def standardize(x):
    return np.concatenate([(x - mean) / scale, np.ones((len(x), 1))], axis=1)

  Z = standardize(x)
  W = np.linalg.solve(Z.T @ Z + l2 * np.eye(D + 1), Z.T @ y)
  return lambda x: standardize(x) @ W


def fit(x, y, folds, parts=1):
  split = (np.array_split(each, parts) for each in (x, y, folds))
  return linear_probe.fit_any_labels(zip(*split, strict=True), kind_of(y))


@pytest.mark.parametrize("parts", [1, 3])
def test_it_is_the_ridge_that_answers_held_out_folds_best(examples, parts):
  x, y, folds = examples
  probe = fit(x, y, folds, parts)
  standardised = (y - y.mean(axis=0)) / y.std(axis=0)

  def error(l2):
    return sum(
      (
        (ridge(x[~out], standardised[~out], l2)(x[out]) - standardised[out])
        ** 2
      ).sum()
      for out in (folds == k for k in range(FOLDS))
    )

  errors = [error(l2) for l2 in linear_probe.L2S]
  assert error(probe.l2) == pytest.approx(min(errors), rel=1e-6)
  expected = ridge(x, standardised, probe.l2)(x)
  np.testing.assert_allclose(probe.scores(x), expected, atol=1e-6)
  for k, fold in enumerate(probe.folds):
    out = folds == k
    answers = ridge(x[~out], standardised[~out], probe.l2)(x[out])
    np.testing.assert_allclose(fold.answers, answers, atol=1e-6)
    np.testing.assert_allclose(fold.labels, standardised[out], atol=1e-12)
  head = probe.head()
  found = x @ head["head/kernel"] + head["head/bias"]
  np.testing.assert_allclose(found, expected, atol=1e-6)


def test_numbers_that_features_do_not_tell_get_the_mean():
  rng = np.random.default_rng(1)
  x, y = rng.normal(size=(12, D)).astype(np.float32), rng.normal(size=(12, 1))
  probe = fit(x, y, np.arange(12) % FOLDS)
  answers = probe.scores(x) * y.std() + y.mean()
  assert np.abs(answers - y.mean()).max() < np.abs(y - y.mean()).max()
