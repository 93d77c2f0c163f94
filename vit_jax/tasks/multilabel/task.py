"""Multi-label classification: an image has any number of labels."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.data.example import Source
from vit_jax.runtime.checks import checked
from vit_jax.runtime.display import Metric, Split
from vit_jax.runtime.printable import counted
from vit_jax.tasks.answers import Answer
from vit_jax.tasks.classification.calibration import Calibration, probabilities
from vit_jax.tasks.classification.task import ClassAnswers, ClassificationTask
from vit_jax.tasks.metrics import Measure
from vit_jax.tasks.outcome import Chart, Curves, Examples, Stream, Table
from vit_jax.tasks.outputs import OutputsOutcome, mean_of_known, outputs_measure
from vit_jax.tasks.scores import FoldAnswers, FoldScore, Scores
from vit_jax.tasks.table import labels_of
from vit_jax.tasks.task import all_labels
from vit_jax.training import losses
from vit_jax.training.losses import Classification

if TYPE_CHECKING:
  from vit_jax.tasks.probes.label_probe import SeveralLabels


@dataclasses.dataclass(frozen=True)
class MultiLabel(Classification):
  """The objective of several labels: 0 or 1 for each, in (B, K).

  A label that is NaN is unknown. It has no part in the loss, and in a mixture
  of two images a label is unknown if it is unknown for either.
  """

  metric = "labels_right"

  def targets(self, label: Float[Array, "B K"]) -> Array:
    """The labels as they are."""
    return label

  def loss_and_score(
    self, logits: Array, targets: Array
  ) -> tuple[Array, Array]:
    """The loss of each example, and its share of correct labels at p = 0.5.

    Both are over the labels that are known; the loss is the sum of their terms.
    """
    known = ~jnp.isnan(targets)
    targets = jnp.where(known, targets, 0)
    terms = losses.sigmoid_terms(logits, targets, self.class_weights)
    loss = jnp.where(known, terms, 0).sum(axis=-1)
    correct = (logits > 0) == (targets > 0.5)
    share = correct.mean(axis=-1, where=known)
    is_scored = known.any(axis=-1) & jnp.isfinite(loss)
    return loss, jnp.where(is_scored, share, 0)


@dataclasses.dataclass(frozen=True)
class MultiLabelTask(ClassificationTask):
  """Naming all labels of an image."""

  # The least probability of a label that is given. With None, an evaluation
  # takes the threshold of the highest F1 over all labels, and answers take 0.5.
  threshold: float | None = None
  name = "multilabel"
  has_several = True
  labels = labels_of(name)
  scores = Scores(
    (
      Metric(
        "map",
        "mAP",
        by_example=True,
        undefined="no label is known to be on some of these images and not on "
        "others, so evaluate on images that differ",
      ),
      Metric("auroc", "AUROC"),
      Metric("f1", "F1"),
      Metric("threshold", "threshold", "{:.3g}", None, words="at"),
      Metric("labels_right", "labels right"),
    ),
    curves=(
      Curves(
        "Several labels",
        {
          Split.TRAIN.key("labels_right"): "labels right in training",
          Split.EVAL.key("map"): "mAP",
          Split.EVAL.key("auroc"): "AUROC",
          Split.EVAL.key("f1"): "F1",
        },
        percent=True,
      ),
    ),
    sentence="The mean average precision is {map:.1%} on {examples:,} images",
    phrase="the mean average precision is {map:.1%}",
  )
  losses = ("sigmoid",)
  objective_class = MultiLabel
  refuses = (
    "loss.label_smoothing",
    "model.num_classes",
    "fewshot.shots",
    "distill.teacher",
  )

  def facts(self) -> dict[str, Any]:
    return {"task": self.name, **super().facts()}

  def with_facts(self, description: Mapping[str, Any]) -> "MultiLabelTask":
    """The task with the stored facts and threshold."""
    task: Any = super().with_facts(description)
    calibration = description.get("calibration", {})
    threshold = calibration.get("threshold", description.get("threshold"))
    threshold = checked("threshold", float | None, threshold)
    return dataclasses.replace(task, threshold=threshold)

  def chosen_facts(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The threshold that an evaluation chose; empty without one."""
    scores = Split.EVAL.scores(metrics)
    if "threshold" not in scores:
      return {}
    return {"threshold": scores["threshold"]}

  @property
  def answers(self) -> "LabelAnswers":
    return LabelAnswers(self)

  @property
  def head_probe(self) -> "SeveralLabels":
    from vit_jax.tasks.probes.label_probe import SeveralLabels

    return SeveralLabels()

  def score_folds(
    self, folds: Sequence[FoldAnswers], count: int
  ) -> FoldScore | None:
    """The mean average precision of the labels; see `FoldScore.of_answers`."""

    def score(answers: np.ndarray, labels: np.ndarray) -> float:
      precisions = of_each_label(average_precision, labels, answers)
      return mean_of_known(precisions)

    return FoldScore.of_answers("map", folds, count, score, is_share=True)

  def for_test(self) -> "MultiLabelTask":
    return dataclasses.replace(self, threshold=self.answers.given_from)

  def check_evaluation(self, source: Source) -> None:
    """Raises ValueError if no image of the split has a label."""
    if not (all_labels(source) > 0).any():
      raise ValueError(
        f"no image of {source.name} has a label, so there is no precision to "
        "measure: evaluate on other images."
      )

  def measure(self, model: nn.Module, stream: Stream) -> Measure:
    """The measure that keeps each image's labels and probabilities."""

    def answers(logits: np.ndarray) -> np.ndarray:
      z = logits / np.array(self.temperature or 1)
      return np.where(np.isfinite(logits), probabilities("sigmoid", z), np.nan)

    return outputs_measure(self, model, stream, answers, MultiLabelOutcome)

  def calibration_facts(self, fitted: Calibration) -> dict[str, Any]:
    """The temperatures, and the threshold of the highest F1 with them."""
    logits = fitted.logits / np.array(fitted.temperature)
    score = probabilities("sigmoid", logits)
    known = ~np.isnan(fitted.labels)
    best = best_threshold(fitted.labels[known], score[known])
    return {**super().calibration_facts(fitted), "threshold": best}


