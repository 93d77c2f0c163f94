"""JAX's primitives as nodes of an ONNX graph.

Each function takes an equation of the program, a `Call`, writes its nodes, and
returns the values of its outputs.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vit_jax.inference.onnx.graph import (
  Dim,
  Graph,
  Unsupported,
  Value,
  is_symbolic,
)


@dataclasses.dataclass(frozen=True)
class Call:
  """One equation of a program.

  Attributes:
    graph: The graph to which its nodes are added.
    inputs: The values of its inputs.
    shapes: Shapes of its outputs.
    dtypes: Types of its outputs.
    params: Parameters of the primitive.
  """

  graph: Graph
  inputs: Sequence[Value]
  shapes: Sequence[tuple[Dim, ...]]
  dtypes: Sequence[Any]
  params: dict[str, Any]

  @property
  def shape(self) -> tuple[Dim, ...]:
    """Shape of the first output."""
    return self.shapes[0]

  def whole(self, number: int = 0) -> str:
    """The name of an input, expanded to its full shape."""
    return self.graph.whole(self.inputs[number])

  def output(self, name: str) -> list[Value]:
    """The list of outputs, for one output at its full shape."""
    return [Value(name, self.shape, self.shape)]


Lower = Callable[[Call], list[Value]]


def joint_shape(
  values: Sequence[Value], shape: Sequence[Dim]
) -> tuple[Dim, ...]:
  """The stored shape of the result of an operation on elements of arrays.

  `shape` is its shape in the program. A dimension in which all arrays are
  stored with size 1 has that size in the result, too.
  """
  rank = max(len(value.stored) for value in values)
  padded = [(1,) * (rank - len(v.stored)) + v.stored for v in values]
  sizes = shape[len(shape) - rank :]
  return tuple(
    dim if any(stored[axis] == dim for stored in padded) else 1
    for axis, dim in enumerate(sizes)
  )


def _elementwise(op: str, neutral: float | None = None) -> Lower:
  """Lowers an operation on the elements of its inputs.

  If one of two operands is `neutral` everywhere, the other is the result. For
  Sub and Div, only the second operand can be neutral.
  """

  def lower(call: Call) -> list[Value]:
    """Writes the operation, unless one operand is the result."""
    if neutral is not None:
      orders = [(0, 1), (1, 0)] if op in ("Add", "Mul", "Max") else [(0, 1)]
      for kept, other in orders:
        if call.inputs[other].is_all(neutral):
          kept_value = call.inputs[kept]
          return [dataclasses.replace(kept_value, shape=call.shape)]
    return write_node(call, op)

  return lower


def write_node(call: Call, op: str, **attributes: Any) -> list[Value]:
  """Writes a node that takes the inputs as they are stored, unexpanded."""
  names = [call.graph.stored(value) for value in call.inputs]
  stored = joint_shape(call.inputs, call.shape)
  name = call.graph.node(op, *names, **attributes)
  return [Value(name, call.shape, stored)]


def _compose(*ops: str) -> Lower:
  """Lowers operations on each element, one after the other."""

  def lower(call: Call) -> list[Value]:
    """Writes a node for each operation, on the input as it is stored."""
    name = call.graph.stored(call.inputs[0])
    for op in ops:
      name = call.graph.node(op, name)
    return [dataclasses.replace(call.inputs[0], content=name)]

  return lower


def _square(call: Call) -> list[Value]:
  return _power(call, 2)


def _integer_pow(call: Call) -> list[Value]:
  return _power(call, call.params["y"])


def _power(call: Call, exponent: int) -> list[Value]:
  """Writes a square or a cube as products, and any other power as it is."""
  (value,) = call.inputs
  graph = call.graph
  name = graph.stored(value)
  if exponent in (2, 3):
    power = name
    for _ in range(exponent - 1):
      power = graph.node("Mul", power, name)
  else:
    number = graph.constant(np.asarray(exponent, call.dtypes[0]))
    power = graph.node("Pow", name, number)
  return [dataclasses.replace(value, content=power)]


def _erfc(call: Call) -> list[Value]:
  """Writes erfc(x) as 1 - erf(x)."""
  (value,) = call.inputs
  graph = call.graph
  one = graph.constant(np.ones((), call.dtypes[0]))
  erf = graph.node("Erf", graph.stored(value))
  return [dataclasses.replace(value, content=graph.node("Sub", one, erf))]


def _remainder(call: Call) -> list[Value]:
  """Writes a remainder with the sign of the first operand, as JAX's `rem`."""
  return write_node(call, "Mod", fmod=1)


def _not_equal(call: Call) -> list[Value]:
  """Writes "not equal" as the negation of "equal", which ONNX has."""
  (equal,) = write_node(call, "Equal")
  name = call.graph.node("Not", call.graph.stored(equal))
  return [dataclasses.replace(equal, content=name)]


