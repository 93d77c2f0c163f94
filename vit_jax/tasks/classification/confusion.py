"""Confusion counts, calibration and telling examples of a whole split.

They are gathered batch by batch. The memory they take grows with the number of
class pairs that are confused, not with the number of examples.
"""

import collections
import dataclasses
import functools
import heapq
import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from vit_jax.tasks.classification.eval_step import Predictions

BINS = 15  # The bins are equally wide, as in arXiv:1706.04599.
_KEPT = 6  # Examples kept of each kind.

Pairs = collections.Counter[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class AnsweredExample:
  """A model's answer to one example, as in `Predictions`.

  `rank` orders the kept examples, highest first, and `index` is the example's
  place in the split.
  """

  rank: float
  index: int
  label: int
  answer: int
  probability: float
  loss: float


@dataclasses.dataclass(frozen=True)
class ClassScore:
  """The number of a class's examples, and the scores of its answers."""

  examples: int
  precision: float
  recall: float
  f1: float

  @property
  def cells(self) -> list[str]:
    """The cells of a table."""
    shares = (self.precision, self.recall, self.f1)
    return [f"{self.examples:,}", *(f"{x:.2%}" for x in shares)]


class Mistake(NamedTuple):
  """A pair of classes that are confused: `answer` was given for `label`."""

  label: int
  answer: int
  times: int


@dataclasses.dataclass(frozen=True)
class ConfusionMatrix:
  """Counts of a model's answers; `+` joins the counts of two sets of answers.

  Attributes:
    pieces: Counters of (label, answer), whose sum is `pairs`.
    unanswered: Examples to which the model answers NaN; they are left out of
      every other count.
    kinds: The examples kept of each kind, the most telling first: "surest" has
      the right answers with the highest probability, "nearest" and "worst" the
      mistakes with the lowest and the highest loss.
    bins: The number of answers, the number of right answers, and the sum of
      probabilities, (3, `BINS`), for bins of the answers' probability.
  """

  pieces: tuple[Pairs, ...]
  unanswered: int
  kinds: Mapping[str, list[AnsweredExample]]
  bins: Float[np.ndarray, "3 bins"]

  @classmethod
  def of(cls, answers: Predictions, first: int = 0) -> "ConfusionMatrix":
    """Counts a batch of answers on the host.

    `first` is the place in the split of the batch's first example.
    """
    rows = {
      field.name: np.asarray(getattr(answers, field.name))
      for field in dataclasses.fields(Predictions)
    }
    index = first + np.arange(len(rows["label"]))
    counted = rows.pop("counted").astype(bool)
    answered = counted & np.isfinite(rows["probability"] + rows["loss"])
    rows = {key: row[answered] for key, row in rows.items()}
    rows["index"] = index[answered]
    right = rows["label"] == rows["answer"]
    pairs = zip(rows["label"].tolist(), rows["answer"].tolist(), strict=True)
    # As in the paper, a bin includes its upper edge but not its lower one.
    p = rows["probability"]
    place = np.clip(np.ceil(p * BINS) - 1, 0, BINS - 1).astype(int)
    summed = None, right, p  # None counts the answers.
    return cls(
      pieces=(collections.Counter(pairs),),
      unanswered=int((counted & ~answered).sum()),
      kinds={
        "surest": _highest(rows, p, right),
        "nearest": _highest(rows, -rows["loss"], ~right),
        "worst": _highest(rows, rows["loss"], ~right),
      },
      bins=np.stack([np.bincount(place, values, BINS) for values in summed]),
    )

  def __add__(self, other: "ConfusionMatrix") -> "ConfusionMatrix":
    return ConfusionMatrix(
      pieces=_join([*self.pieces, *other.pieces]),
      unanswered=self.unanswered + other.unanswered,
      kinds={
        kind: _keep([*examples, *other.kinds[kind]])
        for kind, examples in self.kinds.items()
      },
      bins=self.bins + other.bins,
    )

  @functools.cached_property
  def pairs(self) -> Pairs:
    """How often each (label, answer) occurred."""
    return functools.reduce(operator.add, self.pieces)

  def classes_to_draw(self, num_classes: int, most: int) -> list[int]:
    """The classes to draw in a confusion matrix; [] if they are too many.

    These are all classes, if there are at most `most`, and otherwise those that
    occur as a label or an answer.
    """
    if num_classes <= most:
      return [*range(num_classes)]
    occurring = sorted({k for pair in self.pairs for k in pair})
    return occurring if len(occurring) <= most else []

  def matrix(self, classes: Sequence[int]) -> Int[np.ndarray, "n n"]:
    """Counts by true class (rows) and answer (columns), of `classes` alone."""
    place = {k: row for row, k in enumerate(classes)}
    matrix = np.zeros((len(classes), len(classes)), np.int64)
    for (label, answer), count in self.pairs.items():
      if label in place and answer in place:
        matrix[place[label], place[answer]] = count
    return matrix

  def most_confused(self, count: int) -> list[Mistake]:
    """The commonest mistakes, at most `count` of them."""
    mistakes = [
      Mistake(label, answer, times)
      for (label, answer), times in self.pairs.items()
      if label != answer
    ]
    return heapq.nsmallest(
      count, mistakes, key=lambda one: (-one.times, one.label, one.answer)
    )

  def class_scores(self) -> dict[int, "ClassScore"]:
    """Precision, recall and F1 of every class that occurs, as in scikit-learn.

    A class occurs as a label or as an answer. A score whose denominator is 0
    is 0.
    """
    examples = collections.Counter()
    answers = collections.Counter()
    for (label, answer), count in self.pairs.items():
      examples[label] += count
      answers[answer] += count
    scores = {}
    for k in sorted({*examples, *answers}):
      right = self.pairs[k, k]
      scores[k] = ClassScore(
        examples=examples[k],
        precision=right / max(1, answers[k]),
        recall=right / max(1, examples[k]),
        f1=2 * right / (examples[k] + answers[k]),
      )
    return scores

  def macro_f1(self) -> float:
    """Mean F1 of the classes that occur, as in scikit-learn, or else NaN."""
    scores = self.class_scores().values()
    return float(np.mean([score.f1 for score in scores])) if scores else np.nan

  def balanced_accuracy(self) -> float:
    """Mean recall of all classes that examples have; NaN without examples."""
    scores = self.class_scores().values()
    recalls = [score.recall for score in scores if score.examples]
    return float(np.mean(recalls)) if recalls else np.nan

  def calibration(self) -> Float[np.ndarray, "bins 3"]:
    """Count, accuracy and mean probability of each bin that has answers."""
    count, right, total = self.bins[:, self.bins[0] > 0]
    return np.stack([count, right / count, total / count], axis=1)

  def calibration_error(self) -> float:
    """Expected calibration error (arXiv:1706.04599, Eq. 5).

    This is the mean over bins of |accuracy - probability|, weighted by the
    number of answers in each bin, or NaN if there are no answers.
    """
    count, right, probability = self.calibration().T
    if not count.size:
      return float("nan")
    return float((count * np.abs(right - probability)).sum() / count.sum())


def _highest(
  rows: Mapping[str, np.ndarray], rank: np.ndarray, eligible: np.ndarray
) -> list[AnsweredExample]:
  """The `eligible` examples of the highest ranks, at most `_KEPT`."""
  first = np.argsort(-rank[eligible], kind="stable")[:_KEPT]
  examples = []
  for place in np.flatnonzero(eligible)[first]:
    answer = {key: row[place].item() for key, row in rows.items()}
    examples.append(AnsweredExample(float(rank[place]), **answer))
  return examples


def _keep(examples: list[AnsweredExample]) -> list[AnsweredExample]:
  """The examples of the highest ranks, at most `_KEPT`."""
  return sorted(examples, key=lambda one: -one.rank)[:_KEPT]


def _join(pieces: list[Pairs]) -> tuple[Pairs, ...]:
  """Merges counters until each has at most half the pairs of the previous one.

  The counters then stay few, and a batch is cheap to add. A single counter of
  all pairs would be copied for each batch.
  """
  while len(pieces) > 1 and 2 * len(pieces[-1]) > len(pieces[-2]):
    last = pieces.pop()
    pieces[-1] = pieces[-1] + last
  return tuple(pieces)
