"""Hints for XLA's compiler for CPUs.

The mathematics, and a pass without gradients, stay as they are.
"""

from typing import Any

import jax
from jaxtyping import Array, Float


@jax.custom_jvp
def on_stream(z: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
  """The input of a layer, whose gradient is computed once.

  That gradient is a sum of the layer's own and of that of the layer above. XLA
  would fuse the sum into every product that takes it, and so compute it in each
  of them again, through all layers above: the work would grow with the square
  of their number.
  """
  return z


@on_stream.defjvp
def _on_stream_tangent(primals: Any, tangents: Any) -> tuple[Array, Array]:
  # The transpose of a barrier is a barrier for the gradient.
  return primals[0], jax.lax.optimization_barrier(tangents[0])
