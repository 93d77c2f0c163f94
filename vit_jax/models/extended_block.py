"""Layers with what encoders have added since the paper.

LayerScale (arXiv:2103.17239), gated MLPs (SwiGLU, arXiv:2002.05202), norms of
queries and keys (arXiv:2302.05442), rotary positions (arXiv:2104.09864), which
turn queries and keys (`rotary`), projections without bias, norms inside
attention and MLPs (arXiv:2303.11331) and stochastic depth (arXiv:1603.09382).
Norms of queries and keys are for each head, or over all of them
(arXiv:2312.14238). Symbols as in `vit`.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.attention import Keys, Msa, Queries
from vit_jax.models.layer import (
  GELUS,
  LayerConfig,
  Offsets,
  TokenValues,
  dense,
  each_token,
  layer_norm,
)
from vit_jax.models.mask import AttentionMask
from vit_jax.models.partitioning import Projection, for_tpu, with_axes
from vit_jax.models.relative import Relative, RelativeBiases, relative_bias
from vit_jax.models.rotary import Rope, rotate
from vit_jax.models.tokens import Mask, Where
from vit_jax.models.vit import Mlp

QKV_BIASES = ("qkv", "qv", "", "q", "k", "v", "qk", "kv")
# Activations of the gate of a gated MLP: SwiGLU's, and GEGLU's.
GATES = {"silu": nn.silu} | GELUS


@dataclasses.dataclass(kw_only=True, unsafe_hash=True)
class BlockFields:
  """The fields of an `ExtendedVit` that make its layers what they are.

  To add a field, write one line here and the line that uses it: models inherit
  the field, and each layer gets all fields in its `ExtendedConfig`.

  Attributes:
    layer_scale: Initial value of LayerScale's factors; None for no LayerScale.
    gated_mlp: Whether the MLPs are gated (SwiGLU).
    gate: Activation of their gates, one of `GATES`.
    qk_norm: Whether the queries and keys of each head are normalised.
    qk_norm_whole: Whether one norm goes over the queries (or keys) of all
      heads.
    qkv_bias: Initials of those among query, key and value that have a bias.
    branch_bias: Whether the last layer of attention and all layers of MLPs
      have a bias.
    norm_after: Whether the norms of layers follow the branches (res-post-norm,
      arXiv:2111.09883).
    norm_inner_msa: Whether a norm precedes the last product of attention.
    norm_inner_mlp: Whether a norm precedes the last layer of the MLPs.
    parallel: Number of attentions side by side, whose sum is added, and of the
      MLPs after them (arXiv:2203.09795). The parameters of those after the
      first are below `side_1` and so on.
  """

  layer_scale: float | None = None
  gated_mlp: bool = False
  gate: str = "silu"
  qk_norm: bool = False
  qk_norm_whole: bool = False
  qkv_bias: str = "qkv"
  branch_bias: bool = True
  norm_after: bool = False
  norm_inner_msa: bool = False
  norm_inner_mlp: bool = False
  parallel: int = 1


# A frozen dataclass cannot inherit from `BlockFields`, which is not frozen
# because models inherit from it. Python 3.11 knows no argument `module`.
_made = dataclasses.make_dataclass(
  "ExtendedConfig",
  [(f.name, f.type, f) for f in dataclasses.fields(BlockFields)],
  bases=(LayerConfig,),
  frozen=True,
  namespace={"__module__": __name__},
)

if TYPE_CHECKING:

  class ExtendedConfig(LayerConfig, BlockFields):
    """`LayerConfig` with `BlockFields`, made of a model by `of`, and frozen."""

    def __init__(self, **fields: Any): ...

else:
  ExtendedConfig = _made


class ExtendedMsa(Msa):
  """`Msa` with norms, rotations and fewer biases; (B, S, D) -> (B, S, D).

  `rope` has the rotations; None rotates nothing. With `relative`, R has the
  entries of `RelativeBiases`. With `norm_inner_msa`, a norm over the results of
  all heads precedes the last layer (arXiv:2303.11331).
  """

  config: ExtendedConfig = ExtendedConfig()  # pyright: ignore[reportIncompatibleVariableOverride]
  rope: Rope | None = None
  relative: Relative | None = None
  changes_qk = True

  @property
  def qkv_bias(self) -> str:
    """Initials of those among query, key and value that have a bias."""
    return self.config.qkv_bias

  @property
  def branch_bias(self) -> bool:
    """Whether the last layer has a bias."""
    return self.config.branch_bias

  def _compares_places(self, R: Offsets) -> bool:
    """Whether the logit of a query depends on the place of its token."""
    return self.rope is not None or super()._compares_places(R)

  def _logits(
    self, q: Queries, k: Keys, R: Offsets, where: Where
  ) -> Float[Array, "B k T S"]:
    """The logits of attention, plus the relative bias if there is one."""
    logits = super()._logits(q, k, None, where)
    if R is None or self.relative is None:
      return logits
    # With R, the logits are an array on a TPU, too: attention is plain.
    return logits + relative_bias(R, self.relative, where).astype(logits.dtype)

  def _prepare_qk(
    self, q: Queries, k: Keys, where: Where
  ) -> tuple[Queries, Keys]:
    """Normalises q and k (`qk_norm`), and rotates them by their places."""
    if self.config.qk_norm:
      axis = (1, 3) if self.config.qk_norm_whole else -1
      q = layer_norm(self.config, name="norm_query", axis=axis)(q)
      k = layer_norm(self.config, name="norm_key", axis=axis)(k)
    if self.rope:
      q, k = (rotate(x, self.rope, where) for x in (q, k))
    return q, k

  def _project_on_tpu(
    self,
    name: str,
    z: TokenValues,
    U: Projection,
    scale: float,
    where: Where,
  ) -> Array:
    """As in `Msa`, with the norm and the rotation of `_prepare_qk`."""
    from vit_jax.models import tpu

    if self.config.qk_norm:
      # `tpu.project` puts the heads first.
      axis = (0, 2) if self.config.qk_norm_whole else 2
      norm = layer_norm(self.config, name=f"norm_{name}", axis=axis)
      x = norm(tpu.project(z, *U.weights())) * scale
    elif self.rope is None:
      return super()._project_on_tpu(name, z, U, scale, where)
    elif self.rope.has_gradients:
      x = tpu.project(z, *U.weights(scale))
    else:
      W, b = U.weights(scale)
      cos, sin = self.rope.cos_and_sin(z.shape[1], U.shape[-1], where)
      return tpu.project_and_rotate(z, W, b, cos.mT, sin.mT)
    if self.rope is None:
      return x
    cos, sin = self.rope.cos_and_sin(z.shape[1], U.shape[-1], where)
    return tpu.rotate_halves(jnp.split(x, 2, axis=2), cos.mT, sin.mT)

  def _join_heads(self, U_msa: Projection, SA: Keys) -> TokenValues:
    """Joins the heads' outputs, after the inner norm if there is one."""
    if not self.config.norm_inner_msa:
      return super()._join_heads(U_msa, SA)
    norm = layer_norm(self.config, name="norm_inner", axis=(2, 3))
    return each_token(U_msa, norm(SA.swapaxes(1, 2)))

  def _on_tpu(
    self,
    form: str,
    z: TokenValues,
    U: tuple[Any, ...],
    scale: Any,
    where: Where,
    mask: AttentionMask,
  ) -> TokenValues:
    """The forms for TPUs, with the inner norm before the heads are joined."""
    if not self.config.norm_inner_msa:
      return super()._on_tpu(form, z, U, scale, where, mask)
    *U_qkv, U_msa = U
    heads = U_msa.shape[:2]
    identity = _IdentityProjection(heads, self.config.dtype)
    SA = super()._on_tpu(form, z, (*U_qkv, identity), None, where, mask)
    norm = layer_norm(self.config, name="norm_inner", axis=(2, 3))
    W, b = U_msa.weights(1.0 if scale is None else scale)
    y = jnp.einsum("bnhe,hed->bnd", norm(SA.reshape(*SA.shape[:2], *heads)), W)
    return y if b is None else y + b[None, None]


