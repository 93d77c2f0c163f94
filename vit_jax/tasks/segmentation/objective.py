"""The base of objectives of pixels, and segmentation's, by cross-entropy."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Shaped

from vit_jax.data.reading.mask_folder import ignored_label
from vit_jax.models.layer import Images
from vit_jax.training.inputs import TakesImages
from vit_jax.training.losses import Loss, Objective, StepContext

Masks = Int[Array, "B H W"]
Pictures = Shaped[Array, "B H W"]


def enlarged(
  logits: Float[Array, "B h w K"], height: int, width: int
) -> Float[Array, "B H W K"]:
  """Enlarges logits of patches, or of parts of patches, to logits of pixels.

  The interpolation is bilinear.
  """
  B, h, w, K = logits.shape
  if (h, w) == (height, width):
    return logits
  size = B, height, width, K
  # A DPT head may have more outputs than there are pixels.
  return jax.image.resize(logits, size, "bilinear", antialias=False)


def mean_of(
  values: Shaped[Array, "B H W"], counts: Bool[Array, "B H W"]
) -> Float[Array, " B"]:
  """The mean over the pixels of each image that count; 0 if none does."""
  count = jnp.maximum(counts.sum(axis=(1, 2)), 1)
  return jnp.where(counts, values, 0).sum(axis=(1, 2)) / count


@dataclasses.dataclass(frozen=True)
class OfPixels(TakesImages, Objective):
  """An objective whose labels are pictures, as large as the images.

  Attributes:
    mean, std: The normalisation of the images.
  """

  mean: Sequence[float]
  std: Sequence[float]

  def prepare(
    self, batch: Mapping[str, Array], key: Array
  ) -> tuple[Images, Pictures]:
    """Returns a batch's normalised images, and their labels."""
    del key
    return self.inputs(batch), batch["label"]

  def loss(
    self,
    apply: Callable[..., Any],
    inputs: Images,
    targets: Pictures,
    context: StepContext,
  ) -> Loss:
    """The loss and the score of each image, see `compare`."""
    del context
    return Loss(*self.compare(apply(inputs), targets))

  def compare(
    self, outputs: Float[Array, "B h w K"], targets: Any
  ) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """The loss and the score of each image, from the outputs of patches."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class PixelClasses(OfPixels):
  """The objective of segmentation, a `losses.Objective`.

  The logits of patches are enlarged to the mask's size. An image's loss is the
  mean over its pixels that have a class, and 0 if none has one.
  """

  metric = "pixels_right"

  def compare(
    self, outputs: Float[Array, "B h w K"], targets: Masks
  ) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """The loss of each image, and the share of its pixels that are right."""
    logits = enlarged(outputs, *targets.shape[1:])
    has_class = targets != ignored_label(outputs.shape[-1])
    classes = jnp.where(has_class, targets, 0)
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(
      logits, classes
    )
    right = logits.argmax(axis=-1) == classes
    right &= jnp.isfinite(losses)  # NaN is no answer.
    return mean_of(losses, has_class), mean_of(right, has_class)
