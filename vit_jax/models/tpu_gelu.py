"""GELU, in the forms that XLA compiles best for a TPU.

Only reverse-mode differentiation is defined.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

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


@jax.custom_vjp
def gelu_exact(x: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
  """GELU, x Phi(x), in float32; saves only x for its gradient."""
  wide = x.astype(jnp.float32)
  return (wide * _phi(wide)).astype(x.dtype)


def _phi(x: Array) -> Array:
  """The normal distribution's probability below x."""
  return 0.5 + 0.5 * jax.lax.erf(x * math.sqrt(0.5))


def _gelu_exact_backward(x: Array, dy: Array) -> tuple[Array]:
  """The gradient for x, dy (Phi(x) + x Phi'(x))."""
  wide = x.astype(jnp.float32)
  density = jnp.exp(-0.5 * wide * wide) * math.sqrt(0.5 / math.pi)
  slope = _phi(wide) + wide * density
  return ((dy.astype(jnp.float32) * slope).astype(x.dtype),)


gelu_exact.defvjp(lambda x: (gelu_exact(x), x), _gelu_exact_backward)


def _gelu_backward(x: Array, dy: Array) -> tuple[Array]:
  """The gradient for x: dy times the derivative of the tanh approximation."""
  wide = x.astype(jnp.float32)
  square = wide * wide
  tanh = jnp.tanh(wide * (_A + _B * square))
  slope = (0.5 + 0.5 * tanh) * (1 + (1 - tanh) * wide * (_A + 3 * _B * square))
  return ((dy.astype(jnp.float32) * slope).astype(x.dtype),)


gelu.defvjp(lambda x: (gelu(x), x), _gelu_backward)
