"""Likely label errors, against the definition, and against cleanlab."""

import pathlib

import numpy as np
import pytest

from vit_jax.tasks.probes import label_errors
from vit_jax.tasks.probes.linear_probe import L2S, SHARPNESS


def noisy(seed, N=300, K=4, share=0.15):
  """Given labels, and probabilities around the true ones."""
  rng = np.random.default_rng(seed)
  true = rng.integers(0, K, N)
  wrong = rng.random(N) < share
  labels = np.where(wrong, rng.integers(0, K, N), true)
  z = np.exp(rng.normal(size=(N, K)) + 2.5 * np.eye(K)[true])
  return labels, (z / z.sum(1, keepdims=True)).astype(np.float32)


def by_definition(labels, p):
  """The joint, and (margin, image, likely class) of each that is listed."""
  N, K = p.shape
  means = [
    np.mean([p[i, k] for i in range(N) if labels[i] == k]) for k in range(K)
  ]
  joint = np.zeros((K, K), int)
  listed = []
  for i in range(N):
    reached = [k for k in range(K) if p[i, k] >= means[k]]
    if not reached:
      continue
    likely = reached[0] if len(reached) == 1 else int(p[i].argmax())
    joint[labels[i], likely] += 1
    margin = p[i, labels[i]] - max(np.delete(p[i], labels[i]))
    if likely != labels[i] and margin < 0:
      listed.append((margin, i, likely))
  return joint, sorted(listed)


@pytest.mark.parametrize("seed", range(3))
def test_the_definition(seed):
  labels, p = noisy(seed)
  joint, listed = by_definition(labels, p)
  counted = label_errors.confident_classes(labels, p)
  found = np.zeros_like(joint)
  np.add.at(found, (labels[counted >= 0], counted[counted >= 0]), 1)
  np.testing.assert_array_equal(found, joint)
  ranked = label_errors.label_errors(labels, p)
  assert sorted(ranked.index) == [*range(300)]
  assert (np.diff(ranked.margin) >= 0).all()
  errors = ranked.only_listed()
  assert len(listed) > 10
  assert errors.index.tolist() == [i for _, i, _ in listed]
  assert errors.likely.tolist() == [k for _, _, k in listed]
  np.testing.assert_allclose(errors.margin, [m for m, _, _ in listed], 1e-5)


def test_an_image_that_reaches_no_threshold_or_whose_class_is_best_stays():
  # The thresholds are 0.5, 0.4 and 0.6. The second image reaches that of class
  # 1 alone, but its own class is more probable; the fifth reaches none.
  p = [[0.52, 0.2, 0.28], [0.48, 0.42, 0.1], [0.3, 0.4, 0.3], [0.1, 0.3, 0.6]]
  p += [[0.25, 0.38, 0.37], [0.05, 0.42, 0.53], [0.1, 0.3, 0.6]]
  labels = np.array([0, 0, 1, 2, 1, 1, 2])
  counted = label_errors.confident_classes(labels, np.array(p))
  assert counted.tolist() == [0, 1, 1, 2, label_errors.NONE, 1, 2]
  many = np.tile(labels, 50), np.tile(p, (50, 1))
  assert not label_errors.label_errors(*many).listed.any()
  # Of few images, the last but one is listed: its best class is another.
  few = label_errors.label_errors(labels, np.array(p))
  assert few.only_listed().index.tolist() == [5] and few.index[0] == 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_wrong_labels_among_few_photographs_come_first(seed):
  """Ten of sixty labels are swapped; photographs.md names the features.

  Of the first twelve images, two would be wrong by chance.
  """
  with np.load(pathlib.Path(__file__).with_name("photographs.npz")) as arrays:
    features = arrays["features"].astype(np.float32)
    labels = arrays["labels"].astype(int)
  rng = np.random.default_rng(seed)
  swapped = rng.permutation(60)[:10]
  labels[swapped] = (labels[swapped] + rng.integers(1, 3, 10)) % 3
  p = label_errors.out_of_fold(features, labels, 3)
  ranked = label_errors.label_errors(labels, p)
  assert len({*ranked.index[:12]} & {*swapped}) >= 7
  assert len({*ranked.only_listed().index} & {*swapped}) >= 8


def ridge(x, labels, K, l2):
  """Scores by the problem of `linear_probe`, solved anew."""
  mean, scale = x.mean(0), x.std(0) + 1e-6

  def standardised(some):
    return np.c_[(some - mean) / scale, np.ones(len(some))]

  Z = standardised(x)
  W = np.linalg.solve(
    Z.T @ Z + l2 * np.eye(Z.shape[1]), Z.T @ (2 * np.eye(K)[labels] - 1)
  )
  return lambda some: standardised(some) @ W


