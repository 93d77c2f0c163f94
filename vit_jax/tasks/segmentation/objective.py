"""The objective of segmentation: cross-entropy of the class of each pixel."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from vit_jax.data.reading.mask_folder import ignored
from vit_jax.models.layer import Images
from vit_jax.training.losses import Loss, Moment, Objective, TakesImages

Masks = Int[Array, "B H W"]


def enlarged(
  logits: Float[Array, "B h w K"], height: int, width: int
) -> Float[Array, "B H W K"]:
  """The logits of pixels from those of patches or parts of them, bilinearly."""
  B, h, w, K = logits.shape
  if (h, w) == (height, width):
    return logits
  size = B, height, width, K
  # A DPT head may have more outputs than there are pixels.
  return jax.image.resize(logits, size, "bilinear", antialias=False)


@dataclasses.dataclass(frozen=True)
class PixelClasses(TakesImages, Objective):
  """The objective of segmentation, a `losses.Objective`.

  The logits of patches are enlarged to the mask's size. An image's loss is the
  mean over its pixels of a class, and 0 without any.

  Attributes:
    mean, std: The normalisation of the images.
  """

  mean: Sequence[float]
  std: Sequence[float]
  metric = "pixels_right"

  def prepare(
    self, batch: Mapping[str, Array], key: Array
  ) -> tuple[Images, Masks]:
    """Returns a batch's normalised images, and their masks."""
    del key
    return self.inputs(batch), batch["label"]

  def loss(
    self,
    apply: Callable[..., Any],
    inputs: Images,
    targets: Masks,
    moment: Moment,
  ) -> Loss:
    """The loss of each image, and the share of its pixels that are right."""
    del moment
    return Loss(*self.compare(apply(inputs), targets))

  def compare(
    self, logits: Float[Array, "B h w K"], masks: Masks
  ) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """The same, from the logits of the patches."""
    of_pixels = enlarged(logits, *masks.shape[1:])
    has_class = masks != ignored(logits.shape[-1])
    classes = jnp.where(has_class, masks, 0)
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(
      of_pixels, classes
    )
    right = of_pixels.argmax(axis=-1) == classes
    right &= jnp.isfinite(losses)  # NaN is no answer.
    count = jnp.maximum(has_class.sum(axis=(1, 2)), 1)
    loss, score = (
      jnp.where(has_class, x, 0).sum(axis=(1, 2)) / count
      for x in (losses, right)
    )
    return loss, score
