"""Grain's data sets of our images have our loader's bits, in its order."""

import functools
import itertools
import sys

import grain
import numpy as np
import pytest
from absl import flags

from tests.data.numbered import Numbered, assert_same, evaluate, noisy, train
from vit_jax import data

# 23 examples in batches of 6: the fourth batch ends an epoch and begins one.
SOURCE = Numbered(23, damaged=(5,))
make = functools.partial(data.as_grain, SOURCE, noisy, on_unreadable="skip")


def _stacked(elements):
  return {
    key: np.stack([element[key] for element in elements]) for key in elements[0]
  }


def _ours(count, **arguments):
  return train(SOURCE, count, on_unreadable="skip", **arguments)


def test_batches_of_grain_are_ours_across_the_ends_of_epochs():
  batches = make(seed=3).batch(6).to_iter_dataset()
  found = list(itertools.islice(batches, 9))
  assert_same(found, _ours(9))
  assert sum(batch["skipped"].sum() for batch in found) == 2


def test_epochs_end_where_they_should():
  elements = list(make(seed=3, epochs=2))
  assert len(elements) == 2 * 23
  for epoch in (elements[:23], elements[23:]):
    shown = [int(e["label"]) for e in epoch if not e["skipped"]]
    assert sorted(shown) == [n for n in range(23) if n != 5]
  assert [e["label"] for e in elements[:23]] != [
    e["label"] for e in elements[23:]
  ]


def test_shards_of_grain_share_the_same_images():
  """Host i of 3 has rows i, i + 3 and so on of each of our batches."""
  shards = [
    itertools.islice(make(seed=3)[i::3].batch(2).to_iter_dataset(), 6)
    for i in range(3)
  ]
  for ours, *parts in zip(_ours(6), *shards, strict=True):
    for i, part in enumerate(parts):
      rows = {key: array[i::3] for key, array in ours.items()}
      assert_same([part], [rows])


def test_a_shuffle_of_grain_moves_elements_and_leaves_their_bits():
  ordered = list(make(seed=3, epochs=1))
  moved = list(make(seed=3, epochs=1).shuffle(seed=1))
  place = {(int(e["label"]), e["image"].tobytes()) for e in ordered}
  assert {(int(e["label"]), e["image"].tobytes()) for e in moved} == place
  assert [e["label"] for e in moved] != [e["label"] for e in ordered]


@pytest.fixture
def parsed():
  """Grain's processes read flags, which a program has parsed."""
  flags.FLAGS.mark_as_parsed()
  yield
  flags.FLAGS.unparse_flags()


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_restored_iterator_goes_on_with_the_batch_it_missed(
  num_workers, parsed
):
  batches = make(seed=3).batch(6).to_iter_dataset()
  options = grain.MultiprocessingOptions(num_workers=num_workers)
  batches = batches.mp_prefetch(options)
  iterator = iter(batches)
  for _ in range(4):
    next(iterator)
  state = iterator.get_state()
  next(iterator)
  iterator.close()
  restored = iter(batches)
  restored.set_state(state)
  assert_same(list(itertools.islice(restored, 4)), _ours(8)[4:])
  restored.close()


def test_without_a_seed_it_is_the_evaluation_split():
  cut = data.make_eval_transform(4)
  elements = list(data.as_grain(Numbered(6), cut, seed=None, epochs=1))
  with evaluate(Numbered(6), 6) as passes:
    assert_same([_stacked(elements)], list(passes))


@pytest.mark.parametrize(
  "arguments, match",
  [({"seed": -1}, "seed=-1"), ({"on_unreadable": "x"}, "'x' is unknown")],
)
def test_bad_arguments(arguments, match):
  with pytest.raises(ValueError, match=match):
    data.as_grain(SOURCE, noisy, **arguments)


def test_without_grain_a_line_says_how_to_install_it(monkeypatch):
  monkeypatch.setitem(sys.modules, "grain", None)
  with pytest.raises(ValueError, match=r'pip install "vit_jax\[grain\]"'):
    make()
