"""The metrics of a task's evaluation, and its result in words."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from vit_jax.runtime.display import Metric, Split
from vit_jax.tasks import intervals
from vit_jax.tasks.outcome import Curves


@dataclasses.dataclass(frozen=True)
class Score:
  """The metric, and its data, by which a run's best checkpoint is found.

  It is at most 1, and higher is better.
  """

  metric: Metric
  split: Split = Split.EVAL

  @property
  def key(self) -> str:
    """Its key among the metrics of an evaluation."""
    return self.split.key(self.metric.key)

  def text(self, metrics: Mapping[str, Any]) -> str | None:
    """The score in words, as "top-1 98.33%"; None if it was not measured."""
    return self.metric.text(metrics, self.split)


PROBES = (
  Score(Metric("top1", "k-NN"), Split.NEIGHBOURS),
  Score(Metric("top1", "few-shot"), Split.FEW_SHOT),
)
"""The scores that labels give to features, the first to be asked first."""


@dataclasses.dataclass(frozen=True)
class Scores:
  """The metrics of a task, and the one by which the best checkpoint is found.

  Attributes:
    metrics: The metrics, in the order in which they are shown. The first that
      training measures stands in the lines of training.
    best: The key of the score, by which the best checkpoint is found; by
      default that of the first metric. It is at most 1, and higher is better.
    curves: The charts of a report on its runs.
    sentence: The result with the number of its images, such as "{top1:.1%} of
      {examples:,} images are right"; by default the score as it is shown.
    phrase: The same without the number.
  """

  metrics: tuple[Metric, ...]
  best: str = ""
  curves: tuple[Curves, ...] = ()
  sentence: str = ""
  phrase: str = ""

  def __post_init__(self):
    object.__setattr__(self, "best", self.best or self.metrics[0].key)

  def showing(self, *metrics: Metric) -> "Scores":
    """The same with other metrics, `best` among them."""
    return dataclasses.replace(self, metrics=metrics)

  @property
  def metric(self) -> Metric:
    """The metric of the score."""
    return next(m for m in self.metrics if m.key == self.best)

  @property
  def score(self) -> Score:
    """The score of a checkpoint."""
    return Score(self.metric)

  @property
  def key(self) -> str:
    """The key of the score among the metrics of an evaluation."""
    return self.score.key

  def headline(self, metrics: Mapping[str, Any]) -> str:
    """The result in a phrase, without a full stop."""
    scores = Split.EVAL.scores(metrics)
    found = self.sentence.format(**scores)
    if not found:
      found = f"{self.metric.text(metrics)} on {scores['examples']:,} images"
    return found + self.trust(metrics)

  def trust(self, metrics: Mapping[str, Any]) -> str:
    """How far a share of right answers can be trusted, to follow a headline."""
    count = metrics[Split.EVAL.key("examples")]
    score = metrics[self.key]
    if not self.metric.of_examples or not count or math.isnan(score):
      return ""
    interval = intervals.wilson(score, count)
    few = ", too few to judge by" if count < intervals.FEW else ""
    return f" (95 % interval {interval}{few})"

  def text(self, metrics: Mapping[str, Any]) -> str:
    """The score in words."""
    if self.phrase:
      return self.phrase.format(**Split.EVAL.scores(metrics))
    return self.metric.text(metrics) or "it was not measured"

  def ahead(self, better: float, worse: float) -> str:
    """How far one score is above another; empty if that cannot be seen."""
    difference = better - worse
    unit = ""
    if "%" in self.metric.format:
      difference *= 100
      unit = " points"
    shown = f"{difference:.1f}" if unit else f"{difference:.4f}"
    return f"{shown}{unit} more than" if float(shown) else ""
