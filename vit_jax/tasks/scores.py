"""The metrics of a task's evaluation, and its result in words."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.runtime.display import Metric, Split
from vit_jax.runtime.printable import counted
from vit_jax.tasks import intervals
from vit_jax.tasks.outcome import Curves

# With more images than this, the score by folds has no interval by draws.
_MOST_DRAWN = 1_000


@dataclasses.dataclass(frozen=True)
class Score:
  """The metric and the split that decide which checkpoint of a run is best.

  The value is at most 1, and higher is better.
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
"""The scores of probes of a run without labels; the first is preferred."""
SINCE_START = Score(Metric("judged", "rank of the features"), Split.START)
"""The score of a run without labels that starts from published weights."""
MOST_CHANGED = 0.5
"""Features that keep a smaller share of their neighbours count as changed."""


def judged(metrics: Mapping[str, Any]) -> dict[str, float]:
  """The score `SINCE_START` of an evaluation, by its key.

  The result is {} if the features were not compared with those of the start.
  The score is the rank of the features, which falls as a run collapses, and 1
  if the evaluation has no rank. The rank may also rise as features get worse.
  If images keep less than half of the neighbours that they had at the start,
  the score is therefore the share that they keep, minus 1: it is below 0, so
  that the start counts as better.

  >>> from vit_jax.tasks.scores import judged
  >>> judged({"start/kept": 0.8, "eval/rank": 0.3})
  {'start/judged': 0.3}
  >>> judged({"start/kept": 0.25, "eval/rank": 0.3})
  {'start/judged': -0.75}
  """
  kept = metrics.get(Split.START.key("kept"))
  if kept is None:
    return {}
  if kept < MOST_CHANGED:
    return {SINCE_START.key: kept - 1}
  return {SINCE_START.key: metrics.get(Split.EVAL.key("rank"), 1.0)}


_WORDS = {2: "two", 3: "three", 4: "four", 5: "five"}


class FoldAnswers(NamedTuple):
  """The answers to the examples of a fold, and their labels.

  For classes, both are indices. For numbers, both are standardised, and for
  several labels the answers are scores.
  """

  answers: np.ndarray
  labels: np.ndarray

  @property
  def share(self) -> float:
    """The share of right answers, for classes."""
    return float((self.answers == self.labels).mean())


@dataclasses.dataclass(frozen=True)
class FoldScore:
  """The score of linear probes on folds, each fitted to all other folds.

  Attributes:
    key: The key of the metric.
    score: The score of all folds together.
    interval: Where the score may lie, at 95 %.
    count: Number of images in the folds.
    parts: Number of folds.
  """

  key: str
  score: float
  interval: intervals.Interval
  count: int
  parts: int

  @classmethod
  def of_shares(cls, shares: Sequence[float], count: int) -> "FoldScore":
    """The score of classes, from the share of right answers on each fold."""
    return cls(
      key="top1",
      score=sum(shares) / len(shares),
      interval=intervals.of_folds(shares, count),
      count=count,
      parts=len(shares),
    )

  @classmethod
  def of_answers(
    cls,
    key: str,
    folds: Sequence[FoldAnswers],
    count: int,
    score: Callable[[np.ndarray, np.ndarray], float],
    *,
    is_share: bool = False,
  ) -> "FoldScore | None":
    """The score of folds by `score`, a function of answers and labels.

    The result is None without folds, if the score is NaN, and for more than
    1,000 images: the interval comes from random draws, which would then take
    seconds, and a score of so many images hardly needs one. Draws from answers
    without a mistake have no mistake either. With `is_share`, for a score from
    0 to 1, the interval is therefore widened to hold the interval of an equally
    high accuracy.
    """
    if not folds or count > _MOST_DRAWN:
      return None
    answers = np.concatenate([fold.answers for fold in folds])
    labels = np.concatenate([fold.labels for fold in folds])
    parts = len(folds)
    whole = score(answers, labels)
    if not math.isfinite(whole):
      return None
    interval = intervals.of_resampled_folds(
      lambda rows: score(answers[rows], labels[rows]),
      size=len(answers),
      count=count,
      parts=parts,
    )
    if is_share:
      low, high = intervals.of_folds([whole] * parts, count)
      interval = intervals.Interval(
        min(low, interval.low), max(high, interval.high)
      )
    return cls(key, whole, interval, count, parts)

  def metrics(self, *, of_start: bool = False) -> dict[str, Any]:
    """The metrics that the run keeps.

    `of_start` says that the run then trains other layers, or the head for long.
    """
    metrics: dict[str, Any] = {
      self.key: self.score,
      "low": self.interval.low,
      "high": self.interval.high,
      "examples": self.count,
      "parts": self.parts,
    }
    if of_start:
      metrics["of_start"] = 1
    return Split.FOLDS.keyed(metrics)


