"""Position embeddings of the Vision Transformer (arXiv:2010.11929, App. D.4).

All kinds are added to the tokens except the relative offsets, from which
`attention.Msa` computes a term of its logits.
"""

import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.layer import LayerConfig, Positions, check_choice
from vit_jax.models.patches import Layout
from vit_jax.models.placed import (
  RESIZES,
  Grid,
  PlacedPositions,
  learned_table,
  repeat_prefix,
  resize_table_at,
  sincos1d,
  sincos2d,
)
from vit_jax.models.tokens import Where, places

LEARNED = ("learned", "learned_grid", "learned2d")
FIXED = ("sincos1d", "sincos2d")
POSITIONS = (*LEARNED, *FIXED, "relative", "none")
PLACES = ("input", "every_layer", "shared")


Extent = Grid | Layout
"""Patches along height and width of all images, or where each patch lies."""


class PositionEmbedding(nn.Module):
  """`E_pos` of Eq. 1: one vector for each token, (S, D).

  S = N + 1 with a class token, N without. In the 1-D kinds, "learned" and
  "sincos1d", the class token has an entry of its own. In the others it has no
  place on the grid and gets zeros; "learned_grid" differs from "learned" only
  in this.

  Attributes:
    kind: One of `LEARNED` or `FIXED`.
    grid: Patches along height and width, (h, w); N = h w.
    hidden_size: D.
    class_token: Whether the sequence starts with a class token.
    param_dtype: Type of the learned parameters and of the result.
  """

  kind: str
  grid: tuple[int, int]
  hidden_size: int
  class_token: bool = True
  param_dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self) -> Float[Array, "S D"]:
    (h, w), D = self.grid, self.hidden_size
    S = h * w + self.class_token
    axes = ("position", None)
    if self.kind == "learned":
      return learned_table(self, "E_pos", (S, D), axes)
    if self.kind == "sincos1d":
      return sincos1d(S, D).astype(self.param_dtype)
    if self.kind == "learned_grid":
      E_pos = learned_table(self, "E_pos", (h * w, D), axes)
    elif self.kind == "learned2d":
      X = learned_table(self, "X_pos", (w, D // 2), axes)
      Y = learned_table(self, "Y_pos", (h, D // 2), axes)
      E_pos = jnp.concatenate(
        [jnp.tile(X, (h, 1)), jnp.repeat(Y, w, axis=0)], axis=1
      )  # (N, D)
    else:
      E_pos = sincos2d(h, w, D).astype(self.param_dtype)  # (N, D)
    if self.class_token:
      E_pos = jnp.pad(E_pos, ((1, 0), (0, 0)))  # (N + 1, D)
    return E_pos


class ResizedPositions(nn.Module):
  """Positions for any grid, resized from the table of one grid; (S, D).

  For images of any size, which a `Layout` gives, they are (B, S, D).

  Attributes:
    table: The grid that the table is for, (h, w).
    prefix: Number of tokens before the patches that have a vector in the table.
    antialias: Whether a table that shrinks is smoothed first.
    resize: How the table is resized, one of `RESIZES`.
    factorized: Whether a vector is the sum of one for the row and one for the
      column (arXiv:2307.06304); it has no prefix then.
  """

  table: Grid
  hidden_size: int
  prefix: int
  antialias: bool
  resize: str = "bicubic"
  param_dtype: DTypeLike = jnp.float32
  factorized: bool = False

  @nn.compact
  def __call__(self, grid: Extent) -> Float[Array, "*b S D"]:
    (h, w), D = self.table, self.hidden_size
    shape, axes = (self.prefix + h * w, D), ("position", None)
    if self.factorized:
      X = learned_table(self, "X_pos", (w, D), axes)
      Y = learned_table(self, "Y_pos", (h, D), axes)
      E_pos = (Y[:, None] + X[None]).reshape(shape)
    else:
      E_pos = learned_table(self, "E_pos", shape, axes)
    if isinstance(grid, Layout):
      return resize_table_at(
        E_pos,
        self.prefix,
        self.table,
        grid,
        resize=self.resize,
        antialias=self.antialias,
      )
    if grid == self.table:
      return E_pos
    rows, columns = map(jnp.asarray, self._weights(grid))
    patches = E_pos[self.prefix :].reshape(h, w, D)
    patches = jnp.einsum("yh,xw,hwd->yxd", rows, columns, patches)
    patches = patches.reshape(-1, D).astype(self.param_dtype)
    return jnp.concatenate([E_pos[: self.prefix], patches])

  def _weights(self, grid: Grid) -> list[Float[np.ndarray, "new old"]]:
    """The weights of the table's rows, and of its columns, for a grid."""
    weigh, square = RESIZES[self.resize]
    weights = []
    for old, new in zip(self.table, grid, strict=True):
      side = max(grid) if square else new
      of_side = weigh(old, side, antialias=self.antialias)
      weights.append(of_side[:new].astype(np.float32))
    return weights


class RelativeOffsets(nn.Module):
  """Learned embeddings of the offsets between two tokens, one table per head.

  Returns `R` of shape (2S - 1, k, D_h); row `q - s + S - 1` belongs to the
  query at position q and the key at position s (App. D.4).
  """

  num_tokens: int
  num_heads: int
  head_size: int
  param_dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self) -> Float[Array, "offsets k D_h"]:
    shape = (2 * self.num_tokens - 1, self.num_heads, self.head_size)
    return learned_table(self, "R", shape, ("position", "heads", "head_size"))


def relative_logits(
  q: Float[Array, "B k S D_h"],
  R: Float[Array, "offsets k D_h"],
  where: Where = None,
) -> Float[Array, "B k S S"]:
  """Inner product of each query with the embedding of its offset to each key.

  One matrix product compares every query with all offsets; of each row, the S
  entries for its keys are then taken. `where` has the places of the patches.
  """
  R = R.astype(q.dtype)
  every_offset = jnp.einsum("bkqd,okd->bkqo", q, R)  # (B, k, S, offsets)
  assert not isinstance(where, Layout)  # `check_any_size` refuses them.
  at = places(where, q.shape[2])  # (b, S)
  offset = at[:, :, None] - at[:, None, :] + len(R) // 2  # (b, S, S)
  return jnp.take_along_axis(every_offset, offset[:, None], axis=-1)


def check_position(kind: str, place: str, hidden_size: int) -> None:
  """Raises ValueError unless these position embeddings can be built."""
  check_choice("position", kind, POSITIONS)
  check_choice("position_at", place, PLACES)
  divisor = {"learned2d": 2, "sincos1d": 2, "sincos2d": 4}.get(kind, 1)
  if hidden_size % divisor:
    raise ValueError(
      f"position={kind!r} needs a hidden_size divisible by {divisor}, "
      f"not {hidden_size}."
    )
  if kind == "sincos2d" and hidden_size < 8:
    raise ValueError(
      f"position={kind!r} needs a hidden_size of 8 or more, not {hidden_size}."
    )


def input_position(
  vit: Any, grid: Extent, config: LayerConfig, table: Grid | None = None
) -> Array | int:
  """E_pos of Eq. 1, (1, S, D); 0 if nothing is added before the first layer.

  Call it inside the model.

  Args:
    grid: Patches along height and width, or the `Layout` of images of any size,
      with which the result is (B, S, D).
    table: The grid that "learned" and "learned_grid" positions are for; None
      for `grid`, or for a square if that is a `Layout`. Other kinds ignore it.
  """
  if vit.position in ("none", "relative"):
    return 0
  name = "position_0" if vit.position_at == "every_layer" else "position"
  if isinstance(grid, Layout):
    return _placed_embedding(vit, grid, config, name, table)
  if table not in (None, grid) and vit.position in ("learned", "learned_grid"):
    return _resized_embedding(vit, grid, config, table)
  return _embedding(vit, grid, config, name)


def _resized_embedding(
  vit: Any, grid: Grid, config: LayerConfig, table: Grid
) -> Float[Array, "1 S D"]:
  """E_pos, interpolated bicubically from learned positions of another grid."""
  class_has_place = vit.class_token and vit.position == "learned"
  make = ResizedPositions(
    table,
    vit.hidden_size,
    prefix=int(class_has_place),
    antialias=False,
    param_dtype=config.param_dtype,
    name="position",
  )
  no_place = vit.prefix - class_has_place
  E_pos = make(grid).astype(config.dtype)
  return jnp.pad(E_pos, ((no_place, 0), (0, 0)))[None]


def make_positions(vit: Any, grid: Extent, config: LayerConfig) -> Positions:
  """The position embeddings of a model's layers; called inside the model.

  Relative offsets act inside the attention of every layer, so position_at
  "input" gives each layer its own, as "every_layer" does.
  """
  none: list[Array | None] = [None] * vit.num_layers
  if vit.position == "relative":
    assert not isinstance(grid, Layout)  # `check_any_size` refuses them.
    make = functools.partial(_offsets, vit, grid, config)
    if vit.position_at == "shared":
      return Positions(none, [make("relative")] * vit.num_layers)
    layers = range(vit.num_layers)
    return Positions(none, [make(f"relative_{layer}") for layer in layers])
  if vit.position == "none" or vit.position_at != "every_layer":
    return Positions(none, none)
  layers = range(1, vit.num_layers)
  make = functools.partial(_embedding, vit, grid, config)
  return Positions(
    [None, *(make(f"position_{layer}") for layer in layers)], none
  )


def _placed_embedding(
  vit: Any,
  layout: Layout,
  config: LayerConfig,
  name: str,
  table: Grid | None = None,
) -> Float[Array, "B S D"]:
  """E_pos for images of any size, from the parameters called `name`."""
  make = PlacedPositions(
    vit.position,
    vit.hidden_size,
    class_token=vit.class_token,
    param_dtype=config.param_dtype,
    table=table,
    name=name,
  )
  return repeat_prefix(make(layout).astype(config.dtype), vit.prefix, layout)


def _offsets(vit: Any, grid: Grid, config: LayerConfig, name: str) -> Array:
  """R of a layer, (2S - 1, k, D_h), from the parameters called `name`."""
  make = RelativeOffsets(
    num_tokens=grid[0] * grid[1] + (vit.pooling == "token"),
    num_heads=vit.num_heads,
    head_size=vit.hidden_size // vit.num_heads,
    param_dtype=config.param_dtype,
    name=name,
  )
  return make()


def _embedding(vit: Any, grid: Extent, config: LayerConfig, name: str) -> Array:
  """E_pos, (1, S, D) or (B, S, D), from the parameters called `name`."""
  if isinstance(grid, Layout):
    return _placed_embedding(vit, grid, config, name)
  make = PositionEmbedding(
    vit.position,
    grid,
    vit.hidden_size,
    class_token=vit.pooling == "token",
    param_dtype=config.param_dtype,
    name=name,
  )
  return make()[None].astype(config.dtype)  # (1, S, D)
