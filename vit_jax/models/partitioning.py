"""Parameters and activations that name their logical axes.

`vit_jax.training.sharding` maps each logical axis to the axis of devices it is
split over, once for storage and once for computation: under FSDP a device
stores a part of each kernel, which is cast to the type of the computation and
gathered whole where it multiplies. Without a layout the names do nothing.
"""

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array

Axes = tuple[str | None, ...]
Layout = Callable[[Axes], jax.sharding.Sharding]

CHIPS = {
  "TPU v3": "v3",
  "TPU v4": "v4",
  "TPU v5 lite": "v5e",
  "TPU v5": "v5p",
  "TPU v6 lite": "v6e",
  "TPU7x": "tpu7x",
}
"""The names of TPU chips, by what JAX calls their devices."""

_PRODUCT = jax.lax.dot_general.__code__

_layout = contextvars.ContextVar[Layout | None]("layout", default=None)
_device = contextvars.ContextVar[Any]("device", default=None)


@dataclasses.dataclass(frozen=True)
class _Named:
  """The initializer that `with_axes` returns."""

  init: Callable[..., Array]
  axes: Axes

  def __call__(self, *args, **kwargs) -> Any:
    return nn.with_logical_partitioning(self.init, self.axes)(*args, **kwargs)


def with_axes(init: Callable[..., Array], axes: Axes) -> _Named:
  """An initializer whose parameter carries the names of its axes."""
  return _Named(init, axes)


@contextlib.contextmanager
def use_layout(layout: Layout, device: Any) -> Iterator[None]:
  """Sets the layout of all arrays traced inside the context.

  Args:
    layout: Maps the logical axes of an array to its sharding.
    device: A device like those that the computation is for.
  """
  layout_token = _layout.set(layout)
  device_token = _device.set(device)
  try:
    yield
  finally:
    _layout.reset(layout_token)
    _device.reset(device_token)


def splits(axis: str) -> bool:
  """Whether the layout splits this axis over several devices."""
  layout = _layout.get()
  return layout is not None and not layout((axis,)).is_fully_replicated


def mesh_axes(axis: str) -> tuple[str, ...]:
  """The axes of devices that the layout splits this axis over."""
  layout = _layout.get()
  if layout is None:
    return ()
  sharding: Any = layout((axis,))
  return tuple(jax.tree.leaves(tuple(sharding.spec)))


def platform() -> str:
  """The platform that a computation is traced for: "tpu", "gpu" or "cpu"."""
  device = _device.get()
  return jax.default_backend() if device is None else device.platform


def chip_of(device: Any) -> str | None:
  """The name of a device's TPU chip, such as v5e; None for all else."""
  return CHIPS.get(device.device_kind)


def chip() -> str | None:
  """The TPU chip that a computation is traced for; None for all else."""
  device = _device.get()
  return chip_of(jax.devices()[0] if device is None else device)


def for_tpu() -> bool:
  """Whether a computation is traced for TPUs."""
  return platform() == "tpu"


def for_cpu() -> bool:
  """Whether a computation is traced for CPUs."""
  return platform() == "cpu"


def in_bfloat16_on_cpu(dtype: DTypeLike) -> bool:
  """Whether a computation in this type is traced for CPUs, and is bfloat16.

  XLA has fast products of it for CPUs, but only in some forms: `cast`,
  `add_bias` and `layer.each_token` see to it that gradients take these.
  """
  return for_cpu() and jnp.dtype(dtype) == jnp.bfloat16


def cast(weights: Array, dtype: Any) -> Array:
  """The weights of a product in the type of the computation.

  JAX computes a kernel's gradient transposed. In bfloat16 on CPUs, XLA would
  then transpose the operands instead, whose product takes twice to ten times as
  long; it does not if the gradient is cast before it is transposed back.
  """
  if in_bfloat16_on_cpu(dtype):
    return weights.T.astype(dtype).T
  return weights.astype(dtype)


def add_bias(y: Array, bias: Array | None) -> Array:
  """y + bias, (..., *axes) and (*axes); y itself for None.

  In bfloat16 on CPUs, the bias is broadcast in float32, so that its gradient is
  summed in float32: XLA's sums in bfloat16 take 30 times as long.
  """
  if bias is None:
    return y
  b = bias.reshape((1,) * (y.ndim - bias.ndim) + bias.shape)
  if in_bfloat16_on_cpu(y.dtype):
    b = jnp.broadcast_to(b.astype(jnp.float32), y.shape).astype(y.dtype)
  return y + b


def products_are_replaced() -> bool:
  """Whether a library has replaced `jax.lax.dot_general` by its own.

  Libraries such as qwix do so while a model is traced, to adapt or quantize it,
  and know a product's weights by the module that computes it.
  """
  product = getattr(jax.lax.dot_general, "__code__", None)
  return product is not _PRODUCT


def lay_out(x: ArrayLike, axes: Axes) -> Array:
  """The array, laid out over the devices for a computation."""
  layout = _layout.get()
  x = jnp.asarray(x)
  if layout is None:
    return x
  return jax.lax.with_sharding_constraint(x, layout(axes))


