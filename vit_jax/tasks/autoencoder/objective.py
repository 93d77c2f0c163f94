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
from jaxtyping import Array, Float, Int, Key

from vit_jax.models.model import Inputs
from vit_jax.models.patches import Layout, Patches, patchify
from vit_jax.training.inputs import TakesImages, weights_of
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
  The draw of an image depends on the key and on the image's number in
  `examples` alone.
  """

  def permute(example: Array) -> Array:
    return jax.random.permutation(jax.random.fold_in(key, example), N)

  order = jax.vmap(permute)(examples)
  K = num_seen(N, rate)
  return {"seen": order[:, :K], "hidden": order[:, K:]}


def draw_of_rows(
  key: Key[Array, ""], examples: Int[Array, "B M"], layout: Layout, rate: float
) -> dict[str, Int[Array, "B ..."]]:
  """As `draw_patches`, for rows of images of any size.

  The share `rate` of each image's patches is hidden, and at least one is seen.
  The draw of an image depends on the key, the image's number in `examples` and
  its size, and not on its row. -1 fills up both arrays.
  """
  B, N = layout.image.shape
  M = layout.images
  # Where images share a row, the count of seen patches is rounded for each.
  rounded = 0 if M == 1 else min(M, N)
  most_seen = num_seen(N, rate) + rounded
  most_hidden = N - num_seen(N, rate) + rounded

  def draw(example: Array) -> Array:
    return jax.random.uniform(jax.random.fold_in(key, example), (N,))

  values = jax.vmap(jax.vmap(draw))(examples)  # (B, M, N)
  image = jnp.where(layout.counts, layout.image, M)
  within = layout.place[..., 0] * layout.extent[..., 1] + layout.place[..., 1]
  value = jnp.take_along_axis(
    values.reshape(B, M * N), jnp.minimum(image, M - 1) * N + within, axis=1
  )  # The draw of each patch, (B, N).
  number = jnp.broadcast_to(jnp.arange(N)[None], (B, N))
  # Image after image, in random order, and the padding last.
  image, _, order = jax.lax.sort((image, value, number), num_keys=2)
  counts = layout.of_image.sum(axis=-1)
  starts = jnp.cumsum(counts, axis=1) - counts
  seen_of = np.array([max(1, num_seen(n, rate)) for n in range(N + 1)])
  num_shown = jnp.asarray(seen_of)[counts]  # (B, M)
  own_image = jnp.minimum(image, M - 1)
  # The place of each patch in the random order of its image.
  rank = number - jnp.take_along_axis(starts, own_image, axis=1)
  is_shown = rank < jnp.take_along_axis(num_shown, own_image, axis=1)

  def drawn(chosen: Array, most: int) -> Array:
    """The numbers of the patches that are `chosen`, then -1, (B, most).

    `chosen` is in the order of `order`.
    """
    chosen &= image < M
    first = jnp.argsort(~chosen, axis=1)[:, :most]
    numbers = jnp.take_along_axis(order, first, axis=1)
    return jnp.where(jnp.take_along_axis(chosen, first, axis=1), numbers, -1)

  return {
    "seen": drawn(is_shown, min(most_seen, N)),
    "hidden": drawn(~is_shown, min(most_hidden, N)),
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
  return {k: v for k, v in targets.items() if k in ("pixels", "layout")}


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
    examples: Int[Array, "..."] | None = None,
  ) -> tuple[Inputs, dict[str, Any]]:
    """Returns a batch's normalised images, and what to hide and to predict.

    The second result has `draw`, the numbers of patches that the model takes,
    and `pixels`, the values to predict; for images of any size also `layout`,
    that of the hidden patches. The key and each example's number, by default
    its place in the batch, decide which patches are hidden. Rows of several
    images have (B, M) numbers.
    """
    images = self.inputs(batch)
    if isinstance(images, Patches):
      B, M = images.exists.shape
      examples = jnp.arange(B * M) if examples is None else examples
      layout = images.layout
      draw = draw_of_rows(key, examples.reshape(B, M), layout, self.rate)
      pixels = self.targets(images, draw)
      layout = layout.take(draw["hidden"])
      return images, {"draw": draw, "pixels": pixels, "layout": layout}
    if examples is None:
      examples = jnp.arange(len(batch["image"]))
    P = self.patch_size
    _, H, W, _ = images.shape
    N = H // P * (W // P)
    draw = draw_patches(key, examples, N, self.rate)
    return images, {"draw": draw, "pixels": self.targets(images, draw)}

  def targets(
    self, images: Inputs, draw: Mapping[str, Array]
  ) -> Float[Array, "B M P2C"]:
    """The values to predict for the patches that `draw` hides."""
    pixels = self.hidden(images, draw)
    return normalize_patches(pixels).values if self.norm_pixels else pixels

  def hidden(
    self, images: Inputs, draw: Mapping[str, Array]
  ) -> Float[Array, "B M P2C"]:
    """The pixels of the patches that `draw` hides, as the images have them."""
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
    weight = weights_of(inputs)
    if weight is None:
      mean_variance = variance.mean()
    else:  # The variance is 0 in place of an image that a row lacks.
      mean_variance = variance.sum() / jnp.maximum(weight.sum(), 1)
    score = 1 - error / jnp.maximum(mean_variance, LEAST)
    return Loss(error, score, weight=weight)

  def errors(
    self,
    predicted: Float[Array, "B M P2C"],
    pixels: Float[Array, "B M P2C"],
    layout: Layout | None = None,
  ) -> tuple[Float[Array, " BI"], Float[Array, " BI"]]:
    """The mean squared error of each image, and the variance of its targets.

    `pixels` are the targets. `layout` is that of the hidden patches of rows of
    up to I images of any size; None if all images are of one size. Error and
    variance are 0 for an image without hidden patches.
    """
    squares = (predicted.astype(jnp.float32) - pixels) ** 2
    if layout is None:
      return squares.mean(axis=(1, 2)), pixels.var(axis=(1, 2))
    mean = layout.means(pixels.mean(axis=2))  # (B, I)
    image = jnp.maximum(layout.image, 0)
    own = jnp.take_along_axis(mean, image, axis=1)[..., None]  # (B, M, 1)
    around = (pixels - own) ** 2
    error, variance = (layout.means(x.mean(axis=2)) for x in (squares, around))
    return error.reshape(-1), variance.reshape(-1)

  def predict(
    self, model: Any, params: Any, batch: dict[str, Array], examples: Array
  ) -> tuple[dict[str, Any], Float[Array, "B M P2C"]]:
    """The targets and the predictions of an evaluation.

    The same patches of an example are hidden in every evaluation.
    """
    images, targets = self.prepare(batch, jax.random.key(0), examples)
    variables = {"params": params, "draw": targets["draw"]}
    return targets, model.apply(variables, images)
