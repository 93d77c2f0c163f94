"""Self-attention in the form that XLA compiles best for a TPU.

The mathematics is that of `attention.Msa`, Eq. 5-8. It differs in what TPUs are
slow at:

- Heads are outermost and tokens innermost, (k, B, D_h, S): registers are 128
  wide, and heads of size 64 would leave half of each empty.
- Attention is transposed, with keys above queries, so that maximum and sum over
  keys run down the rows instead of across them.
- Logits stay in the chip's own memory; their type is the caller's, `dtype`. The
  backward pass gets the exponentials in the type of the tokens; 1 / sum turns
  them into attention weights.
- Two bias gradients need no reduction. The keys' bias adds the same to all
  logits of a query, so its gradient is 0. The attention weights of a query sum
  to 1, so the gradient of the values' bias is that of the output's bias, taken
  back through the last product.

Without gradients and rotations, heads are inside and keys innermost: XLA then
fuses the softmax with the products around it. Chips differ in what is fastest
there, and `FORWARD` has the form of each.

Only reverse-mode differentiation is defined.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.mask import NO_KEY, AttentionMask, Segments
from vit_jax.models.partitioning import chip, lay_out, on_each_device, splits

Heads = Float[Array, "k B D_h S"]
barrier = jax.lax.optimization_barrier


class Forward(NamedTuple):
  """How a pass without gradients is computed, where chips differ.

  Attributes:
    apart: Whether queries and keys are computed before their product. Otherwise
      XLA may compute the queries and keys of a block again inside the product.
    narrow: Whether exponentials are rounded to the type of the tokens before
      they are added, as in a train step.
  """

  apart: bool = False
  narrow: bool = False

  def __str__(self) -> str:
    choices = {
      "queries and keys apart": self.apart,
      "exponentials in the type of the tokens": self.narrow,
    }
    return ", ".join(text for text, is_on in choices.items() if is_on)


FORWARD = {
  "v5e": {
    768: Forward(),
    1024: Forward(),
  },
  "v6e": {
    768: Forward(),
    1024: Forward(narrow=True),
  },
  "v4": {
    768: Forward(narrow=True),
    1024: Forward(narrow=True),
  },
  "v5p": {
    768: Forward(narrow=True),
    1024: Forward(),
  },
  "tpu7x": {
    768: Forward(narrow=True),
    1024: Forward(apart=True, narrow=True),
  },
}
"""The fastest form by chip and width D, as `scripts.bench.forms` finds it."""


def forward_form(width: int) -> Forward:
  """The form in `FORWARD` for the chip that a computation is traced for.

  A width that is not there takes the form of the nearest width, and a chip that
  is not there the default.
  """
  forms = FORWARD.get(chip() or "", {})
  nearest = min(forms, key=lambda known: abs(known - width), default=0)
  return forms.get(nearest, Forward())


@jax.custom_vjp
def keep_unfused(x: Array) -> Array:
  """The array x; in a pass without gradients, XLA computes it beforehand.

  XLA would otherwise compute the first product of an MLP within the second,
  which is slower.
  """
  return barrier(x)


keep_unfused.defvjp(lambda x: (x, None), lambda _, d: (d,))


@jax.custom_vjp
def project(
  z: Float[Array, "B S D"],
  W: Float[Array, "D k D_h"],
  b: Float[Array, "k D_h"] | None,
) -> Heads:
  """The product z W + b for every head, Eq. 5."""
  y = _product("bnd,dhe->hben", z, W)  # Eq. 5
  return y if b is None else y + b[:, None, :, None]


def _project_forward(z, W, b):
  z = _in_order(z)
  return _in_order(project(z, W, b)), (z, W, b)


def _project_backward(saved: tuple, d: Array) -> tuple:
  """The gradients for z, W and b, from that for the result, (k, B, D_h, S)."""
  z, W, b = saved
  d = _in_order(d)
  db = None if b is None else d.astype(jnp.float32).sum(axis=(1, 3))
  dW, dz = _projection_gradients(z, d, W)
  return dz, dW, None if db is None else db.astype(z.dtype)


project.defvjp(_project_forward, _project_backward)


@jax.custom_vjp
def project_and_rotate(
  z: Float[Array, "B S D"],
  W: Float[Array, "D k D_h"],
  b: Float[Array, "k D_h"] | None,
  cos: Float[Array, "*B half S"],
  sin: Float[Array, "*B half S"],
) -> Heads:
  """`project`, then entries i and i + D_h / 2 rotated by the i-th angle.

  `cos` and `sin` are the same for all images, or have a row for each image.
  Each half is a product of its own, since splitting one product would copy it.
  """
  half = cos.shape[-2]
  parts = [
    project(z, W[..., cut], None if b is None else b[:, cut])
    for cut in (slice(half), slice(half, None))
  ]
  return rotate_halves(parts, cos, sin)


def rotate_halves(halves: Sequence[Array], cos: Array, sin: Array) -> Array:
  """The two halves of D_h entries, rotated by angles and joined.

  `cos` and `sin` of the angles are (D_h / 2, S), or (B, D_h / 2, S).
  """
  x, y = (half.astype(jnp.float32) for half in halves)
  axes = tuple(range(x.ndim - cos.ndim))
  cos, sin = (jnp.expand_dims(f, axes) for f in (cos, sin))
  both = [x * cos - y * sin, y * cos + x * sin]
  return jnp.concatenate(both, axis=-2).astype(halves[0].dtype)


def _project_and_rotate_forward(z, W, b, cos, sin):
  z = _in_order(z)
  return _in_order(project_and_rotate(z, W, b, cos, sin)), (z, W, b, cos, sin)


def _project_and_rotate_backward(saved: tuple, d: Array) -> tuple:
  """The gradients for z, W and b; None for the angles, which have none.

  `d` is the gradient for the result, (k, B, D_h, S).
  """
  z, W, b, cos, sin = saved
  d = _in_order(d)
  # If all images have the same angles, d is summed over the images before it is
  # rotated back: the sum then fuses with the product that makes d.
  sums = d.astype(jnp.float32)
  axes = (1, 3)
  if cos.ndim == 2:
    sums = sums.sum(axis=1)  # (k, D_h, S)
    axes = 2
  sums = rotate_halves(jnp.split(sums, 2, axis=-2), cos, -sin)
  db = None if b is None else sums.sum(axis=axes)
  d = rotate_halves(jnp.split(d, 2, axis=2), cos, -sin)
  dW, dz = _projection_gradients(z, d, W)
  return dz, dW, None if db is None else db.astype(z.dtype), None, None


project_and_rotate.defvjp(
  _project_and_rotate_forward, _project_and_rotate_backward
)


@partial(jax.custom_vjp, nondiff_argnums=(7,))
def attend(
  q: Heads,
  k: Heads,
  z: Float[Array, "B S D"],
  W_v: Float[Array, "D k D_h"],
  b_v: Float[Array, "k D_h"] | None,
  W_out: Float[Array, "k D_h D"],
  b_out: Float[Array, " D"],
  dtype: DTypeLike = jnp.float32,
  mask: AttentionMask | None = None,
) -> Float[Array, "B S D"]:
  """Self-attention, Eq. 5-8, given the queries, scaled, and the keys.

  Logits and exponentials are of type `dtype`, their sums float32. A query
  attends to the keys that `mask` lets it see, and to none if it sees none.
  """
  form = forward_form(z.shape[-1])
  if form.apart:
    q = barrier(q)
    k = barrier(k)
  q, k, v = (x.transpose(1, 3, 0, 2) for x in (q, k, project(z, W_v, b_v)))
  logits = _logits("bqhe,bkhe->bhqk", q, k, dtype)
  seen = None if mask is None else _pairs(mask, z)[:, None]
  E, _ = _exponentials(logits, seen, -1)
  E = E.astype(z.dtype if form.narrow else jnp.float32).astype(jnp.float32)
  total = _or_one(E.sum(axis=-1, keepdims=True), seen)
  A = (E / total).astype(z.dtype)  # Eq. 6
  SA = _product("bhqk,bkhe->bqhe", A, v)  # Eq. 7
  return _product("bqhe,hed->bqd", SA, W_out) + b_out[None, None]  # Eq. 8


def _forward(q, k, z, W_v, b_v, W_out, b_out, dtype=jnp.float32, mask=None):
  """The result of `attend`, and what `_backward` needs.

  E has the exponentials, (k, B, keys, queries), and `scale` is 1 / their sum
  over the keys, (k, B, 1, queries).
  """
  v, (z, *_) = _project_forward(z, W_v, b_v)
  logits = _logits("hbeq,hbek->hbkq", q, k, dtype)  # (k, B, S, S)
  seen = None if mask is None else _pairs(mask, z).mT[None]
  E = _exponentials(logits, seen, 2)[0].astype(z.dtype)
  total = E.astype(jnp.float32).sum(axis=2, keepdims=True)  # (k, B, 1, S)
  scale = 1 / _or_one(total, seen)
  SA = _in_order(
    (_sums("hbkq,hbek->hbeq", E, v) * scale).astype(z.dtype)
  )  # Eq. 6, 7
  y = _product("hben,hed->bnd", SA, W_out) + b_out[None, None]  # Eq. 8
  return y, (z, W_v, b_v, W_out, q, k, v, E, scale, SA, mask)


def _backward(dtype: DTypeLike, saved: tuple, dy: Array) -> tuple:
  """The gradients for the arguments of `attend`; None for the mask.

  `saved` is what `_forward` saved, and `dy` the gradient for y, (B, S, D).
  """
  z, W_v, b_v, W_out, q, k, v, E, scale, SA, mask = saved
  db_out = dy.astype(jnp.float32).sum(axis=(0, 1))
  dy_sum = db_out  # The weights of a query that sees a key sum to 1.
  S = z.shape[1]
  has_key = None if mask is None else mask.sees(S, S)
  if has_key is not None:
    dy_with_key = jnp.where(has_key[..., None], dy, 0).astype(jnp.float32)
    dy_sum = dy_with_key.sum(axis=(0, 1))
  db_v = jnp.einsum("hed,d->he", W_out.astype(jnp.float32), dy_sum)
  dy = _in_order(dy)
  dW_out = _product("hben,bnd->hed", SA, dy)
  # dSA is the gradient of the sums E v before `scale` multiplies them, and
  # `shift` is the sum in the softmax's derivative.
  dSA = _sums("bnd,hed->hben", dy, W_out) * scale
  dSA = _in_order(dSA.astype(z.dtype))
  shift = (dSA.astype(jnp.float32) * SA.astype(jnp.float32)).sum(axis=2)
  dE = _sums("hbeq,hbek->hbkq", dSA, v) - shift[:, :, None]
  dlogits = (E.astype(jnp.float32) * dE).astype(z.dtype)
  dv = _in_order(_product("hbkq,hbeq->hbek", E, dSA))
  dW_v, dz = _projection_gradients(z, dv, W_v)
  # While these are computed, q and k are fetched into the memory that E no
  # longer needs.
  dlogits, dW_v, dz = barrier((dlogits, dW_v, dz))
  dq = _in_order(_product("hbkq,hbek->hbeq", dlogits, k))
  dk = _in_order(_product("hbkq,hbeq->hbek", dlogits, q))
  return (
    dq,
    dk,
    _in_order(dz),
    dW_v,
    None if b_v is None else db_v.astype(z.dtype),
    dW_out,
    db_out.astype(z.dtype),
    None,
  )


attend.defvjp(_forward, _backward)


@partial(jax.custom_vjp, nondiff_argnums=(7,))
def attend_in_order(
  q, k, z, W_v, b_v, W_out, b_out, dtype=jnp.float32, mask=None
) -> Array:
  """`attend` for rotated queries and keys, with heads outermost.

  With heads inside, rotating costs more.
  """
  q = _in_order(q)
  k = _in_order(k)
  return _forward(q, k, z, W_v, b_v, W_out, b_out, dtype, mask)[0]


attend_in_order.defvjp(_forward, _backward)


# Bytes of float32 logits that are computed at once. A v5e chip has 128 MiB of
# its own memory.
BLOCK_BYTES = 40 * 2**20


def attend_in_blocks(
  q,
  k,
  z,
  W_v,
  b_v,
  W_out,
  b_out,
  dtype: DTypeLike = jnp.float32,
  mask: AttentionMask | None = None,
  *,
  splash: bool = False,
) -> Array:
  """As `attend`, some heads and images at a time; saves no S x S matrix.

  With `splash`, JAX's kernel computes it, in float32 alone.
  """
  q, k, v = map(_in_order, (q, k, project(z, W_v, None)))
  core = _splash if splash else partial(by_queries, dtype=dtype)
  axes = "heads", "batch", None, None
  S = z.shape[1]
  segments = None if mask is None else mask.segments(len(z), S, S)
  has_key = None if mask is None else mask.sees(S, S)
  segment_axes = None if segments is None else segments.axes
  core = on_each_device(core, axes, (axes, axes, axes, segment_axes))
  SA = core(q, k, v, segments)
  if has_key is not None:
    SA = jnp.where(has_key[None, :, None], SA, 0)
  b = _both_biases(b_v, W_out, b_out)
  y = _product("hben,hed->bnd", SA, W_out)  # Eq. 8
  if has_key is None:
    return y + b[None, None]
  return y + jnp.where(has_key[..., None], b[None, None], b_out[None, None])


def _both_biases(b_v: Array | None, W_out: Array, b_out: Array) -> Array:
  """Both biases' contribution to the output of a query that sees a key, (D,).

  Its attention weights sum to 1, so the values' bias passes into each head's
  output unchanged.
  """
  if b_v is None:
    return b_out
  return b_out + _sums("he,hed->d", b_v, W_out).astype(b_out.dtype)


def by_queries(
  q: Heads,
  k: Heads,
  v: Heads,
  segments: Segments | None = None,
  *,
  dtype: DTypeLike,
) -> Heads:
  """Attention, Eq. 6 and 7, for some queries at a time.

  All queries are one part unless the logits of a head fill more than
  `BLOCK_BYTES`.
  """
  S = q.shape[3]
  parts = -(-_logit_bytes(S, S) // BLOCK_BYTES)
  most = -(-S // (128 * parts)) * 128  # Queries of a part, a multiple of 128.
  cuts = [*range(most, S, most)]
  outputs = []
  for start, x in zip([0, *cuts], jnp.split(q, cuts, axis=3), strict=True):
    part = None if segments is None else segments.cut(start, most)
    outputs.append(_in_blocks(x, k, v, dtype, part))
  return jnp.concatenate(outputs, axis=3)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _in_blocks(
  q: Heads, k: Heads, v: Heads, dtype: DTypeLike, segments: Segments | None
) -> Heads:
  """Attention, Eq. 6 and 7, for a block of heads and images at a time."""
  return _blocks_forward(q, k, v, dtype, segments)[0]


def _blocks_forward(q, k, v, dtype, segments):
  """The result of `_in_blocks`, and what `_blocks_backward` needs.

  `log_sums` has log(sum of exp(logits)) of each query, (blocks, n, 1, T).
  """
  split = _blocks(q, k, v)
  seen_in = _seen_in_blocks(segments, len(q))

  def block(i, results):
    """Writes attention and `log_sums` of block i into `results`."""
    q, k, v = (x[i] for x in split)
    logits = _logits("neq,nek->nkq", q, k, dtype)
    E, top = _exponentials(logits, seen_in(i), 1)
    E = E.astype(q.dtype)
    # With a row of ones, the product has the sums of E as well.
    v = jnp.concatenate([v, jnp.ones_like(v[:, :1])], axis=1)
    sums = _sums("nkq,nek->neq", E, v)
    SA, total = jnp.split(sums, [sums.shape[1] - 1], axis=1)
    total = _or_one(total, segments)
    log_sum = top.astype(jnp.float32) + jnp.log(total)
    block_results = (SA / total).astype(q.dtype), log_sum
    pairs = zip(results, block_results, strict=True)
    return [whole.at[i].set(part) for whole, part in pairs]

  like = split[0]
  log_sums = jnp.zeros((*like.shape[:2], 1, like.shape[3]))
  start = [jnp.zeros_like(like), log_sums]
  SA, log_sums = jax.lax.fori_loop(0, len(like), block, start)
  return SA.reshape(q.shape), (q, k, v, log_sums, segments)


def _blocks_backward(dtype: DTypeLike, saved: tuple, dSA: Array) -> tuple:
  """The gradients for q, k and v; None for the segments."""
  *arrays, log_sums, segments = saved
  seen_in = _seen_in_blocks(segments, len(dSA))
  dSA, *split = _blocks(dSA, *arrays)

  def block(i, arrays):
    """Replaces q, k and v of block i by their gradients."""
    # Each gradient overwrites the array it is the gradient of, so these are
    # read first.
    q, k, v = barrier([x[i] for x in arrays])
    logits = _logits("neq,nek->nkq", q, k, dtype)
    A = jnp.exp(logits.astype(jnp.float32) - log_sums[i])
    if segments is not None:
      A = jnp.where(seen_in(i), A, 0)
    dA = _sums("neq,nek->nkq", dSA[i], v)
    dv = _product("nkq,neq->nek", A.astype(q.dtype), dSA[i])
    factors = A, dA, (A * dA).sum(axis=1, keepdims=True)
    dq = _product("nkq,nek->neq", _softmax_gradient(factors, q.dtype), k)
    # Each product computes the gradient as it reads A and dA: written once in
    # bfloat16 for both, it would cost more than both products.
    factors = barrier(factors)
    dk = _product("nkq,neq->nek", _softmax_gradient(factors, q.dtype), q)
    pairs = zip(arrays, (dq, dk, dv), strict=True)
    return [x.at[i].set(d) for x, d in pairs]

  gradients = jax.lax.fori_loop(0, len(dSA), block, split)
  pairs = zip(gradients, arrays, strict=True)
  return *(d.reshape(x.shape) for d, x in pairs), None


def _softmax_gradient(factors: tuple[Array, ...], dtype: DTypeLike) -> Array:
  """The gradient of the logits from (A, dA, sum of A dA over keys)."""
  A, dA, shift = factors
  return (A * (dA - shift)).astype(dtype)


_in_blocks.defvjp(_blocks_forward, _blocks_backward)


def _blocks(*arrays: Array) -> list[Array]:
  """Each array (k, B, ...) as (blocks, n, ...), n pairs of head and image.

  The last axis of the first array is that of the queries, and the last axis of
  the last array that of the keys.
  """
  k, B, _, queries = arrays[0].shape
  most = max(1, BLOCK_BYTES // _logit_bytes(arrays[-1].shape[3], queries))
  n = max(n for n in range(1, min(most, k * B) + 1) if k * B % n == 0)
  return [x.reshape(k * B // n, n, *x.shape[2:]) for x in arrays]


def _seen_in_blocks(segments: Segments | None, heads: int) -> Callable:
  """A function of a block's number: whether a query sees a key, (n, S, T).

  The function returns None if all queries see all keys.
  """
  if segments is None:
    return lambda i: None
  ids = (
    jnp.broadcast_to(x[None, :, None], (heads, len(x), 1, x.shape[1]))
    for x in segments[:2]
  )
  query, key = _blocks(*ids)

  def seen_in(i):
    """Whether the keys (rows) of block i are seen by its queries (columns)."""
    pairs = query[i] == key[i].mT
    if segments.order is None:
      return pairs
    places = jnp.arange(key.shape[-1])
    return pairs & (places[:, None] <= segments.order[None])[None]

  return seen_in


def _logit_bytes(keys: int, queries: int) -> int:
  """Bytes of a head's float32 logits, whose rows are registers of 128."""
  return 4 * keys * -(-queries // 128) * 128


def _splash(
  q: Heads, k: Heads, v: Heads, segments: Segments | None = None
) -> Heads:
  """As `by_queries`, by JAX's kernel for TPUs, on arrays (heads, S, D_h)."""
  from jax.experimental.pallas.ops.tpu import splash_attention

  kernels: Any = splash_attention
  S = q.shape[3]
  # The side of a block -> the tokens of padding that it needs.
  padded = {side: -S % side for side in (640, 512, 384)}
  side = min(padded, key=lambda side: padded[side])
  padding = (0, 0), (0, 0), (0, padded[side])
  flat = (jnp.pad(x.reshape(-1, *x.shape[2:]), padding) for x in (q, k, v))
  queries, *others = (x.mT for x in flat)  # (k B, S', D_h)
  heads, tokens, _ = queries.shape
  layout = kernels.QKVLayout.SEQ_MINOR
  sizes = kernels.BlockSizes(
    block_q=side,
    block_kv=side,
    block_kv_compute=side,
    block_q_dkv=side,
    block_kv_dkv=side,
    block_kv_dkv_compute=side,
    block_q_dq=side,
    block_kv_dq=side,
    use_fused_bwd_kernel=False,
    q_layout=layout,
    k_layout=layout,
    v_layout=layout,
  )
  shape = tokens, tokens
  if segments is None:
    masks = [kernels.FullMask(shape)] * heads
  else:
    kind = kernels.FullMask if segments.order is None else kernels.CausalMask
    masks = [kind(shape)] * len(q)
  attend = kernels.make_splash_mha_single_device(
    kernels.MultiHeadMask(masks), block_sizes=sizes
  )
  # Tokens attend to their own segment, and the padding is another segment.
  segment = (jnp.arange(tokens) >= S).astype(jnp.int32)
  if segments is None:
    SA = attend(queries, *others, kernels.SegmentIds(segment, segment))
    return SA.mT[..., :S].reshape(q.shape)
  of_images = (
    x.reshape(*q.shape[:2], *x.shape[1:]) for x in (queries, *others)
  )
  ids = (
    jnp.pad(x, padding[1:], constant_values=NO_KEY)
    for x in (segments.query, segments.key)
  )
  attend_each = jax.vmap(attend, in_axes=(1, 1, 1, 0), out_axes=1)
  SA = attend_each(*of_images, kernels.SegmentIds(*ids))
  return SA.mT[..., :S]


def _projection_gradients(z: Array, d: Array, W: Array) -> tuple[Array, Array]:
  """The gradients of W and z, from the gradient d of their product."""
  dW = barrier(_product("hben,bnd->hed", d, z))
  return dW.transpose(2, 0, 1), _product("hben,dhe->bnd", d, W)


def _pairs(mask: AttentionMask, z: Array) -> Any:
  """Whether each query (axis 1) sees each key (axis 2), (B, S or 1, S)."""
  S = z.shape[1]
  return mask.pairs(S, S)


def _exponentials(
  logits: Array, seen: Array | None, axis: int
) -> tuple[Array, Array]:
  """exp(logits - top), 0 for keys that are not seen, and top, the highest."""
  if seen is not None:
    logits = jnp.where(seen, logits, jnp.finfo(logits.dtype).min)
  top = logits.max(axis=axis, keepdims=True)
  E = jnp.exp(logits - top)
  return (E if seen is None else jnp.where(seen, E, 0)), top


def _or_one(total: Array, mask: Any) -> Array:
  """The sums of exponentials to divide by; 1 where no key is seen.

  Without a `mask`, each query sees a key.
  """
  return total if mask is None else jnp.where(total == 0, 1, total)


def _product(axes: str, a: Array, b: Array) -> Array:
  """A product in the type of its first factor."""
  return jnp.einsum(axes, a, b, preferred_element_type=a.dtype)


def _sums(axes: str, a: Array, b: Array) -> Array:
  """A product in float32, whatever the type of its factors."""
  return jnp.einsum(axes, a, b, preferred_element_type=jnp.float32)


def _logits(axes: str, q: Array, k: Array, dtype: DTypeLike) -> Array:
  """The products of queries and keys, in `dtype`.

  XLA may leave out the rounding of a float32 product to bfloat16, but always
  rounds a product that is bfloat16 itself.
  """
  widest = jnp.promote_types(q.dtype, dtype)
  return jnp.einsum(axes, q, k, preferred_element_type=widest).astype(dtype)


def _in_order(x: Array) -> Array:
  """The array, laid out in memory in the order of its axes."""
  if splits("heads"):  # A layout would make the compiler gather it whole first.
    axes = ("heads", "batch") if x.ndim == 4 else ("batch",)
    return lay_out(x, (*axes, *(None,) * (x.ndim - len(axes))))
  layout = Layout(major_to_minor=tuple(range(x.ndim)))
  return with_layout_constraint(x, layout)
