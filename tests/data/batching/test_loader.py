"""Refused arguments, and evaluation passes that share their workers."""

import multiprocessing

import pytest

from tests.data.numbered import Numbered, assert_same, evaluate, train


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


def test_bad_arguments_to_train_alone():
  def fails(match, **arguments):
    with pytest.raises(ValueError, match=match):
      train(Numbered(20), 1, **arguments)

  fails("batch_size=21 is more than the 20 examples", batch_size=21)
  fails("seed=-1", seed=-1)
  fails("first_batch=-1", first_batch=-1)
  with pytest.raises(ValueError, match="no examples to evaluate on"):
    evaluate(Numbered(0), 4)
