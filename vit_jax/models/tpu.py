"""Self-attention, Eq. 5-8, in the form that XLA compiles best for a TPU.

The mathematics is `attention.Msa`'s. What differs is what a TPU is slow at:

- Heads are outermost and tokens innermost, (k, B, D_h, S): registers are 128
  wide, and a head of 64 would leave half of them empty.
- Attention is taken transposed, keys above queries, so that maximum and sum
  over keys run down the rows instead of across them.
- Logits stay in float32 and in the chip's own memory; stored for the backward
  pass are the exponentials in bfloat16, which 1 / sum then makes weights of.
- Sums that come for free are not taken: the keys' bias adds the same to all
  logits of a query, so its gradient is 0; the attention weights of a query sum
  to 1, so that of the values' bias is that of the output's, through the last
  product.

Only reverse-mode differentiation is defined.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

from vit_jax.models.partitioning import in_use, splits


@jax.custom_vjp
def msa(
  z: Float[Array, "B S D"],
  W_q: Float[Array, "D k D_h"],
  b_q: Float[Array, "k D_h"],
  W_k: Float[Array, "D k D_h"],
  b_k: Float[Array, "k D_h"],
  W_v: Float[Array, "D k D_h"],
  b_v: Float[Array, "k D_h"],
  W_out: Float[Array, "k D_h D"],
  b_out: Float[Array, " D"],
) -> Float[Array, "B S D"]:
  """Multi-head self-attention; queries come scaled by 1 / sqrt(D_h)."""
  return _forward(z, W_q, b_q, W_k, b_k, W_v, b_v, W_out, b_out)[0]


def _forward(z, W_q, b_q, W_k, b_k, W_v, b_v, W_out, b_out):
  z = _in_order(z)
  q, k, v = (
    _in_order(_product("bnd,dhe->hben", z, W) + b[:, None, :, None])
    for W, b in ((W_q, b_q), (W_k, b_k), (W_v, b_v))
  )  # Eq. 5
  logits = _sums("hbeq,hbek->hbkq", q, k)  # (k, B, S, S), float32
  top = logits.max(axis=2, keepdims=True)
  E = jnp.exp(logits - top).astype(z.dtype)
  scale = 1 / E.astype(jnp.float32).sum(axis=2, keepdims=True)  # (k, B, 1, S)
  SA = _in_order(
    (_sums("hbkq,hbek->hbeq", E, v) * scale).astype(z.dtype)
  )  # Eq. 6, 7
  y = _product("hben,hed->bnd", SA, W_out) + b_out[None, None]  # Eq. 8
  return y, (z, W_q, W_k, W_v, W_out, q, k, v, E, scale, SA)


def _backward(kept: tuple, dy: Array) -> tuple:
  z, W_q, W_k, W_v, W_out, q, k, v, E, scale, SA = kept
  db_out = dy.astype(jnp.float32).sum(axis=(0, 1))
  db_v = jnp.einsum("hed,d->he", W_out.astype(jnp.float32), db_out)
  dy = _in_order(dy)
  dW_out = _product("hben,bnd->hed", SA, dy)
  # Of the sums before they are scaled; the last term is the softmax's.
  dSA = _sums("bnd,hed->hben", dy, W_out) * scale
  dSA = _in_order(dSA.astype(z.dtype))
  shift = (dSA.astype(jnp.float32) * SA.astype(jnp.float32)).sum(axis=2)
  dE = _sums("hbeq,hbek->hbkq", dSA, v) - shift[:, :, None]
  dlogits = (E.astype(jnp.float32) * dE).astype(z.dtype)
  dq = _in_order(_product("hbkq,hbek->hbeq", dlogits, k))
  dk = _in_order(_product("hbkq,hbeq->hbek", dlogits, q))
  dv = _in_order(_product("hbkq,hbeq->hbek", E, dSA))
  db_q = dq.astype(jnp.float32).sum(axis=(1, 3))
  dz, dWs = jnp.zeros((), z.dtype), []
  for W, d in ((W_q, dq), (W_k, dk), (W_v, dv)):
    dW = jax.lax.optimization_barrier(_product("hben,bnd->hed", d, z))
    dWs.append(dW.transpose(2, 0, 1))
    dz += _product("hben,dhe->bnd", d, W)
  dW_q, dW_k, dW_v = dWs
  return (
    _in_order(dz),
    *(dW_q, db_q.astype(z.dtype)),
    *(dW_k, jnp.zeros_like(db_q, z.dtype)),
    *(dW_v, db_v.astype(z.dtype)),
    *(dW_out, db_out.astype(z.dtype)),
  )


msa.defvjp(_forward, _backward)


def _product(axes: str, a: Array, b: Array) -> Array:
  return jnp.einsum(axes, a, b, preferred_element_type=a.dtype)


def _sums(axes: str, a: Array, b: Array) -> Array:
  """A product in float32, whatever its factors are."""
  return jnp.einsum(axes, a, b, preferred_element_type=jnp.float32)


def _in_order(x: Array) -> Any:
  """The array with its last axis along the registers."""
  if splits("heads"):  # The compiler would gather it whole first.
    axes = ("heads", "batch") if x.ndim == 4 else ("batch",)
    return in_use(x, (*axes, *(None,) * (x.ndim - len(axes))))
  layout = Layout(major_to_minor=tuple(range(x.ndim)))
  return with_layout_constraint(x, layout)
