"""Text towers: Transformers that read the ids of a text's tokens.

Beside the image towers of `vit` and `extended_vit`, they are the other half of
models of images and text: CLIP's (arXiv:2103.00020), SigLIP's
(arXiv:2303.15343) and TIPS's (arXiv:2410.16512). The layers are the paper's,
Eq. 2 and 3. T is the length of the sequence, V the size of the vocabulary;
other symbols as in `vit`.
"""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from vit_jax.models.attention import Msa
from vit_jax.models.layer import (
  REMATS,
  LayerConfig,
  Layers,
  Pooled,
  TokenValues,
  check_choice,
  dense,
  layer_norm,
  make_blocks,
)
from vit_jax.models.model import Model, check_size
from vit_jax.models.partitioning import with_axes
from vit_jax.models.parts import ENCODER, HEAD, Part, Stack
from vit_jax.models.position import Positions
from vit_jax.models.tokens import Tokens
from vit_jax.models.vit import EncoderBlock

Ids = Array  # Integers (B, T), which `TextTower` checks.
POOLINGS = ("end", "last", "mean")
POSITIONS = ("learned", "sincos1d")
_SIZES = ("vocabulary", "length", "hidden_size", "num_layers", "mlp_size")


class CausalMsa(Msa):
  """`Msa` where a token attends only to itself and to earlier tokens."""

  causal = True


class CausalBlock(EncoderBlock):
  """`EncoderBlock` with `CausalMsa`."""

  attention = CausalMsa


