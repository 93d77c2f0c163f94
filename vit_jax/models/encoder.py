"""The encoder's layers, Eq. 2 and 3, and attention pooling.

Symbols as in `vit`.
"""

import math
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.attention import (
  Msa,
  each_token,
  init_bias,
  init_kernel,
)
from vit_jax.models.partitioning import Dense, named, platform


def gelu_tanh(x: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
  """GELU by the tanh that published models take."""
  return _tpu_gelu(x) if platform() == "tpu" else nn.gelu(x)


# x Phi(x) = x (1 + tanh(_A x + _B x^3)) / 2, nearly.
_A = math.sqrt(2 / math.pi)
_B = 0.044715 * _A


@jax.custom_vjp
def _tpu_gelu(x: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
  """The same, in float32, of which nothing is kept but x.

  Its derivative, computed again, costs a TPU less than to read what JAX would
  keep of it.
  """
  wide = x.astype(jnp.float32)
  tanh = jnp.tanh(wide * (_A + _B * wide * wide))
  return (wide * (0.5 + 0.5 * tanh)).astype(x.dtype)


def _tpu_gelu_forward(x: Array) -> tuple[Array, Array]:
  return _tpu_gelu(x), x


def _tpu_gelu_backward(x: Array, dy: Array) -> tuple[Array]:
  wide = x.astype(jnp.float32)
  square = wide * wide
  tanh = jnp.tanh(wide * (_A + _B * square))
  slope = (0.5 + 0.5 * tanh) * (1 + (1 - tanh) * wide * (_A + 3 * _B * square))
  return ((dy.astype(jnp.float32) * slope).astype(x.dtype),)


_tpu_gelu.defvjp(_tpu_gelu_forward, _tpu_gelu_backward)

GELUS = {"tanh": gelu_tanh, "exact": partial(nn.gelu, approximate=False)}


class Mlp(nn.Module):
  """The MLP of Eq. 3: two dense layers, GELU between; (B, S, D) -> (B, S, D).

  Dropout follows both dense layers (App. B.1), the first one's after GELU.
  """

  mlp_size: int
  dropout_rate: float = 0.0
  gelu: str = "tanh"
  dtype: DTypeLike = jnp.float32
  param_dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(
    self, z: Float[Array, "B S D"], *, train: bool = False
  ) -> Float[Array, "B S D"]:
    dense = partial(Dense, dtype=self.dtype, param_dtype=self.param_dtype)
    expand = dense(
      self.mlp_size,
      kernel_init=named(init_kernel, ("embed", "mlp")),
      bias_init=named(init_bias, ("mlp",)),
      name="expand",
    )
    contract = dense(
      z.shape[-1],
      kernel_init=named(init_kernel, ("mlp", "embed")),
      bias_init=named(init_bias, (None,)),
      name="contract",
    )
    dropout = nn.Dropout(self.dropout_rate, deterministic=not train)

    hidden = dropout(GELUS[self.gelu](each_token(expand, z)))  # (B, S, D_mlp)
    return dropout(each_token(contract, hidden))


class EncoderBlock(nn.Module):
  """One Transformer layer, Eq. 2 and 3; (B, S, D) -> (B, S, D)."""

  num_heads: int
  mlp_size: int
  dropout_rate: float = 0.0
  attention_dropout_rate: float = 0.0
  gelu: str = "tanh"
  layer_norm_epsilon: float = 1e-6
  dtype: DTypeLike = jnp.float32
  param_dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(
    self,
    z: Float[Array, "B S D"],
    R: Float[Array, "offsets k D_h"] | None = None,
    *,
    train: bool = False,
  ) -> Float[Array, "B S D"]:
    dtypes: dict[str, Any] = dict(
      dtype=self.dtype, param_dtype=self.param_dtype
    )
    norm = partial(layer_norm, self.layer_norm_epsilon, **dtypes)
    msa = Msa(self.num_heads, self.attention_dropout_rate, **dtypes, name="msa")
    mlp = Mlp(self.mlp_size, self.dropout_rate, self.gelu, **dtypes, name="mlp")
    dropout = nn.Dropout(self.dropout_rate, deterministic=not train)
    norm_msa, norm_mlp = norm(name="norm_msa"), norm(name="norm_mlp")

    z = dropout(msa(norm_msa(z), R, train=train)) + z  # Eq. 2
    z = mlp(norm_mlp(z), train=train) + z  # Eq. 3
    return z


def layer_norm(epsilon: float, **fields) -> nn.LayerNorm:
  """LN of Eq. 2-4, its parameters carrying their logical axis."""
  return nn.LayerNorm(
    epsilon=epsilon,
    scale_init=named(nn.initializers.ones_init(), (None,)),
    bias_init=named(nn.initializers.zeros_init(), (None,)),
    **fields,
  )


class MapHead(nn.Module):
  """Attention pooling, "MAP head"; (B, S, D) -> (B, D).

  A learned probe attends to all tokens in the place of a class token, and one
  MLP with a residual follows (arXiv:2106.04560).
  """

  num_heads: int
  mlp_size: int
  gelu: str = "tanh"
  layer_norm_epsilon: float = 1e-6
  dtype: DTypeLike = jnp.float32
  param_dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(
    self, z: Float[Array, "B S D"], *, train: bool = False
  ) -> Float[Array, "B D"]:
    dtypes: dict[str, Any] = dict(
      dtype=self.dtype, param_dtype=self.param_dtype
    )
    B, _, D = z.shape
    probe: Any = self.param(
      "probe", named(init_kernel, (None, None)), (1, D), self.param_dtype
    )
    msa = Msa(self.num_heads, **dtypes, name="msa")
    norm = layer_norm(self.layer_norm_epsilon, **dtypes, name="norm")
    mlp = Mlp(self.mlp_size, gelu=self.gelu, **dtypes, name="mlp")

    queries = jnp.tile(probe[None].astype(self.dtype), (B, 1, 1))  # (B, 1, D)
    y = msa(z, queries=queries, train=train)
    y = mlp(norm(y), train=train) + y
    return y[:, 0]
