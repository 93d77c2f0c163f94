"""What a run has measured, by the names that people use for it."""

import copy
import operator

import pytest

from vit_jax.run.measured import History, Metrics


def test_metrics_are_found_by_their_key_or_a_part_of_it():
  metrics = Metrics({"eval/top1": 0.5, "eval/loss": 2.0, "test/loss": 3.0})
  assert metrics["eval/top1"] == metrics["top1"] == metrics["accuracy"] == 0.5
  assert (metrics["loss"], metrics["val_loss"]) == (2.0, 2.0)
  assert (metrics["test_loss"], metrics["test/loss"]) == (3.0, 3.0)
  message = (
    "there is no 'f1'; the measured keys are eval/top1, eval/loss, test/loss"
  )
  with pytest.raises(KeyError, match=message):
    metrics["f1"]
  assert metrics.get("top1") is None  # As of any dictionary.


def test_a_history_is_rows_and_columns():
  rows = [
    {"step": 1, "train/loss": 2.0},
    {"step": 2, "train/loss": 1.0, "eval/loss": 4.0, "eval/top1": 0.25},
  ]
  history = History(rows)
  assert history == rows and history[1] == rows[1]
  assert history["loss"] == history["train/loss"] == [2.0, 1.0]
  assert (history["val_loss"], history["accuracy"]) == ([4.0], [0.25])
  assert history["step"] == history.history["step"] == [1, 2]
  with pytest.raises(
    KeyError, match="there is no 'val_acc5'; the measured keys are st"
  ):
    history["val_acc5"]


def test_a_history_says_what_it_has_in_place_of_a_wrong_attribute():
  history = History(
    [{"step": 1, "train/loss": 2.0}, {"step": 2, "eval/r2": 0.5}]
  )
  with pytest.raises(AttributeError, match="step, train/loss, eval/r2[.]$"):
    operator.attrgetter("keys")(history)
  with pytest.raises(AttributeError, match=r"'plot'; .*vit_jax\.report\(run\)"):
    operator.attrgetter("plot")(history)
  assert copy.copy(history) == history
