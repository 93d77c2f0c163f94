"""The result of a classifier in words, tables, charts and examples."""

from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len

from vit_jax.runtime.display import Display, table_lines
from vit_jax.tasks.confusion import ConfusionMatrix
from vit_jax.tasks.outcome import Chart, Example, Examples, Table

MOST_CLASSES = 40  # A confusion matrix of more classes is not drawn.
_MOST_ROWS = 100  # Most classes in a report's table of scores.
_MISTAKES = 10  # Most pairs of classes in a list of mistakes.
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


def show(
  display: Display, confusion: ConfusionMatrix, names: Sequence[str]
) -> None:
  """Shows the scores of each class, and which classes are confused."""
  scores = confusion.class_scores()
  columns = ("class", "examples", "precision", "recall", "F1")
  rows = [
    [
      names[k],
      f"{score.examples:,}",
      *(f"{x:.2%}" for x in (score.precision, score.recall, score.f1)),
    ]
    for k, score in scores.items()
  ]
  display.note("")
  display.table(columns, rows)
  display.note("")
  for line in _confused(confusion, [*scores], names, display.width):
    display.note(line)


def _confused(
  confusion: ConfusionMatrix,
  classes: list[int],
  names: Sequence[str],
  width: int,
) -> list[str]:
  """The confusion matrix, or the commonest mistakes if it is too wide."""
  if len(classes) <= width // 3:  # Two spaces and a digit for each.
    rows = [["label \\ answer", *(names[k] for k in classes)]]
    for k, counts in zip(classes, confusion.matrix(classes), strict=True):
      rows.append([names[k], *map(str, counts)])
    lines = table_lines(rows)
    if max(map(cell_len, lines)) <= width:
      return lines
  scores = confusion.class_scores()
  return [
    f"{names[label]} is taken for {names[answer]}: "
    f"{count:,} of {scores[label].examples:,}"
    for label, answer, count in confusion.most_confused(_MISTAKES)
  ]


def headline(confusion: ConfusionMatrix | None, names: Sequence[str]) -> str:
  """The commonest mistake, to follow the result; empty without mistakes."""
  worst = confusion.most_confused(1) if confusion else []
  if not confusion or not worst:
    return ""
  label, answer, count = worst[0]
  of_class = confusion.class_scores()[label].examples
  return (
    f"; {names[label]} is taken for {names[answer]} in {count:,} of "
    f"{of_class:,}"
  )


def tables(
  confusion: ConfusionMatrix,
  names: Sequence[str],
  counts: Any,
) -> list[tuple[str, Table]]:
  """The scores of each class, or of the worst, and the commonest mistakes.

  Args:
    confusion: The counts of the answers.
    names: Names of all classes.
    counts: Number of training examples of each class, if known.
  """
  scores = confusion.class_scores()
  caption, shown = "Scores of each class", [*scores]
  if len(shown) > _MOST_ROWS:
    caption = f"The {_MOST_ROWS} classes with the lowest F1"
    shown = sorted(shown, key=lambda k: scores[k].f1)[:_MOST_ROWS]
  rows = [
    [
      names[k],
      f"{counts[k]:,}" if counts is not None and k < len(counts) else "–",
      f"{score.examples:,}",
      *(f"{x:.2%}" for x in (score.precision, score.recall, score.f1)),
    ]
    for k, score in ((k, scores[k]) for k in shown)
  ]
  columns = ["class", "to train on", "evaluated", "precision", "recall", "F1"]
  found: list[tuple[str, Table]] = [(caption, (columns, rows))]
  mistakes = [
    [names[label], names[answer], f"{count:,}"]
    for label, answer, count in confusion.most_confused(_MISTAKES)
  ]
  if mistakes:
    columns = ["class", "answer", "times"]
    found.append(("Most frequent mistakes", (columns, mistakes)))
  return found


def charts(confusion: ConfusionMatrix, names: Sequence[str]) -> list[Chart]:
  """The confusion matrix, if it is small enough, and the calibration."""
  found = []
  classes = confusion.shown(len(names), MOST_CLASSES)
  if classes and confusion.pairs:
    told = "; ".join(
      f"{names[label]} answered as {names[answer]}, {count:,} times"
      for label, answer, count in confusion.most_confused(3)
    )
    mistakes = f"Most frequent mistakes: {told}." if told else "No mistakes."
    arrays = {
      "matrix": confusion.matrix(classes),
      "class_names": [names[k] for k in classes],
    }
    alt = f"Confusion matrix of {len(classes)} classes. {mistakes}"
    found.append(Chart("confusion", arrays, alt, "Confusion matrix", True))
  bins = confusion.calibration()
  if len(bins):
    told = "; ".join(
      f"{right:.0%} of {count:,.0f} answers with a probability of about "
      f"{probability:.0%} are right"
      for count, right, probability in bins
    )
    caption = (
      "Calibration: on the dashed line, answers are right as often as their "
      "probability says. The expected calibration error is "
      f"{confusion.calibration_error():.2%}."
    )
    alt = f"Calibration curve: {told}."
    found.append(Chart("calibration", {"bins": bins}, alt, caption))
  return found


def telling(confusion: ConfusionMatrix, names: Sequence[str]) -> list[Examples]:
  """The worst mistakes, the nearest misses and the surest right answers."""
  found = []
  for kind, (title, text) in _KINDS.items():
    examples = []
    for one in confusion.kinds[kind]:
      label, answer = names[one.label], names[one.answer]
      right = answer if one.label == one.answer else ""
      caption = right or f"{label}, answered as {answer}"
      caption = f"{caption}, {one.probability:.1%}"
      alt = f"Photograph of class {label}"
      examples.append(Example(one.index, caption, alt))
    found.append(Examples(title, text, examples))
  return found
