"""ResNets as the paper uses them: as the stem of hybrids and as a baseline.

"BiT" residual networks (arXiv:2010.11929, Section 4.1, "Model Variants"):
ResNet v1.5 with group norm in place of batch norm and weight-standardised
convolutions (arXiv:1903.10520).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.layer import Images, Pooled, fast_variance
from vit_jax.models.model import Model, Origin, check_images
from vit_jax.models.partitioning import lay_out, with_axes
from vit_jax.models.parts import ENCODER, Part, heads

_CONV_AXES = (None, None, "channels_in", "channels_out")


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
    kernel = (centred / std).astype(self.dtype)
    return jax.lax.conv_general_dilated(
      x.astype(self.dtype),
      lay_out(kernel, _CONV_AXES),
      (self.stride, self.stride),
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
  """

  layers: tuple[int, ...]
  width: int = 64
  head_bias: float = 0.0
  dtype: DTypeLike = jnp.float32
  param_dtype: DTypeLike = jnp.float32
  origin: Origin | None = None
  epsilon: float | None = None
  num_layers = 0  # It has no Transformer.

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
    x = nn.max_pool(x, window_shape=(3, 3), strides=(2, 2), padding="SAME")
    for stage, units in enumerate(self.layers):
      for unit in range(units):
        stride = 2 if stage and not unit else 1
        name = f"stage{stage}_unit{unit}"
        x = ResidualUnit(width * 2**stage, stride, **options, name=name)(x)
    return x, x.mean(axis=(1, 2))


def group_norm(
  dtype: DTypeLike = jnp.float32,
  scale_init: Callable[..., Array] = nn.initializers.ones_init(),
  **fields: Any,
) -> nn.GroupNorm:
  """A group norm with 32 groups; `fields` are others of `nn.GroupNorm`."""
  return nn.GroupNorm(
    num_groups=32,
    use_fast_variance=fast_variance(dtype),
    dtype=dtype,
    scale_init=with_axes(scale_init, (None,)),
    bias_init=with_axes(nn.initializers.zeros_init(), (None,)),
    **fields,
  )
