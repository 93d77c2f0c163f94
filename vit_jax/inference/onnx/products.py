"""Matrix products, convolutions, windows and look-ups as nodes of a graph."""

import math
from collections.abc import Sequence

import numpy as np

from vit_jax.inference.onnx.graph import Dim, Unsupported, Value, is_symbolic
from vit_jax.inference.onnx.operations import PRIMITIVES, Call, Lower


def _dot_general(call: Call) -> list[Value]:
  """A sum of products, as a product of matrices of reordered dimensions."""
  (over_x, over_y), (along_x, along_y) = call.params["dimension_numbers"]
  x, y = call.inputs
  free_x = _others(x, over_x, along_x)
  free_y = _others(y, over_y, along_y)
  shared = [x.shape[axis] for axis in along_x]
  depth = _product([x.shape[axis] for axis in over_x])
  rows = [x.shape[axis] for axis in free_x]
  columns = [y.shape[axis] for axis in free_y]
  # MatMul takes one dimension of rows, or several if no dimension is shared.
  if len(rows) != 1 and (along_x or not rows):
    rows = [_product(rows)]
  left = _arrange(
    call, 0, [*along_x, *free_x, *over_x], [*shared, *rows, depth]
  )
  right = _arrange(
    call,
    1,
    [*along_y, *over_y, *free_y],
    [*shared, depth, _product(columns)],
  )
  product = call.graph.node("MatMul", left, right)
  if (*shared, *rows, _product(columns)) != call.shape:
    product = call.graph.reshape(product, call.shape)
  return call.output(product)


def _others(value: Value, *axes: Sequence[int]) -> list[int]:
  """The axes of a value that are in none of these groups."""
  taken = {axis for group in axes for axis in group}
  return [axis for axis in range(len(value.shape)) if axis not in taken]


def _product(dims: Sequence[Dim]) -> Dim:
  return math.prod(dims)


def _arrange(
  call: Call, number: int, order: Sequence[int], shape: Sequence[Dim]
) -> str:
  """The name of an input, with its dimensions in `order`, then reshaped."""
  value = call.inputs[number]
  graph = call.graph
  if value.known is not None and not any(map(is_symbolic, shape)):
    array = np.broadcast_to(value.known, value.shape)
    return graph.constant(array.transpose(order).reshape(shape))
  name = graph.transpose(graph.whole(value), order)
  if [value.shape[axis] for axis in order] != [*shape]:
    name = graph.reshape(name, shape)
  return name


def _convolution(call: Call) -> list[Value]:
  """A convolution, between transposes into the order of ONNX, channels first.

  Raises `Unsupported` for one that ONNX's `Conv` cannot compute.
  """
  params, graph = call.params, call.graph
  form = params["dimension_numbers"]
  dilated = any(step != 1 for step in params["lhs_dilation"])
  if dilated or params["batch_group_count"] != 1:
    raise Unsupported("a transposed convolution, or one with groups of images")
  images = graph.transpose(call.whole(0), form.lhs_spec)
  kernel = call.inputs[1]
  order = form.rhs_spec
  shape = [kernel.shape[axis] for axis in order]
  before, after = zip(*params["padding"], strict=True)
  result = graph.node(
    "Conv",
    images,
    _arrange(call, 1, order, shape),
    pads=[*before, *after],
    strides=[*params["window_strides"]],
    dilations=[*params["rhs_dilation"]],
    group=params["feature_group_count"],
  )
  order_back = np.argsort(form.out_spec).tolist()
  return call.output(graph.transpose(result, order_back))


def _largest_of_window(call: Call) -> list[Value]:
  """The largest value of each window, of images (B, H, W, C).

  Raises `Unsupported` for other windows than those of rows and columns.
  """
  params, graph = call.params, call.graph
  by_axis = [
    params[name]
    for name in ("window_dimensions", "window_strides", "window_dilation")
  ]
  is_spatial = all(numbers[0] == numbers[3] == 1 for numbers in by_axis)
  before, after = zip(*params["padding"], strict=True)
  is_padded = any(side[axis] for side in (before, after) for axis in (0, 3))
  if len(call.shape) != 4 or not is_spatial or is_padded:
    raise Unsupported("a window that is not of rows and columns")
  if any(step != 1 for step in params["base_dilation"]):
    raise Unsupported("a window of spread elements")
  sizes, strides, dilations = ([*numbers[1:3]] for numbers in by_axis)
  largest = graph.node(
    "MaxPool",
    graph.transpose(call.whole(), (0, 3, 1, 2)),
    kernel_shape=sizes,
    strides=strides,
    dilations=dilations,
    pads=[*before[1:3], *after[1:3]],
  )
  return call.output(graph.transpose(largest, (0, 2, 3, 1)))


