"""Predictions as lines: what several labels and numbers look like."""

import json

from vit_jax.inference.predictor import Prediction
from vit_jax.inference.printing import json_lines, label_text, table

NAMES = ("a", "b", "c", "d")
SEVERAL = Prediction("1.jpg", index=(2, 0, 3), probability=(0.9, 0.6, 0.2))
NUMBERS = Prediction("2.jpg", values=(31.25, -1500.0))


def test_labels_that_reach_the_threshold_are_shown_beyond_the_top_ones():
  (first, second) = table(NAMES, threshold=0.5, top=1)([SEVERAL])
  assert first.split() == ["1.jpg", "90.00%*", "c"]
  assert second.split() == ["60.00%*", "a"]
  third = table(NAMES, threshold=0.5, top=3)([SEVERAL])[2]
  assert third.split() == ["20.00%", "d"]
  (line,) = json_lines(NAMES, threshold=0.7, top=2)([SEVERAL])
  told = json.loads(line)["predictions"]
  assert [(p["class"], p["given"]) for p in told] == [("c", True), ("a", False)]


def test_numbers_have_the_names_of_their_targets():
  assert [line.split() for line in table(("age", "x"))([NUMBERS])] == [
    ["2.jpg", "31.25", "age"],
    ["-1500", "x"],
  ]
  (line,) = json_lines(("age", "x"))([NUMBERS])
  assert json.loads(line)["values"] == {"age": 31.25, "x": -1500.0}


def test_labels_in_words():
  assert label_text(NAMES, 2, "softmax") == "c"
  assert label_text(NAMES, [1, 0, 0, 1], "sigmoid") == "a, d"
  assert label_text(NAMES, [0, 0, 0, 0], "sigmoid") == "no label"
  assert label_text(("age",), [31.25], "mse") == "age 31.25"
