"""Turns batches into a model's inputs, and its outputs into rows by image."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vit_jax.models.model import Inputs, normalize
from vit_jax.models.patches import Patches


class TakesImages:
  """An objective whose model takes images alone."""

  mean: Sequence[float]
  std: Sequence[float]

  def inputs(self, batch: Mapping[str, Array]) -> Any:
    """The images of a batch, normalised.

    The batch has uint8 images (B, H, W, C), or the patches of images of any
    size, as `IntoPatches` makes them.
    """
    return inputs_of(batch, self.mean, self.std)

  def model_outputs(
    self,
    model: Any,
    params: Any,
    batch: Mapping[str, Array],
    method: Any = None,
  ) -> Any:
    """The outputs of a model, or of a `method` of it, for each image."""
    inputs = self.inputs(batch)
    outputs = model.apply({"params": params}, inputs, method=method)
    return by_image(outputs, inputs)


@dataclasses.dataclass(frozen=True)
class ImageInputs(TakesImages):
  """The images of a batch as a model takes them, without any objective."""

  mean: Sequence[float]
  std: Sequence[float]


def inputs_of(
  batch: Mapping[str, Array], mean: Sequence[float], std: Sequence[float]
) -> Inputs:
  """The normalised images of a batch, or their patches if it has `size`.

  Where the batch has `bands`, those that an image lacks are NaN.
  """
  if "size" not in batch:
    images = normalize(batch["image"], mean, std)
    if "bands" not in batch:
      return images
    return without_bands(images, batch["bands"])
  patches = batch["image"]  # (B, N, P^2 C)
  B, N, _ = patches.shape
  pixels = normalize(patches.reshape(B, N, -1, len(mean)), mean, std)
  size = batch["size"].reshape(B, -1, 2)
  place, image = places(size, N)
  return Patches(pixels.reshape(patches.shape), place, image, size)


def without_bands(
  images: Float[Array, "B H W C"], bands: Bool[Array, "#B C"]
) -> Float[Array, "B H W C"]:
  """The images with NaN in the bands that they lack, where `bands` is False."""
  return jnp.where(bands[:, None, None], images, jnp.nan)


def places(
  size: Int[Array, "B M 2"], N: int
) -> tuple[Int[Array, "B N 2"], Int[Array, "B N"]]:
  """Row and column of each of N patches, and the image it belongs to.

  `size` has the numbers of rows and of columns of patches that each image has.
  The images in a row of the batch follow one another, and the patches of each
  are in reading order. The rest is padding, whose image is -1.

  >>> import jax.numpy as jnp
  >>> from vit_jax.training.inputs import places
  >>> place, image = places(jnp.array([[[2, 1], [1, 2]]]), N=5)
  >>> place.tolist(), image.tolist()
  ([[[0, 0], [1, 0], [0, 0], [0, 1], [0, 0]]], [[0, 0, 1, 1, -1]])
  """
  ends = jnp.cumsum(size.prod(axis=-1), axis=1)  # (B, M)
  number = jnp.arange(N, dtype=size.dtype)[None]  # (1, N)
  image = (number[..., None] >= ends[:, None]).sum(-1)  # (B, N)
  pads = image == size.shape[1]
  image = jnp.where(pads, 0, image)
  starts = jnp.concatenate([jnp.zeros_like(ends[:, :1]), ends[:, :-1]], axis=1)
  within = number - jnp.take_along_axis(starts, image, axis=1)
  width = jnp.take_along_axis(size[..., 1], image, axis=1)
  width = jnp.maximum(width, 1)
  place = jnp.stack([within // width, within % width], axis=-1)
  place = jnp.where(pads[..., None], 0, place)
  return place.astype(jnp.int32), jnp.where(pads, -1, image).astype(jnp.int32)


def by_image(outputs: Any, inputs: Any) -> Any:
  """Outputs with a row for each image, as images of one size have them.

  Rows of several images have outputs (B, M, ...), which become (B M, ...).
  """
  if not isinstance(inputs, Patches):
    return outputs
  return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), outputs)


def weights_of(inputs: Any) -> Float[Array, " BM"] | None:
  """1 for each image that exists, in the order of `by_image`, and 0 for others.

  None if every row holds one image, as there is then nothing to leave out.
  """
  if not isinstance(inputs, Patches) or inputs.size.shape[1] == 1:
    return None
  return inputs.exists.reshape(-1).astype(jnp.float32)


def mirror(inputs: Inputs, channels: int) -> Inputs:
  """The images, of C `channels`, mirrored left to right."""
  if not isinstance(inputs, Patches):
    return inputs[:, :, ::-1]
  x: Float[Array, "B N P2C"] = inputs.values
  P = math.isqrt(x.shape[-1] // channels)
  flipped = x.reshape(*x.shape[:2], P, P, channels)[:, :, :, ::-1]
  row, column = inputs.place[..., 0], inputs.place[..., 1]
  column = inputs.layout.extent[..., 1] - 1 - column
  place = jnp.stack([row, column], axis=-1)
  return inputs.replace(values=flipped.reshape(x.shape), place=place)
