"""The closed form and the choice of L2, against scikit-learn."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from vit_jax.tasks.probes import linear_probe


def _shots(K, n, D, spread=1.0, seed=0):
  """Features (K, n, D) of unequal scales around one centre per class."""
  rng = np.random.default_rng(seed)
  centres = rng.normal(size=(K, 1, D))
  features = centres + spread * rng.normal(size=(K, n, D))
  return (features * rng.uniform(0.1, 10, D) + 3).astype(np.float32)


def _standardized(features, shots):
  """Z by its formula, with the statistics of the shots."""
  shots, features = np.float64(shots), np.float64(features)
  z = (features - shots.mean(0)) / (shots.std(0) + 1e-6)
  return np.concatenate([z, np.ones((len(z), 1))], axis=1)


def _sklearn(features, labels, K, l2):
  Z = _standardized(features, features)
  Y = 2 * np.eye(K)[labels] - 1
  return Ridge(alpha=l2, fit_intercept=False).fit(Z, Y)


@pytest.mark.parametrize("l2", [2.0**-10, 1.0, 2.0**10, 2.0**20])
@pytest.mark.parametrize("D", [8, 39, 40, 100])
def test_agrees_with_sklearn(D, l2):
  K, n = 5, 8  # N = 40 examples: D + 1 is below, at and above it.
  features = _shots(K, n, D).reshape(-1, D)
  labels = np.repeat(np.arange(K), n)
  probe = linear_probe.fit(features, labels, K, l2)
  ridge = _sklearn(features, labels, K, l2)
  np.testing.assert_allclose(probe.W, ridge.coef_.T, rtol=1e-4, atol=1e-9)
  others = _shots(K, 3, D, seed=1).reshape(-1, D)
  expected = ridge.predict(_standardized(others, features))
  np.testing.assert_allclose(
    probe.scores(others), expected, rtol=1e-4, atol=1e-7
  )
  np.testing.assert_array_equal(probe.predict(others), expected.argmax(1))
  head = probe.head()  # Its logits are the scores.
  logits = others @ head["head/kernel"] + head["head/bias"]
  np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-6)


def test_standardization_uses_the_statistics_of_the_shots_alone():
  shots, others = _shots(3, 4, 6).reshape(-1, 6), _shots(3, 2, 6)[:, 0]
  x = shots.astype(np.float64)
  mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-6
  found = linear_probe.standardize(others, mean, scale)
  np.testing.assert_allclose(found, _standardized(others, shots), rtol=1e-12)
  own = linear_probe.standardize(shots, mean, scale)
  np.testing.assert_allclose(own[:, :-1].mean(0), 0, atol=1e-9)
  np.testing.assert_allclose(own[:, :-1].std(0), 1, rtol=1e-4)
  assert (own[:, -1] == 1).all()


def test_a_feature_that_never_changes_does_nothing():
  features = _shots(3, 4, 6)
  with_constant = np.concatenate(
    [features, np.full((3, 4, 1), 0.1, np.float32)], axis=2
  )
  probe = linear_probe.fit_shots(with_constant)
  without = linear_probe.fit_shots(features)
  others = _shots(3, 5, 6, seed=1).reshape(-1, 6)
  moved = np.concatenate([others, np.full((15, 1), 0.9)], axis=1)
  assert probe.l2 == without.l2
  np.testing.assert_allclose(
    probe.scores(moved), without.scores(others), rtol=1e-6
  )


def _brute_force(features, turns, l2s):
  """The best L2, by refitting scikit-learn for every held-out shot."""
  K, n, D = features.shape
  ranks = []
  for l2 in l2s:
    right, error = 0, 0.0
    for turn in range(turns):
      rest = features[:, [shot for shot in range(n) if shot != turn]]
      rest = rest.reshape(-1, D)
      ridge = _sklearn(rest, np.repeat(np.arange(K), n - 1), K, l2)
      scores = ridge.predict(_standardized(features[:, turn], rest))
      right += (scores.argmax(1) == np.arange(K)).sum()
      error += ((scores - (2 * np.eye(K) - 1)) ** 2).sum()
    ranks.append((-right, error))
  return l2s[ranks.index(min(ranks))]


@pytest.mark.parametrize(
  "n, D, spread",
  [
    (2, 30, 1.0),
    (4, 6, 1.0),
    (4, 60, 3.0),
    (5, 12, 2.0),
    # Most L2s get all shots right, so that the squared error decides.
    (5, 12, 0.1),
  ],
)
def test_the_chosen_l2_agrees_with_brute_force(n, D, spread):
  features = _shots(6, n, D, spread)
  found = linear_probe.choose_l2(features)
  assert found == _brute_force(features, n, linear_probe.L2S)
  if spread > 0.1:
    assert linear_probe.L2S[0] < found


def test_with_many_classes_some_turns_are_enough(monkeypatch):
  features = _shots(6, 5, 12, 2.0)
  monkeypatch.setattr(linear_probe, "MOST_HELD_OUT", 11)  # Two turns of six.
  monkeypatch.setattr(linear_probe, "MOST_SCORES", 24)  # Blocks of 4 rows.
  monkeypatch.setattr(linear_probe, "L2S", linear_probe.L2S[::3])
  found = linear_probe.choose_l2(features)
  assert found == _brute_force(features, 2, linear_probe.L2S)


def test_one_factorisation_serves_every_l2(monkeypatch):
  sizes = []
  eigh = np.linalg.eigh

  def counted(gram):
    sizes.append(len(gram))
    return eigh(gram)

  monkeypatch.setattr(np.linalg, "eigh", counted)
  linear_probe.fit_shots(_shots(4, 5, 30))
  assert sizes == [16] * 5 + [20]
  sizes.clear()
  linear_probe.fit_shots(_shots(4, 5, 7))
  assert sizes == [8] * 6


def test_one_shot_has_nothing_to_hold_out():
  features = _shots(4, 1, 30, spread=0.1)
  probe = linear_probe.fit_shots(features)
  assert probe.l2 == 30
  np.testing.assert_array_equal(probe.predict(features[:, 0]), np.arange(4))


def test_parts_of_few_examples_are_fitted_as_folds(monkeypatch):
  """With more features than examples, no matrix of all features is made."""
  rng = np.random.default_rng(0)
  features = rng.normal(size=(20, 24)).astype(np.float32)
  labels, folds = np.arange(20) % 2, np.arange(20) % 5
  whole = linear_probe.fit_in_folds(features, labels, folds, 2)

  def in_parts(columns, folds):
    cut = slice(None, 12), slice(12, None)
    parts = [(features[c, :columns], labels[c], folds[c]) for c in cut]
    return linear_probe.fit_in_parts(iter(parts), 2)

  few = in_parts(8, folds)  # Fewer features than examples.
  same = linear_probe.fit_in_folds(features[:, :8], labels, folds, 2)
  np.testing.assert_allclose(few.W, same.W, rtol=1e-6, atol=1e-9)
  assert (few.l2, few.sharpness) == (same.l2, same.sharpness)
  some = in_parts(24, np.where(folds == 4, -1, folds))  # They are never out.
  assert len(some.folds) == 4
  monkeypatch.setattr(linear_probe, "Moments", None)
  probe = in_parts(24, folds)
  np.testing.assert_array_equal(probe.W, whole.W)
  for fold, expected in zip(probe.folds, whole.folds, strict=True):
    np.testing.assert_array_equal(fold.answers, expected.answers)
    np.testing.assert_array_equal(fold.labels, expected.labels)
