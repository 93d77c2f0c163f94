"""A Transformer layer with what encoders have added since the paper.

LayerScale (arXiv:2103.17239), gated MLPs (SwiGLU, arXiv:2002.05202), norms of
queries and keys (arXiv:2302.05442), rotary positions, projections without bias
and stochastic depth (arXiv:1603.09382). Symbols as in `vit`.
"""

from typing import Any

import flax.linen as nn
from jaxtyping import Array, Float

from vit_jax.models.attention import Msa, attention_of
from vit_jax.models.layer import (
  LayerConfig,
  Offsets,
  Tokens,
  dense,
  each_token,
  layer_norm,
)
from vit_jax.models.modern_embedding import Grid, rotate
from vit_jax.models.partitioning import named
from vit_jax.models.vit import Mlp

QKV_BIASES = ("qkv", "qv", "")


class ModernMsa(Msa):
  """`Msa` with norms, rotations and fewer biases; (B, S, D) -> (B, S, D).

  Attributes:
    qkv_bias: Initials of those among query, key and value that have a bias.
    qk_norm: Whether the queries and keys of each head are normalised.
    rope: Grid of patches and theta of rotary positions; None for none.
  """

  qkv_bias: str = "qkv"
  qk_norm: bool = False
  rope: tuple[Grid, float] | None = None

  def _compared(
    self, q: Float[Array, "B k T D_h"], k: Float[Array, "B k S D_h"]
  ) -> tuple[Float[Array, "B k T D_h"], Float[Array, "B k S D_h"]]:
    if self.qk_norm:
      q = layer_norm(self.config, name="norm_query")(q)
      k = layer_norm(self.config, name="norm_key")(k)
    if self.rope:
      q, k = rotate(q, *self.rope), rotate(k, *self.rope)
    return q, k


class GatedMlp(nn.Module):
  """SwiGLU: (silu(z W_gate) * z W_expand) W_contract; (B, S, D) -> (B, S, D).

  All three layers have a bias. Dropout is where `Mlp` has it.
  """

  mlp_size: int
  config: LayerConfig = LayerConfig()

  @nn.compact
  def __call__(self, z: Tokens, *, train: bool = False) -> Tokens:
    c, D = self.config, z.shape[-1]
    gate, expand = (
      dense(self.mlp_size, ("embed", "mlp"), c, bias_axis="mlp", name=name)
      for name in ("gate", "expand")
    )
    contract = dense(D, ("mlp", "embed"), c, name="contract")
    dropout = nn.Dropout(c.dropout_rate, deterministic=not train)

    hidden = nn.silu(each_token(gate, z)) * each_token(expand, z)
    return dropout(each_token(contract, dropout(hidden)))


class ModernBlock(nn.Module):
  """One layer of the Transformer; (B, S, D) -> (B, S, D).

  Attributes:
    num_heads: k.
    mlp_size: Width of the MLP's hidden layer.
    config: The settings of all layers.
    layer_scale: Initial value of LayerScale's factors; None for no LayerScale.
    gated_mlp: Whether the MLP is a `GatedMlp`.
    drop_path_rate: Chance that a training example skips a residual branch.
    qkv_bias: As in `ModernMsa`.
    qk_norm: As in `ModernMsa`.
    rope: As in `ModernMsa`.
  """

  num_heads: int
  mlp_size: int
  config: LayerConfig = LayerConfig()
  layer_scale: float | None = None
  gated_mlp: bool = False
  drop_path_rate: float = 0.0
  qkv_bias: str = "qkv"
  qk_norm: bool = False
  rope: tuple[Grid, float] | None = None

  @nn.compact
  def __call__(
    self, z: Tokens, R: Offsets = None, *, train: bool = False
  ) -> Tokens:
    msa = self._msa(train)
    mlp = GatedMlp if self.gated_mlp else Mlp
    mlp = mlp(self.mlp_size, self.config, name="mlp")
    norm_msa = layer_norm(self.config, name="norm_msa")
    norm_mlp = layer_norm(self.config, name="norm_mlp")
    dropout = nn.Dropout(self.config.dropout_rate, deterministic=not train)
    drop_path = nn.Dropout(
      self.drop_path_rate, broadcast_dims=(1, 2), deterministic=not train
    )

    y = dropout(msa(norm_msa(z), R, train=train))
    z = drop_path(self._scaled("scale_msa", y)) + z  # Eq. 2
    y = mlp(norm_mlp(z), train=train)
    return drop_path(self._scaled("scale_mlp", y)) + z  # Eq. 3

  def _msa(self, train: bool) -> Msa:
    """The paper's attention, unless this one differs from it."""
    k, c = self.num_heads, self.config
    if self.qk_norm or self.rope or self.qkv_bias != "qkv":
      own = self.qkv_bias, self.qk_norm, self.rope
      return ModernMsa(k, c, *own, name="msa")
    return attention_of(self, None, train)(k, c, name="msa")

  def _scaled(self, name: str, y: Tokens) -> Tokens:
    """LayerScale: the branch times a learned factor per channel."""
    if self.layer_scale is None:
      return y
    init = named(nn.initializers.constant(self.layer_scale), (None,))
    shape = y.shape[-1:]
    scale: Any = self.param(name, init, shape, self.config.param_dtype)
    return y * scale.astype(y.dtype)[None, None]
