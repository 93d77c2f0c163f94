"""Refused arguments, and evaluation passes that share their workers."""

import multiprocessing

import pytest

from tests.data.numbered import Numbered, assert_same, evaluate, train
from vit_jax import data
from vit_jax.data.batching.loader import make_loader
from vit_jax.data.settings import LoaderSettings


def test_evaluation_repeats_with_the_same_workers():
  with evaluate(Numbered(10), 4) as passes:
    expected = list(passes)
  with evaluate(Numbered(10), 4, num_workers=1) as passes:
    assert_same(list(passes), expected)
    children = multiprocessing.active_children()
    assert_same(list(passes), expected)
    assert multiprocessing.active_children() == children
    next(iter(passes))  # Left early.
    assert_same(list(passes), expected)
  assert not multiprocessing.active_children()


@pytest.mark.parametrize(
  "arguments, match",
  [
    ({"batch_size": 6, "process_count": 4}, "batch_size=6 .* is 8"),
    ({"batch_size": 0}, "batch_size=0 .* is 1"),
    ({"process_count": 2, "process_index": 2}, "process_index=2 of"),
    ({"num_workers": -1}, "num_workers=-1 must not be negative"),
    (
      {"on_unreadable": "ignore"},
      "'ignore' is unknown; choose one of stop",
    ),
  ],
)
def test_bad_arguments(arguments, match):
  arguments = {"batch_size": 4, **arguments}
  with pytest.raises(ValueError, match=match):
    train(Numbered(9), 1, **arguments)
  with pytest.raises(ValueError, match=match):
    evaluate(Numbered(9), **arguments)


def test_a_loader_reads_every_example_unless_it_is_told_of_other_hosts():
  settings = LoaderSettings(num_workers=0)
  sizes = dict(photographs=True, image_size=(4, 4))
  labels = []
  for hosts in ({}, {"process_index": 1, "process_count": 2}):
    loader = make_loader(settings, **sizes, **hosts)
    with loader.evaluate(Numbered(6), data.make_eval_transform(4), 2) as passes:
      labels.append([label for batch in passes for label in batch["label"]])
  assert labels == [[0, 1, 2, 3, 4, 5], [1, 3, 5]]


def test_bad_arguments_to_train_alone():
  def fails(match, **arguments):
    with pytest.raises(ValueError, match=match):
      train(Numbered(20), 1, **arguments)

  fails("batch_size=21 is more than the 20 examples", batch_size=21)
  fails("seed=-1", seed=-1)
  fails("first_batch=-1", first_batch=-1)
  with pytest.raises(ValueError, match="no examples to evaluate on"):
    evaluate(Numbered(0), 4)