@dataclasses.dataclass(frozen=True)
class LabelAnswers(ClassAnswers):
  """Labels and their probabilities, and which of them are given."""

  task: "MultiLabelTask"

  @property
  def given_from(self) -> float:
    """The least probability of a label that is given in an answer."""
    return 0.5 if self.task.threshold is None else self.task.threshold

  @property
  def legend(self) -> str:
    return (
      "A label is given from a probability of "
      f"{self.given_from:.3g} on, the run's threshold; * marks it on the "
      "screen."
    )

  def as_json(
    self, answer: Answer, names: Sequence[str], top: int | None = None
  ) -> dict[str, Any]:
    """The answer as JSON, with whether each label is given."""
    result = super().as_json(answer, names, top)
    for one in result["predictions"]:
      one["given"] = one["probability"] >= self.given_from
    return result

  def mark(self, probability: float) -> str:
    return "*" if probability >= self.given_from else " "

  def ranked(
    self, answer: Answer, top: int | None = None
  ) -> list[tuple[int, float]]:
    """The `top` labels, and all others that reach the threshold."""
    pairs = super().ranked(answer)
    first = len(pairs) if top is None else top
    others = [(k, p) for k, p in pairs[first:] if p >= self.given_from]
    return [*pairs[:first], *others]


@dataclasses.dataclass(frozen=True)
class MultiLabelOutcome(OutputsOutcome):
  """The outcome of an evaluation of several labels, as far as they are known.

  An unknown label is NaN, and no score counts it.
  """

  task: MultiLabelTask

  @functools.cached_property
  def known(self) -> np.ndarray:
    """Whether each label of each example is known, (N, K)."""
    return ~np.isnan(self.label)

  @functools.cached_property
  def threshold(self) -> float:
    """The task's threshold, or else that of the highest F1."""
    if self.task.threshold is not None:
      return self.task.threshold
    return best_threshold(self.label[self.known], self.output[self.known])

  @property
  def answers(self) -> np.ndarray:
    """Whether each label is given to each example."""
    return self.output >= self.threshold

  @functools.cached_property
  def precisions(self) -> Float[np.ndarray, " K"]:
    """The average precision of each label.

    It is NaN unless some have the label and some have not.
    """
    return of_each_label(average_precision, self.label, self.output)

  @functools.cached_property
  def areas(self) -> Float[np.ndarray, " K"]:
    """The AUROC of each label; NaN unless some have it and some have not."""
    return of_each_label(auroc, self.label, self.output)

  @property
  def scores(self) -> dict[str, Any]:
    f1_of_all = f1(self.label > 0, self.answers & self.known)
    return self.common(
      {
        "map": mean_of_known(self.precisions),
        "auroc": mean_of_known(self.areas),
        "f1": f1_of_all,
        "threshold": self.threshold,
      }
    )

  @property
  def chance(self) -> float:
    """The mAP of random answers.

    It is the mean share of images that have a label, over labels that some
    have and some have not.
    """
    known = np.maximum(self.known.sum(axis=0), 1)
    shares = (self.label > 0).sum(axis=0) / known
    vary = (shares > 0) & (shares < 1)
    return mean_of_known(np.where(vary, shares, np.nan))

  @property
  def notes(self) -> list[str]:
    """A line on labels that have no scores, which the means leave out."""
    return self.left_out(
      "mAP and AUROC are means",
      self.precisions,
      "the other labels are on all of these images or on none, as far as is "
      "known",
    )

  def by_class(self) -> dict[str, Any]:
    precisions = self.each("ap_by_class", self.precisions)
    return precisions | self.each("auroc_by_class", self.areas)

  def table(self) -> Table:
    """The scores of each label, with its numbers of images."""
    rows = []
    some_unknown = not self.known.all()
    for k, name in enumerate(self.names):
      true = self.label[:, k] > 0
      answered = self.answers[:, k] & self.known[:, k]
      hits = (true & answered).sum()
      scores = (
        self.precisions[k],
        self.areas[k],
        hits / max(1, answered.sum()),
        hits / max(1, true.sum()),
        f1(true, answered),
      )
      cells = ["-" if np.isnan(x) else f"{x:.2%}" for x in scores]
      counts = [f"{true.sum():,}"]
      if some_unknown:
        counts.append(f"{self.known[:, k].sum():,}")
      rows.append([name, *counts, *cells])
    count_names = ("examples", "known") if some_unknown else ("examples",)
    score_names = ("AP", "AUROC", "precision", "recall", "F1")
    return ("label", *count_names, *score_names), rows

  def columns(self) -> tuple[list[str], Callable[[int], list[str]]]:
    """The columns of labels, answers, probabilities; a function for cells."""
    flags = {"labels": self.label, "answers": self.answers}
    if not self.known.all():
      flags["unknown"] = ~self.known

    def cells(row: int) -> list[str]:
      lists = [";".join(_only(self.names, x[row])) for x in flags.values()]
      return [*lists, *(f"{value:.8g}" for value in self.output[row])]

    return [*flags, *self.names], cells

  def telling(self) -> list[Examples]:
    """The images with mistakes that have the highest loss."""
    wrong = ((self.label > 0) != self.answers) & self.known
    rows = np.flatnonzero(wrong.any(axis=1))
    known = " known" if not self.known.all() else ""
    share = f"{len(rows):,} of {counted(len(self.loss), 'image')}"
    text = (
      f"{share} {'has' if len(rows) == 1 else 'have'} a mistake in a{known} "
      "label. Those with the highest loss are shown: look for wrong labels "
      "here first."
    )
    if not len(rows):
      text = f"No mistake: each{known} label of each image is answered right."
    return [Examples("Worst mistakes", text, self.worst(rows))]

  def label_and_answer(self, row: int) -> str:
    """The labels and the answers of a row, and its unknown labels."""
    text = super().label_and_answer(row)
    unknown = _only(self.names, ~self.known[row])
    return f"{text}; unknown: {', '.join(unknown)}" if unknown else text

  def charts(self) -> list[Chart]:
    """The curve of precision by recall, over all labels."""
    known = self.known
    precision, recall = precision_recall(self.label[known], self.output[known])
    return [
      Chart(
        "precision",
        {"precision": precision, "recall": recall},
        alt="Precision by recall, over all labels and thresholds.",
        caption="Precision by recall of all labels together",
      )
    ]


