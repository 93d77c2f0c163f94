"""A masked autoencoder of any Vision Transformer (arXiv:2111.06377).

The encoder sees a few of an image's patches and nothing in place of the others,
so its layers cost less in proportion. A narrower decoder gets its outputs and a
learned token in place of each hidden patch, and predicts their pixels. Symbols
as in `vit`; K of the N patches of an image are seen and M are hidden.
"""

import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from vit_jax.models.composed import Composed, Needs, encoder_of
from vit_jax.models.layer import (
  LayerConfig,
  Layers,
  dense,
  layer_norm,
  make_blocks,
)
from vit_jax.models.model import Inputs, check_size
from vit_jax.models.partitioning import with_axes
from vit_jax.models.parts import DECODER, Part, Stack
from vit_jax.models.patches import Layout, Patches
from vit_jax.models.position import Grid, Positions
from vit_jax.models.tokens import Tokens
from vit_jax.models.vit import EncoderBlock

_NEEDS = Needs(
  "autoencoder.rate",
  hides=True,
  some_patches=True,
  tokens=True,
  features=True,
)
_MLP_RATIO = 4  # Width of a decoder's MLP over that of its tokens.


class Autoencoder(Composed):
  """An encoder and a decoder; images (B, H, W, C) -> pixels (B, M, P^2 C).

  It takes `Patches` as well: places then count along the row, -1 is padding,
  and neither encoder nor decoder lets the images of a row see each other.

  The draw of patches is a collection of variables, `model.apply({"params":
  params, "draw": {"seen": seen, "hidden": hidden}}, images)`: the places of the
  patches to see, integers (B, K), and of those to predict, (B, M). Without a
  draw all patches are seen and all are predicted, (B, N, P^2 C).

  Attributes:
    decoder_size: Width of the decoder's tokens.
    decoder_layers: Layers of the decoder.
    decoder_heads: Heads of each of its layers.
    decoder_mlp_size: Width of their MLPs; None for 4 times `decoder_size`.
    decoder_positions: Whether the decoder adds `sincos` to its tokens.
  """

  decoder_size: int = 512
  decoder_layers: int = 8
  decoder_heads: int = 16
  decoder_mlp_size: int | None = None
  decoder_positions: bool = True

  def __post_init__(self):
    for name in ("decoder_size", "decoder_layers", "decoder_heads"):
      check_size(name, getattr(self, name))
    check_size("decoder_mlp_size", self.mlp_of_decoder)
    D, heads = self.decoder_size, self.decoder_heads
    if D % 4 or D % heads:
      raise ValueError(
        f"decoder_size={D} has to be divisible by 4, for its positions, and by "
        f"decoder_heads={heads}."
      )
    super().__post_init__()

  @property
  def mlp_of_decoder(self) -> int:
    """Width of the MLPs of the decoder's layers."""
    return self.decoder_mlp_size or _MLP_RATIO * self.decoder_size

  @property
  def any_size(self) -> bool:
    """Whether the encoder takes `Patches`."""
    encoder: Any = self.encoder
    return encoder.any_size

  def parts(self) -> tuple[Part, ...]:
    stack = Stack(self.decoder_layers, after=("norm", "predict"))
    return *super().parts(), Part("decoder", DECODER, stack, own_task=True)

  def __call__(
    self, x: Inputs, *, mask: Any = None, train: bool = False
  ) -> Float[Array, "B M P2C"]:
    """The predicted pixels of the hidden patches.

    Raises ValueError if there is a `mask`, which a decoder does not know.
    """
    if mask is not None:
      raise ValueError(
        "an autoencoder takes no mask of patches: give those to see and those "
        "to predict as the collection `draw`."
      )
    if isinstance(x, Patches):
      channels = x.values.shape[-1] // self.patch_size**2
    else:
      channels = x.shape[-1]
    vit: Any = self.encoder
    tokens = vit.embed(x, train=train)
    seen_places: Any = self.get_variable("draw", "seen")
    hidden_places: Any = self.get_variable("draw", "hidden")
    if (layout := tokens.layout) is not None and hidden_places is not None:
      hidden_places = layout.take(hidden_places)
    if seen_places is not None:
      tokens = tokens.take(seen_places)
    tokens = vit.normed(vit.run(tokens, train=train))
    return self.decode(tokens, hidden_places, channels, train=train)

  @nn.compact
  def decode(
    self,
    tokens: Tokens,
    hidden_places: Any,
    channels: int,
    *,
    train: bool = False,
  ) -> Float[Array, "B M P2C"]:
    """The pixels of the hidden patches, from the encoder's normed outputs."""
    config = LayerConfig.of(self.encoder)
    decoder = Decoder(
      pixels=self.patch_size**2 * channels,
      hidden_size=self.decoder_size,
      num_layers=self.decoder_layers,
      num_heads=self.decoder_heads,
      mlp_size=self.mlp_of_decoder,
      scan=self.scan,
      remat=self.remat,
      config=config,
      positions=self.decoder_positions,
      name="decoder",
    )
    return decoder(tokens, hidden_places, train=train)


