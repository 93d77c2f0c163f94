"""Walks through a JAX program, and writes it as an ONNX graph.

What does not depend on the program's inputs, such as a table of positions, is
computed here and stored.
"""

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from vit_jax.inference.onnx.graph import (
  Graph,
  Unsupported,
  Value,
  is_symbolic,
  known,
)
from vit_jax.inference.onnx.operations import Call
from vit_jax.inference.onnx.products import LOWER

_OPSET = 18  # Its ReduceMax takes axes as an input, as ReduceSum does.
_FORMAT = 8  # The version of the file's format that came with it.
# Primitives that run a program of their own.
_CALLS = (
  "jit",
  "pjit",
  "closed_call",
  "core_call",
  "checkpoint",
  "remat2",
  "custom_jvp_call",
  "custom_vjp_call",
  "custom_vjp_call_jaxpr",
)


def to_onnx(
  function: Callable[[Any], Any],
  inputs: jax.ShapeDtypeStruct,
  names: tuple[str, str],
  metadata: Mapping[str, str],
  onnx: Any,
) -> bytes:
  """Writes a function of one array as the content of an ONNX file.

  Args:
    function: A function with one output, whose parameters are inside.
    inputs: Shape and type of its input; the first dimension may be the symbol
      b, for any number of examples.
    names: Names of the input and of the output in the file.
    metadata: Texts to store in the file, by name.
    onnx: The library of that name.

  Raises:
    Unsupported: if an operation of the function has no form in ONNX here.
  """
  program = jax.make_jaxpr(function)(inputs)
  name, result = names
  graph = Graph(onnx, name)
  value = Value(name, inputs.shape, inputs.shape)
  constants = [known(array) for array in program.consts]
  (output,) = _run(graph, program.jaxpr, constants, [value])
  (about,) = program.out_avals
  made = graph.finished(
    graph.whole(output),
    _value_info(onnx, name, inputs),
    _value_info(onnx, result, about),
    "vit_jax",
  )
  model = onnx.helper.make_model(
    made,
    opset_imports=[onnx.helper.make_opsetid("", _OPSET)],
    ir_version=_FORMAT,
    producer_name="vit_jax",
    producer_version=importlib.metadata.version("vit_jax"),
  )
  onnx.helper.set_model_props(model, dict(metadata))
  return model.SerializeToString()


def _value_info(onnx: Any, name: str, about: Any) -> Any:
  kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(about.dtype))
  shape = ["B" if is_symbolic(dim) else int(dim) for dim in about.shape]
  return onnx.helper.make_tensor_value_info(name, kind, shape)


def _run(
  graph: Graph,
  program: Any,
  constants: Sequence[Value],
  inputs: Sequence[Value],
) -> list[Value]:
  """Writes the equations of a program, and returns its outputs."""
  values: dict[Any, Value] = {}
  values.update(zip(program.constvars, constants, strict=True))
  values.update(zip(program.invars, inputs, strict=True))

  def value(variable: Any) -> Value:
    if isinstance(variable, core.Literal):
      about: Any = variable.aval
      return known(np.asarray(variable.val, about.dtype))
    return values[variable]

  for equation in program.eqns:
    taken = [value(variable) for variable in equation.invars]
    values.update(
      zip(equation.outvars, _lower(graph, equation, taken), strict=True)
    )
  return [value(variable) for variable in program.outvars]


def _lower(graph: Graph, equation: Any, inputs: list[Value]) -> list[Value]:
  name = equation.primitive.name
  if name in _CALLS:
    return _lower_call(graph, equation, inputs)
  outputs = [variable.aval for variable in equation.outvars]
  if name != "broadcast_in_dim" and _can_be_computed(inputs, outputs):
    return _compute(equation, inputs)
  if name not in LOWER:
    raise Unsupported(f"JAX's {name}")
  call = Call(
    graph,
    inputs,
    [tuple(aval.shape) for aval in outputs],
    [aval.dtype for aval in outputs],
    equation.params,
  )
  return LOWER[name](call)


def _can_be_computed(inputs: Sequence[Value], outputs: Sequence[Any]) -> bool:
  shapes = [*(each.shape for each in (*inputs, *outputs))]
  return all(value.known is not None for value in inputs) and not any(
    is_symbolic(dim) for shape in shapes for dim in shape
  )


def _compute(equation: Any, inputs: Sequence[Value]) -> list[Value]:
  """The outputs of an equation on known arrays."""
  primitive = equation.primitive
  arrays = [np.broadcast_to(value.content, value.shape) for value in inputs]
  found = primitive.bind(*map(jax.numpy.asarray, arrays), **equation.params)
  return [*map(known, found if primitive.multiple_results else [found])]


def _lower_call(
  graph: Graph, equation: Any, inputs: list[Value]
) -> list[Value]:
  for inner in equation.params.values():
    if isinstance(inner, core.Jaxpr):
      return _run(graph, inner, [], inputs)
    if hasattr(inner, "jaxpr"):  # One with its constants.
      constants = [known(array) for array in inner.consts]
      return _run(graph, inner.jaxpr, constants, inputs)
  raise Unsupported(f"JAX's {equation.primitive.name}")
