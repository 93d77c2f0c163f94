"""Predictions as lines: what several labels and numbers look like."""

import json

from vit_jax.inference.predictor import Prediction
from vit_jax.inference.printing import json_lines, table
from vit_jax.tasks.multilabel import MultiLabelTask
from vit_jax.tasks.regression import RegressionTask

NAMES = ("a", "b", "c", "d")
SEVERAL = Prediction("1.jpg", index=(2, 0, 3), probability=(0.9, 0.6, 0.2))
NUMBERS = Prediction("2.jpg", values=(31.25, -1500.0))


def test_labels_that_reach_the_threshold_are_shown_beyond_the_top_ones():
  (first, second) = table(MultiLabelTask(), NAMES, top=1)([SEVERAL])
  assert first.split() == ["1.jpg", "90.00%*", "c"]
  assert second.split() == ["60.00%*", "a"]
  third = table(MultiLabelTask(), NAMES, top=3)([SEVERAL])[2]
  assert third.split() == ["20.00%", "d"]
  (line,) = json_lines(MultiLabelTask(threshold=0.7), NAMES, top=2)([SEVERAL])
  told = json.loads(line)["predictions"]
  assert [(p["class"], p["given"]) for p in told] == [("c", True), ("a", False)]


def test_numbers_have_the_names_of_their_targets():
  assert [
    line.split() for line in table(RegressionTask(), ("age", "x"))([NUMBERS])
  ] == [["2.jpg", "31.25", "age"], ["-1500", "x"]]
  (line,) = json_lines(RegressionTask(), ("age", "x"))([NUMBERS])
  assert json.loads(line)["values"] == {"age": 31.25, "x": -1500.0}
