"""Floating-point operations of a program's matrix products and convolutions.

They are counted in the traced program, before a compiler changes it: a product
of (m, k) and (k, n) takes 2 m k n.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.extend import core


def count(function: Callable, *args: Any) -> int:
  """Operations of one call; the arguments may be mere shapes."""
  return _operations(jax.make_jaxpr(function)(*args).jaxpr)


def _operations(jaxpr: core.Jaxpr) -> int:
  total = 0
  for equation in jaxpr.eqns:
    params, name = equation.params, equation.primitive.name
    shapes: list[Any] = [
      getattr(var.aval, "shape", ()) for var in equation.invars
    ]
    results = [getattr(var.aval, "shape", ()) for var in equation.outvars]
    if name == "dot_general":
      (contracted, _), _ = params["dimension_numbers"]
      depth = math.prod(shapes[0][axis] for axis in contracted)
      total += 2 * math.prod(results[0]) * depth
    elif name == "conv_general_dilated":
      channels_out = shapes[1][params["dimension_numbers"].rhs_spec[0]]
      depth = math.prod(shapes[1]) // channels_out
      total += 2 * math.prod(results[0]) * depth
    else:
      times = params["length"] if name == "scan" else 1
      total += times * sum(map(_operations, _called(params)))
  return total


def _called(params: dict[str, Any]) -> Iterator[core.Jaxpr]:
  """The programs that an equation calls."""
  for value in params.values():
    if isinstance(value, core.ClosedJaxpr):
      yield value.jaxpr
    elif isinstance(value, core.Jaxpr):
      yield value


def forward_gflops(
  model: nn.Module,
  params: Any,
  image_shape: tuple[int, int, int],
  *,
  train: bool = False,
) -> float:
  """Billions of floating-point operations to classify one image.

  With `train`, those of a training step's forward pass, from which
  PatchDropout leaves out patches.
  """
  image = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)

  def forward(params: Any, image: Any) -> Any:
    rngs = {"dropout": jax.random.key(0)}
    return model.apply({"params": params}, image, train=train, rngs=rngs)

  return count(forward, params, image) / 1e9
