"""An ONNX graph in the making, and the arrays that flow through it."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Dim = Any  # An int, or a symbolic dimension such as b.


class Unsupported(Exception):
  """The graph cannot express an operation."""


@dataclasses.dataclass(frozen=True)
class Value:
  """An array of the program.

  Most operations of ONNX broadcast by themselves. So an array that JAX
  broadcasts stays as it was before: each dimension of `stored` is that of
  `shape`, or 1.

  Attributes:
    content: Name of the array in the graph; or the array itself, if it is
      known.
    shape: Shape in the program, which may hold the symbolic batch.
    stored: Shape of `content`.
  """

  content: str | np.ndarray
  shape: tuple[Dim, ...]
  stored: tuple[Dim, ...]

  @property
  def known(self) -> np.ndarray | None:
    """The array; None if it depends on the inputs of the program."""
    return None if isinstance(self.content, str) else self.content

  @property
  def is_whole(self) -> bool:
    """Whether the value is stored at its full shape."""
    return self.shape == self.stored

  def is_all(self, number: float) -> bool:
    """Whether the value is known, and each of its elements is `number`."""
    return self.known is not None and bool(np.all(self.known == number))


def known(array: Any) -> Value:
  """The value of an array that is known."""
  array = np.asarray(array)
  return Value(array, array.shape, array.shape)


def is_symbolic(dim: Dim) -> bool:
  """Whether a dimension depends on the size of the batch."""
  return not isinstance(dim, int | np.integer)


class Graph:
  """The nodes and constants of a graph.

  `onnx` is the library of that name, and `inputs` the name of an input, whose
  first dimension is the batch's.
  """

  def __init__(self, onnx: Any, inputs: str):
    self._onnx = onnx
    self._inputs = inputs
    self._nodes: list[Any] = []
    self._constants: dict[Any, Any] = {}
    self._names = self._numbered()
    self._size: str | None = None

  def _numbered(self) -> Iterator[str]:
    """The names v1, v2 and so on."""
    number = 0
    while True:
      number += 1
      yield f"v{number}"

  def constant(self, array: np.ndarray) -> str:
    """The name of a constant; equal constants are stored once."""
    array = np.ascontiguousarray(array).reshape(array.shape)
    key = (array.dtype.str, array.shape, array.tobytes())
    if key not in self._constants:
      name = f"c{len(self._constants) + 1}"
      tensor = self._onnx.numpy_helper.from_array(array, name)
      self._constants[key] = tensor
    return self._constants[key].name

  def ints(self, *numbers: Dim) -> str:
    """The name of a constant vector of int64."""
    return self.constant(np.asarray(numbers, np.int64))

  def node(self, op: str, *inputs: str, **attributes: Any) -> str:
    """Adds a node with one output, whose name it returns."""
    (output,) = self.nodes(op, 1, *inputs, **attributes)
    return output

  def nodes(
    self, op: str, outputs: int, *inputs: str, **attributes: Any
  ) -> list[str]:
    """Adds a node with this number of `outputs`, and returns their names."""
    names = [next(self._names) for _ in range(outputs)]
    make = self._onnx.helper.make_node
    self._nodes.append(make(op, [*inputs], names, **attributes))
    return names

  def type_of(self, dtype: Any) -> int:
    """The number of a type in ONNX."""
    return self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

  def stored(self, value: Value) -> str:
    """The name of a value as it is stored."""
    content = value.content
    return content if isinstance(content, str) else self.constant(content)

  def whole(self, value: Value) -> str:
    """The name of a value once it is broadcast to its shape."""
    name = self.stored(value)
    if value.is_whole:
      return name
    num_new = len(value.shape) - len(value.stored)
    stored = (1,) * num_new + value.stored
    factors = [
      1 if dim == stored_dim else dim
      for dim, stored_dim in zip(value.shape, stored, strict=True)
    ]
    return self.node("Expand", name, self._vector(factors))

  def reshape(self, name: str, shape: Sequence[Dim]) -> str:
    """The name of an array in another shape.

    Raises `Unsupported` if the shape has two symbolic dimensions.
    """
    if sum(map(is_symbolic, shape)) > 1:
      raise Unsupported(f"a reshape to {(*shape,)}")
    sizes = [-1 if is_symbolic(dim) else dim for dim in shape]
    return self.node("Reshape", name, self.ints(*sizes))

  def transpose(self, name: str, order: Sequence[int]) -> str:
    """The name of an array with its dimensions in this order."""
    if [*order] == [*range(len(order))]:
      return name
    return self.node("Transpose", name, perm=[*order])

  def _vector(self, shape: Sequence[Dim]) -> str:
    """The name of a shape as a vector of int64.

    A dimension may be the batch's. Raises `Unsupported` for any other symbol.
    """
    if not any(map(is_symbolic, shape)):
      return self.ints(*shape)
    if any(is_symbolic(dim) and str(dim) != "b" for dim in shape):
      raise Unsupported(f"a broadcast to {(*shape,)}")
    if self._size is None:
      self._size = self.node("Shape", self._inputs, start=0, end=1)
    parts = [self._size if is_symbolic(d) else self.ints(d) for d in shape]
    return parts[0] if len(parts) == 1 else self.node("Concat", *parts, axis=0)

  def finish(
    self, outputs: str, inputs: list[Any], result: Any, name: str
  ) -> Any:
    """ONNX's graph, named `name`, whose result is the array named `outputs`."""
    helper = self._onnx.helper
    self._nodes.append(helper.make_node("Identity", [outputs], [result.name]))
    constants = [*self._constants.values()]
    return helper.make_graph(self._nodes, name, inputs, [result], constants)
