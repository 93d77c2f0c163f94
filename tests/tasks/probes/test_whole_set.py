"""Probes on a whole training split, against NumPy on all its examples."""

import functools

import numpy as np
import pytest

from vit_jax.tasks.probes import linear_probe, whole_set

K, D = 3, 6
RNG = np.random.default_rng(0)
CENTRES = RNG.normal(size=(K, D))


def _examples(count, noise=1.0):
  labels = np.arange(count) % K
  y = CENTRES[labels] + noise * RNG.normal(size=(count, D)) + 5
  return y.astype(np.float32), labels


def _batches(y, labels, size=8):
  """Batches of 8 rows, of which the second is unreadable in each."""
  for first in range(0, len(y), size - 1):
    rows = np.arange(first, min(first + size - 1, len(y)))
    rows = np.insert(rows, 1, -1)
    mask = np.float32(rows >= 0)
    padding = size - len(rows)
    rest = {
      "label": np.pad(np.where(mask > 0, labels[rows], 0), (0, padding)),
      "mask": np.pad(mask, (0, padding)),
      "skipped": np.pad(rows < 0, (0, padding)),
    }
    yield np.pad(y[rows], ((0, padding), *[(0, 0)] * (y.ndim - 1))), rest


TRAIN, TEST = _examples(40), _examples(17)


@pytest.mark.parametrize("k", [1, 5, 40])
def test_the_nearest_neighbours_vote_by_their_similarity(k):
  (y, labels), (x, expected) = TRAIN, TEST
  unit = [a / np.linalg.norm(a, axis=1, keepdims=True) for a in (x, y)]
  similarity = np.float64(unit[0] @ unit[1].T)
  right = 0
  for row, label in zip(similarity, expected, strict=True):
    nearest = np.argsort(-row)[:k]
    votes = [
      sum(np.exp(row[i] / 0.07) for i in nearest if labels[i] == c)
      for c in range(K)
    ]
    right += int(np.argmax(votes)) == label
  score = whole_set.nearest_neighbours(_batches(*TRAIN), _batches(*TEST), K, k)
  assert score.top1 == pytest.approx(right / 17)
  assert 0.4 < score.top1 < 1
  assert (score.examples, score.train_examples) == (17, 40)
  assert score.skipped_images == 6 + 3


def test_representations_that_are_no_numbers_are_refused():
  y, labels = TRAIN
  y = np.where(np.arange(len(y))[:, None] == 7, np.nan, y)
  with pytest.raises(ValueError, match="the model represents images by NaN"):
    whole_set.nearest_neighbours(_batches(y, labels), _batches(*TEST), K, 5)


def test_more_neighbours_than_images_are_refused():
  message = "neighbours=41 is more than the 40 readable training images"
  with pytest.raises(ValueError, match=message):
    whole_set.nearest_neighbours(_batches(*TRAIN), _batches(*TEST), K, 41)


