"""A dense prediction head that fuses the patches of four layers.

"Vision Transformers for Dense Prediction" (DPT, arXiv:2103.13413), with the
head that DINOv2's models for depth have. The patches of four layers, each
(B, h, w, D), the first layers first, are reassembled at 4, 2, 1 and 1/2 times
their resolution, and fused from the last to the first. The outputs have 16
times the resolution of the patches: (B, 16h, 16w, K), and 16 cells more along
an axis with an odd number of patches.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.layer import GELUS, LayerConfig, dense
from vit_jax.models.partitioning import with_axes

NUM_MAPS = 4
"""The number of layers that a head reads, with a map of patches each."""
WIDTH = 256
"""The usual width of the fused maps, and of other hidden layers of heads."""
_LAST = 32  # The minimum width of the last hidden layer.
_AXES = (None, None, "channels_in", "channels_out")

Maps = Float[Array, "B h w C"]


def layers_of(
  model: Any, layers: tuple[int, ...], task: str
) -> tuple[int, ...]:
  """The four layers that a head reads, counted from 1.

  If `layers` is (), they are the last layer of each quarter of the model.
  Raises ValueError, which names the setting `task`.layers, for any other number
  of layers than four.
  """
  if layers and len(layers) != NUM_MAPS:
    raise ValueError(
      f"{task}.layers={layers}: a DPT head reads four layers; give four, or () "
      "for the last layer of each quarter of the model."
    )
  L = model.num_layers
  quarters = (-(-L * k // NUM_MAPS) for k in range(1, NUM_MAPS + 1))
  return layers or tuple(quarters)


def double_resolution(x: Any) -> Float[Array, "B H W C"]:
  """A map at twice its resolution, interpolated bilinearly; H = 2 h, W = 2 w.

  The centres of the corner pixels stay where they are (aligned corners).
  """
  for axis in (1, 2):
    length = x.shape[axis]
    places = np.linspace(0, length - 1, 2 * length)
    lower = np.floor(places).astype(int).clip(0, max(length - 2, 0))
    shape = [1, 1, 1, 1]
    shape[axis] = 2 * length
    share = (places - lower).reshape(shape).astype(x.dtype)
    upper = np.minimum(lower + 1, length - 1)
    x = (1 - share) * x.take(lower, axis) + share * x.take(upper, axis)
  return x


class FusionUnit(nn.Module):
  """Two convolutions after ReLUs, added to their input, (B, h, w, C)."""

  width: int
  dtypes: Any

  @nn.compact
  def __call__(self, x: Maps) -> Maps:
    conv = partial(_conv, self.width, 3, self.dtypes, use_bias=False)
    y = conv(name="conv1")(nn.relu(x))
    return x + conv(name="conv2")(nn.relu(y))


class DptHead(nn.Module):
  """The dense prediction head that this module describes.

  Attributes:
    num_outputs: K.
    width: C, the channels of the fused maps.
    hidden_size: D, the width of the encoder's tokens.
    config: The settings of the encoder's layers, whose types the head shares.
    param_dtype: Type of the parameters of the last layer, which computes in
      float32.
  """

  num_outputs: int
  width: int
  hidden_size: int
  config: LayerConfig
  param_dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(
    self, maps: Sequence[Any], classes: Sequence[Any]
  ) -> Float[Array, "B H W K"]:
    """The outputs for four maps (B, h, w, D).

    `classes` has the class token of each of the layers, (B, D), or None.
    """
    conv = partial(_conv, dtypes=self.config.dtypes)
    features = []
    for i, x in enumerate(maps):
      x = self._reassemble(i, x, classes[i])
      to_width = conv(self.width, 3, use_bias=False, name=f"conv{i}")
      features.append(to_width(x))
    fused = self._fuse(features)
    fused = nn.relu(conv(self.width, 3, name="project")(fused))
    y = double_resolution(conv(self.width // 2, 3, name="conv_half")(fused))
    last = max(_LAST, self.num_outputs)
    y = nn.relu(conv(last, 3, name="conv_last")(y))
    types = dict(dtype=jnp.float32, param_dtype=self.param_dtype)
    zeros = with_axes(nn.initializers.zeros_init(), _AXES)
    outputs = _conv(
      self.num_outputs, 1, types, kernel_init=zeros, name="outputs"
    )
    return outputs(y)

  def _reassemble(
    self, i: int, x: Float[Array, "B h w D"], x_class: Any
  ) -> Float[Array, "B H W C"]:
    """The patches of layer i at 4, 2, 1 or 1/2 times their resolution.

    Their channels are D / 8, D / 4, D / 2 or D. A class token, `x_class`, is
    first mixed into each patch.
    """
    B, h, w, D = x.shape
    if x_class is not None:
      readout = dense(D, ("embed", "mlp"), self.config, name=f"readout{i}")
      x_class = jnp.broadcast_to(x_class[:, None, None], x.shape)
      x = GELUS["exact"](readout(jnp.concatenate([x, x_class], axis=-1)))
    width = max(1, self.hidden_size >> (NUM_MAPS - 1 - i))
    axes = ("embed", "mlp")
    x = dense(width, axes, self.config, name=f"reassemble{i}")(x)
    if i < 2:  # A transposed convolution whose stride is its size.
      side = 4 >> i
      x = dense(width * side**2, axes, self.config, name=f"resize{i}")(x)
      x = x.reshape(B, h, w, side, side, width).transpose(0, 1, 3, 2, 4, 5)
      return x.reshape(B, h * side, w * side, width)
    if i == 2:
      return x
    types = self.config.dtypes
    return _conv(width, 3, types, strides=(2, 2), name=f"resize{i}")(x)

  def _fuse(self, features: Sequence[Any]) -> Float[Array, "B H W C"]:
    """Fuses the maps from the last to the first.

    Each step doubles height and width.
    """
    types = self.config.dtypes
    fused: Any = None
    for i, x in reversed([*enumerate(features)]):
      if fused is None:
        fused = x
      else:
        if x.shape != fused.shape:  # An odd number of patches was halved.
          x = jax.image.resize(x, fused.shape, "bilinear", antialias=False)
        fused = fused + FusionUnit(self.width, types, name=f"beside{i}")(x)
      fused = FusionUnit(self.width, types, name=f"fusion{i}")(fused)
      project = _conv(self.width, 1, types, name=f"fused{i}")
      fused = project(double_resolution(fused))
    return fused


def _conv(width: int, side: int, dtypes: Any, **options: Any) -> nn.Conv:
  """A convolution of side x side pixels that pads the map by side // 2 zeros.

  `options` are further fields of `nn.Conv`.
  """
  init = with_axes(nn.initializers.lecun_normal(), _AXES)
  pad = ((side // 2, side // 2),) * 2
  fields: Any = dict(padding=pad, kernel_init=init, **dtypes) | options
  return nn.Conv(width, (side, side), **fields)
