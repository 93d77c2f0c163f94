"""Patches of images: of one size, by `patchify`, and of any size, in `Patches`.

Images of one size need `patchify` alone. All else is for images of any size: a
row of a batch holds the patches of one image or of several, and padding. The
rows of a batch have one length, so that one compiled program takes images of
all proportions (NaViT, arXiv:2307.06304; SigLIP 2, arXiv:2502.14786). Symbols
as in `vit`; M is the number of images in the row that has the most, and N the
number of patches in a row, with its padding.
"""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int


class Layout(struct.PyTreeNode):
  """Where each patch of a row lies.

  Attributes:
    place: The patch's row and column on the grid of its image, counted from 0.
    image: Which image of the row the patch is of, counted from 0; -1 for
      padding.
    size: Patches along height and width of each image of the row; 0 and 0 where
      a row has fewer images than others.
    whole: Number of patches of a row before some were left out, with padding;
      None if all are there.
  """

  place: Int[Array, "B N 2"]
  image: Int[Array, "B N"]
  size: Int[Array, "B M 2"]
  whole: int | None = struct.field(pytree_node=False, default=None)

  @property
  def most(self) -> int:
    """An upper bound of an image's patches, and of those along each side."""
    return self.whole or self.image.shape[1]

  @property
  def images(self) -> int:
    """M, the number of images in the row that has the most."""
    return self.size.shape[1]

  @property
  def counts(self) -> Bool[Array, "B N"]:
    """Which patches count: those that are no padding."""
    return self.image >= 0

  @property
  def exists(self) -> Bool[Array, "B M"]:
    """Which of the M images a row has."""
    return self.size[..., 0] > 0

  @property
  def extent(self) -> Int[Array, "B N 2"]:
    """Patches along height and width of each patch's image; 1 for padding."""
    image = jnp.maximum(self.image, 0)[..., None]
    return jnp.maximum(jnp.take_along_axis(self.size, image, axis=1), 1)

  @property
  def of_image(self) -> Bool[Array, "B M N"]:
    """Which of the patches of a row are of each of its images."""
    number = jnp.arange(self.images, dtype=self.image.dtype)
    return self.image[:, None] == number[None, :, None]

  def means(self, values: Float[Array, "B N"]) -> Float[Array, "B M"]:
    """The mean of `values` over an image's patches; 0 if it has no patches."""
    of_image = self.of_image
    total = jnp.where(of_image, values[:, None], 0).sum(axis=-1)
    return total / jnp.maximum(of_image.sum(axis=-1), 1)

  def take(self, keep: Int[Array, "b K"]) -> "Layout":
    """The layout of the patches with the indices `keep` in each row.

    An index of -1 gives padding.
    """
    keep = jnp.broadcast_to(keep, (len(self.image), keep.shape[1]))
    image = jnp.take_along_axis(self.image, keep, axis=1)
    return self.replace(
      place=jnp.take_along_axis(self.place, keep[..., None], axis=1),
      image=jnp.where(keep < 0, -1, image),
      whole=self.most,
    )

  def beside(self, other: "Layout") -> "Layout":
    """The layout of these patches, followed by others of the same images."""
    return self.replace(
      place=jnp.concatenate([self.place, other.place], axis=1),
      image=jnp.concatenate([self.image, other.image], axis=1),
    )