def on_each_device(f: Callable, axes: Axes, takes: Any = None) -> Callable:
  """A function by which each device applies f to its own part of all arrays.

  Without it, the compiler would gather the arrays that a loop in f goes
  through.

  Args:
    f: A function of arrays.
    axes: Logical axes of the result, and of every argument if `takes` is None.
    takes: A tuple with the logical axes of each argument.
  """
  layout = _layout.get()
  if layout is None:
    return f
  sharding: Any = layout(axes)
  spec: Any = sharding.spec
  if takes is not None:
    spec = jax.tree.map(_spec_of(layout), takes, is_leaf=_are_axes)
  return jax.shard_map(
    f,
    mesh=sharding.mesh,
    in_specs=spec,
    out_specs=sharding.spec,
    check_vma=False,
  )


def _spec_of(layout: Callable[[Axes], Any]) -> Callable[[Axes], Any]:
  """A function from logical axes to the partition spec of the layout."""
  return lambda axes: layout(axes).spec


def _are_axes(x: Any) -> bool:
  """Whether x has the logical axes of one array, and is no tuple of such."""
  return type(x) is tuple and all(isinstance(a, str | None) for a in x)


class Dense(nn.Dense):
  """`nn.Dense` that casts and gathers its parameters where it uses them.

  Left to itself, XLA computes a product piece by piece instead: a train step of
  L/16 then takes 2.8 times as long on eight chips of v5e. `scale` is a factor
  for each feature, which multiplies kernel and bias.
  """

  scale: Any = None

  @nn.compact
  def __call__(self, inputs: Array) -> Array:
    """The affine map of the last axis; (..., D) -> (..., features)."""
    shape = inputs.shape[-1], self.features
    kernel = self.param("kernel", self.kernel_init, shape, self.param_dtype)
    bias = None
    if self.use_bias:
      bias = self.param("bias", self.bias_init, shape[1:], self.param_dtype)
    axes = ((inputs.ndim - 1,), (0,)), ((), ())
    y = jax.lax.dot_general(inputs.astype(self.dtype), kernel, axes)
    return add_bias(y, bias)

  def param(self, name: str, init_fn: Callable, *args, **kwargs) -> Any:
    """The kernel or the bias, scaled, cast and gathered for the product."""
    value: Any = super().param(name, init_fn, *args, **kwargs)
    if self.scale is not None:
      value = value * jnp.broadcast_to(self.scale, value.shape)
    axes = getattr(self, f"{name}_init").axes
    return lay_out(cast(value, self.dtype), axes)


class Projection(nn.Module):
  """An affine map between several axes: (..., *inputs) -> (..., *outputs)."""

  # Shape of the kernel: the axes of the input, then of the output.
  shape: tuple[int, ...]
  num_inputs: int  # How many of these axes are of the input.
  axes: Axes  # Logical names of the kernel's axes.
  bias_axes: Axes
  # Initializer of the kernel, called with its shape as a matrix.
  kernel_init: Callable[..., Array]
  # Initializer of the bias; None for no bias.
  bias_init: Callable[..., Array] | None
  dtype: DTypeLike = jnp.float32
  param_dtype: DTypeLike = jnp.float32

  def setup(self) -> None:
    """Makes the kernel, and the bias if there is a `bias_init`."""
    outputs = self.shape[self.num_inputs :]
    init = with_axes(self._init_kernel, self.axes)
    dtype = self.param_dtype
    self.kernel: Any = self.param("kernel", init, self.shape, dtype)
    self.bias: Any = None
    if self.bias_init is not None:
      init = with_axes(self.bias_init, self.bias_axes)
      self.bias = self.param("bias", init, outputs, dtype)

  def _init_kernel(
    self, key: Array, shape: tuple[int, ...], dtype: DTypeLike
  ) -> Array:
    """The kernel, drawn as a matrix: (*inputs, *outputs)."""
    inputs = math.prod(shape[: self.num_inputs])
    outputs = math.prod(shape[self.num_inputs :])
    return self.kernel_init(key, (inputs, outputs), dtype).reshape(shape)

  def __call__(self, x: Array) -> Array:
    kernel, bias = self.weights()
    last = tuple(range(x.ndim - self.num_inputs, x.ndim))
    first = tuple(range(self.num_inputs))
    axes = (last, first), ((), ())
    y = jax.lax.dot_general(x.astype(self.dtype), kernel, axes)
    return add_bias(y, bias)

  def weights(self, scale: ArrayLike = 1.0) -> tuple[Array, Array | None]:
    """The kernel and the bias, scaled, cast and gathered; None for no bias.

    `scale` is one factor, or one for each entry of the last axis.
    """
    kernel = self._prepare(self.kernel, scale, self.axes)
    if self.bias is None:
      return kernel, None
    return kernel, self._prepare(self.bias, scale, self.bias_axes)

  def _prepare(self, x: Any, scale: ArrayLike, axes: Axes) -> Array:
    """The kernel or the bias x, scaled, cast and gathered."""
    x = x * jnp.broadcast_to(scale, x.shape).astype(x.dtype)
    return lay_out(cast(x, self.dtype), axes)
