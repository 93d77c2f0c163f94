"""Attention pooling, the "MAP head" of "Scaling Vision Transformers".

Symbols as in `vit`.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.models.attention import Msa
from vit_jax.models.layer import LayerConfig, init_kernel, layer_norm
from vit_jax.models.partitioning import named


class MapHead(nn.Module):
  """Attention pooling (arXiv:2106.04560); (B, S, D) -> (B, D).

  A learned probe takes the place of the class token: it attends to all tokens
  once, and an MLP with a residual follows. There is no dropout.

  Attributes:
    num_heads: k, the heads of its attention.
    make_mlp: Builds its MLP from a name.
    config: The settings of the other layers.
  """

  num_heads: int
  make_mlp: Callable[..., nn.Module]
  config: LayerConfig = LayerConfig()

  @nn.compact
  def __call__(self, z: Float[Array, "B S D"]) -> Float[Array, "B D"]:
    B, _, D = z.shape
    probe: Any = self.param(
      "probe", named(init_kernel, (None, None)), (1, D), self.config.param_dtype
    )
    msa = Msa(self.num_heads, self.config, name="msa")
    norm = layer_norm(self.config, name="norm")
    mlp = self.make_mlp(name="mlp")

    queries = jnp.tile(probe[None].astype(self.config.dtype), (B, 1, 1))
    y = msa(z, queries=queries)  # (B, 1, D)
    y = mlp(norm(y)) + y
    return y[:, 0]
