"""Rotary positions: the place of a patch rotates its query and its key.

Entries i and i + D_h / 2 of a query or a key are a point in the plane, which is
rotated by the i-th of D_h / 2 angles (arXiv:2104.09864). The product of a query
and a key then depends on the offset between their patches. Symbols as in `vit`.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.attention import Keys
from vit_jax.models.patches import Layout
from vit_jax.models.position import Grid
from vit_jax.models.tokens import Where

ROPE_KINDS = ("axial", "counted", "mixed")


@dataclasses.dataclass(frozen=True)
class Rope:
  """The angles by which the patches of an image are rotated.

  In "axial" and "counted", D_h / 4 frequencies fall from 1 towards 1 / theta.
  They multiply y for the first half of the angles and x for the second.

  - "axial": y and x count from `start`, in units in which h and w patches have
    the length `side` (EVA-02, arXiv:2303.11331). Without a side, they are 2 pi
    times the place in [-1, 1] (DINOv3, arXiv:2508.10104).
  - "counted": y and x are the row and the column (RoPE-ViT, arXiv:2403.13298).
  - "mixed": angle i of each head is f_x x + f_y y, by frequencies that the head
    learns (RoPE-Mixed, Eq. 14 there); y and x are the row and the column.

  Attributes:
    grid: Patches along height and width, (h, w); None for images of any size,
      whose sizes are in their `Layout`.
    theta: The base: the frequencies fall from 1 towards 1 / theta.
    side: The length of height and width, at any number of patches.
    kind: One of `ROPE_KINDS`.
    start: The number of the first row and column.
    x_first: Whether the first half of the angles is of x.
    frequencies: Those of "mixed", f_x and f_y, (2, k, D_h / 2).
    first: The angles that rotate the first token before the patches (MLCD,
      arXiv:2407.17331); None for angles of 0.
  """

  grid: Grid | None
  theta: float
  side: int | None = None
  kind: str = "axial"
  start: int = 0
  x_first: bool = False
  frequencies: Float[Array, "2 k half"] | None = None
  first: Float[Array, " half"] | None = None

  @property
  def learned(self) -> bool:
    """Whether each head of each layer learns frequencies of its own."""
    return self.kind == "mixed"

  @property
  def has_gradients(self) -> bool:
    """Whether any of the angles is learned."""
    return self.learned or self.first is not None

  def init(self, key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Frequencies (2, k, D_h / 2) to start from.

    Half of them fall from 1 towards 1 / theta in a direction that is drawn for
    each head, and the others in the direction perpendicular to it.
    """
    _, k, half = shape
    sizes = self.theta ** (-jnp.arange(half // 2)[None, None] * 2 / half)
    first = jax.random.uniform(key, (k, 1), maxval=2 * math.pi)
    towards = jnp.concatenate([first, first + math.pi / 2], axis=1)[..., None]
    both = jnp.stack([sizes * jnp.cos(towards), sizes * jnp.sin(towards)])
    return both.reshape(shape).astype(dtype)

  def cos_and_sin(
    self, S: int, D_h: int, where: Where = None
  ) -> list[Float[Array, "*k_b S half"]]:
    """The cosine and sine of the angles of S tokens, in float32.

    The patches are the last tokens, and those before them have angles of 0,
    except for the first if it has its own. Given the places of patches,
    `where`, (b, K), each array is (b, S, D_h / 2), else (S, D_h / 2). If heads
    have their own angles, each is (k, b, S, D_h / 2), and b is 1 without
    `where`.
    """
    angles = self._angles_of(where, D_h)
    before = S - angles.shape[-2]
    padding = [(0, 0)] * (angles.ndim - 2)
    angles = jnp.pad(angles, [*padding, (before, 0), (0, 0)])
    if self.first is not None:
      first = self.first.astype(jnp.float32)
      if isinstance(where, Layout):  # The first of the tokens of each image.
        index = jnp.arange(S)
        is_first = (index < before) & (index % (before // where.images) == 0)
        angles = jnp.where(is_first[:, None], first, angles)
      else:
        angles = angles.at[..., 0, :].set(first)
    return [jnp.cos(angles), jnp.sin(angles)]

  def _angles_of(self, where: Where, D_h: int) -> Float[Array, "*k_b K half"]:
    """The angles of the patches, without the tokens before them."""
    if isinstance(where, Layout):
      places = [
        self._places(where.extent[..., i], where.place[..., i])[..., None]
        for i in (0, 1)
      ]
      # (k, B, K, D_h / 2), or (B, K, D_h / 2).
      return self._angles(places, D_h)
    assert self.grid is not None
    N = math.prod(self.grid)
    places = jnp.meshgrid(*map(self._places, self.grid), indexing="ij")
    places = [p.reshape(N, 1) for p in places]  # y and x.
    angles = self._angles(places, D_h)  # (k, N, D_h / 2), or (N, D_h / 2).
    if where is not None:
      return angles[..., where, :]
    return angles[:, None] if self.learned else angles

  def _angles(
    self, places: list[Float[Array, "*axes 1"]], D_h: int
  ) -> Float[Array, "*k_axes half"]:
    """The angles at `places`, y and x, for each head if they are learned."""
    axes = range(places[0].ndim - 1)
    if self.learned:
      assert self.frequencies is not None
      f = self.frequencies.astype(jnp.float32)
      f_x, f_y = jnp.expand_dims(f, [2 + axis for axis in axes])
      return f_x * places[1][None] + f_y * places[0][None]
    periods = self.theta ** (jnp.arange(D_h // 4) * 4 / D_h)  # (D_h / 4,)
    if self.x_first:
      places = places[::-1]
    return jnp.concatenate(
      [p / jnp.expand_dims(periods, axes) for p in places], axis=-1
    )

  def _places(self, n: Any, at: Any = None) -> Float[Array, "*axes"]:
    """The coordinates, y or x, of patches along a side of n patches.

    They are those of all n patches, or of the patches with the indices `at`.
    """
    index = jnp.arange(n) if at is None else at
    counted = index + self.start
    if self.side is not None:
      return counted / n * self.side
    if self.kind != "axial":
      return counted.astype(jnp.float32)
    return 2 * math.pi * ((2 * index + 1) / n - 1)


def rotate(x: Keys, rope: Rope, where: Where = None) -> Keys:
  """The queries or keys x, rotated by the angles of their tokens.

  Cosines, sines and products are float32, whatever the type of `x`.
  """
  parts = rope.cos_and_sin(x.shape[2], x.shape[3], where)
  if rope.learned:
    cos, sin = (jnp.tile(f, 2).swapaxes(0, 1) for f in parts)
  else:
    axes = (0, 1) if where is None else (1,)
    cos, sin = (jnp.expand_dims(jnp.tile(f, 2), axes) for f in parts)
  exact = x.astype(jnp.float32)
  a, b = jnp.split(exact, 2, axis=-1)
  rotated = exact * cos + jnp.concatenate([-b, a], axis=-1) * sin
  return rotated.astype(x.dtype)
