"""Walks through a JAX program, and writes it as an ONNX graph.

Arrays that do not depend on the program's inputs, such as a table of positions,
are computed here and stored.
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
_FORMAT = 8  # The version of the file format that came with this opset.
# Primitives that call another program.
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
  function: Callable[..., Any],
  inputs: Mapping[str, jax.ShapeDtypeStruct],
  result: str,
  metadata: Mapping[str, str],
  onnx: Any,
) -> bytes:
  """The content of an ONNX file that computes a function of arrays.

  Args:
    function: A function with one output, whose parameters are inside.
    inputs: Shapes and types of its arguments, by their names in the file; the
      first dimension of each may be the symbol b, for any number of examples.
    result: Name of the output in the file.
    metadata: Texts to store in the file, by name.
    onnx: The library of that name.

  Raises:
    Unsupported: if an operation of the function has no form in ONNX here.
  """
  program = jax.make_jaxpr(function)(*inputs.values())
  graph = Graph(onnx, next(iter(inputs)))
  values = [Value(name, x.shape, x.shape) for name, x in inputs.items()]
  constants = [known(array) for array in program.consts]
  (output,) = _run(graph, program.jaxpr, constants, values)
  (result_type,) = program.out_avals
  finished_graph = graph.finish(
    outputs=graph.whole(output),
    inputs=[_value_info(onnx, name, x) for name, x in inputs.items()],
    result=_value_info(onnx, result, result_type),
    name="vit_jax",
  )
  model = onnx.helper.make_model(
    finished_graph,
    opset_imports=[onnx.helper.make_opsetid("", _OPSET)],
    ir_version=_FORMAT,
    producer_name="vit_jax",
    producer_version=importlib.metadata.version("vit_jax"),
  )
  onnx.helper.set_model_props(model, dict(metadata))
  return model.SerializeToString()


def _value_info(onnx: Any, name: str, array_type: Any) -> Any:
  """ONNX's record of the name, the type and the shape of an array."""
  kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(array_type.dtype))
  shape = ["B" if is_symbolic(dim) else int(dim) for dim in array_type.shape]
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
    """The value of a variable or of a literal."""
    if isinstance(variable, core.Literal):
      literal_type: Any = variable.aval
      return known(np.asarray(variable.val, literal_type.dtype))
    return values[variable]

  for equation in program.eqns:
    arguments = [value(variable) for variable in equation.invars]
    outputs = _lower(graph, equation, arguments)
    values.update(zip(equation.outvars, outputs, strict=True))
  return [value(variable) for variable in program.outvars]


def _lower(graph: Graph, equation: Any, inputs: list[Value]) -> list[Value]:
  """Writes an equation, and returns its outputs.

  If they do not depend on the program's inputs, they are computed, and nothing
  is written. Raises `Unsupported` if the graph cannot express the equation.
  """
  name = equation.primitive.name
  if name in _CALLS:
    return _lower_call(graph, equation, inputs)
  outputs = [variable.aval for variable in equation.outvars]
  if name != "broadcast_in_dim" and _can_be_computed(inputs, outputs):
    return _compute(equation, inputs)
  if name not in LOWER:
    raise Unsupported(f"JAX's {name}")
  call = Call(
    graph=graph,
    inputs=inputs,
    shapes=[tuple(aval.shape) for aval in outputs],
    dtypes=[aval.dtype for aval in outputs],
    params=equation.params,
  )
  return LOWER[name](call)


def _can_be_computed(inputs: Sequence[Value], outputs: Sequence[Any]) -> bool:
  """Whether all inputs are known, and no shape depends on the batch."""
  if any(value.known is None for value in inputs):
    return False
  dims = (dim for array in (*inputs, *outputs) for dim in array.shape)
  return not any(map(is_symbolic, dims))


def _compute(equation: Any, inputs: Sequence[Value]) -> list[Value]:
  """The outputs of an equation on known arrays."""
  primitive = equation.primitive
  arrays = [np.broadcast_to(value.content, value.shape) for value in inputs]
  result = primitive.bind(*map(jax.numpy.asarray, arrays), **equation.params)
  outputs = result if primitive.multiple_results else [result]
  return [*map(known, outputs)]


def _lower_call(
  graph: Graph, equation: Any, inputs: list[Value]
) -> list[Value]:
  """Writes the program that an equation calls, and returns its outputs.

  Raises `Unsupported` if the equation does not hold a program.
  """
  for inner in equation.params.values():
    if isinstance(inner, core.Jaxpr):
      return _run(graph, inner, [], inputs)
    if hasattr(inner, "jaxpr"):  # A program with its constants.
      constants = [known(array) for array in inner.consts]
      return _run(graph, inner.jaxpr, constants, inputs)
  raise Unsupported(f"JAX's {equation.primitive.name}")
