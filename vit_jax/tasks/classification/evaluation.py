"""The measure of a classifier, and its outcome: scores, tables and charts."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import numpy as np
from jaxtyping import Array
from rich.cells import cell_len

from vit_jax.data.example import Source
from vit_jax.runtime.display import Display, Split, table_lines
from vit_jax.tasks import intervals
from vit_jax.tasks.classification.confusion import ClassScore, ConfusionMatrix
from vit_jax.tasks.classification.eval_step import (
  Predictions,
  Totals,
  check_labels,
  class_accuracy,
  make_eval_step,
  summary,
)
from vit_jax.tasks.metrics import Measure, Parts
from vit_jax.tasks.outcome import (
  Chart,
  Example,
  Examples,
  Outcome,
  Table,
  write_rows,
)
from vit_jax.tasks.task import class_names
from vit_jax.training.losses import Classification
from vit_jax.training.settings import LossSettings

MOST_CLASSES = 40  # A confusion matrix of more classes is not drawn.
_MOST_ROWS = 100  # The most classes in a report's table of scores.
_MISTAKES = 10  # The most pairs of classes in a list of mistakes.
_KINDS = {
  "worst": (
    "Worst mistakes",
    "The mistakes with the highest loss. Look for wrong labels here first.",
  ),
  "nearest": (
    "Nearest misses",
    "The mistakes with the lowest loss: the true class came close.",
  ),
  "surest": (
    "Most confident right answers",
    "The right answers with the highest probability.",
  ),
}


@dataclasses.dataclass(frozen=True)
class ClassificationOutcome(Outcome):
  """The outcome of an evaluation of classes, whose `scores` are a `summary`.

  `confusion` counts the answers, if details were asked for, and `predictions`
  has the answers to each batch, if they are to be written.
  """

  scores: Mapping[str, float]
  totals: Totals
  names: Sequence[str]
  confusion: ConfusionMatrix | None = None
  predictions: Sequence[Predictions] = ()

  @property
  def counts(self) -> ConfusionMatrix:
    """The counts of the answers, which only an outcome with details has."""
    assert self.confusion is not None
    return self.confusion

  @property
  def chance(self) -> float:
    """The top-1 accuracy of always answering the commonest class."""
    return float(self.totals["count"].max() / self.totals["count"].sum())

  @property
  def details(self) -> dict[str, float]:
    """Macro-F1, balanced accuracy and, with enough images, calibration."""
    if self.confusion is None:
      return {}
    scores = {
      "macro_f1": self.confusion.macro_f1(),
      "balanced_accuracy": self.confusion.balanced_accuracy(),
    }
    if self._has_enough:
      scores["calibration_error"] = self.confusion.calibration_error()
    return Split.EVAL.keyed(scores)

  @property
  def _has_enough(self) -> bool:
    """Whether there are enough examples to tell a calibration error."""
    return self.totals["count"].sum() >= intervals.FEW

  @property
  def remark(self) -> str:
    """Macro-F1 and balanced accuracy, if classes were counted."""
    if self.confusion is None:
      return ""
    return (
      f"  macro-F1 {self.confusion.macro_f1():.2%}"
      f"  balanced accuracy {self.confusion.balanced_accuracy():.2%}"
    )

  @property
  def unanswered(self) -> int:
    return int(self.totals["unanswered"])

  @property
  def constant(self) -> bool:
    """Whether images of several classes all have one answer."""
    pairs = self.confusion.pairs if self.confusion else {}
    labels = {label for label, _ in pairs}
    answers = {answer for _, answer in pairs}
    return len(answers) == 1 < len(labels)

  def by_class(self) -> dict[str, Any]:
    top1 = class_accuracy(self.totals, self.names)
    return Split.EVAL.keyed({"top1_by_class": top1})

  def confusions(self) -> dict[str, Any]:
    matrix = self.counts.matrix(range(len(self.names)))
    return Split.EVAL.keyed({"confusion": np.asarray(matrix)})

  def show(self, display: Display) -> None:
    """Prints each class's scores, and the confusion matrix or mistakes."""
    columns = ("class", "examples", "precision", "recall", "F1")
    scores = self.counts.class_scores()
    display.note("")
    display.table(
      columns, [[self.names[k], *score.cells] for k, score in scores.items()]
    )
    display.note("")
    for line in self._confused(scores, display.width):
      display.note(line)

  def _confused(
    self, scores: Mapping[int, ClassScore], width: int
  ) -> list[str]:
    """The confusion matrix, or the commonest mistakes if it exceeds `width`."""
    names = self.names
    classes = [*scores]
    if len(classes) <= width // 3:  # Two spaces and a digit for each.
      rows = [["label \\ answer", *(names[k] for k in classes)]]
      matrix = self.counts.matrix(classes)
      for k, counts in zip(classes, matrix, strict=True):
        rows.append([names[k], *map(str, counts)])
      lines = table_lines(rows)
      if max(map(cell_len, lines)) <= width:
        return lines
    return [
      f"{names[label]} is taken for {names[answer]}: "
      f"{times:,} of {scores[label].examples:,}"
      for label, answer, times in self.counts.most_confused(_MISTAKES)
    ]

  def write(self, path: pathlib.Path, source: Source) -> None:
    """Writes the answer to every example, the highest loss first.

    Examples whose loss is NaN come first, without an answer.
    """
    label, answer, probability, loss, counted = (
      np.concatenate([getattr(batch, field.name) for batch in self.predictions])
      for field in dataclasses.fields(Predictions)
    )
    order = np.flatnonzero(counted)
    order = order[np.lexsort((-loss[order], ~np.isnan(loss[order])))]

    def cells(row: int) -> list[Any]:
      names = self.names
      p = probability[row]
      answered = names[answer[row]] if np.isfinite(p) else ""
      return [names[label[row]], answered, f"{p:.6g}", f"{loss[row]:.6g}"]

    columns = ("label", "answer", "probability", "loss")
    write_rows(path, source, columns, order, map(cells, order))

  def headline(self) -> str:
    """The commonest mistake, to follow the result; empty without mistakes."""
    worst = self.confusion.most_confused(1) if self.confusion else []
    if not worst:
      return ""
    label, answer, times = worst[0]
    of_class = self.counts.class_scores()[label].examples
    return (
      f'; "{self.names[label]}" is taken for "{self.names[answer]}" in '
      f"{times:,} of {of_class:,}"
    )

  def tables(self, counts: Any = None) -> list[tuple[str, Table]]:
    """The scores of each class, or of the worst, and the commonest mistakes."""
    names = self.names
    scores = self.counts.class_scores()
    caption = "Scores of each class"
    shown = [*scores]
    if len(shown) > _MOST_ROWS:
      caption = f"The {_MOST_ROWS} classes with the lowest F1"
      shown = sorted(shown, key=lambda k: scores[k].f1)[:_MOST_ROWS]
    to_train_on = [] if counts is None else [f"{count:,}" for count in counts]
    rows = []
    for k in shown:
      train_count = to_train_on[k] if k < len(to_train_on) else "–"
      rows.append([names[k], train_count, *scores[k].cells])
    columns = ("class", "to train on", "evaluated", "precision", "recall", "F1")
    tables: list[tuple[str, Table]] = [(caption, (columns, rows))]
    mistakes = [
      [names[label], names[answer], f"{times:,}"]
      for label, answer, times in self.counts.most_confused(_MISTAKES)
    ]
    if mistakes:
      columns = ("class", "answer", "times")
      tables.append(("Most frequent mistakes", (columns, mistakes)))
    return tables

  def charts(self) -> list[Chart]:
    """The confusion matrix of few classes, and calibration on many images."""
    confusion = self.counts
    names = self.names
    charts = []
    classes = confusion.classes_to_draw(len(names), MOST_CLASSES)
    if classes and confusion.pairs:
      pairs = "; ".join(
        f"{names[label]} answered as {names[answer]}, {times:,} times"
        for label, answer, times in confusion.most_confused(3)
      )
      mistakes = (
        f"Most frequent mistakes: {pairs}." if pairs else "No mistakes."
      )
      matrix = confusion.matrix(classes)
      class_names = [names[k] for k in classes]
      charts.append(
        Chart(
          "confusion",
          {"matrix": matrix, "class_names": class_names},
          alt=f"Confusion matrix of {len(classes)} classes. {mistakes}",
          caption="Confusion matrix",
          while_training=True,
        )
      )
    bins = confusion.calibration()
    if len(bins) and self._has_enough:
      shares = "; ".join(
        f"{right:.0%} of {count:,.0f} answers with a probability of about "
        f"{probability:.0%} are right"
        for count, right, probability in bins
      )
      caption = (
        "Calibration: on the dashed line, answers are right as often as their "
        "probability says. The expected calibration error is "
        f"{confusion.calibration_error():.2%}."
      )
      alt = f"Calibration curve: {shares}."
      charts.append(Chart("calibration", {"bins": bins}, alt, caption))
    return charts

  def telling(self) -> list[Examples]:
    """The worst mistakes, the nearest misses and the surest right answers.

    An example is shown in the first of these groups that has it.
    """
    groups = []
    shown = set()
    for kind, (title, text) in _KINDS.items():
      examples = []
      for one in self.counts.kinds[kind]:
        if one.index in shown:
          continue
        shown.add(one.index)
        label = self.names[one.label]
        answer = self.names[one.answer]
        right = one.label == one.answer
        names_shown = label if right else f"{label}, answered as {answer}"
        caption = f"{names_shown}, {one.probability:.1%}"
        alt = f"Photograph of class {label}"
        examples.append(Example(one.index, caption, alt))
      if examples:
        groups.append(Examples(title, text, examples))
    return groups