def of_each_label(
  score: Callable[..., float],
  labels: Float[np.ndarray, "N K"],
  outputs: Float[np.ndarray, "N K"],
) -> Float[np.ndarray, " K"]:
  """The `score` of each label, from the examples for which it is known."""
  known = ~np.isnan(labels)
  columns = zip(labels.T, outputs.T, known.T, strict=True)
  return np.array([score(y[rows], p[rows]) for y, p, rows in columns])


def average_precision(
  label: Float[np.ndarray, " N"], score: Float[np.ndarray, " N"]
) -> float:
  """Sum of precision times the rise of recall, over the distinct scores.

  Equal scores count as one; a score of NaN ranks last. The result is NaN
  without a positive or without a negative, where any answer would score 1.

  >>> import numpy as np
  >>> from vit_jax.tasks.multilabel.task import average_precision
  >>> label = np.array([1.0, 0.0, 1.0, 0.0])
  >>> average_precision(label, np.array([0.9, 0.8, 0.7, 0.1]))  # 1/2 + 2/3 / 2
  0.8333333333333333
  """
  if label.sum() in (0, len(label)):
    return float("nan")
  precision, recall = precision_recall(label, score)
  return float((np.diff(recall, prepend=0) * precision).sum())


def auroc(
  label: Float[np.ndarray, " N"], score: Float[np.ndarray, " N"]
) -> float:
  """The share of (positive, negative) pairs that the scores order correctly.

  It is the area under the curve of the receiver operating characteristic. Equal
  scores count as half a pair, and all pairs with a score of NaN count as wrong.
  The result is NaN without a positive or without a negative.

  >>> import numpy as np
  >>> from vit_jax.tasks.multilabel.task import auroc
  >>> label = np.array([1.0, 0.0, 1.0, 0.0])
  >>> auroc(label, np.array([0.9, 0.8, 0.7, 0.1]))  # 3 of 4 pairs.
  0.75
  """
  wrong = np.where(label > 0, -1, 2)  # Below and above all probabilities.
  hits, counts = _cumulative(label, np.where(np.isnan(score), wrong, score))
  misses = counts - hits
  pairs = label.sum() * (len(label) - label.sum())
  if not pairs:
    return float("nan")
  middle = np.diff(hits, prepend=0) / 2
  return float(((hits - middle) * np.diff(misses, prepend=0)).sum() / pairs)


