"""A token for each channel of a patch (ChannelViT, arXiv:2309.16108).

All channels are embedded by one matrix and share the positions. Each adds a
learned vector of its own, so images may lack channels, whose tokens are then
masked. Symbols as in `vit`.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Key

from vit_jax.models.layer import Images
from vit_jax.models.partitioning import with_axes
from vit_jax.models.tokens import Tokens, check_mask

E_CHANNEL = "E_channel"
"""The name of the vectors of channels among the parameters, (C, D)."""


class ChannelPatches(struct.PyTreeNode):
  """The embedded patches of each channel of images.

  Attributes:
    values: Their vectors; those that do not count are finite and mean nothing.
    counts: Which of them count.
  """

  values: Float[Array, "B C h w D"]
  counts: Bool[Array, "B C h w"]

  def sampled(self, key: Key[Array, ""]) -> "ChannelPatches":
    """The patches of some channels, by hierarchical channel sampling.

    Of the c channels that an image has, m are kept: first m is drawn uniformly
    from 1 to c, then m of the channels. Nothing is scaled, since no layer sums
    over channels. Each image has its own draw; the shapes stay.
    """
    B, C, _, _ = self.counts.shape
    channel_key, number_key = jax.random.split(key)
    has = self.counts.any(axis=(2, 3))  # (B, C)
    draw = jax.random.uniform(channel_key, (B, C))
    draw = jnp.where(has, draw, -1)  # Channels that are absent come last.
    order = jnp.argsort(draw, axis=1, descending=True)
    place = jnp.argsort(order, axis=1)
    m = jax.random.randint(number_key, (B,), 1, has.sum(axis=1) + 1)
    keeps = place < m[:, None]  # (B, C)
    return self.replace(counts=self.counts & keeps[..., None, None])

  def tokens(self) -> Tokens:
    """The patches as tokens, channel by channel, without positions."""
    B, C, h, w, D = self.values.shape
    return Tokens(
      self.values.reshape(B, C * h * w, D),
      where=jnp.tile(jnp.arange(h * w), C)[None],
      mask=self.counts.reshape(B, C * h * w),
      grid=(h, w),
    )


def embed(vit: Any, x: Images, mask: Any) -> ChannelPatches:
  """The patches of each channel: x_p E of Eq. 1 plus the channel's vector.

  Call it inside the model. `mask` says which patches count, (B, N), or is None
  if all do; a channel of a patch does not count if any of its pixels is NaN.
  Raises ValueError if the model has vectors for another number of channels, or
  a mask or images do not fit the patches.
  """
  B = x.shape[0]
  C = x.shape[-1]
  D = vit.hidden_size
  if vit.has_variable("params", E_CHANNEL):
    known = nn.unbox(vit.get_variable("params", E_CHANNEL)).shape[0]
    if known != C:
      raise ValueError(
        f"images of {C} channel(s), and the model has tokens for {known}: give "
        "all of them, with NaN for those that an image lacks."
      )
  x_p = vit._patches(each_alone(x), None)  # (B C, h, w, D)
  _, h, w, _ = x_p.shape
  counts = present(x, h, w)
  if mask is not None:
    check_mask(mask, B, h, w)
    counts &= mask.reshape(B, 1, h, w)
  init = with_axes(nn.initializers.normal(0.02), (None, None))
  E_channel: Any = vit.param(E_CHANNEL, init, (C, D), vit.param_dtype)
  E_channel = E_channel.astype(x_p.dtype).reshape(1, C, 1, 1, D)
  return ChannelPatches(x_p.reshape(B, C, h, w, D) + E_channel, counts)


def each_alone(x: Images) -> Float[Array, "BC H W 1"]:
  """The channels of images as images of one channel, with 0 for NaN."""
  B, H, W, C = x.shape
  alone = jnp.moveaxis(x, 3, 1).reshape(B * C, H, W, 1)
  return jnp.where(jnp.isnan(alone), 0, alone)


def present(x: Images, h: int, w: int) -> Bool[Array, "B C h w"]:
  """Which patches of each channel an image has: those without any NaN."""
  B, H, W, C = x.shape
  cells = jnp.isnan(x).reshape(B, h, H // h, w, W // w, C)
  return ~jnp.moveaxis(cells.any(axis=(2, 4)), 3, 1)


def mean_over_channels(
  z: Float[Array, "B CN D"], x: Images, grid: tuple[int, int]
) -> Float[Array, "B N D"]:
  """The mean of each patch's tokens, over the channels that an image has.

  It is 0 for a patch of which no channel is there.
  """
  return _mean(z, present(x, *grid).reshape(len(x), x.shape[-1], -1))


def one_for_each_patch(tokens: Tokens) -> Tokens:
  """The prefix, and one token for each patch: the mean over its channels.

  Only channels that count are averaged: neither those that an image lacks nor
  those that training leaves out. The mean is 0 for a patch without any. The
  paper and its code have no such features, as they classify images by the class
  token alone.
  """
  h, w = tokens.grid
  assert tokens.mask is not None
  counts = tokens.mask.reshape(len(tokens.z), -1, h * w)
  mean = _mean(tokens.patches, counts)
  first = tokens.z[:, : tokens.prefix]
  z = jnp.concatenate([first, mean], axis=1)
  return Tokens(z, prefix=tokens.prefix, grid=tokens.grid)


def _mean(
  z: Float[Array, "B CN D"], counts: Bool[Array, "B C N"]
) -> Float[Array, "B N D"]:
  """The mean over the channels that count; 0 where none does."""
  of_channels = z.reshape(*counts.shape, z.shape[-1])
  there = jnp.where(counts[..., None], of_channels, 0)
  total = there.sum(axis=1, dtype=jnp.float32)
  mean = total / jnp.maximum(counts.sum(axis=1), 1)[..., None]
  return mean.astype(z.dtype)


def check_fields(vit: Any) -> None:
  """Raises ValueError unless a model's fields fit its tokens of channels."""
  if vit.channel_sampling and not vit.channel_tokens:
    raise ValueError(
      "channel_sampling=True leaves out tokens of channels: set "
      "channel_tokens=True as well, or channel_sampling=False."
    )
  if not vit.channel_tokens:
    return
  if vit.resnet_layers:
    raise ValueError(
      "channel_tokens=True cuts each channel into patches, and a hybrid's "
      "ResNet mixes them: take a model without ResNet, such as B/16."
    )
  if hasattr(vit.block, "grid"):
    raise ValueError(
      f"channel_tokens=True gives a patch several tokens, and "
      f"block={vit.block.__name__} goes along rows and columns with one token "
      "for each patch: take another block."
    )