def kept_folds(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
  """The last metrics of folds in the rows of a run; {} if there are none."""
  metrics: dict[str, Any] = {}
  for row in rows:
    metrics = Split.FOLDS.keyed(Split.FOLDS.scores(row)) or metrics
  return metrics


@dataclasses.dataclass(frozen=True)
class Verdict:
  """How good a model is, how far that can be trusted, and what to believe.

  Attributes:
    metric: The metric of the score.
    scores: The scores of the evaluation.
    folds: The scores of folds of the training images, each judged by a linear
      head that was fitted to the others, as by `FoldScore`; may be empty.
    trained_on: A sentence on how many of the images the model was trained on;
      it comes first, whatever the number of images. It may be empty.
  """

  metric: Metric
  scores: Mapping[str, Any]
  folds: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  trained_on: str = ""

  @property
  def count(self) -> int:
    """The number of images evaluated; 0 if the score is missing or NaN."""
    score = self.scores.get(self.metric.key)
    unknown = score is None or math.isnan(score)
    return 0 if unknown else self.scores.get("examples", 0)

  @property
  def few(self) -> bool:
    """Whether the images are too few to judge by, whatever was measured."""
    return 0 < self.count < intervals.FEW

  @property
  def aside(self) -> str:
    """How far a result can be trusted, in brackets after it; may be empty."""
    if not self.metric.of_examples:
      return " (too few images to judge by)" if self.few else ""
    few = ", too few to judge by" if self.few else ""
    return f" (95 % interval {self._interval}{few})" if self.count else ""

  @property
  def below_zero(self) -> str:
    """A sentence on a score that is below 0; empty for others."""
    metric = self.metric
    if not (self.count and metric.below_zero and self.scores[metric.key] < 0):
      return ""
    return f"{metric.label} is below 0: {metric.below_zero}."

  @property
  def undefined(self) -> str:
    """A sentence on a score that is NaN; empty for others."""
    metric = self.metric
    score = self.scores.get(metric.key)
    if not metric.undefined or score is None or not math.isnan(score):
      return ""
    return f"{metric.label} is NaN: {metric.undefined}."

  @property
  def by_folds(self) -> str:
    """The score by the folds, in words; empty if there are none."""
    if not self._has_folds:
      return ""
    parts = self.folds.get("parts", 5)
    count = self.folds.get("examples")
    images = "training images"
    if count is not None:
      images = f"{count:,} training images"
    score = self.folds[self.metric.key]
    interval = self._of_folds
    shown, between = f"{score:.2f}", interval.as_numbers
    if self.metric.is_percentage:
      shown = f"{score:.0%}"
      between = str(interval)
    return (
      f"{self.metric.label} {shown} (95 % interval {between}) by "
      f"{_WORDS.get(parts, parts)} folds of the {images}"
    )

  @property
  def advice(self) -> str:
    """Says which of two scores to believe; empty if there is only one."""
    if not self.count or not self._has_folds:
      return ""
    have_intervals = self.metric.of_examples
    if have_intervals and not self._of_folds.overlaps(self._interval):
      return (
        "The two do not fit together: the folds judge the head that the run "
        "started from, and the held-out images the trained model. Training "
        "changed the head, or the held-out images are of another kind."
      )
    if not self.few:
      return (
        "Believe the held-out images: they judge the trained model, and the "
        "folds the head that it started from."
      )
    if self.scores[self.metric.key] < self._of_folds.low:
      return (
        "The held-out score lies below the interval of the folds, which judge "
        "the head that the run started from: training changed the head, or "
        f"{counted(self.count, 'image')} gave a low score by chance. Evaluate "
        "on others."
      )
    if self.folds.get("of_start"):
      return (
        "The folds judge the head that the run started from, before training "
        f"changed the model, and {self.count:,} held-out images are too few "
        "to judge by: evaluate on others."
      )
    return (
      "Believe the folds: each training image was judged by a head that had "
      f"not seen it, and {self.count:,} held-out images are too few to judge "
      "by."
    )

  def is_like(self, other: "Verdict") -> bool:
    """Whether the images cannot tell the two models apart.

    They cannot if they are too few to judge by, or if the intervals of the two
    shares overlap.
    """
    if self.few or other.few:
      return True
    have_intervals = self.metric.of_examples and self.count and other.count
    return bool(have_intervals) and self._interval.overlaps(other._interval)

  def __str__(self) -> str:
    """The verdict in a few sentences; empty if there is nothing to add."""
    return f"{self.trained_on} {self._score_in_words}".strip()

  @property
  def _score_in_words(self) -> str:
    """The score, how far it can be trusted, and the folds; may be empty."""
    label, count = self.metric.label, self.count
    of_images = f"on {counted(count, 'evaluated image')}"
    warns = self.few and not self.trained_on
    if not self.metric.of_examples:
      text = ""
      score = self.metric.text(Split.EVAL.keyed(self.scores))
      if count and self._has_folds:
        text = self._beside_folds(str(score))
      elif warns:
        text = (
          f"{score} {of_images}, which are too few to judge by: fewer than "
          f"{intervals.FEW}."
        )
      return f"{text} {self.below_zero}{self.undefined}".strip()
    if not count:
      return ""
    share = f"{self.scores[self.metric.key]:.0%}"
    if self._has_folds:
      return self._beside_folds(f"{share} ({self._interval})")
    text = f"{label} {share} (95 % interval {self._interval}) {of_images}"
    if warns:
      text += (
        f": as these are fewer than {intervals.FEW}, go by the interval rather "
        "than by the share"
      )
    return f"{text}."

  def _beside_folds(self, score: str) -> str:
    """The score by the folds, that of the evaluation, and which to believe."""
    return (
      f"{self.by_folds}, and {score} on {self.count:,} held-out images. "
      f"{self.advice}"
    )

  @property
  def _has_folds(self) -> bool:
    """Whether the folds have the score."""
    return self.metric.key in self.folds

  @property
  def _interval(self) -> intervals.Interval:
    """The interval of the evaluation's score, a share of right answers."""
    return intervals.wilson(self.scores[self.metric.key], self.count)

  @property
  def _of_folds(self) -> intervals.Interval:
    """The interval of the folds' score."""
    return intervals.Interval(self.folds["low"], self.folds["high"])


def of_probe(top1: float, examples: int) -> Verdict:
  """How far the top-1 of a probe of features can be trusted."""
  metric = Metric("top1", "top-1", of_examples=True)
  return Verdict(metric, {"top1": top1, "examples": examples})


@dataclasses.dataclass(frozen=True)
class Scores:
  """The metrics of a task, and the one by which the best checkpoint is found.

  Attributes:
    metrics: The metrics, in the order in which they are shown. The first that
      training measures stands in the lines of training.
    best: The key of the score, by which the best checkpoint is found; by
      default that of the first metric. It is at most 1, and higher is better.
    curves: The charts of a report on its runs.
    sentence: The result with the number of its images, as a format string of
      the scores, such as "{top1:.1%} of {examples:,} images are right"; by
      default the score as it is shown.
    phrase: The same without the number of images.
    ranks_nothing: A sentence on why a higher score does not make one run better
      than another, and what to compare instead; empty if it does.
  """

  metrics: tuple[Metric, ...]
  best: str = ""
  curves: tuple[Curves, ...] = ()
  sentence: str = ""
  phrase: str = ""
  ranks_nothing: str = ""

  def __post_init__(self):
    object.__setattr__(self, "best", self.best or self.metrics[0].key)

  def showing(self, *metrics: Metric) -> "Scores":
    """These scores with other metrics, one of which has the key `best`."""
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

  def verdict(
    self, metrics: Mapping[str, Any], trained_on: str = ""
  ) -> Verdict:
    """How far an evaluation, and the folds with it, can be trusted.

    `trained_on` is as in `Verdict`.
    """
    return Verdict(
      self.metric,
      scores=Split.EVAL.scores(metrics),
      folds=Split.FOLDS.scores(metrics),
      trained_on=trained_on,
    )

  def headline(self, metrics: Mapping[str, Any]) -> str:
    """A phrase with the result, and how far it can be trusted; no full stop."""
    verdict = self.verdict(metrics)
    first = f"{verdict.by_folds}; " if verdict.by_folds else ""
    return f"{first}{self.result(metrics)}{verdict.aside}"

  def result(self, metrics: Mapping[str, Any]) -> str:
    """The scores of the evaluated images, in a phrase."""
    scores = Split.EVAL.scores(metrics)
    return self.sentence.format(**scores) or (
      f"{self.metric.text(metrics)} on {scores['examples']:,} images"
    )

  def text(self, metrics: Mapping[str, Any]) -> str:
    """The score in words."""
    if self.phrase:
      return self.phrase.format(**Split.EVAL.scores(metrics))
    return self.metric.text(metrics) or "it was not measured"

  def alike(self, ranked: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Says that the scores cannot tell the first two models apart.

    Args:
      ranked: Names of models with their evaluations, on the same images, the
        best first.

    Returns:
      Two sentences at most; empty if the first may be called the best.
    """
    if len(ranked) < 2:
      return ""
    (first, first_metrics), (second, second_metrics) = ranked[:2]
    scores = (
      f'{self.text(first_metrics)} with "{first}", '
      f'{self.text(second_metrics)} with "{second}".'
    )
    if self.ranks_nothing:
      return f"{self.ranks_nothing} {scores[0].upper()}{scores[1:]}"
    verdict = self.verdict(first_metrics)
    other_verdict = self.verdict(second_metrics)
    if not verdict.is_like(other_verdict):
      return ""
    of = f", the first two of {len(ranked)} runs," if len(ranked) > 2 else ""
    few = ", which are too few to judge by" if verdict.few else ""
    text = (
      f'"{first}" and "{second}"{of} cannot be told apart on '
      f"{verdict.count:,} images{few}: {scores}"
    )
    folds, other_folds = verdict.by_folds, other_verdict.by_folds
    if not (folds and other_folds):
      return text
    if folds == other_folds:
      return f"{text} Both have {folds}."
    return f'{text} "{first}" has {folds}, and "{second}" {other_folds}.'

  def ahead(self, better: float, worse: float) -> str:
    """How far one score is above another, as "1.2 points more than".

    It is empty if the rounded difference is 0.
    """
    difference = better - worse
    unit = ""
    if self.metric.is_percentage:
      difference *= 100
      unit = " points"
    shown = f"{difference:.1f}" if unit else f"{difference:.4f}"
    return f"{shown}{unit} more than" if float(shown) else ""
