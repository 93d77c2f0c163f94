"""The tokens of images: their values, where they lie, and which of them count.

The layers of an encoder map tokens to tokens. Symbols as in `vit`; K of the N
patches of an image are present, all of them unless some were left out.
"""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from vit_jax.models.mask import AttentionMask
from vit_jax.models.patches import Layout

Where = Int[Array, "b N"] | Layout | None
"""The place of each patch on its grid, counted row by row from 0.

None if all patches are there, in order. Images of any size have a `Layout`.
"""
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
      every patch of the grid, in order. Images of any size have a `Layout`.
    mask: Which patches count, booleans (B, K); None if all do. The tokens
      before the patches always count.
    prefix: Number of tokens before the patches. A row of M images has the
      prefix of each image, one after the other.
    grid: Patches along height and width of a whole image, (h, w); N = h w.
      Images of any size have none: their sizes are in the `Layout`.
    E_pos: The position embeddings that every layer adds again, (B, S, D) or
      (1, S, D), if the model's `position_at` is "shared".

  >>> import jax.numpy as jnp
  >>> from vit_jax.models import Tokens
  >>> tokens = Tokens(jnp.zeros((2, 5, 8)), prefix=1, grid=(2, 2))
  >>> tokens.take([[0, 3]]).where.tolist(), tokens.take([[0, 3]]).z.shape
  ([[0, 3]], (2, 3, 8))
  """

  z: Float[Array, "B S D"]
  where: Int[Array, "b K"] | Layout | None = None
  mask: Bool[Array, "B K"] | None = None
  prefix: int = struct.field(pytree_node=False, default=0)
  grid: tuple[int, int] = struct.field(pytree_node=False, default=(1, 1))
  E_pos: Float[Array, "b S D"] | None = None

  @property
  def patches(self) -> Float[Array, "B K D"]:
    """The values of the patches alone."""
    return self.z[:, self.prefix :]

  def without_prefix(self) -> "Tokens":
    """The patches alone, without `E_pos`."""
    return self.replace(z=self.patches, prefix=0, E_pos=None)

  @property
  def layout(self) -> Layout | None:
    """Where the patches of images of any size lie; None for one size."""
    return self.where if isinstance(self.where, Layout) else None

  @property
  def extent(self) -> tuple[int, int] | Layout:
    """The grid or the layout, from which positions are computed."""
    return self.grid if self.layout is None else self.layout

  @property
  def counts(self) -> Mask:
    """Which of all tokens count, (B, S); None if all do."""
    if self.mask is None:
      return None
    return jnp.pad(self.mask, ((0, 0), (self.prefix, 0)), constant_values=True)

  @property
  def seen(self) -> Mask | AttentionMask:
    """The mask of attention between the tokens; None if all see all."""
    if self.layout is None or self.layout.images == 1:
      return self.counts
    return AttentionMask(image=self.image)

  @property
  def image(self) -> Int[Array, "B S"]:
    """Which image of its row each token is of; -1 if it is of none."""
    layout = self.layout
    assert layout is not None
    number = jnp.arange(layout.images, dtype=layout.image.dtype)[None]
    each = self.prefix // layout.images
    first = jnp.repeat(jnp.where(layout.exists, number, -1), each, axis=1)
    return jnp.concatenate([first, layout.image], axis=1)

  def pooled_by(self, prefix: bool = True) -> Mask | AttentionMask:
    """The mask for attention pooling, in which a query reads a whole image.

    With `prefix`, the query reads all tokens of its image, else the patches
    alone. For images of one size the mask says which of them count, booleans
    (B, S) or (B, K), or is None if all do. Images of any size have an
    `AttentionMask` with a query for each image of a row.
    """
    layout = self.layout
    if layout is None:
      return self.counts if prefix else self.mask
    image = self.image if prefix else layout.image
    queries = jnp.arange(layout.images, dtype=image.dtype)[None]
    return AttentionMask(image=image, queries=queries)

  def first(self, i: int) -> Float[Array, "B *M D"]:
    """Token i of each image's prefix; (B, M, D) for images of any size."""
    if self.layout is None:
      return self.z[:, i]
    return self.z[:, i : self.prefix : self.prefix // self.layout.images]

  def prefixes(self, count: int) -> Float[Array, "B *M T D"]:
    """The first `count` tokens, T, of each image's prefix.

    They are (B, T, D), or (B, M, T, D) for images of any size.
    """
    if self.layout is None:
      return self.z[:, :count]
    B, M = self.layout.exists.shape
    if M == 1:
      return self.z[:, None, :count]
    z = self.z[:, : self.prefix]
    return z.reshape(B, M, self.prefix // M, z.shape[-1])[:, :, :count]

  def count_leading(self, count: int | None) -> int | None:
    """How many of the first tokens have to be kept for `prefixes(count)`.

    None stands for all tokens, and stays None.
    """
    if count is None or self.layout is None or self.layout.images == 1:
      return count
    return self.prefix

  def take(self, keep: Any) -> "Tokens":
    """The prefix and the patches `keep`, with their places and their mask.

    Args:
      keep: Indices among the patches that are present, integers (B, K), or
        (1, K) to keep the same patches of every image. In rows of images of
        any size, -1 gives padding.

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
    if isinstance(self.where, Layout):
      where = self.where.take(keep)
      mask = where.counts
    elif self.where is not None:
      where = jnp.take_along_axis(self.where, keep, axis=1)
    if mask is not None and self.layout is None:
      mask = jnp.take_along_axis(mask, keep, axis=1)
    if E_pos is not None:
      E_pos = self._take(E_pos, keep)
    z = self._take(self.z, keep)
    return self.replace(z=z, where=where, mask=mask, E_pos=E_pos)

  def _take(
    self, rows: Float[Array, "b S D"], keep: Int[Array, "c K"]
  ) -> Float[Array, "d s D"]:
    """The rows of the prefix, and those of the patches `keep`.

    b, c and d are 1 or B; d is the larger of b and c.
    """
    first = rows[:, : self.prefix]
    patches = rows[:, self.prefix :]
    patches = jnp.take_along_axis(patches, keep[..., None], axis=1)
    first = jnp.broadcast_to(first, (len(patches), *first.shape[1:]))
    return jnp.concatenate([first, patches], axis=1)

  def table_rows(
    self, table: Float[Array, "a S D"], prefix: int | None = None
  ) -> Float[Array, "b s D"]:
    """The rows of a table for these tokens.

    The table has a row for each token of a whole image. Its first `prefix` rows
    are for the tokens before the patches; the default is `self.prefix`. If all
    patches are present, or for images of any size, the table has the rows of
    exactly these tokens, and is returned as it is.
    """
    if self.where is None or isinstance(self.where, Layout):
      return table
    prefix = self.prefix if prefix is None else prefix
    return table[0, places(self.where, prefix + self.where.shape[1])]

  def mean(self) -> Float[Array, "B *M D"]:
    """The mean of an image's patches that count; zeros where none does."""
    if self.layout is not None:
      return self._mean_of_rows(self.layout)
    if self.mask is None:
      return self.patches.mean(axis=1)
    counts = self.mask[..., None]
    total = jnp.where(counts, self.patches, 0).sum(axis=1, dtype=jnp.float32)
    mean = total / jnp.maximum(counts.sum(axis=1), 1)
    return mean.astype(self.z.dtype)

  def _mean_of_rows(self, layout: Layout) -> Float[Array, "B M D"]:
    """`mean` for rows of several images."""
    of_image = layout.of_image
    patches = jnp.where(layout.counts[..., None], self.patches, 0)
    total = jnp.einsum(
      "bmk,bkd->bmd",
      of_image.astype(patches.dtype),
      patches,
      preferred_element_type=jnp.float32,
    )
    count = jnp.maximum(of_image.sum(axis=-1), 1)
    return (total / count[..., None]).astype(self.z.dtype)

  def clear_uncounted(self) -> "Tokens":
    """The tokens, with zeros in the place of those that do not count.

    Their NaN and infinities would otherwise reach gradients, as 0 times NaN.
    """
    counts = self.counts
    if counts is None:
      return self
    return self.replace(z=jnp.where(counts[..., None], self.z, 0))


def check_mask(mask: Any, B: int, h: int, w: int) -> None:
  """Raises ValueError unless a mask has a boolean for each patch."""
  if mask.shape != (B, h * w) or mask.dtype != jnp.bool_:
    raise ValueError(
      f"mask of shape {mask.shape} and type {mask.dtype}; {B} images of {h} x "
      f"{w} patches need booleans of shape {(B, h * w)}, true for the patches "
      "that count."
    )


def places(where: Int[Array, "b N"] | None, S: int) -> Int[Array, "b S"]:
  """The place of each of S tokens in the sequence of a whole image."""
  if where is None:
    return jnp.arange(S)[None]
  prefix = S - where.shape[1]
  first = jnp.tile(jnp.arange(prefix)[None], (len(where), 1))
  return jnp.concatenate([first, where + prefix], axis=1)
