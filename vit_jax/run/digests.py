"""Digests of steps: two runs that agree in them have done the same."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from vit_jax.run.plan import Plan
from vit_jax.runtime import hosts
from vit_jax.training import sharding
from vit_jax.training.state import TrainState
from vit_jax.workdir.checkpoint_reader import items
from vit_jax.workdir.description import digest_of

DIGESTED = {"loss", "gradient_norm"}  # Metrics that a digest holds.


def jit_digest(plan: Plan) -> Callable:
  """A function from a state, the batch before it and the step's metrics.

  It returns the state, which the next step is to take, and the step's digest.
  """
  seed = np.int64(plan.settings.seed)
  whole = sharding.replicated(plan.mesh)
  compiled = hosts.together(jax.jit(digest_of, out_shardings=whole))

  def digest(state: TrainState, batch: Any, metrics: dict[str, Any]) -> Any:
    step, sums = compiled(items(state), batch, state.step)
    norms = {k: metrics[k] for k in metrics.keys() & DIGESTED}
    return dataclasses.replace(state, step=step), {
      **sums,
      **norms,
      "seed": seed,
    }

  return digest
