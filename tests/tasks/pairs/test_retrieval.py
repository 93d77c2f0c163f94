"""Ranks and recall, against loops over all pairs."""

from types import SimpleNamespace

import numpy as np
import pytest

from vit_jax.tasks.metrics import Gathered
from vit_jax.tasks.pairs import retrieval
from vit_jax.tasks.pairs.evaluation import PairsOutcome


def drawn(N, K, R=6, ids=None):
  rng = np.random.default_rng(N + K)
  u, v = (rng.normal(size=(n, R)).astype(np.float32) for n in (N, K))
  u, v = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (u, v))
  owner = np.concatenate([np.arange(N), rng.integers(N, size=K - N)])
  v += u[owner]  # So that some are found first.
  v /= np.linalg.norm(v, axis=1, keepdims=True)
  return u, v, owner, None if ids is None else rng.integers(ids, size=K)


def by_hand(u, v, owner, same):
  same = range(len(v)) if same is None else same
  vectors = dict(zip(same, v, strict=True))  # One for each different text.
  texts, images = [], []
  for i in range(len(u)):
    right = {same[k] for k in range(len(v)) if owner[k] == i}
    cosines = {t: float(u[i] @ vector) for t, vector in vectors.items()}
    best = max(cosines[t] for t in right)
    wrong = [c for t, c in cosines.items() if t not in right]
    texts.append(1 + sum(c >= best for c in wrong))
  for t in sorted(vectors):
    right = {owner[j] for j in range(len(v)) if same[j] == t}
    cosines = [float(vectors[t] @ u[i]) for i in range(len(u))]
    best = max(cosines[i] for i in right)
    wrong = [c for i, c in enumerate(cosines) if i not in right]
    images.append(1 + sum(c >= best for c in wrong))
  return np.array(texts), np.array(images)


@pytest.mark.parametrize("ids", [None, 9])
def test_ranks_and_scores_are_those_of_loops(ids, monkeypatch):
  monkeypatch.setattr(retrieval, "ROWS", 7)
  pairs = drawn(20, 45, ids=ids)
  if ids:  # Equal texts have equal vectors.
    u, v, owner, same = pairs
    first = {t: k for k, t in reversed([*enumerate(same)])}
    pairs = u, v[[first[t] for t in same]], owner, same
  found = retrieval.ranks(*pairs)
  texts, images = by_hand(*pairs)
  np.testing.assert_array_equal(found.texts, texts)
  np.testing.assert_array_equal(found.images, images)
  scores = found.scores
  assert len({*texts}) > 2 and len({*images}) > 2
  for k in (1, 5, 10):
    assert scores[f"text_recall{k}"] == np.mean([r <= k for r in texts])
    assert scores[f"image_recall{k}"] == np.mean([r <= k for r in images])
  assert scores["text_rank"] == np.median(texts)
  assert scores["image_rank"] == np.median(images)
  both = scores["text_recall1"] + scores["image_recall1"]
  assert scores["recall1"] == both / 2


def test_copies_of_a_caption_are_one_text():
  # Three images of one caption, and one of another, which lies nearer to all.
  u = np.array([[1, 0], [1, 0], [1, 0], [0, 1]], np.float32)
  v = np.array([[0, 1]] * 3 + [[1, 0]], np.float32)
  found = retrieval.ranks(u, v, np.arange(4), np.array([5, 5, 5, 2]))
  assert found.texts.tolist() == [2, 2, 2, 2]  # There are two texts.
  assert found.images.tolist() == [4, 2]  # Of the groups 2 and 5.


def test_chance_is_the_share_of_right_pairs():
  rows = dict(u=np.ones((4, 2)), v=np.ones((4, 1, 2)))
  rows |= dict(has=np.ones((4, 1), bool), group=np.array([[5], [5], [5], [2]]))
  outcome = PairsOutcome(None, Gathered(np.arange(4), rows, 0), 0.0, {})
  assert outcome.chance == 1 / 2  # One text of two; 3 / 4 and 1 / 4 of images.


def test_a_pair_is_shown_with_its_nearest_caption_and_the_nearest_of_all():
  # Image 0 has two captions, of which the second is nearer; the nearest of all
  # is the second of image 1.
  near = [[[0, 1], [0.6, 0.8]], [[0, 1], [1, 0]]]
  rows = dict(u=np.array([[1.0, 0], [1, 0]]), v=np.array(near))
  rows |= dict(has=np.ones((2, 2), bool), group=np.array([[4, 5], [4, 6]]))
  rows["ids"] = np.arange(4).reshape(2, 2, 1)
  files = SimpleNamespace(text=lambda ids: "abcd"[ids[0]])
  task = SimpleNamespace(
    pairs=SimpleNamespace(best_pairs=2),
    text_setup=SimpleNamespace(files=files),
  )
  outcome = PairsOutcome(task, Gathered(np.arange(2), rows, 0), 0.0, {})
  best, worst = outcome.telling()
  texts = ["d (rank 1, cosine 1.000)", "b (rank 2, cosine 0.600; nearest: d)"]
  assert [example.caption for example in best.examples] == texts
  assert [example.caption for example in worst.examples] == texts[::-1]
  # The ranks of texts are 2 and 1, and those of images 1, 2 and 2.
  (note,) = outcome.notes
  assert note == (
    "Found by an image, and by a text: texts 50.0%, 100.0%, 100.0% at 1, 5, "
    "10, median rank 1.5; images 33.3%, 100.0%, 100.0% at 1, 5, 10, median "
    "rank 2; recall@1 is the mean of both at 1."
  )


def test_a_model_that_gives_all_the_same_finds_nothing():
  u = np.ones((8, 2), np.float32)
  found = retrieval.ranks(u, u, np.arange(8))
  assert set(found.texts) == set(found.images) == {8}