class Decoder(nn.Module):
  """Predicts the pixels of the hidden patches from the seen tokens' outputs.

  Without `hidden_places` it predicts the pixels of all patches of `tokens`.

  Attributes:
    pixels: P^2 C, the values to predict for a patch.
    hidden_size, num_layers, num_heads, mlp_size: Sizes of the decoder.
    scan, remat: As those of the encoder.
    config: The settings of the decoder's layers.
    positions: Whether the decoder adds positions to its tokens.
  """

  pixels: int
  hidden_size: int
  num_layers: int
  num_heads: int
  mlp_size: int
  scan: bool = False
  remat: str = "none"
  config: LayerConfig = LayerConfig()
  positions: bool = True

  @nn.compact
  def __call__(
    self, tokens: Tokens, hidden_places: Any, *, train: bool = False
  ) -> Float[Array, "B M P2C"]:
    c, D, prefix = self.config, self.hidden_size, tokens.prefix
    embed = dense(D, ("embed", "decoder"), c, name="embed")
    norm = layer_norm(c, name="norm")
    predict = dense(self.pixels, ("embed", "pixels"), c, name="predict")
    init = with_axes(nn.initializers.normal(0.02), (None,))
    mask_token: Any = self.param("mask", init, (D,), c.param_dtype)

    z = embed(tokens.z)  # (B, prefix + K, D)
    positions = functools.partial(self._positions, tokens.grid, z.dtype)
    seen_places: Any = tokens.where
    z = jnp.concatenate(
      [z[:, :prefix], z[:, prefix:] + positions(seen_places)], axis=1
    )
    first = prefix  # The first token whose pixels are predicted.
    if hidden_places is not None:
      first = z.shape[1]
      mask_tokens = mask_token.astype(z.dtype)[None, None]
      mask_tokens = mask_tokens + positions(hidden_places)
      z = jnp.concatenate([z, mask_tokens], axis=1)  # (B, prefix + N, D)
    tokens = tokens.replace(where=None, mask=None, E_pos=None)
    if isinstance(seen_places, Layout):
      layout = seen_places
      if hidden_places is not None:
        layout = seen_places.beside(hidden_places)
      tokens = tokens.replace(where=layout, mask=layout.counts)
    for layer in self._layers(train):
      tokens = layer(tokens.replace(z=z))
      z = tokens.z
    return predict(norm(z[:, first:]))

  def _positions(self, grid: Grid, dtype: DTypeLike, places: Any) -> Array:
    """The `sincos` of the patches at `places`, (b, K, D).

    They are zeros if the decoder adds no positions.
    """
    D = self.hidden_size
    if isinstance(places, Layout):
      positions = sincos_at(places.place, D).astype(dtype)
    else:
      places = None if places is None else jnp.asarray(places)
      h, w = grid
      positions = positions_at(sincos(h, w, D).astype(dtype), places)
    return positions if self.positions else jnp.zeros_like(positions)

  def _layers(self, train: bool) -> Layers:
    """The decoder's layers, as functions of tokens to call in turn."""
    sizes = self.num_heads, self.mlp_size, self.config
    none: list[Any] = [None] * self.num_layers
    block = functools.partial(EncoderBlock, *sizes)
    return make_blocks(self, block, Positions(none, none), train)


def positions_at(
  E_pos: Float[Array, "N D"], places: Int[Array, "b K"] | None
) -> Float[Array, "b K D"]:
  """The positions of patches at these places; all if `places` is None."""
  return E_pos[None] if places is None else E_pos[places]


def sincos(h: int, w: int, D: int) -> Float[Array, "N D"]:
  """Fixed positions: sine and cosine of x, then of y, D / 4 entries each.

  Entry i has the frequency 10,000^(-4 i / D), so the lowest one is higher than
  1 / 10,000, unlike in `position.sincos2d`.
  """
  frequency = 10_000.0 ** (-np.arange(D // 4) / (D // 4))
  y, x = np.divmod(np.arange(h * w), w)
  waves = [
    wave(place[:, None] * frequency)
    for place in (x, y)
    for wave in (np.sin, np.cos)
  ]
  return jnp.array(np.concatenate(waves, axis=1), jnp.float32)


def sincos_at(place: Int[Array, "B K 2"], D: int) -> Float[Array, "B K D"]:
  """The entries of `sincos` at rows and columns of any grid."""
  frequency = 10_000.0 ** (-np.arange(D // 4) / (D // 4))
  table = jnp.float32(frequency)[None, None]
  y, x = (place[..., axis, None] * table for axis in (0, 1))
  waves = [wave(angle) for angle in (x, y) for wave in (jnp.sin, jnp.cos)]
  return jnp.concatenate(waves, axis=-1)


def autoencoder(vit: nn.Module, **sizes: Any) -> Autoencoder:
  """An `Autoencoder` of this encoder, with a decoder of these `sizes`.

  Raises ValueError if the encoder cannot run on some of the patches alone, or
  pools its tokens by layers that the decoder would leave untrained.
  """
  return Autoencoder(0, encoder_of(vit, _NEEDS), **sizes)
