"""Evaluation that keeps the outputs for all examples of a split.

They are kept on the host, since the scores depend on their ranking or their
variance.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.data.example import Source
from vit_jax.runtime.display import Display, Split
from vit_jax.runtime.printable import first_of
from vit_jax.tasks.metrics import Gathered, Measure, gathering
from vit_jax.tasks.outcome import (
  Example,
  Examples,
  Outcome,
  Stream,
  Table,
  write_rows,
)
from vit_jax.tasks.task import Task

_ROUNDING = 1e-6  # Equal answers differ by at most this share of the largest.
_SHOWN = 5  # Names of labels or targets in a line.
_WORST = 6  # Examples of the highest loss in a report.


def outputs_measure(
  task: Task,
  model: nn.Module,
  stream: Stream,
  answers: Callable[[np.ndarray], np.ndarray],
  outcome: type["OutputsOutcome"],
) -> Measure:
  """Returns the measure that keeps each example's outputs, loss and labels.

  The task's objective is a `Classification`; the loss is taken without its
  class weights and smoothing. `answers` maps outputs (N, K) of the model,
  float64, to answers (N, K), and `outcome` is the class of the result.
  """
  train_objective: Any = task.objective(model, stream.preprocessing)
  objective = train_objective.for_evaluation()
  names = stream.source.class_names

  def rows(params: Any, batch: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs, the loss and the labels of each example."""
    logits: Any = objective.model_outputs(model, params, batch)
    label = batch["label"]
    loss, _ = objective.loss_and_score(logits, objective.targets(label))
    return {
      "logits": logits.astype(jnp.float32),
      "loss": loss,
      "label": label,
    }

  def result(gathered: Gathered) -> "OutputsOutcome":
    arrays = gathered.arrays
    return outcome(
      task=task,
      names=names,
      index=gathered.index,
      label=arrays["label"].astype(np.float64),
      output=answers(arrays["logits"].astype(np.float64)),
      loss=arrays["loss"],
      skipped=gathered.skipped,
      unanswered=gathered.unanswered,
    )

  return gathering(rows, result)


@dataclasses.dataclass(frozen=True)
class OutputsOutcome(Outcome):
  """The outputs for the readable examples of a split, in its order."""

  task: Task
  names: Sequence[str]
  index: np.ndarray  # Place of each example in the split.
  # 0 or 1 for each label, NaN if it is unknown; or the numbers.
  label: Float[np.ndarray, "N K"]
  # Probabilities, or numbers in the unit of the labels.
  output: Float[np.ndarray, "N K"]
  loss: Float[np.ndarray, " N"]
  skipped: int
  unanswered: int = 0  # Examples for which the outputs are not finite.

  @property
  def constant(self) -> bool:
    return not self.unanswered and alike(self.output)

  def common(self, scores: dict[str, float]) -> dict[str, Any]:
    """The loss, `scores`, and the numbers of examples and skipped images."""
    return {
      "loss": float(self.loss.mean(dtype=np.float64)),
      **scores,
      "examples": len(self.index),
      "skipped_images": self.skipped,
    }

  def each(self, key: str, values: np.ndarray) -> dict[str, dict[str, float]]:
    """The metric `key` of each label or target, by name, where it is defined.

    The result is such as {"eval/ap_by_class": {"cat": 0.5}}.
    """
    pairs = zip(self.names, values, strict=True)
    finite = {name: float(x) for name, x in pairs if np.isfinite(x)}
    return Split.EVAL.keyed({key: finite})

  def left_out(self, scores: str, of: np.ndarray, why: str) -> list[str]:
    """A line that names the labels or targets that `mean_of_known` leaves out.

    `of` has the score of each, (K,), `scores` names the means, and `why` says
    why the others have none. There is no line if all or none have a score.
    """
    columns = zip(self.names, of, strict=True)
    others = [name for name, score in columns if np.isnan(score)]
    if len(others) in (0, len(of)):
      return []
    measured = f"{len(of) - len(others):,} of {len(of):,}"
    return [f"{scores} of {measured}: {why} ({first_of(others, _SHOWN)})."]

  def table(self) -> Table:
    """The scores of each label or target."""
    raise NotImplementedError

  @property
  def answers(self) -> np.ndarray:
    """The answer to each example, (N, K), in the form of the labels."""
    return self.output

  def columns(self) -> tuple[list[str], Callable[[int], list[str]]]:
    """Names of the columns of a CSV file, and a function that gives a row.

    The function takes the row of an example and returns its cells. The columns
    of the file and of the loss are not among them.
    """
    raise NotImplementedError

  def show(self, display: Display) -> None:
    display.table(*self.table())

  def write(self, path: pathlib.Path, source: Source) -> None:
    """Writes each example's label, answer and loss, the highest loss first."""
    names, cells = self.columns()
    order = np.argsort(-self.loss, kind="stable")
    rows = ([*cells(row), f"{self.loss[row]:.6g}"] for row in order)
    write_rows(path, source, [*names, "loss"], self.index[order], rows)

  def tables(self, counts: Any = None) -> list[tuple[str, Table]]:
    columns, rows = self.table()
    return [(f"Scores of each {columns[0]}", (columns, rows))]

  def telling(self) -> list[Examples]:
    text = "The images with the highest loss. Look for wrong labels here first."
    return [
      Examples("Highest loss", text, self.worst(np.arange(len(self.loss))))
    ]

  def worst(self, rows: np.ndarray) -> list[Example]:
    """At most six examples of these rows, those of the highest loss.

    Their captions have the labels and the answers.
    """
    order = rows[np.argsort(-self.loss[rows], kind="stable")]
    examples = []
    for row in order[:_WORST]:
      text = self.label_and_answer(row)
      alt = f"Photograph of {text}"
      examples.append(Example(int(self.index[row]), caption=text, alt=alt))
    return examples

  def label_and_answer(self, row: int) -> str:
    """The label of an example and the answer to it, in words."""
    label, answer = (
      self.task.labels.describe(x[row], self.names)
      for x in (self.label, self.answers)
    )
    return f"{label}; answer: {answer}"


def alike(rows: Float[np.ndarray, "N K"]) -> bool:
  """Whether there are two rows or more, and all are equal up to rounding."""
  if len(rows) < 2:
    return False
  return bool((np.ptp(rows, axis=0) <= _ROUNDING * np.abs(rows).max(0)).all())


def mean_of_known(values: np.ndarray) -> float:
  """The mean of the values that are not NaN; NaN if there are none.

  >>> import numpy as np
  >>> from vit_jax.tasks.outputs import mean_of_known
  >>> mean_of_known(np.array([1.0, np.nan, 2.0]))
  1.5
  """
  numbers = values[~np.isnan(values)]
  return float(numbers.mean()) if len(numbers) else float("nan")