def precision_recall(
  label: Float[np.ndarray, " N"], score: Float[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
  """Precision and recall at each distinct score, from the highest on.

  >>> import numpy as np
  >>> from vit_jax.tasks.multilabel.task import precision_recall
  >>> label = np.array([1.0, 0.0, 1.0, 0.0])
  >>> score = np.array([0.9, 0.8, 0.7, 0.1])
  >>> precision, recall = precision_recall(label, score)
  >>> recall.tolist()
  [0.5, 0.5, 1.0, 1.0]
  """
  hits, counts = _cumulative(label, score)
  return hits / counts, hits / max(1, label.sum())


def best_threshold(
  label: Float[np.ndarray, " N"], score: Float[np.ndarray, " N"]
) -> float:
  """The threshold of the highest F1; 0.5 if no example has the label.

  It lies halfway between the lowest score that it accepts and the next lower
  one, if there is one.

  >>> import numpy as np
  >>> from vit_jax.tasks.multilabel.task import best_threshold
  >>> label = np.array([1.0, 1.0, 0.0, 0.0])
  >>> best_threshold(label, np.array([1.0, 0.75, 0.25, 0.0]))
  0.5
  """
  hits, counts = _cumulative(label, score)
  rates = 2 * hits / (counts + label.sum())
  if not rates.max(initial=0):
    return 0.5
  levels = np.unique(np.nan_to_num(score, nan=-1))[::-1]
  best = int(rates.argmax())
  lower = levels[best + 1] if best + 1 < len(levels) else levels[best]
  return float((levels[best] + max(lower, 0)) / 2)


def f1(label: np.ndarray, answer: np.ndarray) -> float:
  """F1 of boolean answers; 0 if there is neither a label nor an answer.

  >>> import numpy as np
  >>> from vit_jax.tasks.multilabel.task import f1
  >>> f1(np.array([True, True, False]), np.array([True, False, False]))
  0.6666666666666666
  """
  total = label.sum() + answer.sum()
  return float(2 * (label & answer).sum() / total) if total else 0.0


def _cumulative(
  label: np.ndarray, score: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """The numbers of positives and of examples at each distinct score or above.

  The highest score is first.
  """
  score = np.nan_to_num(score, nan=-1)
  order = np.argsort(-score, kind="stable")
  last = np.flatnonzero(np.diff(score[order], append=-np.inf))
  return label[order].cumsum()[last], last + 1


def _only(names: Iterable[str], label: np.ndarray) -> list[str]:
  """The names whose entry in a row of flags is true, and not NaN."""
  return [name for name, flag in zip(names, label, strict=True) if flag > 0]
