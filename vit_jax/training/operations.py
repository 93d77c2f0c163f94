"""Floating-point operations of a model and of a train step.

Those of matrix products and convolutions are counted in the traced program,
before a compiler changes it: a product of (m, k) and (k, n) takes 2 m k n.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.extend import core

from vit_jax.models.model import input_shapes
from vit_jax.training.losses import Objective
from vit_jax.training.state import Extras, TrainState
from vit_jax.training.step import context_of, loss_function, model_function


class Operations(NamedTuple):
  """Operations of a step's matrix products for an image, in units of 1e9.

  Attributes:
    forward: The loss: all passes of the model, and those of a teacher.
    step: The loss and its gradient. The backward pass of what is trained
      takes twice as much as its forward pass, and a teacher has none.
  """

  forward: float
  step: float


def step_gflops(
  model: nn.Module,
  objective: Objective,
  extras: Extras,
  state: TrainState,
  batch: Mapping[str, Any],
  frozen_params: Any = None,
) -> Operations:
  """Counts the operations of a train step; the arrays may be mere shapes.

  What `model.remat` computes a second time is not counted.
  """
  trained = 0  # Operations of the model's own passes, which have a gradient.

  def apply(variables: Any, inputs: Any, *, rngs: Any, **options: Any) -> Any:
    """Counts a pass of the model, and returns zeros in its place."""
    nonlocal trained

    def run(variables: Any, inputs: Any, rngs: Any) -> Any:
      return model.apply(variables, inputs, rngs=rngs, **options)

    operations, shapes = trace_operations(run, variables, inputs, rngs)
    trained += operations
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

  loss_of = loss_function(model_function(apply, None, extras), objective)

  def forward(state: TrainState, batch: Any, frozen_params: Any) -> Any:
    """The mean loss, as a train step computes it."""
    key = jax.random.key(0)
    inputs, targets = objective.prepare(batch, key)
    context = context_of(extras, state, frozen_params)
    return loss_of(state.params, context, key, inputs, targets)

  others, _ = trace_operations(forward, state, batch, frozen_params)
  rows = jax.tree.leaves(batch)[0].shape[0]
  return Operations(
    forward=(trained + others) / rows / 1e9,
    step=(3 * trained + others) / rows / 1e9,
  )


def count_operations(function: Callable, *args: Any) -> int:
  """Floating-point operations of one call; arguments may be mere shapes."""
  return trace_operations(function, *args)[0]


def trace_operations(function: Callable, *args: Any) -> tuple[int, Any]:
  """As `count_operations`, with the shapes of what the call returns."""
  program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
  return _count_jaxpr(program.jaxpr), shapes


def _count_jaxpr(jaxpr: core.Jaxpr) -> int:
  """Operations of a traced program, with those of the programs it calls."""
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
      total += times * sum(map(_count_jaxpr, _called_programs(params)))
  return total


def _called_programs(params: dict[str, Any]) -> Iterator[core.Jaxpr]:
  """The programs that an equation calls."""
  for value in params.values():
    program = getattr(value, "jaxpr", value)  # Unwraps a ClosedJaxpr.
    if isinstance(program, core.Jaxpr):
      yield program


def forward_gflops(
  model: nn.Module,
  params: Any,
  image_shape: tuple[int, int, int],
  *,
  train: bool = False,
) -> float:
  """Billions of floating-point operations to classify one image.

  With `train`, PatchDropout leaves out patches, as in a training step.
  """

  def forward(params: Any, inputs: Any) -> Any:
    rngs = {"dropout": jax.random.key(0)}
    return model.apply({"params": params}, inputs, train=train, rngs=rngs)

  inputs = input_shapes(model, image_shape)
  return count_operations(forward, params, inputs) / 1e9
