"""Schedules by step for numbers other than the learning rate."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from vit_jax.runtime.settings import Duration


@dataclasses.dataclass(frozen=True)
class RunLength:
  """The length of a run, and the numbers that convert durations into steps.

  Attributes:
    total_steps: Steps of the run.
    batch_size: Examples per step.
    num_examples: Examples of an epoch.
  """

  total_steps: int
  batch_size: int
  num_examples: int

  def steps(self, duration: Duration) -> int:
    """A duration in steps; 0 if it is unset."""
    return duration.in_steps(self.batch_size, self.num_examples)


def cosine(step: Any, first: float, last: float, total_steps: int) -> Array:
  """From `first` at step 0 to `last` at `total_steps`, along half a cosine.

  >>> from vit_jax.training.schedules import cosine
  >>> [round(float(cosine(t, 0.0, 1.0, 4)), 3) for t in (0, 2, 4, 9)]
  [0.0, 0.5, 1.0, 1.0]
  """
  share = jnp.clip(step / max(total_steps, 1), 0.0, 1.0)
  return last + (first - last) * (1 + jnp.cos(jnp.pi * share)) / 2


def ramp(step: Any, first: float, last: float, num_steps: int) -> Array:
  """From `first` at step 0 to `last` at step `num_steps` - 1, evenly.

  >>> from vit_jax.training.schedules import ramp
  >>> [round(float(ramp(t, 1.0, 2.0, 3)), 3) for t in (0, 1, 2, 9)]
  [1.0, 1.5, 2.0, 2.0]
  """
  if num_steps < 1:
    return jnp.float32(last)
  share = jnp.clip(step / max(num_steps - 1, 1), 0.0, 1.0)
  return jnp.where(step < num_steps, first + (last - first) * share, last)