def make_measure(
  model: Any,
  *,
  mean: Sequence[float] = (0.5, 0.5, 0.5),
  std: Sequence[float] = (0.5, 0.5, 0.5),
  loss: str = "softmax",
) -> Measure:
  """Returns the measure of a classifier, for the batches of `open_data`.

  Args:
    mean: Mean subtracted from each channel, in units of full scale.
    std: Standard deviation that then divides each channel.
    loss: The loss to report, "softmax" or "sigmoid".
  """
  kind = LossSettings(kind=loss)
  objective = Classification(model.num_classes, kind, mean, std)
  return class_measure(model, objective, class_names((), model.num_classes))


def class_measure(
  model: nn.Module,
  objective: Classification,
  names: Sequence[str],
  class_logits: Callable[[Array], Array] = lambda outputs: outputs,
  outcome: type[ClassificationOutcome] = ClassificationOutcome,
  counts_answers: bool = False,
) -> Measure:
  """Returns the measure of a model that answers with classes.

  Args:
    objective: The objective whose loss is reported.
    names: The names of all classes.
    class_logits: Maps the model's outputs to one logit for each class.
    outcome: The class of the result.
    counts_answers: Whether the outcome has the counts of the answers even
      without details.
  """

  def parts(
    computed: tuple[Totals, Predictions],
    first_index: int,
    *,
    detail: bool,
    examples: bool,
  ) -> Parts:
    """The parts of a batch's metric; see `Measure`.

    `first_index` is the place in the split of the batch's first example.
    """
    totals, answers = computed
    check_labels(answers, len(names))
    more: Parts = {}
    if detail or counts_answers:
      more["confusion"] = ConfusionMatrix.of(answers, first_index)
    if examples:
      more["predictions"] = (answers,)
    return {**totals, **more}

  def result(parts: Parts) -> ClassificationOutcome:
    """The outcome, from the parts of all batches together."""
    totals = {**parts}
    confusion = totals.pop("confusion", None)
    predictions = totals.pop("predictions", ())
    return outcome(
      scores=summary(totals),
      totals=totals,
      names=names,
      confusion=confusion,
      predictions=predictions,
    )

  return Measure(make_eval_step(model, objective, class_logits), result, parts)