class TextTower(Model):
  """Token ids (B, T), integers -> representations (B, R).

  A text may have fewer tokens than `length`. Raises ValueError if fields do not
  fit together, or ids are of a wrong shape or type.

  Attributes:
    vocabulary: V, the size of the vocabulary.
    length: The maximum number of tokens of a text.
    hidden_size, num_layers, mlp_size, num_heads: As those of a `Vit`.
    pooling: The vector of a text: with "end" the output of the first token
      `end_token`, with "last" that of the last of the T tokens, padding
      included, with "mean" the average over the tokens that count.
    causal: Whether a token attends only to itself and to earlier tokens.
    position: "learned", or "sincos1d" for fixed ones, see `sines_then_cosines`.
    embedding_scale: Multiplies the tokens' embeddings, not their positions.
    end_token: The token after a text; None for the one with the largest id.
    pad_token: The token that fills up a text and does not count: no token
      attends to it, and the mean is without it. None if all tokens count.
    representation_size: R, if the pooled output is projected; None for D.
    projection_bias: Whether that projection has a bias.
    gelu, layer_norm_epsilon, scan, remat, attention, dtype, param_dtype,
      attention_dtype: As those of a `Vit`.
  """

  vocabulary: int
  length: int
  hidden_size: int
  num_layers: int
  mlp_size: int
  num_heads: int
  pooling: str = "end"
  causal: bool = False
  position: str = "learned"
  embedding_scale: float = 1.0
  end_token: int | None = None
  pad_token: int | None = None
  representation_size: int | None = None
  projection_bias: bool = False
  gelu: str = "tanh"
  layer_norm_epsilon: float = 1e-6
  scan: bool = False
  remat: str = "none"
  attention: str = "auto"
  dtype: DTypeLike = jnp.float32
  param_dtype: DTypeLike = jnp.float32
  attention_dtype: DTypeLike = jnp.float32
  # Fields of models that take images.
  patch_size, origin = 1, None

  def __post_init__(self):
    for name in (*_SIZES, "num_heads"):
      check_size(name, getattr(self, name))
    if self.hidden_size % self.num_heads:
      raise ValueError(
        f"hidden_size={self.hidden_size} does not split over num_heads="
        f"{self.num_heads}: choose another number."
      )
    check_choice("pooling", self.pooling, POOLINGS)
    check_choice("position", self.position, POSITIONS)
    check_choice("remat", self.remat, REMATS)
    if self.position == "sincos1d" and (self.hidden_size < 4):
      raise ValueError(
        f"position='sincos1d' needs a hidden_size of 4 or more, not "
        f"{self.hidden_size}."
      )
    _ = self._config  # `LayerConfig` checks its fields.
    super().__post_init__()

  @property
  def prefix(self) -> int:
    """Number of tokens before the text's own, which is 0."""
    return 0

  def parts(self) -> tuple[Part, ...]:
    projection = Part("projection", HEAD)
    return Part("", ENCODER, Stack(self.num_layers)), projection

  def inputs(self, image_shape: tuple[int, int, int]) -> jax.ShapeDtypeStruct:
    """The shape and type of one text, whatever the shape of an image."""
    return jax.ShapeDtypeStruct((1, self.length), jnp.int32)

  def __call__(self, ids: Ids, *, train: bool = False) -> Float[Array, "B R"]:
    return self.representation(self.encode(ids, train=train)[1])

  @nn.compact
  def encode(
    self, x: Ids, *, train: bool = False
  ) -> tuple[TokenValues, Pooled]:
    """The last layer's output z, before the norm, and the pooled output."""
    ids = x
    self._check(ids)
    counts = None if self.pad_token is None else ids != self.pad_token
    tokens = Tokens(self._embed_tokens(ids), mask=counts)
    for layer in self._layers(train):
      tokens = layer(tokens)
    y = layer_norm(self._config, name="norm")(tokens.z)
    return tokens.z, self._pool(y, ids, counts)

  @nn.compact
  def representation(self, y: Pooled) -> Float[Array, "B R"]:
    """The projection of a pooled text y, or y itself without a projection."""
    if self.representation_size is None:
      return y
    size, use_bias = self.representation_size, self.projection_bias
    project = dense(
      size,
      ("embed", "representation"),
      self._config,
      use_bias=use_bias,
      name="projection",
    )
    return project(y)

  def _check(self, ids: Ids) -> None:
    """Raises ValueError unless ids are integers (B, T), T <= `length`."""
    if ids.ndim != 2 or not jnp.issubdtype(ids.dtype, jnp.integer):
      raise ValueError(
        f"texts of shape {ids.shape} and type {ids.dtype}; a text tower takes "
        "the ids of their tokens, integers (B, T)."
      )
    if ids.shape[1] > self.length:
      raise ValueError(
        f"texts of {ids.shape[1]} tokens; this tower reads at most "
        f"{self.length}: shorten them."
      )

  def _embed_tokens(self, ids: Ids) -> TokenValues:
    """The tokens' embeddings plus positions, as in Eq. 1 for patches."""
    V, D = self.vocabulary, self.hidden_size
    E = self.param("E", _normal(None, "embed"), (V, D), self.param_dtype)
    # An id outside the vocabulary gives NaN.
    z = jnp.take(jnp.asarray(E), ids, axis=0) * self.embedding_scale
    if self.position == "learned":
      shape = self.length, D
      init = _normal(None, None)
      E_pos = self.param("E_pos", init, shape, self.param_dtype)
    else:
      E_pos = sines_then_cosines(self.length, D)
    return (z + E_pos[None, : ids.shape[1]]).astype(self.dtype)

  def _layers(self, train: bool) -> Layers:
    """The layers, as functions of tokens to call in turn."""
    kind = CausalBlock if self.causal else EncoderBlock
    block = functools.partial(kind, self.num_heads, self.mlp_size, self._config)
    none: list[Array | None] = [None] * self.num_layers
    return make_blocks(self, block, Positions(none, none), train)

  def _pool(
    self, y: TokenValues, ids: Ids, counts: Bool[Array, "B T"] | None
  ) -> Float[Array, "B D"]:
    """The pooled output of each text; `counts` says which tokens count."""
    if self.pooling == "last":
      return y[:, -1]
    if self.pooling == "mean":
      return Tokens(y, mask=counts).mean()
    # `argmax` finds the first of equal values.
    ends = ids if self.end_token is None else ids == self.end_token
    first = jnp.argmax(ends, axis=1)
    return jnp.take_along_axis(y, first[:, None, None], axis=1)[:, 0]

  @property
  def _config(self) -> LayerConfig:
    return LayerConfig(
      gelu=self.gelu,
      layer_norm_epsilon=self.layer_norm_epsilon,
      attention=self.attention,
      dtype=self.dtype,
      param_dtype=self.param_dtype,
      attention_dtype=self.attention_dtype,
    )


def _normal(*axes: str | None):
  """An initializer of normal values, for a parameter with these axes."""
  return with_axes(nn.initializers.normal(0.02), axes)


def sines_then_cosines(length: int, D: int) -> Float[Array, "T D"]:
  """Fixed positions: D // 2 sines of a token's place, then as many cosines.

  Entry i of both has the frequency 10,000^(-i / (D // 2 - 1)), unlike in
  `placed.sincos1d`; an odd D ends in a zero.
  """
  half = D // 2
  frequency = np.exp(-math.log(10_000) / (half - 1) * np.arange(half))
  angle = np.arange(length)[:, None] * frequency
  waves = np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
  return jnp.array(np.pad(waves, ((0, 0), (0, D % 2))), jnp.float32)
