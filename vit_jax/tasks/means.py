"""Evaluation by the means of an objective's own loss and score."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from vit_jax.tasks.metrics import Measure
from vit_jax.tasks.outcome import Outcome, check_readable
from vit_jax.training.losses import Objective, StepContext

# Equal answers have at most this variance, as a share of their mean square.
_ROUNDING = 1e-5


def means(objective: Objective, model: nn.Module, score: str) -> Measure:
  """Returns the measure of a model by the objective that trained it.

  What the objective draws depends on the number of the batch alone, so that
  every evaluation draws the same. The objective must not couple the examples of
  a batch, since some rows of the last batch are padding. `score` is the key of
  the objective's score.
  """

  def compute(
    params: Any, batch: Mapping[str, Array], first: Array
  ) -> dict[str, Array]:
    """The sums of a batch; see `sums_of`."""
    number = first // len(batch["mask"])
    key = jax.random.fold_in(jax.random.key(0), number)
    inputs, targets = objective.prepare(dict(batch), key)

    def apply(inputs: Any, *, method: Any = None, **collections: Any) -> Any:
      variables = {"params": params, **collections}
      return model.apply(variables, inputs, method=method)

    loss = objective.loss(apply, inputs, targets, StepContext())
    return sums_of(batch, loss.value, {score: loss.score})

  return Measure(compute, partial(MeansOutcome, means=("loss", score)))


def sums_of(
  batch: Mapping[str, Array],
  loss: Float[Array, " B"],
  each: Mapping[str, Float[Array, " B"]],
  answers: Float[Array, "B ..."] | None = None,
) -> dict[str, Array]:
  """Sums over the examples of a batch that count, and their number.

  `each` has further values of each example by their keys. An example whose loss
  is not finite is counted as `unanswered`. With `answers`, `is_constant` can
  tell from the sums whether all answers are alike.
  """
  counts = batch["mask"] > 0
  summed = {"loss": loss, **each}
  return {
    **{key: jnp.where(counts, x, 0).sum() for key, x in summed.items()},
    **({} if answers is None else _sums_of_answers(answers, counts)),
    "unanswered": (counts & ~jnp.isfinite(loss)).sum(),
    "examples": counts.sum(),
    "skipped_images": batch["skipped"].sum(),
  }


def _sums_of_answers(
  answers: Float[Array, "B ..."], counts: Bool[Array, " B"]
) -> dict[str, Array]:
  """The sum of the answers, and that of their squares, for `is_constant`."""
  rows = answers.astype(jnp.float32).reshape(len(answers), -1)
  rows = jnp.where(counts[:, None], rows, 0)
  return {"answer": rows.sum(axis=0), "answer_squared": (rows**2).sum()}


def is_constant(totals: Mapping[str, Any]) -> bool:
  """Whether all answers are equal up to rounding, from the sums of `sums_of`.

  It is False for a single example, and if any example has no answer.
  """
  examples = int(totals["examples"])
  if examples < 2 or totals["unanswered"]:
    return False
  squared = float(totals["answer_squared"]) / examples
  mean = np.asarray(totals["answer"], np.float64) / examples
  return squared - float((mean**2).sum()) <= _ROUNDING * squared


@dataclasses.dataclass(frozen=True)
class SumsOutcome(Outcome):
  """An outcome from `totals`, sums over a split that include `sums_of`."""

  totals: dict[str, Any]

  @property
  def unanswered(self) -> int:
    return int(self.totals["unanswered"])

  @property
  def constant(self) -> bool:
    return "answer" in self.totals and is_constant(self.totals)

  @property
  def examples(self) -> int:
    """How many examples were read; raises ValueError if none was."""
    examples = int(self.totals["examples"])
    check_readable(examples)
    return examples

  def mean(self, key: str) -> float:
    """The mean over the examples, from the sum of this key."""
    examples = self.examples
    return float(self.totals[key]) / examples

  def with_counts(self, scores: Mapping[str, Any]) -> dict[str, Any]:
    """The `scores`, then the numbers of examples and of skipped images."""
    skipped = int(self.totals["skipped_images"])
    return {**scores, "examples": self.examples, "skipped_images": skipped}


@dataclasses.dataclass(frozen=True)
class MeansOutcome(SumsOutcome):
  """Sums over a split; `means` are the keys of sums whose means are scores."""

  means: tuple[str, ...]

  @property
  def scores(self) -> dict[str, Any]:
    """The means and the counts."""
    return self.with_counts({key: self.mean(key) for key in self.means})
