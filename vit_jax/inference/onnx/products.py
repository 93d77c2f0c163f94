"""Matrix products, convolutions, windows and look-ups as nodes of a graph."""

import math
from collections.abc import Sequence

import numpy as np

from vit_jax.inference.onnx.graph import Dim, Unsupported, Value, is_symbolic
from vit_jax.inference.onnx.operations import PRIMITIVES, Call, Lower


def _dot_general(call: Call) -> list[Value]:
  """A sum of products: of matrices, once the dimensions are in order."""
  (over_x, over_y), (along_x, along_y) = call.params["dimension_numbers"]
  x, y = call.inputs
  free_x = _others(x, over_x, along_x)
  free_y = _others(y, over_y, along_y)
  shared = [x.shape[axis] for axis in along_x]
  depth = _product([x.shape[axis] for axis in over_x])
  rows = [x.shape[axis] for axis in free_x]
  columns = [y.shape[axis] for axis in free_y]
  if len(rows) != 1 and (along_x or not rows):
    rows = [_product(rows)]
  left = _arranged(
    call, 0, [*along_x, *free_x, *over_x], [*shared, *rows, depth]
  )
  right = _arranged(
    call,
    1,
    [*along_y, *over_y, *free_y],
    [*shared, depth, _product(columns)],
  )
  product = call.graph.node("MatMul", left, right)
  if (*shared, *rows, _product(columns)) != call.shape:
    product = call.graph.reshaped(product, call.shape)
  return call.output(product)


def _others(value: Value, *axes: Sequence[int]) -> list[int]:
  taken = {axis for group in axes for axis in group}
  return [axis for axis in range(len(value.shape)) if axis not in taken]


def _product(dims: Sequence[Dim]) -> Dim:
  return math.prod(dims)


def _arranged(
  call: Call, number: int, order: Sequence[int], shape: Sequence[Dim]
) -> str:
  """An input with its dimensions in an order, and then in a shape."""
  value, graph = call.inputs[number], call.graph
  if value.known is not None and not any(map(is_symbolic, shape)):
    array = np.broadcast_to(value.known, value.shape)
    return graph.constant(array.transpose(order).reshape(shape))
  name = graph.transposed(graph.whole(value), order)
  if [value.shape[axis] for axis in order] != [*shape]:
    name = graph.reshaped(name, shape)
  return name


def _convolution(call: Call) -> list[Value]:
  params, graph = call.params, call.graph
  form = params["dimension_numbers"]
  dilated = any(step != 1 for step in params["lhs_dilation"])
  if dilated or params["batch_group_count"] != 1:
    raise Unsupported("a transposed or grouped convolution")
  images = graph.transposed(call.whole(0), form.lhs_spec)
  kernel = call.inputs[1]
  order = form.rhs_spec
  shape = [kernel.shape[axis] for axis in order]
  before, after = zip(*params["padding"], strict=True)
  found = graph.node(
    "Conv",
    images,
    _arranged(call, 1, order, shape),
    pads=[*before, *after],
    strides=[*params["window_strides"]],
    dilations=[*params["rhs_dilation"]],
    group=params["feature_group_count"],
  )
  return call.output(
    graph.transposed(found, np.argsort(form.out_spec).tolist())
  )


def _largest_of_window(call: Call) -> list[Value]:
  """The largest value of each window, of images (B, H, W, C)."""
  params, graph = call.params, call.graph
  by_axis = [
    params[name]
    for name in ("window_dimensions", "window_strides", "window_dilation")
  ]
  outside = all(numbers[0] == numbers[3] == 1 for numbers in by_axis)
  before, after = zip(*params["padding"], strict=True)
  is_padded = any(side[axis] for side in (before, after) for axis in (0, 3))
  if len(call.shape) != 4 or not outside or is_padded:
    raise Unsupported("a window that is not of rows and columns")
  if any(step != 1 for step in params["base_dilation"]):
    raise Unsupported("a window of spread elements")
  sizes, strides, dilations = ([*n[1:3]] for n in by_axis)
  found = graph.node(
    "MaxPool",
    graph.transposed(call.whole(), (0, 3, 1, 2)),
    kernel_shape=sizes,
    strides=strides,
    dilations=dilations,
    pads=[*before[1:3], *after[1:3]],
  )
  return call.output(graph.transposed(found, (0, 2, 3, 1)))


def _gather(call: Call) -> list[Value]:
  """Slices at fixed places, rows of a table, or a row of each example."""
  table, places = call.inputs
  form = call.params["dimension_numbers"]
  if places.known is not None and len(places.shape) == 1:
    return _sliced(call, places.known)
  axes = form.start_index_map
  if len(axes) != 1 or form.collapsed_slice_dims != axes:
    raise Unsupported("a gather along several dimensions")
  (axis,) = axes
  rank = len(places.shape) - 1
  along = form.operand_batching_dims
  if places.known is not None and along and rank == len(along) + 1:
    return _along(call, places.known[..., 0], axis)
  if form.operand_batching_dims == form.start_indices_batching_dims == (0,):
    if (axis, rank, len(table.shape)) != (1, 2, 3):
      raise Unsupported("a gather of other than rows")
    indices = _long(call)
    return call.output(
      call.graph.node("GatherND", call.whole(0), indices, batch_dims=1)
    )
  expected = (*range(axis), *range(axis + rank, len(call.shape)))
  if form.operand_batching_dims or form.offset_dims != expected:
    raise Unsupported("a gather whose dimensions are in another order")
  last = call.graph.ints(rank)
  indices = call.graph.node("Squeeze", _long(call), last)
  return call.output(
    call.graph.node("Gather", call.whole(0), indices, axis=axis)
  )


def _along(call: Call, places: np.ndarray, axis: int) -> list[Value]:
  """Elements along an axis, at known places that differ by other dimensions."""
  form, table = call.params["dimension_numbers"], call.inputs[0]
  by_place = dict(
    zip(
      form.start_indices_batching_dims, form.operand_batching_dims, strict=True
    )
  )
  # The dimension of the table for each one of the places, in their order.
  of_places = [by_place.get(dim, axis) for dim in range(places.ndim)]
  order = np.argsort(of_places)
  stored, shape = [1] * len(table.shape), [*table.shape]
  for dim in order.tolist():
    stored[of_places[dim]] = places.shape[dim]
  shape[axis] = stored[axis]
  index = places.astype(np.int64).transpose(order).reshape(stored)
  indices = call.graph.whole(Value(index, (*shape,), (*stored,)))
  found = call.graph.node("GatherElements", call.whole(0), indices, axis=axis)
  others = iter(d for d in range(len(shape)) if d not in of_places)
  chosen = iter(of_places)
  layout = [
    next(others if dim in form.offset_dims else chosen)
    for dim in range(len(call.shape))
  ]
  return call.output(call.graph.transposed(found, layout))


def _long(call: Call) -> str:
  return call.graph.node("Cast", call.whole(1), to=call.graph.type_of(np.int64))


def _sliced(call: Call, starts: np.ndarray) -> list[Value]:
  form, sizes = call.params["dimension_numbers"], call.params["slice_sizes"]
  graph, axes = call.graph, form.start_index_map
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
