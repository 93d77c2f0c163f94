"""The CSV file of all outputs, of several labels and of numbers."""

import numpy as np
import pytest

from tests.tasks.made_up import Split, rows_of
from vit_jax.tasks.multilabel.task import MultiLabelOutcome, MultiLabelTask
from vit_jax.tasks.regression.task import RegressionOutcome, RegressionTask


@pytest.mark.parametrize(
  "outcome, task, rows",
  [
    (
      MultiLabelOutcome,
      MultiLabelTask(threshold=0.5),
      [
        ["file", "labels", "answers", "a", "b", "loss"],
        ["2.png", "a;b", "b", "0.25", "0.5", "2"],
        ["0.png", "a", "a", "0.75", "0.25", "0.5"],
      ],
    ),
    (
      RegressionOutcome,
      RegressionTask(),
      [
        ["file", "a", "b", "a_predicted", "b_predicted", "loss"],
        ["2.png", "1", "1", "0.25", "0.5", "2"],
        ["0.png", "1", "0", "0.75", "0.25", "0.5"],
      ],
    ),
  ],
)
def test_answers_are_written_with_the_highest_loss_first(
  tmp_path, outcome, task, rows
):
  source = Split([])
  outcome = outcome(
    task,
    source.class_names,
    index=np.array([0, 2]),
    label=np.array([[1.0, 0], [1, 1]]),
    output=np.array([[0.75, 0.25], [0.25, 0.5]]),
    loss=np.array([0.5, 2.0]),
    skipped=1,
  )
  assert rows_of(outcome, tmp_path, source) == rows


def test_a_number_is_written_as_its_file_has_it(tmp_path):
  """9.94 is stored as the float32 9.9399995803833."""
  source = Split([])
  outcome = RegressionOutcome(
    RegressionTask(),
    source.class_names,
    index=np.array([0]),
    label=np.array([[9.94, 120000]], np.float32).astype(np.float64),
    output=np.array([[9.5, 0.25]]),
    loss=np.array([0.5]),
    skipped=0,
  )
  rows = rows_of(outcome, tmp_path, source)
  assert rows[1] == ["0.png", "9.94", "120000", "9.5", "0.25", "0.5"]
