"""Evaluation that keeps the outputs for all examples of a split.

They are kept on the host: their ranking, or their variance, decides on the
scores.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.data.example import Source
from vit_jax.models.normalize import normalize
from vit_jax.runtime import hosts
from vit_jax.runtime.display import Display, Track, untracked
from vit_jax.tasks.outcome import (
  Example,
  Examples,
  Outcome,
  Table,
  check_readable,
)
from vit_jax.tasks.stream import Stream
from vit_jax.training import sharding
from vit_jax.training.losses import Classification

_WORST = 6  # Examples of the highest loss in a report.


@dataclasses.dataclass(frozen=True)
class Outputs:
  """The outputs for the readable examples of a split, in its order.

  Attributes:
    index: Place of each example in the split.
    label: 0 or 1 for each label, or the numbers.
    output: Probabilities, or numbers in the unit of the labels.
    loss: Loss of each example.
    skipped: Number of unreadable images.
  """

  index: np.ndarray
  label: Float[np.ndarray, "N K"]
  output: Float[np.ndarray, "N K"]
  loss: Float[np.ndarray, " N"]
  skipped: int


class OutputsEvaluator:
  """Keeps the outputs for a split; see `outcome.Evaluator`.

  Args:
    model: The model, from images to outputs.
    stream: The split to evaluate on.
    objective: The objective of training; its weights of classes are left out.
    answers: Maps outputs (N, K) of the model, float64, to answers (N, K).
    outcome: Makes the outcome of the outputs.
  """

  def __init__(
    self,
    model: nn.Module,
    stream: Stream,
    objective: Classification,
    answers: Callable[[np.ndarray], np.ndarray],
    outcome: Callable[[Outputs], "OutputsOutcome"],
  ):
    self._stream, self._answers, self._outcome = stream, answers, outcome
    plain = objective.for_evaluation()

    def step(params: Any, batch: dict[str, Array]) -> tuple[Array, ...]:
      images = normalize(batch["image"], plain.mean, plain.std)
      logits: Any = model.apply({"params": params}, images)
      label = batch["label"]
      loss, _ = plain.loss_and_score(logits, plain.targets(label))
      logits = logits.astype(jnp.float32)
      return logits, loss, label, batch["mask"], batch["skipped"]

    whole = sharding.replicated(stream.mesh)
    self._step = hosts.together(
      jax.jit(sharding.on_mesh(step, stream.mesh), out_shardings=whole)
    )

  def __call__(
    self,
    params: Any,
    track: Track = untracked,
    *,
    detail: bool = False,
    examples: bool = False,
  ) -> "OutputsOutcome":
    del detail, examples
    found, skipped, first = [], 0, 0
    for batch in self._stream(track):
      logits, loss, label, mask, unreadable = jax.device_get(
        self._step(params, batch)
      )
      rows = np.flatnonzero(mask > 0)
      found.append((first + rows, label[rows], logits[rows], loss[rows]))
      skipped += int(unreadable.sum())
      first += len(loss)
    index, label, logits, loss = (
      np.concatenate(part) for part in zip(*found, strict=True)
    )
    check_readable(len(index))
    output = self._answers(logits.astype(np.float64))
    label = label.astype(np.float64)
    return self._outcome(Outputs(index, label, output, loss, skipped))


@dataclasses.dataclass(frozen=True)
class OutputsOutcome(Outcome):
  """The outcome of an evaluation that kept all outputs.

  Attributes:
    names: Names of the labels or targets.
    found: The outputs.
  """

  names: Sequence[str]
  found: Outputs

  def common(self, scores: dict[str, float]) -> dict[str, Any]:
    """The metrics, with the loss and the counts around these scores."""
    found = self.found
    every = {
      "loss": float(found.loss.mean(dtype=np.float64)),
      **scores,
      "examples": len(found.index),
      "skipped_images": found.skipped,
    }
    return {f"eval/{key}": value for key, value in every.items()}

  def each(self, key: str, values: np.ndarray) -> dict[str, dict[str, float]]:
    """A metric of each label or target, where it is defined."""
    pairs = zip(self.names, values, strict=True)
    known = {name: float(x) for name, x in pairs if np.isfinite(x)}
    return {f"eval/{key}": known}

  def table(self) -> Table:
    """The scores of each label or target."""
    raise NotImplementedError

  @property
  def answers(self) -> np.ndarray:
    """The answer to each example, (N, K), as labels are."""
    return self.found.output

  def words(self, label: np.ndarray) -> str:
    """The label of an example, or the answer to it, in words."""
    raise NotImplementedError

  def columns(self) -> tuple[list[str], Callable[[int], list[str]]]:
    """Names of the columns of a CSV file, and the cells of an example."""
    raise NotImplementedError

  def show(self, display: Display) -> None:
    display.table(*self.table())

  def write(self, path: pathlib.Path, source: Source) -> None:
    from vit_jax.tasks.prediction_table import write_rows

    found, (names, cells) = self.found, self.columns()
    order = np.argsort(-found.loss, kind="stable")
    rows = ([*cells(row), f"{found.loss[row]:.6g}"] for row in order)
    write_rows(path, source, [*names, "loss"], found.index[order], rows)

  def tables(self, counts: Any = None) -> list[tuple[str, Table]]:
    columns, rows = self.table()
    return [(f"Scores of each {columns[0]}", (columns, rows))]

  def telling(self) -> list[Examples]:
    worst = np.argsort(-self.found.loss, kind="stable")[:_WORST]
    examples = []
    for row in worst:
      label, answer = (x[row] for x in (self.found.label, self.answers))
      said = f"{self.words(label)}; answer: {self.words(answer)}"
      index = int(self.found.index[row])
      examples.append(Example(index, said, f"Photograph of {said}"))
    text = (
      "The mistakes with the highest loss. Look for wrong labels here first."
    )
    return [Examples("Worst mistakes", text, examples)]


def mean_of_known(values: np.ndarray) -> float:
  """The mean of what is not NaN; NaN if nothing is."""
  known = values[~np.isnan(values)]
  return float(known.mean()) if len(known) else float("nan")