@dataclasses.dataclass(frozen=True)
class _IdentityProjection:
  """A stand-in for U_msa that returns the heads' results side by side."""

  heads: tuple[int, ...]  # (k, D_h)
  dtype: DTypeLike

  def weights(self, _: Any) -> tuple[Array, Array]:
    """The identity for the kernel, and a bias of zeros."""
    D = math.prod(self.heads)
    one = jnp.eye(D, dtype=self.dtype).reshape(*self.heads, D)
    return one, jnp.zeros(D, self.dtype)


class ExtendedMlp(nn.Module):
  """SwiGLU, or the MLP of Eq. 3, with more norms; (B, S, D) -> (B, S, D).

  SwiGLU is (silu(z W_gate) * z W_expand) W_contract; `gate` may be another of
  `GATES`. Either all its layers have a bias or none has. Dropout is where `Mlp`
  has it. With `norm_inner_mlp`, a norm precedes the last layer
  (arXiv:2303.11331).
  """

  mlp_size: int
  config: ExtendedConfig = ExtendedConfig(gated_mlp=True)

  @nn.compact
  def __call__(
    self, z: TokenValues, *, train: bool = False, scale: Any = None
  ) -> TokenValues:
    c = self.config
    D = z.shape[-1]
    layer = partial(dense, config=c, use_bias=c.branch_bias)
    wide = partial(layer, self.mlp_size, ("embed", "mlp"), bias_axis="mlp")
    gate = wide(name="gate") if c.gated_mlp else None
    expand = wide(name="expand")
    contract = layer(D, ("mlp", "embed"), scale=scale, name="contract")
    dropout = nn.Dropout(c.dropout_rate, deterministic=not train)

    hidden = each_token(expand, z)
    if gate is None:
      hidden = GELUS[c.gelu](hidden)
    else:
      hidden = GATES[c.gate](each_token(gate, z)) * hidden
    hidden = dropout(hidden)
    if c.norm_inner_mlp:
      hidden = layer_norm(c, name="norm_inner")(hidden)
    return dropout(each_token(contract, hidden))


