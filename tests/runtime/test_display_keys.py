"""Keys of metrics are written and read in one place."""

import ast
import pathlib
import re

import pytest

import vit_jax
from vit_jax.runtime.display import Metric, Split, move_split, parse
from vit_jax.tasks.outcome import Outcome

ROW = {
  "step": 7,
  "train/loss": 2.5,
  "eval/loss": 2.0,
  "eval/top1_by_class": {"cat": 0.5},
  "eval/deep/name": 3,
  "evaluation/loss": 1.0,
  "fewshot/top1": 0.25,
}


@pytest.mark.parametrize(
  ("key", "split", "metric"),
  [
    ("train/loss", Split.TRAIN, "loss"),
    ("eval/top1", Split.EVAL, "top1"),
    ("eval/deep/name", Split.EVAL, "deep/name"),
    ("test/step", Split.TEST, "step"),
    ("fewshot/top1", Split.FEW_SHOT, "top1"),
    ("step", None, "step"),
    ("eval", None, "eval"),
    ("evaluation/loss", None, "evaluation/loss"),
    ("/eval/loss", None, "/eval/loss"),
  ],
)
def test_a_key_is_a_split_and_a_metric(key, split, metric):
  assert parse(key) == (split, metric)
  if split is not None:
    assert split.key(metric) == key


def test_the_scores_of_one_split_are_taken_out_of_a_row():
  found = Split.EVAL.scores(ROW)
  assert found == {"loss": 2.0, "top1_by_class": {"cat": 0.5}, "deep/name": 3}
  assert Split.TEST.scores(ROW) == {}


def test_metrics_of_a_split_become_those_of_another_and_no_other_key_changes():
  # "test/" stands inside a name too, where nothing may be replaced.
  row = {"test/loss": 1.0, "test/test/x": 2, "latest/test/y": 3, "step": 4}
  expected = {"eval/loss": 1.0, "eval/test/x": 2, "latest/test/y": 3, "step": 4}
  found = move_split(row, Split.TEST, Split.EVAL)
  assert found == expected
  assert [*found] == [*expected]


def test_an_outcome_gives_its_scores_the_split_and_keeps_their_order():
  outcome = Outcome()
  outcome.scores = {"loss": 1.5, "off_by": 0.5, "examples": 3}
  assert [*outcome.metrics.items()] == [
    ("eval/loss", 1.5),
    ("eval/off_by", 0.5),
    ("eval/examples", 3),
  ]


def test_a_metric_is_shown_of_the_split_that_is_asked_for():
  metric = Metric("loss", "loss", "{:.1f}")
  assert metric.text(ROW) == "loss 2.0"
  assert metric.text(ROW, "train") == "loss 2.5"
  assert metric.text(ROW, Split.TEST) is None


def test_no_other_module_writes_a_key():
  """Apart from docstrings and comments, which give examples of keys."""
  glued = re.compile(rf"({'|'.join(Split)})/")
  writers = []
  for path in pathlib.Path(vit_jax.__file__).parent.rglob("*.py"):
    source = path.read_text()
    if not glued.search(source):
      continue
    tree = ast.parse(source)
    docstrings = {
      id(node.value)
      for node in ast.walk(tree)
      if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    writers += [
      f"{path}:{node.lineno}"
      for node in ast.walk(tree)
      if isinstance(node, ast.Constant)
      and isinstance(node.value, str)
      and id(node) not in docstrings
      and glued.match(node.value)
    ]
  assert not writers, "make the key with `Split.key`"


@pytest.mark.parametrize(
  "fields", [{"of_examples": True}, {"by_example": True}]
)
def test_a_share_of_examples_counts_each_once(fields):
  """A task of one's own need not say so again."""
  assert Metric("right", "right", **fields).by_example
  assert not Metric("iou", "IoU").by_example
