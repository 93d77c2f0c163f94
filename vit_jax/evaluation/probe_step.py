"""The right answers of probes, counted on the device."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from vit_jax.tasks.eval_step import label_rank


@struct.dataclass
class Totals:
  """Counts over the test examples seen so far; `right` has one per draw."""

  right: Int[Array | np.ndarray, " draws"]
  examples: Int[Array | np.ndarray, ""]
  skipped: Int[Array | np.ndarray, ""]

  @classmethod
  def zeros(cls, draws: int) -> "Totals":
    """Counts of no examples."""
    zero = np.zeros((), np.int32)
    return cls(np.zeros(draws, np.int32), zero, zero)


def count_right(
  totals: Totals,
  probes: dict[str, Array],
  y: Float[Array, "B D"],
  batch: dict[str, Array],
) -> Totals:
  """Adds a batch of features y to the totals; masked rows do not count.

  `probes` holds the stacked `mean`, `scale` and `W` of several
  `linear_probe.Probe`s.
  """
  counts = batch["mask"] > 0

  def right(probe: dict[str, Array]) -> Int[Array, ""]:
    z = (y - probe["mean"][None]) / probe["scale"][None]
    scores = jnp.dot(z, probe["W"][:-1], precision=jax.lax.Precision.HIGHEST)
    rank = label_rank(scores + probe["W"][-1:], batch["label"])
    return (counts & (rank < 1)).sum()

  return Totals(
    right=totals.right + jax.vmap(right)(probes),
    examples=totals.examples + counts.sum(),
    skipped=totals.skipped + batch["skipped"].sum(),
  )