def log_softmax(z):
  return z - np.log(np.exp(z).sum(1, keepdims=True))


def test_answers_are_out_of_fold():
  K = 3
  labels, _ = noisy(0, N=45, K=K)
  x = np.random.default_rng(1).normal(size=(45, 5)) + np.eye(5)[labels]
  found = label_errors.out_of_fold(
    x.astype(np.float32), labels, K, seed=4, draws=1
  )
  fold = label_errors.stratified_folds(labels, 5, 4)
  for k in range(5):
    train, y = x[fold != k], labels[fold != k]
    inner = label_errors.stratified_folds(y, 5, 0)
    losses = {}
    for l2 in L2S:
      scores = np.zeros((len(y), K))
      for j in range(5):
        fitted = ridge(train[inner != j], y[inner != j], K, l2)
        scores[inner == j] = fitted(train[inner == j])
      for t in SHARPNESS:
        own = log_softmax(t * scores)[np.arange(len(y)), y]
        losses[l2, t] = -own.sum()
    l2, t = min(losses, key=losses.get)
    expected = np.exp(log_softmax(t * ridge(train, y, K, l2)(x[fold == k])))
    np.testing.assert_allclose(found[fold == k], expected, atol=2e-5)


def test_folds_share_out_every_class():
  labels = np.repeat([0, 1, 2], [12, 31, 2])
  fold = label_errors.stratified_folds(labels, 5, seed=0)
  for k, n in enumerate((12, 31, 2)):
    counts = np.bincount(fold[labels == k], minlength=5)
    assert counts.sum() == n and np.ptp(counts) <= 1
  assert not np.array_equal(
    fold, label_errors.stratified_folds(labels, 5, seed=1)
  )


@pytest.mark.slow
def test_random_labels_are_not_confirmed():
  """A probe of more features than images fits any label it has seen."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(60, 70)).astype(np.float32)
  labels = rng.integers(0, 2, 60)
  p = label_errors.out_of_fold(x, labels, 2)
  assert abs((p.argmax(1) == labels).mean() - 0.5) < 0.2


@pytest.mark.parametrize(
  ("labels", "says"),
  [
    ([0, 1] * 4, "8 readable images are too few .* give 10 or more"),
    ([0] * 11 + [1], "class 'b' has 1 readable image, and .* two or more"),
    ([0] * 11, "class 'b' has 0 readable images"),
  ],
)
def test_too_few_images(labels, says):
  with pytest.raises(ValueError, match=says):
    label_errors.check_enough(np.array(labels), ["a", "b"])


def test_features_that_are_not_finite():
  x = np.zeros((10, 2), np.float32)
  x[3] = np.nan
  with pytest.raises(ValueError, match="the model represents images by NaN"):
    label_errors.out_of_fold(x, np.array([0, 1] * 5), 2)


@pytest.mark.slow
@pytest.mark.parametrize("K", [2, 3, 10])
def test_cleanlab_lists_the_same_images(K):
  cleanlab = pytest.importorskip("cleanlab.filter", reason="needs cleanlab")
  for seed in range(5):
    labels, p = noisy(seed, N=1_000, K=K)
    expected = cleanlab.find_label_issues(
      labels,
      p,
      filter_by="confident_learning",
      return_indices_ranked_by="normalized_margin",
      n_jobs=1,
    )
    errors = label_errors.label_errors(labels, p)
    assert errors.index.tolist() == expected.tolist()
    assert len(expected) > 30


@pytest.mark.slow
def test_images_of_a_group_share_a_fold():
  """A probe that knows a group by other images of it would answer rightly."""
  groups = np.repeat(np.arange(20), 5)
  labels = np.random.default_rng(3).permutation(np.repeat([0, 1], 10))[groups]
  features = np.eye(20, dtype=np.float32)[groups]
  known = label_errors.out_of_fold(features, labels, 2)
  assert (known.argmax(axis=1) == labels).all()
  unknown = label_errors.out_of_fold(features, labels, 2, groups=groups)
  assert (unknown.argmax(axis=1) == labels).mean() < 0.6
  fold = label_errors.stratified_folds(labels, 5, 1, groups)
  assert all(len({*fold[groups == g]}) == 1 for g in range(20))
  assert [*np.bincount(fold)] == [20] * 5
  with pytest.raises(ValueError, match="data.group_column: all images are of "):
    label_errors.out_of_fold(features, labels, 2, groups=0 * groups)
