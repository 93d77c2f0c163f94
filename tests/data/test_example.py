"""Examples of a source, in another order and number."""

import collections

import numpy as np
import pytest

from tests.data.numbered import Numbered
from vit_jax.data.example import BalancedClasses, evenly_spread


class Labelled(Numbered):
  """Numbers whose labels can be read without them."""

  class_names = ("a", "b", "c")

  def __init__(self, labels):
    super().__init__(len(labels))
    self._labels = np.array(labels)

  def labels(self, indices):
    return self._labels[np.asarray(indices)]

  def ids(self, indices):
    return [f"number {index}" for index in indices]


@pytest.mark.parametrize("counts", [(10, 3, 1), (5, 0, 7), (4, 4, 4)])
def test_classes_are_shown_equally_often(counts):
  labels = np.random.default_rng(0).permutation(np.repeat(np.arange(3), counts))
  source = Labelled(labels)
  shown = BalancedClasses(source)
  names = shown.ids(range(len(shown)))
  times = collections.Counter(
    int(name.removeprefix("number ")) for name in names
  )
  assert {*times} == {*range(len(labels))}
  for k, count in enumerate(counts):
    each = [times[i] for i in np.flatnonzero(labels == k)]
    assert sum(each) == (max(counts) if count else 0)
    assert not each or max(each) - min(each) <= 1


@pytest.mark.parametrize(
  "source, message",
  [
    (Numbered(4), "a label only together with its image: set loss.class"),
    (Labelled(np.zeros((4, 2))), "is for single classes: leave it out"),
    (Labelled([1, 1]), "needs two classes, and numbered has one"),
  ],
)
def test_classes_that_cannot_be_shown_so_are_refused(source, message):
  with pytest.raises(ValueError, match=f"^data.sampling='classes' .*{message}"):
    BalancedClasses(source)


@pytest.mark.parametrize("count, length", [(8, 5), (5, 5), (8, 100), (3, 4)])
def test_a_few_of_many_are_evenly_spread(count, length):
  few = evenly_spread(count, length)
  assert len(few) == min(count, length)
  assert few[0] == 0 and few[-1] == length - 1
  steps = np.diff(few)
  assert steps.min() >= 1 and steps.max() - steps.min() <= 1


def test_of_nothing_there_are_no_few():
  assert evenly_spread(8, 0) == []