class ExtendedBlock(nn.Module):
  """One layer of the Transformer; (B, S, D) -> (B, T, D).

  T is S, or with `read` the number of the first tokens that the result has.
  `config` is that of the model, `ExtendedMsa` says what `rope` is, and `Msa`
  what `mask`, `where` and `read` are. R is given if all layers share it.
  """

  num_heads: int
  mlp_size: int
  config: ExtendedConfig = ExtendedConfig()
  drop_path_rate: float = 0.0
  rope: Rope | None = None
  relative: Relative | None = None

  @nn.compact
  def __call__(
    self,
    z: TokenValues,
    R: Offsets = None,
    *,
    mask: Mask | AttentionMask = None,
    where: Where = None,
    read: int | None = None,
    train: bool = False,
  ) -> Float[Array, "B T D"]:
    if self.relative and R is None:  # The layer has its own.
      R = RelativeBiases(
        self.num_heads,
        self.relative,
        self.config.param_dtype,
        name="relative",
      )()
    c = self.config
    sides = [self] + [
      self.clone(name=f"side_{i}", parent=self) for i in range(1, c.parallel)
    ]
    dropout = nn.Dropout(c.dropout_rate, deterministic=not train)
    drop_path = nn.Dropout(
      self.drop_path_rate, broadcast_dims=(1, 2), deterministic=not train
    )
    options = {"mask": mask, "where": where, "read": read, "train": train}
    y = []
    for side in sides:
      branch = side.attention_branch(z, R, dropout, **options)
      y.append(drop_path(branch))
    z = functools.reduce(operator.add, y) + z[:, :read]  # Eq. 2
    y = [drop_path(side.mlp_branch(z, train)) for side in sides]
    return functools.reduce(operator.add, y) + z  # Eq. 3

  @nn.compact
  def attention_branch(
    self, z: TokenValues, R: Offsets, dropout: nn.Dropout, **options: Any
  ) -> Float[Array, "B T D"]:
    """The output of attention, with its norm and LayerScale.

    `options` are the keyword arguments of `Msa` but `scale`.
    """
    msa = self._msa(z.shape[-1])
    first, last = self._before_and_after(
      layer_norm(self.config, name="norm_msa")
    )
    within, after = self._layer_scale("scale_msa", z)
    y = msa(first(z), R, **options, scale=within)
    return after(last(dropout(y)))

  @nn.compact
  def mlp_branch(self, z: TokenValues, train: bool) -> TokenValues:
    """The output of the MLP, with its norm and LayerScale."""
    c = self.config
    extended = c.gated_mlp or c.norm_inner_mlp or not c.branch_bias
    mlp = ExtendedMlp if extended else Mlp
    mlp = mlp(self.mlp_size, c, name="mlp")
    first, last = self._before_and_after(layer_norm(c, name="norm_mlp"))
    within, after = self._layer_scale("scale_mlp", z)
    return after(last(mlp(first(z), train=train, scale=within)))

  def _before_and_after(self, norm: Callable) -> tuple[Callable, Callable]:
    """The functions before and after a branch: its norm and the identity."""
    return (_identity, norm) if self.config.norm_after else (norm, _identity)

  def _msa(self, D: int) -> Msa:
    """`Msa`, or `ExtendedMsa` if attention differs from the paper's."""
    c = self.config
    other = c.qk_norm or self.rope or self.relative or c.norm_inner_msa
    biased = c.qkv_bias == "qkv" and c.branch_bias
    if other or not biased:
      rope = self._rope(D)
      return ExtendedMsa(
        self.num_heads, c, rope=rope, relative=self.relative, name="msa"
      )
    return Msa(self.num_heads, self.config, name="msa")

  def _rope(self, D: int) -> Rope | None:
    """The rotations, with the frequencies that this layer may have learned."""
    rope = self.rope
    if rope is None or not rope.learned:
      return rope
    init = with_axes(rope.init, (None, "heads", "head_size"))
    shape = (2, self.num_heads, D // self.num_heads // 2)
    learned: Any = self.param(
      "frequencies", init, shape, self.config.param_dtype
    )
    return dataclasses.replace(rope, frequencies=learned)

  def _layer_scale(
    self, name: str, z: TokenValues
  ) -> tuple[Array | None, Callable]:
    """LayerScale's learned factors of a branch, one per channel.

    The first result has factors for the branch's last weights, or is None. The
    second is a function to apply to the branch's output. On a TPU the factors
    multiply the weights, which costs nothing there, and elsewhere the output.
    """
    factor = self.config.layer_scale
    if factor is None:
      return None, lambda y: y
    init = with_axes(nn.initializers.constant(factor), (None,))
    shape = z.shape[-1:]
    scale: Any = self.param(name, init, shape, self.config.param_dtype)
    if for_tpu():
      return scale, lambda y: y
    return None, lambda y: y * scale.astype(y.dtype)[None, None]


def _identity(z: TokenValues) -> TokenValues:
  """Returns z."""
  return z
