"""What a model answers over a whole split: confusion, calibration, mistakes.

It is gathered from the answers to batch after batch, and grows with the number
of pairs of classes that are confused, not with that of the examples.
"""

import collections
import dataclasses
import heapq
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from vit_jax.evaluation.eval_step import Answers

BINS = 15  # Of equal width, as in "On Calibration" (arXiv:1706.04599).
_KEPT = 4  # Examples of each kind.


@dataclasses.dataclass(frozen=True)
class Answered:
  """What a model says of one example.

  Attributes:
    rank: What the telling examples are ordered by; the highest are kept.
    index: Of the example in its source.
    label: What is true.
    answer: The likeliest class.
    probability: That it gives to the answer.
    loss: Of the example.
  """

  rank: float
  index: int
  label: int
  answer: int
  probability: float
  loss: float


class Tally:
  """Counts answers; `add` takes a batch of them, in the order of the split.

  Attributes:
    pairs: How often each (label, answer) came.
    unanswered: Examples to which the model answers NaN; nothing else counts
      them.
    kinds: The examples kept of each kind, the most telling first: "surest"
      right answers, by probability; "nearest" and "worst" mistakes, those of
      the lowest and the highest loss.
  """

  def __init__(self):
    self.pairs: collections.Counter[tuple[int, int]] = collections.Counter()
    self.unanswered = 0
    self._seen = 0  # Rows, padding as well: places in the source.
    self._bins = np.zeros((3, BINS))  # Examples, right ones, probabilities.
    self.kinds: dict[str, list[Answered]] = {
      "surest": [],
      "nearest": [],
      "worst": [],
    }

  def add(self, answers: Answers) -> None:
    """Counts a batch, on the host."""
    rows = {
      field.name: np.asarray(getattr(answers, field.name))
      for field in dataclasses.fields(Answers)
    }
    index = self._seen + np.arange(len(rows["label"]))
    self._seen += len(index)
    counted = rows.pop("counted").astype(bool)
    answered = counted & np.isfinite(rows["probability"] + rows["loss"])
    self.unanswered += int((counted & ~answered).sum())
    rows = {key: row[answered] for key, row in rows.items()}
    rows["index"] = index[answered]
    right = rows["label"] == rows["answer"]
    pairs = zip(rows["label"].tolist(), rows["answer"].tolist(), strict=True)
    self.pairs.update(pairs)
    self._count_bins(rows["probability"], right)
    self._keep("surest", rows, rows["probability"], right)
    self._keep("nearest", rows, -rows["loss"], ~right)
    self._keep("worst", rows, rows["loss"], ~right)

  def shown(self, num_classes: int, most: int) -> list[int]:
    """Classes for a confusion matrix of so many at most; none if too many.

    They are all there are or, of a head wider than that, all that occur.
    """
    if num_classes <= most:
      return [*range(num_classes)]
    occur = sorted({k for pair in self.pairs for k in pair})
    return occur if len(occur) <= most else []

  def confusion(self, classes: Sequence[int]) -> Int[np.ndarray, "n n"]:
    """How often each of these, a row, was answered by each, a column."""
    place = {k: row for row, k in enumerate(classes)}
    matrix = np.zeros((len(classes), len(classes)), np.int64)
    for (label, answer), count in self.pairs.items():
      if label in place and answer in place:
        matrix[place[label], place[answer]] = count
    return matrix

  def most_confused(self, count: int) -> list[tuple[int, int, int]]:
    """(label, answer, how often) of the commonest mistakes."""
    wrong = [(*pair, n) for pair, n in self.pairs.items() if pair[0] != pair[1]]
    return heapq.nsmallest(count, wrong, key=lambda w: (-w[2], w[:2]))

  def calibration(self) -> Float[np.ndarray, "bins 3"]:
    """Of each bin with answers: how many, the part right, mean probability."""
    count, right, total = self._bins[:, self._bins[0] > 0]
    return np.stack([count, right / count, total / count], axis=1)

  def calibration_error(self) -> float:
    """Expected calibration error: |right - probability|, over all answers.

    It is weighted by the bins' numbers (arXiv:1706.04599, Eq. 5); NaN where
    nothing was answered.
    """
    count, right, probability = self.calibration().T
    if not count.size:
      return float("nan")
    return float((count * np.abs(right - probability)).sum() / count.sum())

  def _count_bins(self, probability: np.ndarray, right: np.ndarray) -> None:
    # Bins are open below and closed above, like those of the paper.
    place = np.clip(np.ceil(probability * BINS) - 1, 0, BINS - 1).astype(int)
    for row, values in enumerate((None, right, probability)):
      self._bins[row] += np.bincount(place, values, BINS)

  def _keep(
    self,
    kind: str,
    rows: dict[str, np.ndarray],
    rank: np.ndarray,
    wanted: np.ndarray,
  ) -> None:
    """Takes the batch's examples of a kind, if they are among the first."""
    first = np.argsort(-rank[wanted], kind="stable")[:_KEPT]
    found = [
      Answered(
        rank=float(rank[place]),
        **{key: row[place].item() for key, row in rows.items()},
      )
      for place in np.flatnonzero(wanted)[first]
    ]
    kept = [*self.kinds[kind], *found]
    self.kinds[kind] = sorted(kept, key=lambda one: -one.rank)[:_KEPT]
