"""Self-attention, Eq. 5-8 (arXiv:2010.11929, App. A); symbols as in `vit`."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.layer import (
  LayerConfig,
  Offsets,
  TokenValues,
  each_token,
  init_kernel,
  init_zeros,
  layer_norm,
)
from vit_jax.models.mask import AttentionMask
from vit_jax.models.partitioning import (
  Projection,
  for_tpu,
  products_are_replaced,
  with_axes,
)
from vit_jax.models.position import relative_logits
from vit_jax.models.tokens import Mask, Where

Queries = Float[Array, "B k T D_h"]
Keys = Float[Array, "B k S D_h"]


FORMS = {
  "plain": "as written, A as an array",
  "whole": "our form for TPUs",
  "blocks": "our form for TPUs, some heads and images at a time",
  "splash": "JAX's splash attention kernel",
  "cudnn": "cuDNN's kernels",
}
"""The ways to compute attention, described for the header of a run."""
WHOLE = 512  # The most tokens for which a TPU computes all of A at once.


def form_of(
  tokens: int,
  needs_A: bool,
  config: LayerConfig,
  head_size: int,
  mask: AttentionMask | None = None,
) -> str:
  """The name of the form, in `FORMS`, in which attention is computed.

  `tokens` is S, `head_size` D_h, and `needs_A` says whether the caller needs A
  as an array, which only the plain form has. Of the `mask`, it matters only
  whether cuDNN's kernels take it; None is no mask.
  """
  if needs_A or config.attention == "plain":
    return "plain"
  if for_tpu():
    many = "splash" if config.splash else "blocks"
    return "whole" if tokens <= WHOLE else many
  if config.attention == "cudnn" and (mask is None or mask.is_at_end):
    from vit_jax.models import gpu

    refused = gpu.refusal(config.dtype, head_size)
    return "plain" if refused else "cudnn"
  return "plain"


class Msa(nn.Module):
  """Multi-head self-attention, Eq. 5-8; (B, S, D) -> (B, S, D).

  If `queries` are given, they attend to the tokens z, and the result is
  (B, T, D). If `R` is given, each query is also compared with the embedding of
  its offset to each key (App. D.4); `where` says which patches are there.

  Given a `mask`, booleans (B, S) or an `AttentionMask`, no query attends to a
  token that it does not see: its weight in A is 0, and the other weights are
  what they would be without it. A query that sees no token has zero weights.

  With `read`, only the first `read` tokens are queries, and the result is
  (B, read, D). `scale` has the factors of LayerScale for the result.

  A is sown as `attention`. To differentiate with respect to A, pass zeros as
  `perturbations/attention`.
  """

  num_heads: int
  config: LayerConfig = LayerConfig()
  qkv_bias = "qkv"  # Initials of the projections that have a bias.
  branch_bias = True  # Whether the last projection has one.
  changes_qk = False  # Whether `_prepare_qk` of a subclass changes q and k.
  causal = False  # Whether a token sees only itself and earlier tokens.

  @nn.compact
  def __call__(
    self,
    z: TokenValues,
    R: Offsets = None,
    *,
    queries: Float[Array, "B T D"] | None = None,
    mask: Mask | AttentionMask = None,
    where: Where = None,
    read: int | None = None,
    train: bool = False,
    scale: Float[Array, " D"] | None = None,
  ) -> Float[Array, "B T D"]:
    c = self.config
    S, D = z.shape[1:]
    seen = AttentionMask.of(mask)
    if self.causal:
      seen = seen.replace(causal=True)
    if queries is not None:
      seen = seen.of_keys(S)
    # Logits that depend on places need all queries, since `where` has a place
    # for every token; the rows after `read` are cut off below.
    if read is not None and not self._compares_places(R):
      queries = z[:, :read]
    U_q, U_k, U_v, U_msa = U = self.projections(D)
    replaced = products_are_replaced()
    plain_only = replaced or R is not None or queries is not None
    needs_A = plain_only or self._needs_A(train)
    form = form_of(S, needs_A, c, D // self.num_heads, seen)
    if form == "cudnn":
      from vit_jax.models import gpu

      q, k, v = (to_heads(one, z) for one in U[:3])
      SA = gpu.attend(*self._prepare_qk(q, k, where), v, seen)
      return self._apply_layer_scale(self._join_heads(U_msa, SA), scale)[
        :, :read
      ]
    if form != "plain":
      z = z.astype(c.dtype)
      return self._on_tpu(form, z, U, scale, where, seen)[:, :read]
    dropout = nn.Dropout(c.attention_dropout_rate, deterministic=not train)
    # The shortcut leaves out `_prepare_qk`, by which a subclass may rotate.
    as_written = replaced or R is not None or type(self) is not Msa
    is_few = queries is not None and queries.shape[1] < D // self.num_heads
    few = is_few and not as_written

    q = to_heads(U_q, z if queries is None else queries)  # Eq. 5
    if few:
      logits = logits_of_few(q, U_k, z)
    else:
      q, k = self._prepare_qk(q, to_heads(U_k, z), where)
      logits = self._logits(q, k, R, where)[:, :, :read]
    A = masked_softmax(logits, seen, c.attention_dtype)  # Eq. 6
    A = sow_and_perturb(self, A)
    A = dropout(A)
    SA = result_of_few(A, U_v, z) if few else A @ to_heads(U_v, z)  # Eq. 7
    return self._apply_layer_scale(self._join_heads(U_msa, SA), scale)  # Eq. 8

  def projections(self, D: int) -> tuple[Projection, ...]:
    """U_q, U_k, U_v, each (D, k, D_h), and U_msa, (k, D_h, D)."""
    k = self.num_heads
    D_h = D // k
    heads = ("heads", "head_size")
    make = partial(Projection, kernel_init=init_kernel, **self.config.dtypes)

    def into_heads(name: str) -> Projection:
      init = init_zeros if name[0] in self.qkv_bias else None
      axes = ("embed", *heads), heads
      return make((D, k, D_h), 1, *axes, bias_init=init, name=name)

    U_qkv = map(into_heads, ("query", "key", "value"))
    axes = (*heads, "embed"), (None,)
    init = init_zeros if self.branch_bias else None
    U_msa = make((k, D_h, D), 2, *axes, bias_init=init, name="out")
    return (*U_qkv, U_msa)

  def _compares_places(self, R: Offsets) -> bool:
    """Whether the logit of a query depends on the place of its token."""
    return R is not None

  def _prepare_qk(
    self, q: Queries, k: Keys, where: Where
  ) -> tuple[Queries, Keys]:
    """Returns q and k for Eq. 6; a subclass may normalise or rotate them."""
    return q, k

  def _logits(
    self, q: Queries, k: Keys, R: Offsets, where: Where
  ) -> Float[Array, "B k T S"]:
    """The logits of A; a subclass may compute others."""
    b = 0 if R is None else relative_logits(q, R, where)
    return (q @ k.mT + b) / math.sqrt(q.shape[-1])

  def _join_heads(self, U_msa: Projection, SA: Keys) -> TokenValues:
    """Joins the heads' results, Eq. 8; a subclass may normalise them first."""
    return from_heads(U_msa, SA)

  def _apply_layer_scale(self, y: TokenValues, scale: Any) -> TokenValues:
    """The output times the factors of LayerScale, if there are any."""
    return y if scale is None else y * scale.astype(y.dtype)[None, None]

  def _needs_A(self, train: bool) -> bool:
    """Whether A has to be an array.

    It has to in `init`, and if it is dropped, sown or perturbed.
    """
    return (
      (train and self.config.attention_dropout_rate > 0)
      or self.is_initializing()
      or self.is_mutable_collection("intermediates")
      or self.has_variable("perturbations", "attention")
    )

  def _on_tpu(
    self,
    form: str,
    z: TokenValues,
    U: tuple[Any, ...],
    scale: Any,
    where: Where,
    mask: AttentionMask,
  ) -> TokenValues:
    """Eq. 5-8 as `models.tpu` computes them; `scale` multiplies the output.

    `form` is "whole", "blocks" or "splash", and U are the `projections`.
    """
    from vit_jax.models import tpu

    U_q, U_k, U_v, U_msa = U
    sqrt_D_h = math.sqrt(z.shape[-1] // self.num_heads)
    q = self._project_on_tpu("query", z, U_q, 1 / sqrt_D_h, where)
    k = self._project_on_tpu("key", z, U_k, 1.0, where)
    factors = 1.0 if scale is None else scale
    whole = tpu.attend_in_order if self.changes_qk else tpu.attend
    blocks = partial(tpu.attend_in_blocks, splash=form == "splash")
    attend = whole if form == "whole" else blocks
    W_v, b_v = U_v.weights()
    W, b = U_msa.weights(factors)
    b = jnp.zeros(z.shape[-1:], z.dtype) if b is None else b
    seen = mask if mask.hides else None
    return attend(q, k, z, W_v, b_v, W, b, self.config.attention_dtype, seen)

  def _project_on_tpu(
    self,
    name: str,
    z: TokenValues,
    U: Projection,
    scale: float,
    where: Where,
  ) -> Array:
    """z U times `scale`, for `models.tpu`; (B, S, D) -> (k, B, D_h, S).

    `name` is "query" or "key". A subclass whose `_prepare_qk` changes queries
    and keys does the same here, for which it may use `where`.
    """
    from vit_jax.models import tpu

    W, b = U.weights(scale)
    # The keys' bias adds the same to all logits of a query.
    b = jax.lax.stop_gradient(b) if name == "key" else b
    return tpu.project(z, W, b)


def sow_and_perturb(
  module: nn.Module, A: Float[Array, "B k T S"]
) -> Float[Array, "B k T S"]:
  """Sows A as the module's `attention`, and adds its perturbation if given."""
  module.sow("intermediates", "attention", A)
  if module.has_variable("perturbations", "attention"):
    A += module.get_variable("perturbations", "attention")
  return A


def to_heads(U: Projection, z: TokenValues) -> Keys:
  """The product z U for every head; (B, S, D) -> (B, k, S, D_h)."""
  return each_token(U, z).swapaxes(1, 2)


def from_heads(U: Projection, SA: Keys) -> TokenValues:
  """The product [SA_1; ...; SA_k] U; (B, k, S, D_h) -> (B, S, D)."""
  return each_token(U, SA.swapaxes(1, 2))


def logits_of_few(
  q: Queries, U_k: Projection, z: TokenValues
) -> Float[Array, "B k T S"]:
  """The logits of fewer queries than D_h, q (z U_k)^T as (q U_k^T) z^T.

  That takes T S D multiplications for each head instead of S D D_h. The keys'
  bias adds the same to all logits of a query, and is left out.
  """
  B, k, T, D_h = q.shape
  W, _ = U_k.weights()
  u = jnp.einsum("bkte,dke->bktd", q, W).reshape(B, k * T, -1)
  logits = u @ z.astype(u.dtype).mT
  return logits.reshape(B, k, T, -1) / math.sqrt(D_h)


def result_of_few(
  A: Float[Array, "B k T S"], U_v: Projection, z: TokenValues
) -> Queries:
  """The heads' results for fewer queries than D_h, A (z U_v) as (A z) U_v."""
  B, k, T, S = A.shape
  W, b = U_v.weights()
  means = A.reshape(B, k * T, S) @ z.astype(A.dtype)
  SA = jnp.einsum("bktd,dke->bkte", means.reshape(B, k, T, -1), W)
  return SA if b is None else SA + A.sum(-1, keepdims=True) * b[None, :, None]


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def softmax(
  logits: Float[Array, "*axes S"], dtype: DTypeLike = jnp.float32
) -> Float[Array, "*axes S"]:
  """Softmax over keys, with logits and exponentials of type `dtype`.

  In bfloat16 the error of a weight is about 100 times that in float32, as a
  logit is off by up to 2^-8 of itself. The function is Flax's, for which ONNX
  has a node; it adds the exponentials in float32 and rounds the sum.

  Its derivative, dA = A (dlogits - sum(A dlogits)), is written out because it
  then needs nothing but A itself: left to JAX, a train step keeps more of the
  S x S matrices and spends three times as long on them on a CPU.
  """
  return nn.softmax(logits.astype(dtype)).astype(logits.dtype)


@softmax.defjvp
def _softmax_jvp(
  dtype: DTypeLike, primals: tuple, tangents: tuple
) -> tuple[Array, Array]:
  result = softmax(*primals, dtype)
  A, dlogits = (x.astype(jnp.float32) for x in (result, *tangents))
  dA = A * (dlogits - (A * dlogits).sum(axis=-1, keepdims=True))
  return result, dA.astype(result.dtype)


def masked_softmax(
  logits: Float[Array, "B k T S"],
  mask: Mask | AttentionMask,
  dtype: DTypeLike,
) -> Float[Array, "B k T S"]:
  """`softmax` over the keys that a query sees, and 0 for the others.

  The lowest finite number replaces the logits of hidden keys before the
  softmax. A hidden logit is then never the maximum, however large it was, and
  has no gradient.
  """
  mask = AttentionMask.of(mask)
  seen = mask.pairs(*logits.shape[2:])
  if seen is None:
    return softmax(logits, dtype)
  seen = seen[:, None]  # For all heads.
  # A number that both types have: bfloat16 would round float32's lowest to
  # -inf.
  lowest = max(float(jnp.finfo(t).min) for t in (logits.dtype, dtype))
  A = softmax(jnp.where(seen, logits, lowest), dtype)
  if mask.each_sees_itself:
    return A
  # Softmax gives equal weights to the keys of a query that sees none.
  return jnp.where(seen, A, 0)


class MapHead(nn.Module):
  """Attention pooling (arXiv:2106.04560); (B, S, D) -> (B, D).

  If a mask has `queries`, one for each of M images, the result is (B, M, D).

  A learned probe takes the place of the class token: it attends once to all
  tokens, or to those that `mask` lets count. An MLP with a residual connection
  follows, which `make_mlp(name="mlp")` builds. There is no dropout.
  """

  num_heads: int
  make_mlp: Callable[..., nn.Module]
  config: LayerConfig = LayerConfig()

  @nn.compact
  def __call__(
    self, z: TokenValues, mask: Mask | AttentionMask = None
  ) -> Float[Array, "B *M D"]:
    B, _, D = z.shape
    mask = AttentionMask.of(mask)
    init = with_axes(init_kernel, (None, None))
    probe: Any = self.param("probe", init, (1, D), self.config.param_dtype)
    msa = Msa(self.num_heads, self.config, name="msa")
    norm = layer_norm(self.config, name="norm")
    mlp = self.make_mlp(name="mlp")

    M = 1 if mask.queries is None else mask.queries.shape[1]
    queries = jnp.tile(probe[None].astype(self.config.dtype), (B, M, 1))
    y = msa(z, queries=queries, mask=mask)  # (B, M, D)
    y = mlp(norm(y)) + y
    return y[:, 0] if mask.queries is None else y


class QueryPool(nn.Module):
  """Attention pooling of AIMv2 (arXiv:2411.14402); (B, S, D) -> (B, D).

  A learned query for each head attends to all tokens, or to those that `mask`
  lets count: softmax(q k^T / sqrt(D_h)) v. A dense layer joins the heads. Keys
  and values have no bias. If a mask has `queries`, one for each of M images,
  the result is (B, M, D).
  """

  num_heads: int
  config: LayerConfig = LayerConfig()

  @nn.compact
  def __call__(
    self, z: TokenValues, mask: Mask | AttentionMask = None
  ) -> Float[Array, "B *M D"]:
    D = z.shape[-1]
    mask = AttentionMask.of(mask)
    k = self.num_heads
    make = partial(Projection, kernel_init=init_kernel, **self.config.dtypes)
    heads = ("heads", "head_size")
    shape, axes = (D, k, D // k), (("embed", *heads), heads)
    U_k, U_v = (
      make(shape, 1, *axes, bias_init=None, name=name)
      for name in ("key", "value")
    )
    axes = (*heads, "embed"), (None,)
    U = make((*shape[1:], D), 2, *axes, bias_init=init_zeros, name="out")
    init = with_axes(nn.initializers.normal(0.02), (None, None))
    query: Any = self.param("query", init, shape[1:], self.config.param_dtype)

    keys, values = to_heads(U_k, z), to_heads(U_v, z)  # (B, k, S, D_h)
    q = query.astype(keys.dtype)[None, :, None]  # (1, k, 1, D_h)
    if mask.queries is not None:
      q = jnp.tile(q, (1, 1, mask.queries.shape[1], 1))
    logits = (q @ keys.mT) / math.sqrt(D // k)
    A = masked_softmax(logits, mask, self.config.attention_dtype)
    A = sow_and_perturb(self, A)
    y = from_heads(U, A @ values)
    return y[:, 0] if mask.queries is None else y