def _gather(call: Call) -> list[Value]:
  """A look-up: a slice at known indices, elements along an axis, or table rows.

  There may be one table for all examples, or one for each example. Raises
  `Unsupported` for any other look-up.
  """
  table, places = call.inputs
  form = call.params["dimension_numbers"]
  if places.known is not None and len(places.shape) == 1:
    return _slice_at(call, places.known)
  axes = form.start_index_map
  if len(axes) != 1 or form.collapsed_slice_dims != axes:
    raise Unsupported("a gather along several dimensions")
  (axis,) = axes
  rank = len(places.shape) - 1
  along = form.operand_batching_dims
  if places.known is not None and along and rank == len(along) + 1:
    return _take_along(call, places.known[..., 0], axis)
  if form.operand_batching_dims == form.start_indices_batching_dims == (0,):
    if (axis, rank) != (1, 2) or len(table.shape) > 3:
      raise Unsupported("a gather of other than rows")
    indices = _int64_indices(call)
    return call.output(
      call.graph.node("GatherND", call.whole(0), indices, batch_dims=1)
    )
  expected = (*range(axis), *range(axis + rank, len(call.shape)))
  if form.operand_batching_dims or form.offset_dims != expected:
    raise Unsupported("a gather whose dimensions are in another order")
  last = call.graph.ints(rank)
  indices = call.graph.node("Squeeze", _int64_indices(call), last)
  return call.output(
    call.graph.node("Gather", call.whole(0), indices, axis=axis)
  )


def _take_along(call: Call, places: np.ndarray, axis: int) -> list[Value]:
  """Elements along an axis, at known indices that vary by other dimensions."""
  form = call.params["dimension_numbers"]
  table = call.inputs[0]
  batching_dims = dict(
    zip(
      form.start_indices_batching_dims, form.operand_batching_dims, strict=True
    )
  )
  # For each dimension of `places`, the dimension of the table that it indexes.
  table_dims = [batching_dims.get(dim, axis) for dim in range(places.ndim)]
  order = np.argsort(table_dims)
  stored = [1] * len(table.shape)
  shape = [*table.shape]
  for dim in order.tolist():
    stored[table_dims[dim]] = places.shape[dim]
  shape[axis] = stored[axis]
  index = places.astype(np.int64).transpose(order).reshape(stored)
  indices = call.graph.whole(Value(index, (*shape,), (*stored,)))
  elements = call.graph.node(
    "GatherElements", call.whole(0), indices, axis=axis
  )
  # JAX's output has the table's other dimensions at `offset_dims`.
  other_dims = iter(d for d in range(len(shape)) if d not in table_dims)
  indexed_dims = iter(table_dims)
  layout = [
    next(other_dims if dim in form.offset_dims else indexed_dims)
    for dim in range(len(call.shape))
  ]
  return call.output(call.graph.transpose(elements, layout))


def _int64_indices(call: Call) -> str:
  """Casts the indices, the second input, to int64; returns their name."""
  return call.graph.node("Cast", call.whole(1), to=call.graph.type_of(np.int64))


def _slice_at(call: Call, starts: np.ndarray) -> list[Value]:
  """The slice of the table that begins at known indices, `starts`."""
  form = call.params["dimension_numbers"]
  sizes = call.params["slice_sizes"]
  graph = call.graph
  axes = form.start_index_map
  ends = [start + sizes[axis] for start, axis in zip(starts, axes, strict=True)]
  name = graph.node(
    "Slice",
    call.whole(0),
    *(graph.ints(*numbers) for numbers in (starts, ends, axes)),
  )
  if form.collapsed_slice_dims:
    squeezed = graph.ints(*form.collapsed_slice_dims)
    name = graph.node("Squeeze", name, squeezed)
  return call.output(name)


LOWER: dict[str, Lower] = PRIMITIVES | {
  "dot_general": _dot_general,
  "conv_general_dilated": _convolution,
  "reduce_window_max": _largest_of_window,
  "gather": _gather,
}
"""All primitives that a graph can express, by name."""