def _select(call: Call) -> list[Value]:
  """Writes a choice between two arrays by a condition, element by element.

  Raises `Unsupported` for more arrays.
  """
  if len(call.inputs) != 3:
    raise Unsupported("a choice between more than two arrays")
  # JAX takes the array for False first, ONNX that for True.
  condition, if_false, if_true = call.inputs
  inputs = (condition, if_true, if_false)
  return write_node(dataclasses.replace(call, inputs=inputs), "Where")


def _clamp(call: Call) -> list[Value]:
  """Writes the operand bounded by arrays below and above, as two nodes."""
  low, x, high = call.inputs
  (bounded,) = write_node(dataclasses.replace(call, inputs=(x, low)), "Max")
  return write_node(dataclasses.replace(call, inputs=(bounded, high)), "Min")


def _cast(call: Call) -> list[Value]:
  """Writes the input in the type of the output."""
  (value,) = call.inputs
  name = call.graph.stored(value)
  return [dataclasses.replace(value, content=_write_cast(call, name))]


def _write_cast(call: Call, name: str) -> str:
  """The name of an array in the type of the equation's output."""
  to = call.graph.type_of(call.dtypes[0])
  return call.graph.node("Cast", name, to=to)


def _same(call: Call) -> list[Value]:
  """Writes nothing: the outputs are the inputs."""
  return [*call.inputs]


def _broadcast(call: Call) -> list[Value]:
  """Adds the new dimensions, of size 1; other operations broadcast these."""
  value, *_ = call.inputs
  graph = call.graph
  places = call.params["broadcast_dimensions"]
  stored = [1] * len(call.shape)
  for place, dim in zip(places, value.stored, strict=True):
    stored[place] = dim
  new = [axis for axis in range(len(call.shape)) if axis not in places]
  if value.known is not None:
    content = value.known.reshape(stored)
  else:
    content = graph.stored(value)
    if new:
      content = graph.node("Unsqueeze", content, graph.ints(*new))
  return [Value(content, call.shape, (*stored,))]


def _tile(call: Call) -> list[Value]:
  """Writes copies of an array side by side, `reps` along each dimension.

  Raises `Unsupported` for a symbolic number of copies.
  """
  value, *_ = call.inputs
  repeats = call.params["reps"]
  # A dimension of size 1 needs no copies: other operations broadcast it.
  if all(1 in pair for pair in zip(value.shape, repeats, strict=True)):
    return [dataclasses.replace(value, shape=call.shape)]
  if any(map(is_symbolic, repeats)):
    raise Unsupported(f"a repetition {(*repeats,)}")
  times = call.graph.ints(*repeats)
  return call.output(call.graph.node("Tile", call.whole(), times))


def _reshape(call: Call) -> list[Value]:
  return call.output(call.graph.reshape(call.whole(), call.shape))


def _squeeze(call: Call) -> list[Value]:
  axes = call.graph.ints(*call.params["dimensions"])
  return call.output(call.graph.node("Squeeze", call.whole(), axes))


def _transpose(call: Call) -> list[Value]:
  """Writes a transpose of the input as it is stored, unexpanded."""
  (value,) = call.inputs
  order = call.params["permutation"]
  name = call.graph.transpose(call.graph.stored(value), order)
  stored = tuple(value.stored[axis] for axis in order)
  return [Value(name, call.shape, stored)]


def _concatenate(call: Call) -> list[Value]:
  """Joins the inputs along a dimension that they have."""
  axis = call.params["dimension"]
  # ONNX cannot broadcast to a dimension of 0.
  parts = [x for x in call.inputs if x.shape[axis] != 0]
  names = [call.graph.whole(part) for part in parts]
  return call.output(call.graph.node("Concat", *names, axis=axis))


def _stack(call: Call) -> list[Value]:
  """Joins the inputs along a new dimension."""
  graph = call.graph
  axis = call.params["axis"]
  names = [
    graph.node("Unsqueeze", call.whole(number), graph.ints(axis))
    for number in range(len(call.inputs))
  ]
  return call.output(graph.node("Concat", *names, axis=axis))


def _slice(call: Call) -> list[Value]:
  """Writes a part with strides, which names only the dimensions it cuts."""
  (value,) = call.inputs
  params = call.params
  strides = params["strides"] or [1] * len(value.shape)
  limits = params["limit_indices"]
  starts = params["start_indices"]
  axes = [
    axis
    for axis, dim in enumerate(value.shape)
    if (starts[axis], limits[axis], strides[axis]) != (0, dim, 1)
  ]
  # ONNX's order of the vectors; each has only the axes that are cut.
  vectors = [
    call.graph.ints(*(numbers[axis] for axis in axes))
    for numbers in (starts, limits, range(len(starts)), strides)
  ]
  return call.output(call.graph.node("Slice", call.whole(), *vectors))


