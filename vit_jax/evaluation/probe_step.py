"""Steps of few-shot evaluation: features of images, right answers of probes.

The features are the input of the head's last layer: the output of a
pre-training head's tanh layer, where there is one and it is wanted, or else y
of Eq. 4 (arXiv:2010.11929), the output of the last layer norm and the pooling.
"""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from vit_jax.evaluation.eval_step import label_rank
from vit_jax.models import ResNet, Vit
from vit_jax.models.normalize import normalize


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


def make_features(
  model: Vit | ResNet,
  *,
  mean: Sequence[float],
  std: Sequence[float],
  pre_logits: bool,
) -> Callable[[Any, dict[str, Array]], tuple[Array, Array]]:
  """Returns a function from (params, batch) to features (B, D) and mask (B,).

  The mask is 0 for padding and for unreadable images. The parameters may
  include the head's, which are not used. `pre_logits` is as for `without_head`.
  """
  body = without_head(model, pre_logits)

  def features(params: Any, batch: dict[str, Array]):
    images = normalize(batch["image"], mean, std)
    y: Any = body.apply({"params": params}, images)
    return y.astype(jnp.float32), batch["mask"]

  return features


def without_head(model: Vit | ResNet, pre_logits: bool) -> nn.Module:
  """The model up to its representation.

  Args:
    model: The model, with or without a head.
    pre_logits: Whether its representation layer, if any, is kept; y of Eq. 4 is
      the representation otherwise.
  """
  if isinstance(model, Vit) and not pre_logits:
    model = model.clone(representation_size=None)
  return model.clone(num_classes=0)


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
