"""ResNets as the paper uses them: as the stem of hybrids and as a baseline.

"BiT" residual networks (arXiv:2010.11929, Section 4.1, "Model Variants"):
ResNet v1.5 with group norm in place of batch norm and weight-standardised
convolutions (arXiv:1903.10520).
"""

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.layer import Images, Pooled, fast_variance
from vit_jax.models.model import Model, Origin, check_images, check_units
from vit_jax.models.partitioning import cast, for_cpu, lay_out, with_axes
from vit_jax.models.parts import ENCODER, Part, heads, unit_name

_CONV_AXES = (None, None, "channels_in", "channels_out")
_NORM_GROUPS = 32


class StdConv(nn.Module):
  """Convolution with its kernel scaled to mean 0, variance 1 per output.

  Images (B, H, W, C) -> (B, H / stride, W / stride, features), without a bias.
  `epsilon` is added to the kernel's variance; None adds 1e-5 to its deviation.
  """

  features: int
  kernel_size: tuple[int, int]
  stride: int = 1
  dtype: DTypeLike = jnp.float32
  param_dtype: DTypeLike = jnp.float32
  epsilon: float | None = None

  @nn.compact
  def __call__(self, x: Images) -> Float[Array, "B h w K"]:
    init = with_axes(nn.initializers.lecun_normal(), _CONV_AXES)
    shape = *self.kernel_size, x.shape[-1], self.features
    kernel: Any = self.param("kernel", init, shape, self.param_dtype)
    centred = kernel - kernel.mean(axis=(0, 1, 2), keepdims=True)
    std = jnp.sqrt((centred**2).mean(axis=(0, 1, 2), keepdims=True))
    if self.epsilon is None:
      std = std + 1e-5
    else:
      std = jnp.sqrt(std**2 + self.epsilon)
    kernel = cast(centred / std, self.dtype)
    kernel = lay_out(kernel, _CONV_AXES)
    return convolve(x.astype(self.dtype), kernel, self.stride)


def convolve(
  x: Images, kernel: Float[Array, "a b C K"], stride: int
) -> Float[Array, "B h w K"]:
  """Images (B, H, W, C) -> (B, ceil(H / stride), ceil(W / stride), K)."""
  if for_cpu() and kernel.shape[:2] == (1, 1):
    # XLA's gradient of a 1 x 1 kernel takes eight times as long as a product's.
    start, strides = (0, 0, 0, 0), (1, stride, stride, 1)
    pixels = jax.lax.slice(x, start, x.shape, strides)
    rows = pixels.reshape(-1, kernel.shape[2]) @ kernel[0, 0]
    return rows.reshape(*pixels.shape[:3], kernel.shape[3])
  return jax.lax.conv_general_dilated(
    x,
    kernel,
    (stride, stride),
    "SAME",
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
  )


class ResidualUnit(nn.Module):
  """Bottleneck block; (B, H, W, C) -> (B, H / stride, W / stride, 4 width).

  Its convolutions are 1x1, 3x3 with the stride, and 1x1 to 4 width channels.
  """

  width: int
  stride: int = 1
  dtype: DTypeLike = jnp.float32
  param_dtype: DTypeLike = jnp.float32
  epsilon: float | None = None

  @nn.compact
  def __call__(self, x: Images) -> Float[Array, "B h w C4"]:
    dtypes: Any = dict(dtype=self.dtype, param_dtype=self.param_dtype)
    conv = partial(StdConv, epsilon=self.epsilon, **dtypes)
    norm = partial(group_norm, **dtypes)
    zeros = nn.initializers.zeros_init()

    shortcut = x
    if x.shape[-1] != 4 * self.width or self.stride != 1:
      shortcut = conv(4 * self.width, (1, 1), self.stride, name="conv_proj")(x)
      shortcut = norm(name="norm_proj")(shortcut)
    x = nn.relu(norm(name="norm1")(conv(self.width, (1, 1), name="conv1")(x)))
    x = conv(self.width, (3, 3), self.stride, name="conv2")(x)
    x = nn.relu(norm(name="norm2")(x))
    x = conv(4 * self.width, (1, 1), name="conv3")(x)
    x = norm(scale_init=zeros, name="norm3")(x)
    return nn.relu(x + shortcut)