class Patches(struct.PyTreeNode):
  """The patches of images of any size, as the input of an encoder.

  What an encoder returns for each image then has an axis for the images of a
  row: (B, M, D) in the place of (B, D), also where M is 1. `exists` says which
  images a row has; the results in place of the others are finite, but have no
  meaning.

  Attributes:
    values: The pixels of each patch, in the order (row, column, channel); those
      of padding do not matter.
    place, image, size: As in `Layout`.

  >>> import jax.numpy as jnp
  >>> from vit_jax.models import Patches
  >>> patches = Patches.of(jnp.zeros((1, 32, 48, 3)), 16)
  >>> patches.values.shape, patches.size.tolist()
  ((1, 6, 768), [[[2, 3]]])
  >>> patches.place[0].tolist()
  [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
  """

  values: Float[Array, "B N P2C"]
  place: Int[Array, "B N 2"]
  image: Int[Array, "B N"]
  size: Int[Array, "B M 2"]

  @classmethod
  def of(cls, x: Float[Array, "B H W C"], P: int) -> "Patches":
    """The patches of images of one size, one image in a row.

    Raises ValueError if P does not divide height and width.
    """
    x_p = patchify(x, P)
    B, h, w, _ = x_p.shape
    grid = jnp.indices((h, w), jnp.int32).reshape(2, -1).T
    return cls(
      values=x_p.reshape(B, h * w, -1),
      place=jnp.tile(grid[None], (B, 1, 1)),
      image=jnp.zeros((B, h * w), jnp.int32),
      size=jnp.tile(jnp.asarray([[[h, w]]], jnp.int32), (B, 1, 1)),
    )

  @property
  def layout(self) -> Layout:
    """Where each patch lies."""
    return Layout(self.place, self.image, self.size)

  @property
  def exists(self) -> Bool[Array, "B M"]:
    """Which of the M images a row has."""
    return self.layout.exists

  def only(self, mask: Any) -> "Patches":
    """The same patches, of which only those that `mask` marks count."""
    return self.replace(image=jnp.where(mask, self.image, -1))

  def column(self, P: int) -> Float[Array, "B H P C"]:
    """The patches of each row as one image, H = N P, one patch wide."""
    B, N, values = self.values.shape
    return self.values.reshape(B, N * P, P, values // (P * P))


def patchify(x: Float[Array, "B H W C"], P: int) -> Float[Array, "B h w P2C"]:
  """Cuts images into patches of P x P pixels, each flattened to P^2 C values.

  Raises ValueError if P does not divide height and width.
  """
  B, H, W, C = x.shape
  if H % P or W % P or not H or not W:
    fits = [max(P, side // P * P) for side in (H, W)]
    raise ValueError(
      f"images of {H} x {W} do not split into patches of {P} x {P}; "
      f"{fits[0]} x {fits[1]} would."
    )
  h, w = H // P, W // P
  # A row of pixels stays one axis of P C values: with an axis for the colours
  # alone, TPUs, whose registers are 128 wide, take up to 3 times as long.
  x = x.reshape(B, h, P, w, P * C).transpose(0, 1, 3, 2, 4)
  return x.reshape(B, h, w, P * P * C)


def check_patches(x: Patches, P: int) -> None:
  """Raises ValueError unless these are patches of P x P pixels, in rows."""
  shapes = {
    name: tuple(getattr(x, name).shape)
    for name in ("values", "place", "image", "size")
  }
  rows = shapes["image"]
  fits = (
    len(rows) == 2
    and shapes["values"][:-1] == rows
    and shapes["place"] == (*rows, 2)
    and len(shapes["size"]) == 3
    and (shapes["size"][0], shapes["size"][2]) == (rows[0], 2)
  )
  if not fits:
    given = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    raise ValueError(
      f"Patches with {given}; B rows of N patches and up to M images need "
      "values (B, N, P * P * C), place (B, N, 2), image (B, N) and "
      "size (B, M, 2)."
    )
  whole = all(
    jnp.issubdtype(getattr(x, name).dtype, jnp.integer)
    for name in ("place", "image", "size")
  )
  if not whole or not jnp.issubdtype(x.values.dtype, jnp.floating):
    raise ValueError(
      f"Patches with values of type {x.values.dtype}, place {x.place.dtype}, "
      f"image {x.image.dtype} and size {x.size.dtype}; the values are "
      "normalised floats and the others whole numbers."
    )
  if shapes["values"][-1] % (P * P):
    raise ValueError(
      f"Patches with {shapes['values'][-1]} values each; patches of {P} x {P} "
      f"pixels have {P * P} for each channel."
    )


def table_grid(grid: tuple[int, int] | Layout) -> tuple[int, int]:
  """The grid that a learned table is for by default: that of the images.

  Raises ValueError for a `Layout`, whose images have grids of their own.
  """
  if isinstance(grid, Layout):
    raise ValueError(
      "the model does not say which grid of patches its learned positions are "
      "for: set position_grid=(h, w), to which Patches of any size are resized."
    )
  return grid


def why_one_size(vit: Any) -> str | None:
  """Why an encoder takes images of one size alone; None if it takes any."""
  reasons = {
    "its ResNet reads whole images": bool(vit.resnet_layers),
    f"block={getattr(vit.block, '__name__', '')} goes along the rows and "
    "columns of one grid": hasattr(vit.block, "grid"),
    "position='relative' counts along a sequence, where the patch below is at "
    "another offset if an image is wider": vit.position == "relative",
    "each channel of a patch has a token (channel_tokens)": vit.channel_tokens,
  }
  return next((reason for reason, holds in reasons.items() if holds), None)


def check_any_size(vit: Any) -> None:
  """Raises ValueError if an encoder takes images of one size alone."""
  if reason := why_one_size(vit):
    raise ValueError(
      f"this model takes images of one size, and no Patches: {reason}. Take "
      "another model, such as B/16, or resize all images to one size."
    )
