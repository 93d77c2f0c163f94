"""The tokens of images: their values, where they lie, and which of them count.

The layers of an encoder map tokens to tokens. Symbols as in `vit`; K of the N
patches of an image are present, all of them unless some were left out.
"""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

Where = Int[Array, "b N"] | None
"""The place of each patch on its grid, row by row; None: all, in order."""
Mask = Bool[Array, "B S"] | None
"""Which tokens count; None if all do."""


class Tokens(struct.PyTreeNode):
  """A batch of token sequences, between any two layers of an encoder.

  The tokens of an image are its prefix (class token, registers and the like)
  and, after it, its patches. Where a mask says that a patch does not count, the
  encoder computes what it would compute if that patch were left out.

  Attributes:
    z: The values, (B, S, D), S = prefix + K.
    where: The place of each patch on the grid, counted row by row from 0;
      integers (B, K), or (1, K) if it is the same for all images. None means
      every patch of the grid, in order.
    mask: Which patches count, booleans (B, K); None if all do. The tokens
      before the patches always count.
    prefix: Number of tokens before the patches.
    grid: Patches along height and width of a whole image, (h, w); N = h w.
    E_pos: The position embeddings that every layer adds again, (B, S, D) or
      (1, S, D), if the model's `position_at` is "shared".

  >>> import jax.numpy as jnp
  >>> from vit_jax.models import Tokens
  >>> tokens = Tokens(jnp.zeros((2, 5, 8)), prefix=1, grid=(2, 2))
  >>> tokens.take([[0, 3]]).where.tolist(), tokens.take([[0, 3]]).z.shape
  ([[0, 3]], (2, 3, 8))
  """

  z: Float[Array, "B S D"]
  where: Int[Array, "b K"] | None = None
  mask: Bool[Array, "B K"] | None = None
  prefix: int = struct.field(pytree_node=False, default=0)
  grid: tuple[int, int] = struct.field(pytree_node=False, default=(1, 1))
  E_pos: Float[Array, "b S D"] | None = None

  @property
  def patches(self) -> Float[Array, "B K D"]:
    """The values of the patches alone."""
    return self.z[:, self.prefix :]

  def without_prefix(self) -> "Tokens":
    """The patches alone, of which E_pos has none."""
    return self.replace(z=self.patches, prefix=0, E_pos=None)

  @property
  def seen(self) -> Mask:
    """Which of all tokens count, (B, S); None if all do."""
    if self.mask is None:
      return None
    return jnp.pad(self.mask, ((0, 0), (self.prefix, 0)), constant_values=True)

  def take(self, keep: Any) -> "Tokens":
    """The prefix and the patches `keep`, with their places and their mask.

    Args:
      keep: Indices among the patches that are present, integers (B, K), or
        (1, K) to keep the same patches of every image.

    Raises:
      ValueError: if `keep` is not such an array.
    """
    B = len(self.z)
    keep = jnp.asarray(keep)
    if (
      not jnp.issubdtype(keep.dtype, jnp.integer)
      or keep.ndim != 2
      or len(keep) not in (1, B)
    ):
      raise ValueError(
        f"keep of shape {keep.shape} and type {keep.dtype}; take needs whole "
        f"numbers, (B, K) or (1, K) for B={B} images."
      )
    where = keep
    mask = self.mask
    E_pos = self.E_pos
    if self.where is not None:
      where = jnp.take_along_axis(self.where, keep, axis=1)
    if mask is not None:
      mask = jnp.take_along_axis(mask, keep, axis=1)
    if E_pos is not None:
      E_pos = self._take(E_pos, keep)
    z = self._take(self.z, keep)
    return self.replace(z=z, where=where, mask=mask, E_pos=E_pos)

  def _take(
    self, rows: Float[Array, "b S D"], keep: Int[Array, "c K"]
  ) -> Float[Array, "d s D"]:
    first = rows[:, : self.prefix]
    patches = rows[:, self.prefix :]
    patches = jnp.take_along_axis(patches, keep[..., None], axis=1)
    first = jnp.broadcast_to(first, (len(patches), *first.shape[1:]))
    return jnp.concatenate([first, patches], axis=1)

  def of_places(self, table: Float[Array, "1 S D"]) -> Float[Array, "b s D"]:
    """The rows of a table for a whole image's tokens that these tokens have."""
    if self.where is None:
      return table
    return table[0, places(self.where, self.z.shape[1])]

  def mean(self) -> Float[Array, "B D"]:
    """The mean of the patches that count; zeros where none does."""
    if self.mask is None:
      return self.patches.mean(axis=1)
    counts = self.mask[..., None]
    total = jnp.where(counts, self.patches, 0).sum(axis=1, dtype=jnp.float32)
    mean = total / jnp.maximum(counts.sum(axis=1), 1)
    return mean.astype(self.z.dtype)

  def cleared(self) -> "Tokens":
    """The tokens with zeros for what does not count.

    Without this, NaN and infinities would reach gradients, as 0 times NaN.
    """
    seen = self.seen
    if seen is None:
      return self
    return self.replace(z=jnp.where(seen[..., None], self.z, 0))


def check_mask(mask: Any, B: int, h: int, w: int) -> None:
  """Raises ValueError unless it says of each patch whether it counts."""
  if mask.shape != (B, h * w) or mask.dtype != jnp.bool_:
    raise ValueError(
      f"mask of shape {mask.shape} and type {mask.dtype}; {B} images of {h} x "
      f"{w} patches need booleans of shape {(B, h * w)}, true for the patches "
      "that count."
    )


def places(where: Where, S: int) -> Int[Array, "b S"]:
  """The place of each of S tokens in the sequence of a whole image."""
  if where is None:
    return jnp.arange(S)[None]
  prefix = S - where.shape[1]
  first = jnp.tile(jnp.arange(prefix)[None], (len(where), 1))
  return jnp.concatenate([first, where + prefix], axis=1)
