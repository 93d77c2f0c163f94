"""Positions as functions of where a patch lies (arXiv:2010.11929, App. D.4).

They are learned tables, which are resized to the grid of each image, or sines
and cosines. `position` says which of them a model uses, and where.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from vit_jax.models.interpolation import bicubic_weights, linear_weights
from vit_jax.models.partitioning import Axes, with_axes
from vit_jax.models.patches import Layout

Grid = tuple[int, int]
RESIZES: Mapping[str, tuple[Callable[..., Any], bool]] = {
  "bicubic": (bicubic_weights, False),
  "bilinear": (linear_weights, False),
  "square": (linear_weights, True),
  "square_bicubic": (bicubic_weights, True),
  "square_corners": (functools.partial(linear_weights, corners=True), True),
}
"""How to resize a table: the function of the weights, and whether to a square.

The side of the square is the longer side of the grid, to which it is then cut.
"""
_init_E_pos = nn.initializers.normal(0.02)


class PlacedPositions(nn.Module):
  """`PositionEmbedding` for images of any size; (B, S, D), S = N + 1 or N.

  The vectors are those of the class token of an image, if there is one, and of
  each patch. Learned ones are resized bicubically to the grid of each image.

  Attributes:
    table: The grid that "learned" and "learned_grid" positions are for; None
      for a square.
  """

  kind: str
  hidden_size: int
  class_token: bool = True
  param_dtype: DTypeLike = jnp.float32
  table: Grid | None = None

  @nn.compact
  def __call__(self, layout: Layout) -> Float[Array, "B S D"]:
    D = self.hidden_size
    first = int(self.class_token)
    y, x = (layout.place[..., axis] for axis in (0, 1))
    if self.kind == "learned2d":
      E_pos = self._learned2d(layout)
    elif self.kind == "sincos1d":
      at = jnp.pad(y * layout.extent[..., 1] + x + first, ((0, 0), (first, 0)))
      return _sincos1d(at, _frequency1d(D)).astype(self.param_dtype)
    elif self.kind == "sincos2d":
      E_pos = _sincos2d(y, x, _frequency2d(D), y.shape)
      E_pos = E_pos.astype(self.param_dtype)
    else:
      has_entry = first if self.kind == "learned" else 0
      rows = self._stored("E_pos")[0]
      h, w = self.table or self._square(rows - has_entry)
      shape, axes = (has_entry + h * w, D), ("position", None)
      E_pos = learned_table(self, "E_pos", shape, axes)
      E_pos = resize_table_at(E_pos, has_entry, (h, w), layout)
      first -= has_entry
    return jnp.pad(E_pos, ((0, 0), (first, 0), (0, 0)))

  def _learned2d(self, layout: Layout) -> Float[Array, "B N D"]:
    """The vectors of columns and rows, resized to the grid of each image."""
    parts = []
    for name, axis in (("X_pos", 1), ("Y_pos", 0)):
      shape = self._stored(name)
      table = learned_table(self, name, shape, ("position", None))
      places = layout.place[..., axis], layout.extent[..., axis]
      weights = bicubic_weights(
        shape[0], places[1], antialias=False, at=places[0]
      )
      parts.append((weights @ table).astype(table.dtype))
    return jnp.concatenate(parts, axis=-1)

  def _stored(self, name: str) -> tuple[int, ...]:
    """The shape of a learned table among the parameters.

    Raises ValueError while there is none: images of one size decide its shape.
    """
    if not self.has_variable("params", name):
      raise ValueError(
        "initialise the model with images of one size, whose grid of patches "
        "its learned positions are for, and then give it Patches."
      )
    return nn.unbox(self.get_variable("params", name)).shape

  def _square(self, N: int) -> Grid:
    """The sides of a square of N patches; ValueError if N is no square."""
    side = math.isqrt(N)
    if side * side != N:
      raise ValueError(
        f"E_pos was learned for {N} patches, which are no square, so nobody "
        "knows their grid: Patches need positions that were learned on square "
        "images, or position='sincos2d'."
      )
    return side, side


def resize_table_at(
  E_pos: Float[Array, "T D"],
  prefix: int,
  table: Grid,
  layout: Layout,
  resize: str = "bicubic",
  antialias: bool = False,
) -> Float[Array, "B S D"]:
  """The vectors of each patch from a table, resized to the grid of its image.

  The first `prefix` vectors of the table, which are of no patch, come first.
  """
  weigh, square = RESIZES[resize]
  size = layout.extent
  if square:
    size = jnp.broadcast_to(size.max(axis=-1, keepdims=True), size.shape)
  rows, columns = (
    weigh(old, size[..., i], antialias=antialias, at=layout.place[..., i])
    for i, old in enumerate(table)
  )
  weights = rows[..., :, None] * columns[..., None, :]
  weights = weights.reshape(*rows.shape[:2], -1)  # (B, N, h w)
  patches = (weights @ E_pos[prefix:]).astype(E_pos.dtype)
  B = patches.shape[0]
  D = E_pos.shape[1]
  first = jnp.broadcast_to(E_pos[None, :prefix], (B, prefix, D))
  return jnp.concatenate([first, patches], axis=1)


def repeat_prefix(
  E_pos: Float[Array, "B s D"], prefix: int, layout: Layout
) -> Float[Array, "B S D"]:
  """Repeats the vectors of the prefix for each image of a row.

  The first `prefix` vectors of `E_pos` belong to the tokens before the patches;
  a row has such tokens for each of its images.
  """
  first = jnp.tile(E_pos[:, :prefix], (1, layout.images, 1))
  return jnp.concatenate([first, E_pos[:, prefix:]], axis=1)


def learned_table(
  module: Any, name: str, shape: tuple[int, ...], axes: Axes
) -> Array:
  """A learned table; raises ValueError if one of another shape was loaded."""
  if module.has_variable("params", name):
    stored = nn.unbox(module.get_variable("params", name)).shape
    if stored != shape:
      advice = "use images of the size the model was trained on"
      if name != "R":  # Relative positions cannot be resized at loading.
        advice += (
          ", or load the model as load_pretrained(source, image_size=(H, W)) "
          "to resize the table"
        )
      raise ValueError(
        f"{name} was learned with shape {stored}, and these images need "
        f"{shape}: {advice}."
      )
  return module.param(
    name, with_axes(_init_E_pos, axes), shape, module.param_dtype
  )


def sincos1d(S: int, D: int) -> Float[Array, "S D"]:
  """Sines and cosines interleaved ("Attention is all you need", Sec. 3.5).

  Entry 2i of position p is sin(p / 10000^(2i / D)), and entry 2i + 1 is the
  cosine of the same angle.
  """
  frequency = _frequency1d(D)
  return _sincos1d(jnp.arange(S), frequency)


def _frequency1d(D: int) -> Float[Array, " half"]:
  """The frequencies of `sincos1d`, in radians per token."""
  return 10_000.0 ** (-jnp.arange(0, D, 2) / D)  # (D / 2,)


def _sincos1d(
  at: Int[Array, "*axes"], frequency: Float[Array, " half"]
) -> Float[Array, "*axes D"]:
  """The entries of `sincos1d` for the positions `at`."""
  angle = at[..., None] * jnp.expand_dims(frequency, range(at.ndim))
  waves = jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1)
  return waves.reshape(*at.shape, 2 * frequency.size)


def sincos2d(h: int, w: int, D: int) -> Float[Array, "N D"]:
  """Sine and cosine of x, then of y, each D / 4 entries, as in big_vision.

  Frequencies fall geometrically from 1 to 1 / 10,000.
  """
  frequency = _frequency2d(D)
  y, x = jnp.meshgrid(jnp.arange(h), jnp.arange(w), indexing="ij")
  return _sincos2d(y, x, frequency, (h * w,))


def _frequency2d(D: int) -> Float[Array, " quarter"]:
  """The frequencies of `sincos2d`, in radians per patch."""
  return 10_000.0 ** -jnp.linspace(0.0, 1.0, D // 4)  # (D / 4,)


def _sincos2d(
  y: Array, x: Array, frequency: Array, axes: tuple[Any, ...]
) -> Float[Array, "*axes D"]:
  """The entries of `sincos2d` for rows y and columns x, of the shape `axes`."""
  x, y = (
    p.reshape(*axes, 1) * jnp.expand_dims(frequency, range(len(axes)))
    for p in (x, y)
  )  # (*axes, D / 4)
  waves = [jnp.sin(x), jnp.cos(x), jnp.sin(y), jnp.cos(y)]
  return jnp.concatenate(waves, axis=-1)
