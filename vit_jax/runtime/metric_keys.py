"""The keys of metrics, such as "eval/top1": the split, and the metric's name.

Files, charts and own tasks have the keys as text. Only this module knows how
a key is written; all others make and read keys through it.
"""

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

_BETWEEN = "/"


class Split(enum.StrEnum):
  """The data that a metric was measured on."""

  TRAIN = "train"  # The steps of training since the last row.
  EVAL = "eval"
  TEST = "test"
  FEW_SHOT = "fewshot"  # A linear classifier on few examples of each class.

  def key(self, metric: str) -> str:
    """The key of a metric of this split: "eval/top1" for "top1"."""
    return f"{self.value}{_BETWEEN}{metric}"

  def keyed(self, scores: Mapping[str, Any]) -> dict[str, Any]:
    """A new row of these scores, which are by metric, with their keys."""
    return {self.key(metric): value for metric, value in scores.items()}

  def scores(self, row: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of this split in a row, by metric: "top1" for "eval/top1"."""
    keys = ((parse(key), value) for key, value in row.items())
    return {key.metric: value for key, value in keys if key.split is self}


_SPLITS = {split.value: split for split in Split}


class MetricKey(NamedTuple):
  """A key in its two parts.

  `split` is None for what is no metric of a split, such as "step"; `metric` is
  then the whole key.
  """

  split: Split | None
  metric: str


def parse(key: str) -> MetricKey:
  """The split and the metric of a key."""
  name, between, metric = key.partition(_BETWEEN)
  split = _SPLITS.get(name) if between else None
  return MetricKey(None, key) if split is None else MetricKey(split, metric)


def moved(row: Mapping[str, Any], old: Split, new: Split) -> dict[str, Any]:
  """A new row, with the metrics of one split as those of another.

  All other keys stay as they are.
  """
  pairs = ((key, parse(key), value) for key, value in row.items())
  return {
    new.key(parsed.metric) if parsed.split is old else key: value
    for key, parsed, value in pairs
  }