def _split(call: Call) -> list[Value]:
  """Cuts an array into parts of the given `sizes` along a dimension."""
  sizes = call.graph.ints(*call.params["sizes"])
  names = call.graph.nodes(
    "Split", len(call.shapes), call.whole(), sizes, axis=call.params["axis"]
  )
  pairs = zip(names, call.shapes, strict=True)
  return [Value(name, shape, shape) for name, shape in pairs]


def _pad(call: Call) -> list[Value]:
  """Pads an array at its edges with the value of the second input.

  Raises `Unsupported` for padding between the elements.
  """
  low, high, inner = zip(*call.params["padding_config"], strict=True)
  if any(inner):
    raise Unsupported("padding between elements")
  if not any((*low, *high)):
    return [call.inputs[0]]
  sizes = call.graph.ints(*low, *high)
  return call.output(call.graph.node("Pad", call.whole(), sizes, call.whole(1)))


def _reduce(op: str) -> Lower:
  """Lowers a reduction over axes."""

  def lower(call: Call) -> list[Value]:
    """Writes the reduction, which drops its axes."""
    axes = call.graph.ints(*call.params["axes"])
    return call.output(call.graph.node(op, call.whole(), axes, keepdims=0))

  return lower


def _reduce_booleans(op: str) -> Lower:
  """Lowers a reduction of booleans, as one of the numbers 0 and 1."""

  def lower(call: Call) -> list[Value]:
    """Writes casts to numbers and back around the reduction."""
    to = call.graph.type_of(np.int32)
    numbers = call.graph.node("Cast", call.whole(), to=to)
    axes = call.graph.ints(*call.params["axes"])
    reduced = call.graph.node(op, numbers, axes, keepdims=0)
    return call.output(_write_cast(call, reduced))

  return lower


def _cumsum(call: Call) -> list[Value]:
  """Writes running sums along a dimension, from its end if `reverse`."""
  axis = call.graph.constant(np.asarray(call.params["axis"], np.int64))
  backwards = int(call.params["reverse"])
  name = call.graph.node("CumSum", call.whole(), axis, reverse=backwards)
  return call.output(name)


def _arg_extreme(op: str) -> Lower:
  """Lowers `argmax` or `argmin`, of the inputs as float32."""

  def lower(call: Call) -> list[Value]:
    """Writes the indices of the largest or smallest elements along one axis."""
    name = call.graph.node("Cast", call.whole(), to=call.graph.type_of("f4"))
    (axis,) = call.params["axes"]
    indices = call.graph.node(op, name, axis=axis, keepdims=0)
    return call.output(_write_cast(call, indices))

  return lower


PRIMITIVES: dict[str, Lower] = {
  "add": _elementwise("Add", 0.0),
  "sub": _elementwise("Sub", 0.0),
  "mul": _elementwise("Mul", 1.0),
  "div": _elementwise("Div", 1.0),
  "rem": _remainder,
  "max": _elementwise("Max", -np.inf),
  "min": _elementwise("Min"),
  "pow": _elementwise("Pow"),
  "lt": _elementwise("Less"),
  "le": _elementwise("LessOrEqual"),
  "gt": _elementwise("Greater"),
  "ge": _elementwise("GreaterOrEqual"),
  "eq": _elementwise("Equal"),
  "ne": _not_equal,
  "and": _elementwise("And"),
  "or": _elementwise("Or"),
  "not": _compose("Not"),
  "abs": _compose("Abs"),
  "exp": _compose("Exp"),
  "log": _compose("Log"),
  "tanh": _compose("Tanh"),
  "sin": _compose("Sin"),
  "cos": _compose("Cos"),
  "sign": _compose("Sign"),
  "floor": _compose("Floor"),
  "erf": _compose("Erf"),
  "erfc": _erfc,
  "neg": _compose("Neg"),
  "sqrt": _compose("Sqrt"),
  "rsqrt": _compose("Sqrt", "Reciprocal"),
  "logistic": _compose("Sigmoid"),
  "square": _square,
  "integer_pow": _integer_pow,
  "select_n": _select,
  "clamp": _clamp,
  "convert_element_type": _cast,
  "copy": _same,
  "copy_p": _same,
  "stop_gradient": _same,
  "optimization_barrier": _same,
  "broadcast_in_dim": _broadcast,
  "tile": _tile,
  "reshape": _reshape,
  "squeeze": _squeeze,
  "transpose": _transpose,
  "concatenate": _concatenate,
  "stack": _stack,
  "slice": _slice,
  "split": _split,
  "pad": _pad,
  "reduce_sum": _reduce("ReduceSum"),
  "reduce_max": _reduce("ReduceMax"),
  "reduce_min": _reduce("ReduceMin"),
  "reduce_prod": _reduce("ReduceProd"),
  "reduce_and": _reduce_booleans("ReduceMin"),
  "reduce_or": _reduce_booleans("ReduceMax"),
  "cumsum": _cumsum,
  "argmax": _arg_extreme("ArgMax"),
  "argmin": _arg_extreme("ArgMin"),
}
"""A primitive's name -> the function that writes it."""
