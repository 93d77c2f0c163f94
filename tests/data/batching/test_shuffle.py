"""Epoch orders: permutations, uniform, and for large data sets Grain's."""

import numpy as np
import pytest
from grain.experimental import index_shuffle

from tests.data.numbered import Numbered, train
from vit_jax.data.batching import batches as order
from vit_jax.data.batching.batches import example_indices
from vit_jax.data.batching.shuffle import shuffle_indices


@pytest.fixture
def unlisted(monkeypatch):
  """Orders are computed as for data sets too large to list them."""
  monkeypatch.setattr(order, "MAX_LISTED", 0)


def assert_every_epoch_has_every_example_once_in_a_new_order(count, batch_size):
  def labels(num_batches, seed):
    batches = train(
      Numbered(count), num_batches, batch_size=batch_size, seed=seed
    )
    return np.concatenate([batch["label"] for batch in batches])

  epochs = labels(20, seed=3).reshape(6, count)
  assert (np.sort(epochs, axis=1) == np.arange(count)).all()
  assert len({tuple(epoch) for epoch in epochs}) == 6
  second = labels(4, seed=4)[:count]
  assert tuple(second) not in {tuple(epoch) for epoch in epochs}


def test_every_epoch_has_every_example_once_in_a_new_order():
  # 20 examples in batches of 6: epochs end inside batches.
  assert_every_epoch_has_every_example_once_in_a_new_order(20, 6)


@pytest.mark.slow
def test_every_epoch_of_a_large_set_has_every_example_once(unlisted):
  assert_every_epoch_has_every_example_once_in_a_new_order(1000, 300)


def assert_parts_do_not_depend_on_where_they_start(n):
  whole = example_indices(range(3 * n), n, seed=1)
  assert len(whole) == 3 * n
  for start, stop in [(0, 0), (0, n), (3, 5), (n - 1, n + 1), (5, 2 * n + 4)]:
    part = example_indices(range(start, stop), n, seed=1)
    assert part == whole[start:stop]
  late = n * 10**30  # Positions may be larger than any integer of NumPy's.
  epoch = example_indices(range(late, late + n), n, seed=1)
  assert sorted(epoch) == list(range(n))


def test_a_part_of_an_order_does_not_depend_on_where_it_starts():
  assert_parts_do_not_depend_on_where_they_start(7)


def test_a_part_of_a_large_order_does_not_depend_on_where_it_starts(unlisted):
  assert_parts_do_not_depend_on_where_they_start(3000)


def test_the_order_is_uniform():
  counts = np.zeros((5, 5))
  order = example_indices(range(5 * 2000), 5, seed=0)
  for epoch in np.reshape(order, (2000, 5)):
    counts[np.arange(5), epoch] += 1
  # 400 expected in each cell, with a standard deviation of 18.
  assert np.abs(counts - 400).max() < 90


@pytest.mark.slow
def test_the_order_of_large_sets_is_uniform():
  count = order.MAX_LISTED + 1
  found = np.array(
    [
      example_indices(range(epoch * count, epoch * count + 4), count, seed=0)
      for epoch in range(2000)
    ]
  )
  assert found.max() < count
  quarters = np.stack(
    [(found * 4 // count == quarter).sum(0) for quarter in range(4)]
  )
  assert np.abs(quarters - 500).max() < 100  # 5 standard deviations.
  neighbours = np.corrcoef(found.T)[np.triu_indices(4, 1)]
  assert np.abs(neighbours).max() < 0.12


# Around powers of two, whose even ones are block sizes, and in between.
SIZES = [
  *(2**k + i for k in (15, 16, 17, 21, 22, 24, 31, 32, 40) for i in (-1, 0, 1)),
  *(46_204, 3_000_000, 14_197_121, 302_982_257, 10**12),
]


@pytest.mark.parametrize("max_index", SIZES)
def test_large_sets_have_the_order_of_grain(max_index):
  rng = np.random.default_rng(max_index)
  drawn = rng.integers(0, max_index, 200, dtype=np.uint64, endpoint=True)
  indices = np.append(drawn, np.array([0, max_index], np.uint64))
  for seed in (0, 1, 2**31, 2**32 - 1, *rng.integers(0, 2**32, 4).tolist()):
    expected = [
      index_shuffle(index, max_index=max_index, seed=seed, rounds=8)
      for index in indices.tolist()
    ]
    assert shuffle_indices(indices, max_index, seed).tolist() == expected


def test_the_order_of_large_sets_stays():
  """Values of Grain 0.2.18, should a later one change its own."""
  known = {2**32 - 1: 3_549_965_527, 2**40: 855_452_685_187, 2**16 - 1: 23_899}
  for max_index, expected in known.items():
    (found,) = shuffle_indices(np.array([1], np.uint64), max_index, seed=7)
    assert found == expected


def test_large_sets_are_permuted():
  count = 100_000
  shuffled = shuffle_indices(np.arange(count, dtype=np.uint64), count - 1, 3)
  np.testing.assert_array_equal(np.sort(shuffled), np.arange(count))
