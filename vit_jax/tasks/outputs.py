"""Evaluation that keeps the outputs for all examples of a split.

They are kept on the host: their ranking, or their variance, decides on the
scores.
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
from vit_jax.runtime.display import Display, Split, Track, untracked
from vit_jax.tasks.outcome import (
  Evaluator,
  Example,
  Examples,
  Outcome,
  Stream,
  Table,
  check_readable,
  write_rows,
)
from vit_jax.tasks.task import Task
from vit_jax.training import sharding

_ROUNDING = 1e-6  # Between equal answers, as a share of the largest.
_WORST = 6  # Examples of the highest loss in a report.


def outputs_evaluator(
  task: Task,
  model: nn.Module,
  stream: Stream,
  answers: Callable[[np.ndarray], np.ndarray],
  outcome: type["OutputsOutcome"],
) -> Evaluator:
  """Returns what evaluates on a split, without the weights of classes.

  The task's objective is a `Classification`. `answers` maps outputs (N, K) of
  the model, float64, to answers (N, K), and `outcome` is the class of the
  result.
  """
  objective: Any = task.objective(model, stream.preprocessing)
  plain = objective.for_evaluation()
  names = stream.source.class_names

  def compute(params: Any, batch: Mapping[str, Array]) -> dict[str, Array]:
    logits: Any = model.apply({"params": params}, plain.inputs(batch))
    label = batch["label"]
    loss, _ = plain.loss_and_score(logits, plain.targets(label))
    return {
      "logits": logits.astype(jnp.float32),
      "loss": loss,
      "label": label,
    }

  gather = gatherer(compute, stream)

  def evaluate(params: Any, track: Track = untracked, **_: Any) -> Outcome:
    seen = gather(params, track)
    output = answers(seen.arrays["logits"].astype(np.float64))
    label = seen.arrays["label"].astype(np.float64)
    counts = seen.skipped, seen.unanswered
    loss = seen.arrays["loss"]
    return outcome(task, names, seen.index, label, output, loss, *counts)

  return evaluate


@dataclasses.dataclass(frozen=True)
class Gathered:
  """The arrays of the readable examples of a split, in its order.

  Attributes:
    index: Place of each example in the split.
    arrays: The arrays by name, each with a row for each example.
    skipped: Number of unreadable images.
  """

  index: np.ndarray
  arrays: dict[str, np.ndarray]
  skipped: int

  @property
  def unanswered(self) -> int:
    """The number of examples of which an array is not finite."""
    is_finite = np.ones(len(self.index), bool)
    for array in self.arrays.values():
      is_finite &= np.isfinite(array.reshape(len(array), -1)).all(axis=1)
    return int((~is_finite).sum())


def gatherer(
  compute: Callable[[Any, Mapping[str, Array]], dict[str, Array]],
  stream: Stream,
) -> Callable[[Any, Track], Gathered]:
  """Returns a function that computes arrays for every example of a split.

  `compute` maps parameters and a batch to arrays with a row for each example;
  it is compiled. The arrays are kept on the host. The function raises
  ValueError if no image can be read.
  """

  def step(params: Any, batch: Mapping[str, Array]) -> tuple[Any, ...]:
    return compute(params, batch), batch["mask"], batch["skipped"].sum()

  compiled = sharding.jit_replicated(step, stream.mesh)

  def gather(params: Any, track: Track = untracked) -> Gathered:
    index, parts, skipped, first = [], [], 0, 0
    steps = (compiled(params, batch) for batch in stream(track))
    for arrays, mask, unreadable in sharding.fetched(steps):
      rows = np.flatnonzero(mask > 0)
      index.append(first + rows)
      parts.append({name: array[rows] for name, array in arrays.items()})
      skipped += int(unreadable)
      first += len(mask)
    places = np.concatenate(index)
    check_readable(len(places))
    joined = {
      name: np.concatenate([part[name] for part in parts]) for name in parts[0]
    }
    return Gathered(places, joined, skipped)

  return gather


@dataclasses.dataclass(frozen=True)
class OutputsOutcome(Outcome):
  """The outputs for the readable examples of a split, in its order."""

  task: Task
  names: Sequence[str]
  index: np.ndarray  # Place of each example in the split.
  label: Float[np.ndarray, "N K"]  # 0 or 1 for each label, or the numbers.
  # Probabilities, or numbers in the unit of the labels.
  output: Float[np.ndarray, "N K"]
  loss: Float[np.ndarray, " N"]
  skipped: int
  unanswered: int = 0  # Examples to which the outputs are not finite.

  @property
  def constant(self) -> bool:
    return not self.unanswered and alike(self.output)

  def common(self, scores: dict[str, float]) -> dict[str, Any]:
    """These scores, with the loss before and the counts after them."""
    return {
      "loss": float(self.loss.mean(dtype=np.float64)),
      **scores,
      "examples": len(self.index),
      "skipped_images": self.skipped,
    }

  def each(self, key: str, values: np.ndarray) -> dict[str, dict[str, float]]:
    """A metric of each label or target, where it is defined."""
    pairs = zip(self.names, values, strict=True)
    finite = {name: float(x) for name, x in pairs if np.isfinite(x)}
    return Split.EVAL.keyed({key: finite})

  def table(self) -> Table:
    """The scores of each label or target."""
    raise NotImplementedError

  @property
  def answers(self) -> np.ndarray:
    """The answer to each example, (N, K), as labels are."""
    return self.output

  def columns(self) -> tuple[list[str], Callable[[int], list[str]]]:
    """Names of the columns of a CSV file, and the cells of an example."""
    raise NotImplementedError

  def show(self, display: Display) -> None:
    display.table(*self.table())

  def write(self, path: pathlib.Path, source: Source) -> None:
    names, cells = self.columns()
    order = np.argsort(-self.loss, kind="stable")
    rows = ([*cells(row), f"{self.loss[row]:.6g}"] for row in order)
    write_rows(path, source, [*names, "loss"], self.index[order], rows)

  def tables(self, counts: Any = None) -> list[tuple[str, Table]]:
    columns, rows = self.table()
    return [(f"Scores of each {columns[0]}", (columns, rows))]

  def telling(self) -> list[Examples]:
    examples = []
    for row in np.argsort(-self.loss, kind="stable")[:_WORST]:
      label, answer = (
        self.task.label_text(x[row], self.names)
        for x in (self.label, self.answers)
      )
      label_and_answer = f"{label}; answer: {answer}"
      index = int(self.index[row])
      examples.append(
        Example(index, label_and_answer, f"Photograph of {label_and_answer}")
      )
    text = (
      "The mistakes with the highest loss. Look for wrong labels here first."
    )
    return [Examples("Worst mistakes", text, examples)]


def alike(rows: Float[np.ndarray, "N K"]) -> bool:
  """Whether two rows or more are the same, up to rounding."""
  if len(rows) < 2:
    return False
  return bool((np.ptp(rows, axis=0) <= _ROUNDING * np.abs(rows).max(0)).all())


def mean_of_known(values: np.ndarray) -> float:
  """The mean of what is not NaN; NaN if nothing is.

  >>> import numpy as np
  >>> from vit_jax.tasks.outputs import mean_of_known
  >>> mean_of_known(np.array([1.0, np.nan, 2.0]))
  1.5
  """
  numbers = values[~np.isnan(values)]
  return float(numbers.mean()) if len(numbers) else float("nan")
