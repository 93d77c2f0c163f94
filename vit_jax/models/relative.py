"""Relative positions that add one number per head to the logits of attention.

The logit of a query at patch q and a key at patch s gets the entry of B for the
offset q - s along height and width. B is a learned table (BEiT,
arXiv:2106.08254, after arXiv:1910.10683), or a small MLP of the offsets'
logarithms computes it (arXiv:2111.09883). The class token has no place: three
more entries are for its logits with the patches, theirs with it, and its own.
Symbols as in `vit`; `position.RelativeOffsets` has the paper's relative
positions.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from vit_jax.models.layer import init_kernel, init_zeros
from vit_jax.models.partitioning import Dense, with_axes
from vit_jax.models.patches import Layout
from vit_jax.models.position import Grid, learned_table
from vit_jax.models.tokens import Where

KINDS = ("table", "mlp")
_CLASS = 3  # Entries of the class token.


@dataclasses.dataclass(frozen=True)
class Relative:
  """How B is made.

  Attributes:
    kind: One of `KINDS`.
    grid: Patches of an image along height and width, (h, w); for images of any
      size that of the table, if there is one.
    table: The grid that a learned table is for; it is resized to `grid`.
    class_token: Whether the first token is a class token.
    hidden: Hidden units of the MLP.
    bilinear: Whether a table is resized bilinearly, as in transformers, or
      along steps that grow geometrically, as in BEiT's code and timm.
    most: The most patches of an image of any size; None if images have `grid`.
  """

  kind: str
  grid: Grid
  table: Grid
  class_token: bool
  hidden: int
  bilinear: bool
  most: int | None = None


class RelativeBiases(nn.Module):
  """The entries of B, (T, k), T = (2h - 1) (2w - 1), plus 3 for a class token.

  Row (y + h - 1) (2w - 1) + x + w - 1 is for the offset (y, x) of a query's
  patch from a key's. For images of any size, a table is as it was learned, and
  the MLP gives the entries of `_offsets_within`. The MLP gives none for the
  class token, whose entries are 0. timm drops an eighth of the MLP's hidden
  units in training, and this module does not.
  """

  num_heads: int
  relative: Relative
  param_dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self) -> Float[Array, "T k"]:
    r, k = self.relative, self.num_heads
    if r.kind == "mlp":
      B = self._mlp()
      of_class = jnp.zeros((_CLASS * r.class_token, k), B.dtype)
      return jnp.concatenate([B, of_class])
    sizes = [2 * side - 1 for side in r.table]
    offsets = sizes[0] * sizes[1]
    shape = offsets + _CLASS * r.class_token, k
    B = learned_table(self, "B", shape, ("position", "heads"))
    if r.grid == r.table:
      return B
    weights = bilinear_weights if r.bilinear else geometric_weights
    rows, columns = (
      jnp.asarray(weights(old, 2 * new - 1), jnp.float32)
      for old, new in zip(sizes, r.grid, strict=True)
    )
    patches = B[:offsets].reshape(*sizes, k)
    patches = jnp.einsum("yh,xw,hwk->yxk", rows, columns, patches)
    patches = patches.reshape(-1, k).astype(B.dtype)
    return jnp.concatenate([patches, B[offsets:]])

  def _mlp(self) -> Float[Array, "offsets k"]:
    """relu(c W + b) W' + b' of c = sign(d) log(1 + |d|), d = (y, x)."""
    if self.relative.most is None:
      offsets = [np.arange(1 - side, side) for side in self.relative.grid]
      d = np.stack(np.meshgrid(*offsets, indexing="ij"), axis=-1).reshape(-1, 2)
    else:
      d, _ = _offsets_within(self.relative.most)
    c = jnp.asarray(np.sign(d) * np.log1p(np.abs(d)), jnp.float32)

    def layer(features: int, name: str) -> Dense:
      return Dense(
        features,
        kernel_init=with_axes(init_kernel, (None, None)),
        bias_init=with_axes(init_zeros, (None,)),
        dtype=jnp.float32,
        param_dtype=self.param_dtype,
        name=name,
      )

    hidden = nn.relu(layer(self.relative.hidden, "expand")(c))
    return layer(self.num_heads, "contract")(hidden)


def relative_bias(
  B: Float[Array, "T k"], relative: Relative, where: Where = None
) -> Float[Array, "b k S S"]:
  """The bias of each query for each key; `where` has the patches' places.

  For images of any size, B has the entries of the table, which are resized to
  the grid of the query's image, or those that an MLP computed.
  """
  if isinstance(where, Layout):
    return _placed_bias(B, relative, where)
  h, w = relative.grid
  # If all patches stay, NumPy divides below: once, and not in the program.
  at = np.arange(h * w, dtype=np.int32)[None] if where is None else where
  places = at // w, at % w  # (b, N)
  y, x = (jnp.asarray(p[:, :, None]) - p[:, None, :] for p in places)
  entry = (y + h - 1) * (2 * w - 1) + x + w - 1  # (b, N, N)
  if relative.class_token:
    T = len(B)
    from_class = jnp.full_like(entry[:, :1], T - 3)
    entry = jnp.concatenate([from_class, entry], axis=1)
    to_class = jnp.full_like(entry[:, :, :1], T - 2)
    to_class = jnp.concatenate(
      [jnp.full_like(to_class[:, :1], T - 1), to_class[:, 1:]], axis=1
    )
    entry = jnp.concatenate([to_class, entry], axis=2)
  return jnp.take(B.T, entry, axis=1).swapaxes(0, 1)


def _placed_bias(
  B: Float[Array, "T k"], relative: Relative, layout: Layout
) -> Float[Array, "b k S S"]:
  """`relative_bias` for rows of images of any size.

  The bias between patches of two images is finite and means nothing.
  """
  of_pairs = _from_table if relative.most is None else _computed
  bias = of_pairs(B, relative, layout)  # (b, k, N, N)
  if not relative.class_token:
    return bias
  to_class, from_class, own = (B[len(B) - n][:, None, None] for n in (2, 3, 1))
  M = layout.images
  b, k, N, _ = bias.shape
  first = [
    jnp.broadcast_to(own[None], (b, k, M, M)),
    jnp.broadcast_to(from_class[None], (b, k, M, N)),
  ]
  rest = [jnp.broadcast_to(to_class[None], (b, k, N, M)), bias]
  return jnp.concatenate(
    [jnp.concatenate(part, axis=3) for part in (first, rest)], axis=2
  )


def _computed(
  B: Float[Array, "T k"], relative: Relative, layout: Layout
) -> Float[Array, "b k N N"]:
  """The entry of B for the offset of each pair of patches, by the MLP."""
  assert relative.most is not None
  d, centre = _offsets_within(relative.most)
  y, x = (
    layout.place[:, :, None, axis] - layout.place[:, None, :, axis]
    for axis in (0, 1)
  )
  row = (y + relative.most - 1).clip(0, len(centre) - 1)
  entry = (jnp.asarray(centre)[row] + x).clip(0, len(d) - 1)
  return jnp.take(B.T, entry, axis=1).swapaxes(0, 1)


@functools.cache
def _offsets_within(
  N: int,
) -> tuple[Int[np.ndarray, "T 2"], Int[np.ndarray, " rows"]]:
  """The offsets (y, x) within images of up to N patches.

  An image of |y| + 1 rows has at most N / (|y| + 1) columns. The second array
  has the place of (y, 0) among the offsets, for each y from 1 - N.
  """
  y = np.arange(1 - N, N)
  columns = N // (abs(y) + 1)
  centre = (np.cumsum(2 * columns - 1) - columns).astype(np.int32)
  x = [np.arange(1 - most, most) for most in columns]
  d = np.stack([np.repeat(y, 2 * columns - 1), np.concatenate(x)], axis=1)
  return d, centre


def _from_table(
  B: Float[Array, "T k"], relative: Relative, layout: Layout
) -> Float[Array, "b k N N"]:
  """The entry of B for each pair, by a table resized to the query's image."""
  sizes = [2 * side - 1 for side in relative.table]
  table = jnp.asarray(relative.table, jnp.int32)[None, None]
  as_learned = (layout.extent == table).all(axis=-1)[..., None]  # (b, N, 1)
  # For each axis, the two entries around an offset, and their weights.
  axes = []
  for axis, old in enumerate(sizes):
    at = layout.place[..., axis]
    side = layout.extent[..., axis]
    offset = at[:, :, None] - at[:, None, :]  # (b, N, N)
    point = jnp.where(
      as_learned,
      offset + old // 2,
      _point_of(old, offset, side[..., None], relative, layout.most),
    ).clip(0, old - 1)
    low = jnp.floor(point).astype(jnp.int32)
    share = point - low
    axes.append(((low, 1 - share), (jnp.minimum(low + 1, old - 1), share)))
  bias: Any = 0
  for row, row_share in axes[0]:
    for column, column_share in axes[1]:
      of_entry = jnp.take(B.T, row * sizes[1] + column, axis=1)
      bias = bias + (row_share * column_share)[None] * of_entry
  return bias.swapaxes(0, 1).astype(B.dtype)


