"""Linear probes of several labels, against weighted ridge and logistic fits."""

import numpy as np
import pytest
from scipy.optimize import minimize

from vit_jax.tasks.probes import linear_probe
from vit_jax.tasks.probes.label_probe import SeveralLabels, logits_of

D, K, FOLDS = 6, 4, 5


@pytest.fixture(params=["known", "some unknown"])
def unknown(request):
  return request.param == "some unknown"


@pytest.fixture(params=[8 * D, 6], ids=["many", "few"])
def examples(request, unknown):
  """The first label is common, the last rare, and two depend on features."""
  rng = np.random.default_rng(request.param)
  x = rng.normal(size=(request.param, D)) * np.arange(1, D + 1) + 3
  noise = rng.normal(size=(len(x), K))
  z = (x - 3) @ rng.normal(size=(D, K)) * [0.3, 0.3, 0, 0] + noise
  y = (z > [-1, 0, 0, 1.2]).astype(np.float32)
  y[0] = 1
  y[1] = 0
  if unknown:
    y[2::3, 1] = np.nan
    y[3::4, 2:] = np.nan
  return x.astype(np.float32), y, np.arange(len(x)) % FOLDS


def ridge(x, y, l2):
  """Each label by itself: examples of which it is unknown weigh nothing."""
  x = x.astype(np.float64)
  mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-6

  def standardize(x):
    return np.concatenate([(x - mean) / scale, np.ones((len(x), 1))], axis=1)

  Z, columns = standardize(x), []
  for target in y.T.astype(np.float64):
    weight = np.diag((~np.isnan(target)).astype(float))
    share = np.nan_to_num(np.nanmean(target)) if weight.any() else 0.0
    left = Z.T @ weight @ Z + l2 * np.eye(D + 1)
    w = np.linalg.solve(left, Z.T @ weight @ np.nan_to_num(target - share))
    columns.append((w, share))
  return lambda x: np.stack(
    [standardize(x) @ w + p for w, p in columns], axis=1
  )


def fit(x, y, folds, parts=1):
  split = (np.array_split(each, parts) for each in (x, y, folds))
  return linear_probe.fit_any_labels(zip(*split, strict=True), SeveralLabels())


@pytest.mark.parametrize("parts", [1, 3])
def test_it_is_the_ridge_of_known_labels_that_answers_folds_best(
  examples, parts
):
  x, y, folds = examples
  probe = fit(x, y, folds, parts)
  of = [folds == k for k in range(FOLDS)]

  def held_out(l2):
    scores = np.empty(y.shape)
    for out in of:
      scores[out] = ridge(x[~out], y[~out], l2)(x[out])
    return scores

  share = np.nanmean(y, axis=0)
  variance = np.where(share * (1 - share) > 0, share * (1 - share), np.inf)

  def error(l2):
    return np.nansum((held_out(l2) - y) ** 2 / variance)

  errors = [error(l2) for l2 in linear_probe.L2S]
  assert error(probe.l2) == pytest.approx(min(errors), rel=1e-5)
  known = ~np.isnan(y)
  a, b = logits_of(held_out(probe.l2), np.nan_to_num(y), known)
  expected = a * ridge(x, y, probe.l2)(x) + b
  np.testing.assert_allclose(probe.scores(x), expected, rtol=1e-4, atol=1e-4)
  head = probe.head()
  found = x @ head["head/kernel"] + head["head/bias"]
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_an_unknown_cell_says_nothing():
  """The label is as without those rows; the standardisation is the same."""
  rng = np.random.default_rng(3)
  x = rng.normal(size=(40, D)).astype(np.float32)
  x = np.concatenate([x, x])  # Equal means and deviations in both halves.
  y = (x[:, :1] > 0).astype(np.float32)
  unknown = y.copy()
  unknown[40:] = np.nan
  folds = np.arange(40) % FOLDS
  whole = fit(x, unknown, np.concatenate([folds, folds]))
  half = fit(x[:40], y[:40], folds)
  assert whole.l2 == half.l2
  # The folds are not standardised alike: 40 rows are out of 80, and of 40.
  np.testing.assert_allclose(whole.scores(x), half.scores(x), rtol=1e-4)


def test_logits_are_those_of_least_cross_entropy():
  """The factor is within a step of the grid of the one that is free."""
  rng = np.random.default_rng(0)
  p = rng.uniform(0.05, 0.95, size=(400, 1))
  y = (rng.uniform(size=p.shape) < p).astype(float)
  known = rng.uniform(size=p.shape) < 0.8
  a, b = logits_of(p, y, known)
  n, m = known.sum(), y[known].sum()
  t = np.where(y > 0, (m + 1) / (m + 2), 1 / (n - m + 2))[known]

  def loss(v):
    u = v[0] * p[known] + v[1]
    return (np.logaddexp(0, u) - t * u).sum()

  best = minimize(loss, [1.0, 0.0])
  assert abs(np.log2(a[0] / best.x[0])) <= 0.26
  assert loss([a[0], b[0]]) == pytest.approx(best.fun, rel=0.01)
  answered = 1 / (1 + np.exp(-(a * p + b)))
  assert answered[known].mean() == pytest.approx(t.mean(), abs=1e-6)


def test_labels_of_one_kind_and_unknown_ones_stay_finite_and_unsure():
  rng = np.random.default_rng(1)
  x = rng.normal(size=(20, D)).astype(np.float32)
  y = np.zeros((20, 3), np.float32)
  y[:, 1] = 1
  y[:, 2] = np.nan
  logits = fit(x, y, np.arange(20) % FOLDS).scores(x)
  shares = 1 / (1 + np.exp(-logits))
  np.testing.assert_allclose(shares.mean(0), [1 / 22, 21 / 22, 0.5], atol=1e-6)
  assert np.ptp(shares, axis=0).max() < 1e-6
