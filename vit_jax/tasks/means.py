"""Evaluation by the means of an objective's own loss and score."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from vit_jax.runtime.display import Track, untracked
from vit_jax.tasks.outcome import (
  Evaluator,
  Outcome,
  Stream,
  check_readable,
  total,
)
from vit_jax.training import sharding
from vit_jax.training.losses import Objective


def means_evaluator(
  objective: Objective, model: nn.Module, stream: Stream, score: str
) -> Evaluator:
  """Returns what evaluates a model by the objective that trained it.

  What the objective draws depends on the number of the batch alone, so that
  every evaluation draws alike. It must not couple the examples of a batch,
  since some rows of the last are padding. `score` is the key of its score.
  """

  def eval_step(
    params: Any, batch: Mapping[str, Array], number: Array
  ) -> dict[str, Array]:
    key = jax.random.fold_in(jax.random.key(0), number)
    inputs, targets = objective.prepare(dict(batch), key)

    def apply(inputs: Any, *, method: Any = None, **collections: Any) -> Any:
      variables = {"params": params, **collections}
      return model.apply(variables, inputs, method=method)

    loss, correct = objective.loss(apply, inputs, targets)
    counts = batch["mask"] > 0
    return {
      "loss": jnp.where(counts, loss, 0).sum(),
      score: jnp.where(counts, correct, 0).sum(),
      "examples": counts.sum(),
      "skipped_images": batch["skipped"].sum(),
    }

  step = sharding.jit_replicated(eval_step, stream.mesh)

  def evaluate(params: Any, track: Track = untracked, **_: Any) -> Outcome:
    batches = enumerate(stream(track))
    sums = (step(params, batch, np.int32(k)) for k, batch in batches)
    return MeansOutcome(total(sums), ("loss", score))

  return evaluate


@dataclasses.dataclass(frozen=True)
class MeansOutcome(Outcome):
  """Sums over a split, of which some become means."""

  totals: dict[str, Any]
  means: tuple[str, ...]

  @property
  def scores(self) -> dict[str, Any]:
    """The means and the counts."""
    examples = int(self.totals["examples"])
    check_readable(examples)
    means = {key: float(self.totals[key]) / examples for key in self.means}
    skipped = int(self.totals["skipped_images"])
    return {**means, "examples": examples, "skipped_images": skipped}
