"""Evaluation of masked patch prediction, with every example counted once."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from vit_jax.data.example import Source
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.evaluation.evaluator import Evaluator
from vit_jax.models.masked_vit import MaskedVit
from vit_jax.runtime.display import Track, untracked
from vit_jax.training import sharding
from vit_jax.training.masking import COLOURS, Masking


@struct.dataclass
class Totals:
  """Sums over the examples seen so far.

  Attributes:
    colours: True colours, by their number.
  """

  loss: Float[Array | np.ndarray, ""]
  right: Int[Array | np.ndarray, ""]
  colours: Int[Array | np.ndarray, " c"]
  examples: Int[Array | np.ndarray, ""]
  skipped: Int[Array | np.ndarray, ""]

  @classmethod
  def zeros(cls) -> "Totals":
    """Totals of no examples, as NumPy arrays that are equal on every host."""
    zero = np.zeros((), np.int32)
    colours = np.zeros(COLOURS, np.int32)
    return cls(np.zeros((), np.float32), zero, colours, zero, zero)


def make_eval_step(
  model: nn.Module, masking: Masking
) -> Callable[[Totals, Any, dict[str, Array], Array], Totals]:
  """Returns a function from (totals, params, batch, first) to totals.

  A batch is one of `EvalBatches`, and `first` the number of its first example,
  so an example has the same patches corrupted at every evaluation.
  """

  def eval_step(
    totals: Totals, params: Any, batch: dict[str, Array], first: Array
  ) -> Totals:
    counts = batch["mask"] > 0  # (B,)
    examples = first + jnp.arange(len(counts))
    images, targets = masking.prepare(batch, jax.random.key(0), examples)
    variables = {"params": params, "corruption": targets["draw"]}
    predicted: Any = model.apply(variables, images)
    loss = masking.loss_of(predicted, targets)
    true = targets["colours"]  # (B, M, parts)
    weight = jnp.broadcast_to(counts[:, None, None], true.shape).astype(int)
    right = (masking.colours(predicted) == true) * weight
    colours = jnp.zeros(COLOURS, jnp.int32).at[true].add(weight)
    return Totals(
      loss=totals.loss + jnp.where(counts, loss, 0).sum(),
      right=totals.right + right.sum(),
      colours=totals.colours + colours,
      examples=totals.examples + counts.sum(),
      skipped=totals.skipped + batch["skipped"].sum(),
    )

  return eval_step


class MaskedEvaluator(Evaluator):
  """Evaluates the prediction of masked patches on a split.

  Args:
    source: The split; labels are not used.
    **options: As of `Evaluator`.
  """

  def __init__(
    self,
    model: MaskedVit,
    mesh: Mesh,
    source: Source,
    preprocessing: Preprocessing,
    masking: Masking,
    **options: Any,
  ):
    super().__init__(model, mesh, source, preprocessing, **options)
    whole = sharding.replicated(mesh)
    self._masked_step = jax.jit(
      sharding.on_mesh(make_eval_step(model, masking), mesh),
      in_shardings=(whole, None, None, None),
      out_shardings=whole,
    )

  def __call__(
    self,
    params: Any,
    class_names: tuple[str, ...] = (),
    observe: Callable[..., None] | None = None,
    track: Track = untracked,
  ) -> dict[str, Any]:
    """Returns the metrics `eval/...` over every example of the split.

    `eval/colours_right` is the share of colours predicted right, and
    `eval/commonest_colour` that of the commonest one, which is what always
    naming it would score.
    """
    del class_names, observe
    totals, first = Totals.zeros(), 0
    for batch in track(self.on_device(), "evaluating", len(self._batches)):
      totals = self._masked_step(totals, params, batch, np.int32(first))
      first += len(batch["mask"])
    return _summary(jax.device_get(totals))


def _summary(totals: Totals) -> dict[str, Any]:
  examples, colours = int(totals.examples), int(totals.colours.sum())
  if not examples:
    raise ValueError("the evaluation split has no readable image.")
  return {
    "eval/loss": float(totals.loss) / examples,
    "eval/colours_right": int(totals.right) / colours,
    "eval/commonest_colour": int(totals.colours.max()) / colours,
    "eval/examples": examples,
    "eval/skipped_images": int(totals.skipped),
  }
