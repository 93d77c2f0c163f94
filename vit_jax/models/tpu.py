"""Self-attention and GELU, in the forms that XLA compiles best for a TPU.

The mathematics of `msa` is that of `attention.Msa`, Eq. 5-8. It differs in what
TPUs are slow at:

- Heads are outermost and tokens innermost, (k, B, D_h, S): registers are 128
  wide, and heads of size 64 would leave half of each empty.
- Attention is transposed, with keys above queries, so that maximum and sum over
  keys run down the rows instead of across them.
- Logits stay in float32 and in the chip's own memory. The backward pass gets
  the exponentials in bfloat16, which 1 / sum turns into attention weights.
- Two bias gradients need no reduction. The keys' bias adds the same to all
  logits of a query, so its gradient is 0. The attention weights of a query sum
  to 1, so the gradient of the values' bias is that of the output's bias, taken
  back through the last product.

Only reverse-mode differentiation is defined.
"""

import math
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
  """Multi-head self-attention; W_q and b_q are scaled by 1 / sqrt(D_h)."""
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


def _backward(saved: tuple, dy: Array) -> tuple:
  z, W_q, W_k, W_v, W_out, q, k, v, E, scale, SA = saved
  db_out = dy.astype(jnp.float32).sum(axis=(0, 1))
  db_v = jnp.einsum("hed,d->he", W_out.astype(jnp.float32), db_out)
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
  # In the meantime, q and k are fetched into the memory that E no longer needs.
  dlogits, dW_v, dz = jax.lax.optimization_barrier((dlogits, dW_v, dz))
  dq = _in_order(_product("hbkq,hbek->hbeq", dlogits, k))
  dk = _in_order(_product("hbkq,hbeq->hbek", dlogits, q))
  db_q = dq.astype(jnp.float32).sum(axis=(1, 3))
  dW_q, dz_q = _projection_gradients(z, dq, W_q)
  dW_k, dz_k = _projection_gradients(z, dk, W_k)
  dz = dz + dz_q + dz_k
  return (
    _in_order(dz),
    *(dW_q, db_q.astype(z.dtype)),
    *(dW_k, jnp.zeros_like(db_q, z.dtype)),
    *(dW_v, db_v.astype(z.dtype)),
    *(dW_out, db_out.astype(z.dtype)),
  )


msa.defvjp(_forward, _backward)


def _projection_gradients(z: Array, d: Array, W: Array) -> tuple[Array, Array]:
  """The gradients of W and z, from that of their product."""
  dW = jax.lax.optimization_barrier(_product("hben,bnd->hed", d, z))
  return dW.transpose(2, 0, 1), _product("hben,dhe->bnd", d, W)


def _product(axes: str, a: Array, b: Array) -> Array:
  return jnp.einsum(axes, a, b, preferred_element_type=a.dtype)


def _sums(axes: str, a: Array, b: Array) -> Array:
  """A product in float32, whatever the type of its factors."""
  return jnp.einsum(axes, a, b, preferred_element_type=jnp.float32)


def _in_order(x: Array) -> Any:
  """The array, laid out with its last axis along the registers."""
  if splits("heads"):  # A layout would make the compiler gather it whole first.
    axes = ("heads", "batch") if x.ndim == 4 else ("batch",)
    return in_use(x, (*axes, *(None,) * (x.ndim - len(axes))))
  layout = Layout(major_to_minor=tuple(range(x.ndim)))
  return with_layout_constraint(x, layout)


# x Phi(x) = x (1 + tanh(_A x + _B x^3)) / 2, approximately.
_A = math.sqrt(2 / math.pi)
_B = 0.044715 * _A


@jax.custom_vjp
def gelu(x: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
  """GELU by the tanh approximation, in float32; saves only x for its gradient.

  The backward pass computes the tanh again: on a TPU that is faster than
  reading what JAX would save.
  """
  wide = x.astype(jnp.float32)
  tanh = jnp.tanh(wide * (_A + _B * wide * wide))
  return (wide * (0.5 + 0.5 * tanh)).astype(x.dtype)


def _gelu_forward(x: Array) -> tuple[Array, Array]:
  return gelu(x), x


def _gelu_backward(x: Array, dy: Array) -> tuple[Array]:
  wide = x.astype(jnp.float32)
  square = wide * wide
  tanh = jnp.tanh(wide * (_A + _B * square))
  slope = (0.5 + 0.5 * tanh) * (1 + (1 - tanh) * wide * (_A + 3 * _B * square))
  return ((dy.astype(jnp.float32) * slope).astype(x.dtype),)


gelu.defvjp(_gelu_forward, _gelu_backward)
