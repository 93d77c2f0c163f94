"""The forms of GELU, by the names that a model's field `gelu` takes."""

from functools import partial

import flax.linen as nn
from jaxtyping import Array, Float

from vit_jax.models import tpu
from vit_jax.models.partitioning import for_tpu


def gelu_tanh(x: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
  """GELU by the tanh approximation, as in the published models."""
  return tpu.gelu(x) if for_tpu() else nn.gelu(x)


GELUS = {
  "tanh": gelu_tanh,
  "exact": partial(nn.gelu, approximate=False),
  "quick": lambda x: x * nn.sigmoid(1.702 * x),  # CLIP's.
}