@pytest.mark.parametrize("count", [4, 40])
def test_moments_give_the_probe_of_the_examples(count):
  y, labels = (part[:count] for part in TRAIN)
  moments = linear_probe.Moments(D, K)
  for first in range(0, count, 3):
    part = slice(first, first + 3)
    moments.add(y[part], labels[part])
  found = moments.path().probe(2.0)
  expected = linear_probe.fit(y, labels, K, 2.0)
  for name in ("mean", "scale", "W"):
    a, b = getattr(found, name), getattr(expected, name)
    np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def _chosen(y, labels, folds):
  """(L2, sharpness) by refitting for every fold, and NumPy's cross-entropy."""
  ranks, Y = [], 2 * np.eye(K)[labels] - 1
  for l2 in linear_probe.L2S:
    scores = np.zeros_like(Y)
    for fold in range(5):
      held = folds == fold
      probe = linear_probe.fit(y[~held], labels[~held], K, l2)
      scores[held] = probe.scores(y[held])
    scores, wanted = scores[folds >= 0], Y[folds >= 0]
    for t in linear_probe.SHARPNESS:
      p = np.exp(t * scores) / np.exp(t * scores).sum(1, keepdims=True)
      ranks.append((-np.log(p[wanted > 0]).mean(), l2, t))
  return min(ranks)[1:]


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("most, every", [(5_000, 1), (20, 2)])
def test_five_folds_choose_the_linear_probe(views, most, every, monkeypatch):
  monkeypatch.setattr(whole_set, "MOST_HELD_OUT", most)
  y, labels = TRAIN
  if views == 2:
    y = np.stack([y, y + RNG.normal(size=y.shape).astype(np.float32)], axis=1)
  numbers = np.arange(40)
  folds = np.where(numbers % every == 0, numbers // every % 5, -1)
  found = whole_set.fit(
    whole_set.Readable(_batches(y, labels)), linear_probe.Classes(K), 40
  )
  assert found.judged == (folds >= 0).sum()
  flat = y.reshape(-1, D), labels.repeat(views), folds.repeat(views)
  assert (found.l2, found.sharpness) == _chosen(*flat)
  expected = linear_probe.fit(*flat[:2], K, found.l2)
  np.testing.assert_allclose(found.W, expected.W, rtol=1e-6, atol=1e-9)
  head = found.head()
  logits = TEST[0] @ head["head/kernel"] + head["head/bias"]
  scores = found.sharpness * expected.scores(TEST[0])
  np.testing.assert_allclose(logits, scores, rtol=1e-5, atol=1e-6)


def test_the_linear_probe_is_tested_on_all_images():
  (y, labels), (x, expected) = TRAIN, TEST
  score = whole_set.linear(_batches(*TRAIN), _batches(*TEST), K, 40)
  probe = linear_probe.fit(y, labels, K, score.l2)
  assert score.top1 == (probe.predict(x) == expected).mean()
  assert (score.examples, score.train_examples) == (17, 40)
  assert score.skipped_images == 6 + 3


def test_too_few_images_are_refused():
  few = [part[:5] for part in TRAIN]
  with pytest.raises(ValueError, match="5 readable training images are too f"):
    whole_set.linear(_batches(*few), _batches(*TEST), K, 5)
  with pytest.raises(ValueError, match="evaluation split has no readable im"):
    rest = {key: np.zeros(8) for key in ("label", "mask", "skipped")}
    nothing = [(np.zeros((8, D), np.float32), rest)]
    whole_set.linear(_batches(*TRAIN), nothing, K, 40)


def test_no_group_is_fitted_and_held_out():
  """Features that tell the group alone say nothing of other groups."""
  groups = np.repeat(np.arange(40), 3)
  labels = np.random.default_rng(0).permutation(np.arange(40) % 2)[groups]
  y = np.eye(40, dtype=np.float32)[groups]
  # Unreadable images have a place, too: each second one of a batch.
  parts = [groups[k : k + 7] for k in range(0, 120, 7)]
  of_all = np.concatenate([np.insert(part, 1, 0) for part in parts])

  def fitted(groups=None):
    readable = whole_set.Readable(_batches(y, labels))
    return whole_set.fit(readable, linear_probe.Classes(2), len(labels), groups)

  assert np.mean([fold.share for fold in fitted().folds]) > 0.99
  assert np.mean([fold.share for fold in fitted(of_all).folds]) < 0.7
  with pytest.raises(ValueError, match="data.group_column: the training imag"):
    fitted(0 * of_all)


@pytest.mark.parametrize("count", [2, 4, 6])
def test_a_head_starts_from_as_few_images_as_there_are(count):
  """Its folds have one or two images, and each is answered once."""
  labels = np.arange(count) % 2
  y = np.eye(2, 8, dtype=np.float32)[labels] + np.arange(8) / 100
  probe = whole_set.fit(
    whole_set.Readable(_batches(y, labels)), linear_probe.Classes(2), count
  )
  np.testing.assert_array_equal(probe.predict(y), labels)
  assert len(probe.folds) == min(count, 5)
  score = functools.partial(whole_set.linear, num_classes=2, train_examples=8)
  message = f"^{count} readable .* give 10 or more, or --probe=few_shot"
  with pytest.raises(ValueError, match=message):
    score(_batches(y, labels), _batches(y, labels))
  with pytest.raises(ValueError, match="^1 readable .* give 2 or more.$"):
    whole_set.fit(
      whole_set.Readable(_batches(y[:1], labels[:1])),
      linear_probe.Classes(2),
      1,
    )