def _point_of(
  old: int, offset: Array, side: Array, relative: Relative, N: int
) -> Float[Array, "b N N"]:
  """The point among `old` entries of a table that an offset falls on.

  `side` has the patches of the query's image along this axis, (b, N, 1), which
  are at most N.
  """
  if relative.bilinear:
    return (offset + side - 0.5) * (old / (2 * side - 1)) - 0.5
  points = jnp.asarray(_geometric_points(old, N))
  offset = (offset + N - 1).clip(0, 2 * N - 2)
  row = jnp.minimum(side, N) - 1
  return points.reshape(-1)[row * (2 * N - 1) + offset]


@functools.cache
def _geometric_points(old: int, N: int) -> Float[np.ndarray, "N offsets"]:
  """The point of each offset from 1 - N to N - 1, for sides of 1 to N patches.

  It is counted among the `old` entries, between which it may lie.
  """
  offsets = np.arange(1 - N, N)
  each = [
    np.interp(offsets, _geometric_places(old, 2 * side - 1), np.arange(old))
    for side in range(1, N + 1)
  ]
  return np.stack(each).astype(np.float32)


def bilinear_weights(old: int, new: int) -> Float[np.ndarray, "new old"]:
  """Weights of linear interpolation from `old` to `new` points.

  Both grids have their ends half a step from the same edges.
  """
  points = (np.arange(new) + 0.5) * old / new - 0.5
  return _linear(points, np.arange(old))


def geometric_weights(old: int, new: int) -> Float[np.ndarray, "new old"]:
  """Weights of linear interpolation from `old` offsets to `new` ones.

  The old offsets lie ever farther apart, as `_geometric_places` puts them.
  """
  return _linear(np.arange(new) - new // 2, _geometric_places(old, new))


def _geometric_places(old: int, new: int) -> Float[np.ndarray, " old"]:
  """The places of `old` offsets among `new`, which lie ever farther apart.

  The old offsets, an odd number, are put at 0 and 1 + q + ... + q^(i-1) on both
  sides. Bisection finds the q between 1.01 and 1.5 for which the outermost old
  and new offsets coincide.
  """
  low, high = 1.01, 1.5
  half = old // 2
  q = high
  while high - low > 1e-6:
    q = (low + high) / 2
    if (1 - q**half) / (1 - q) > new // 2:
      high = q
    else:
      low = q
  side = np.cumsum(q ** np.arange(half))
  return np.concatenate([-side[::-1], [0], side])


def _linear(points: np.ndarray, places: np.ndarray) -> np.ndarray:
  """The weights (points, places) with which each point is interpolated."""
  units = np.eye(len(places))
  return np.stack([np.interp(points, places, unit) for unit in units], axis=1)
