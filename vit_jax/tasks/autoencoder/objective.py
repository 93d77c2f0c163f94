"""The objective of a masked autoencoder (arXiv:2111.06377).

A random share of an image's patches is hidden, and the model predicts their
pixels. `models.autoencoder` has the model. Labels are not used.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from vit_jax.models.model import Inputs
from vit_jax.models.patches import Layout, Patches, patchify
from vit_jax.training.inputs import TakesImages
from vit_jax.training.losses import Loss, Objective, StepContext

LEAST = 1e-6
"""Added to variances, so that a patch of one colour is not divided by 0."""


def num_seen(N: int, rate: float) -> int:
  """The number of patches that the encoder sees among N.

  >>> from vit_jax.tasks.autoencoder.objective import num_seen
  >>> num_seen(196, rate=0.75)
  49
  """
  return int(N * (1 - rate))


def draw_patches(
  key: Key[Array, ""], examples: Int[Array, " B"], N: int, rate: float
) -> dict[str, Int[Array, "B ..."]]:
  """Draws the numbers of the patches that are `seen` and `hidden`, (B, ...).

  `models.autoencoder` takes both. All choices of patches are equally likely.
  The draw of an image depends on the key and on its number alone.
  """

  def permute(example: Array) -> Array:
    return jax.random.permutation(jax.random.fold_in(key, example), N)

  order = jax.vmap(permute)(examples)
  K = num_seen(N, rate)
  return {"seen": order[:, :K], "hidden": order[:, K:]}


def draw_of_rows(
  key: Key[Array, ""], examples: Int[Array, " B"], layout: Layout, rate: float
) -> dict[str, Int[Array, "B ..."]]:
  """As `draw_patches`, for rows that each hold one image of any size.

  An image hides `rate` of its own patches, and shows one at least. The draw
  does not depend on the number of padding patches, which fill up both arrays.
  """
  N = layout.image.shape[1]
  K = num_seen(N, rate)
  seen_of = np.array([max(1, num_seen(n, rate)) for n in range(N + 1)])
  num_shown = jnp.asarray(seen_of)[layout.counts.sum(axis=1), None]  # (B, 1)

  def permute(example: Array, counts: Array) -> Array:
    values = jax.random.uniform(jax.random.fold_in(key, example), (N,))
    return jnp.argsort(jnp.where(counts, values, jnp.inf))  # Padding last.

  order = jax.vmap(permute)(examples, layout.counts)
  first = jnp.arange(K)[None]
  seen_places = jnp.where(first < num_shown, first, N - 1)
  hidden_places = jnp.minimum(num_shown + jnp.arange(N - K)[None], N - 1)
  return {
    "seen": jnp.take_along_axis(order, seen_places, axis=1),
    "hidden": jnp.take_along_axis(order, hidden_places, axis=1),
  }


class Normalized(NamedTuple):
  """Patches less their mean, divided by their deviation, and these two."""

  values: Float[Array, "B M P2C"]
  mean: Float[Array, "B M 1"]
  deviation: Float[Array, "B M 1"]


def normalize_patches(pixels: Float[Array, "B M P2C"]) -> Normalized:
  """Normalises each patch by its own mean and deviation.

  The variance is the unbiased one, of all channels together.
  """
  mean = pixels.mean(axis=-1, keepdims=True)
  variance = pixels.var(axis=-1, keepdims=True, ddof=1)
  deviation = jnp.sqrt(variance + LEAST)
  return Normalized((pixels - mean) / deviation, mean, deviation)


def error_targets(targets: Mapping[str, Any]) -> dict[str, Any]:
  """The targets that `Reconstruction.errors` takes."""
  return {k: v for k, v in targets.items() if k in ("pixels", "counts")}


@dataclasses.dataclass(frozen=True)
class Reconstruction(TakesImages, Objective):
  """The objective of a masked autoencoder, a `losses.Objective`."""

  rate: float  # Share of the patches to hide.
  norm_pixels: bool  # Whether the targets are normalised patch by patch.
  patch_size: int
  mean: Sequence[float]
  std: Sequence[float]
  metric = "explained"

  def prepare(
    self,
    batch: Mapping[str, Array],
    key: Key[Array, ""],
    examples: Int[Array, " B"] | None = None,
  ) -> tuple[Inputs, dict[str, Any]]:
    """Returns a batch's normalised images, and what to hide and to predict.

    The key and each example's number, by default its place in the batch, decide
    which patches are hidden.
    """
    images = self.inputs(batch)
    if examples is None:
      examples = jnp.arange(len(batch["image"]))
    if isinstance(images, Patches):
      draw = draw_of_rows(key, examples, images.layout, self.rate)
      counts = images.layout.take(draw["hidden"]).counts
      targets = self.targets(images, draw)
      return images, {"draw": draw, "pixels": targets, "counts": counts}
    P = self.patch_size
    _, H, W, _ = images.shape
    N = H // P * (W // P)
    draw = draw_patches(key, examples, N, self.rate)
    return images, {"draw": draw, "pixels": self.targets(images, draw)}

  def targets(
    self, images: Inputs, draw: Mapping[str, Array]
  ) -> Float[Array, "B M P2C"]:
    """The values to predict for the hidden patches of images."""
    pixels = self.hidden(images, draw)
    return normalize_patches(pixels).values if self.norm_pixels else pixels

  def hidden(
    self, images: Inputs, draw: Mapping[str, Array]
  ) -> Float[Array, "B M P2C"]:
    """The pixels of the hidden patches, as the images have them."""
    if isinstance(images, Patches):
      patches = images.values
    else:
      patches = patchify(images, self.patch_size)
      patches = patches.reshape(len(images), -1, patches.shape[-1])
    places = draw["hidden"][..., None]
    return jnp.take_along_axis(patches, places, axis=1)

  def loss(
    self,
    apply: Callable[..., Any],
    inputs: Inputs,
    targets: dict[str, Any],
    context: StepContext,
  ) -> Loss:
    """The mean squared error, and the share of the variance explained.

    An image's share is of the mean variance in the batch, so that an image of
    one colour does not dominate; only the mean over the batch has a meaning.
    """
    del context
    predicted = apply(inputs, draw=targets["draw"])
    error, variance = self.errors(predicted, **error_targets(targets))
    return Loss(error, 1 - error / jnp.maximum(variance.mean(), LEAST))

  def errors(
    self,
    predicted: Float[Array, "B M P2C"],
    pixels: Float[Array, "B M P2C"],
    counts: Bool[Array, "B M"] | None = None,
  ) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """The mean squared error of each image, and the variance of its targets.

    `counts` says which of the hidden patches are no padding; None if all are.
    Both are 0 for an image without any.
    """
    squares = (predicted.astype(jnp.float32) - pixels) ** 2
    if counts is None:
      return squares.mean(axis=(1, 2)), pixels.var(axis=(1, 2))

    def mean(values: Array) -> Array:
      total = jnp.where(counts, values.mean(axis=2), 0).sum(axis=1)
      return total / jnp.maximum(counts.sum(axis=1), 1)

    around = pixels - mean(pixels)[:, None, None]
    return mean(squares), mean(around**2)

  def predict(
    self, model: Any, params: Any, batch: dict[str, Array], examples: Array
  ) -> tuple[dict[str, Any], Float[Array, "B M P2C"]]:
    """The targets and the predictions of an evaluation.

    The same patches of an example are hidden in every evaluation.
    """
    images, targets = self.prepare(batch, jax.random.key(0), examples)
    variables = {"params": params, "draw": targets["draw"]}
    return targets, model.apply(variables, images)