class ResNet(Model):
  """BiT ResNet; images (B, H, W, C) -> logits (B, num_classes).

  Attributes:
    layers: Residual units in each stage; stage i has stride 4 * 2^i.
    width: Channels of the root; 64 is "x1".
    epsilon: As in `StdConv`, for all convolutions.
    head_bias, dtype, param_dtype, origin: As in `VitFields`.

  Raises ValueError for a stage of no units.
  """

  layers: tuple[int, ...]
  width: int = 64
  head_bias: float = 0.0
  dtype: DTypeLike = jnp.float32
  param_dtype: DTypeLike = jnp.float32
  origin: Origin | None = None
  epsilon: float | None = None
  num_layers = 0  # It has no Transformer.

  def __post_init__(self):
    super().__post_init__()
    check_units("layers", self.layers)

  @property
  def resnet_layers(self) -> tuple[int, ...]:
    """`layers`, by the name that a hybrid has for them."""
    return self.layers

  def parts(self) -> tuple[Part, ...]:
    return Part("", ENCODER, pixels="conv_root/kernel"), *heads()

  def __call__(
    self, x: Images, *, train: bool = False, features: bool = False
  ) -> Float[Array, "..."]:
    """Logits, or with `features=True` the last feature map, (B, h, w, C)."""
    self.check_has_parameters()
    z, y = self.encode(x, train=train)
    return z if features else self.head(y)

  @nn.compact
  def encode(self, x: Images, *, train: bool = False) -> tuple[Array, Pooled]:
    """The last feature map, (B, h, w, D), and its mean for the head, (B, D)."""
    del train  # A ResNet has no dropout.
    check_images(x)
    dtypes: Any = dict(dtype=self.dtype, param_dtype=self.param_dtype)
    width = self.width
    options: Any = dict(epsilon=self.epsilon, **dtypes)
    x = StdConv(width, (7, 7), 2, **options, name="conv_root")(x)
    x = nn.relu(group_norm(**dtypes, name="norm_root")(x))
    x = max_pool(x)
    for stage, units in enumerate(self.layers):
      for unit in range(units):
        stride = 2 if stage and not unit else 1
        name = unit_name(stage, unit)
        x = ResidualUnit(width * 2**stage, stride, **options, name=name)(x)
    return x, x.mean(axis=(1, 2))


def max_pool(x: Images) -> Float[Array, "B h w C"]:
  """The highest values of windows of 3 x 3 at every second pixel.

  (B, H, W, C) -> (B, ceil(H / 2), ceil(W / 2), C).
  """
  return (_max_pool_of_cpus if for_cpu() else _max_pool)(x)


def _max_pool(x: Array) -> Array:
  return nn.max_pool(x, window_shape=(3, 3), strides=(2, 2), padding="SAME")


# On a CPU, XLA computes the gradient of a pool window by window. That of the
# highest of nine arrays is the same, and takes a fifth of its time.
_max_pool_of_cpus = jax.custom_jvp(_max_pool)


@_max_pool_of_cpus.defjvp
def _max_pool_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
  return jax.jvp(_highest_of_windows, primals, tangents)


def _highest_of_windows(x: Array) -> Array:
  """As `_max_pool`: the highest of each row of a window, then of the rows."""
  return _highest_of_threes(_highest_of_threes(x, axis=2), axis=1)


def _highest_of_threes(x: Array, axis: int) -> Array:
  """The highest of three neighbours at every second place of an axis."""
  size = x.shape[axis]
  # As many pixels before as "SAME" adds: one if the size is odd.
  added = [(0, 0)] * x.ndim
  added[axis] = (size % 2, 1)
  padded = jnp.pad(x, added, constant_values=-jnp.inf)
  reach = 2 * math.ceil(size / 2) - 1
  take = partial(jax.lax.slice_in_dim, padded, stride=2, axis=axis)
  return reduce(_first_highest, [take(i, i + reach) for i in range(3)])


def _first_highest(x: Array, y: Array) -> Array:
  """The higher value, or NaN; of equal ones, the first has the gradient."""
  return jnp.where((x >= y) | jnp.isnan(x), x, y)


class ChannelGroupNorm(nn.Module):
  """`nn.GroupNorm` of 32 groups, by sums over each channel first.

  Images (B, H, W, C) -> the same shape. On a CPU, XLA's sums over a group of
  channels take two to three times as long as those over each channel.
  """

  dtype: DTypeLike = jnp.float32
  param_dtype: DTypeLike = jnp.float32
  epsilon: float = 1e-6
  scale_init: Callable[..., Array] = nn.initializers.ones_init()
  bias_init: Callable[..., Array] = nn.initializers.zeros_init()

  @nn.compact
  def __call__(self, x: Array) -> Array:
    channels = x.shape[-1]
    scale = self.param("scale", self.scale_init, (channels,), self.param_dtype)
    bias = self.param("bias", self.bias_init, (channels,), self.param_dtype)
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    centred = x - _group_mean(x)
    variance = _group_mean(centred**2)
    slope = jax.lax.rsqrt(variance + self.epsilon) * scale.reshape(1, 1, 1, -1)
    return (centred * slope + bias.reshape(1, 1, 1, -1)).astype(self.dtype)


def _group_mean(x: Array) -> Array:
  """The mean of each channel's group; (B, H, W, C) -> (B, 1, 1, C)."""
  B, _, _, C = x.shape
  groups = x.mean(axis=(1, 2)).reshape(B, _NORM_GROUPS, C // _NORM_GROUPS)
  means = jnp.broadcast_to(groups.mean(-1, keepdims=True), groups.shape)
  return means.reshape(B, 1, 1, C)


def group_norm(
  dtype: DTypeLike = jnp.float32,
  scale_init: Callable[..., Array] = nn.initializers.ones_init(),
  **fields: Any,
) -> nn.Module:
  """A group norm with 32 groups; `fields` are others of `nn.GroupNorm`."""
  fields |= dict(
    dtype=dtype,
    scale_init=with_axes(scale_init, (None,)),
    bias_init=with_axes(nn.initializers.zeros_init(), (None,)),
  )
  if for_cpu():
    return ChannelGroupNorm(**fields)
  variance = fast_variance(dtype)
  return nn.GroupNorm(_NORM_GROUPS, use_fast_variance=variance, **fields)
