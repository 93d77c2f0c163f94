"""Floating-point operations of matrix products and convolutions.

What a model needs by its definition, whatever a compiler makes of it: a product
of (m, k) and (k, n) is 2 m k n.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend import core


def count(function: Callable, *args: Any) -> int:
  """Operations of one call; shapes will do for arguments."""
  return _of(jax.make_jaxpr(function)(*args).jaxpr)


def _of(jaxpr: core.Jaxpr) -> int:
  total = 0
  for equation in jaxpr.eqns:
    params, name = equation.params, equation.primitive.name
    if name == "dot_general":
      (contracted, _), _ = params["dimension_numbers"]
      shape = equation.invars[0].aval.shape
      depth = math.prod(shape[axis] for axis in contracted)
      total += 2 * math.prod(equation.outvars[0].aval.shape) * depth
    elif name == "conv_general_dilated":
      kernel = equation.invars[1].aval.shape
      channels_out = kernel[params["dimension_numbers"].rhs_spec[0]]
      depth = math.prod(kernel) // channels_out
      total += 2 * math.prod(equation.outvars[0].aval.shape) * depth
    else:
      times = params["length"] if name == "scan" else 1
      total += times * sum(map(_of, _inside(params)))
  return total


def _inside(params: dict[str, Any]) -> Iterator[core.Jaxpr]:
  """The programs that an equation calls."""
  for value in params.values():
    if isinstance(value, core.ClosedJaxpr):
      yield value.jaxpr
    elif isinstance(value, core.Jaxpr):
      yield value
