"""Masked patch prediction (arXiv:2010.11929, Section 4.6 and App. B.1.2).

A share of the patches of each image is corrupted, and the model predicts the
colours or the pixels that these patches really have. `models.masked_vit` has
the model. Labels are not used.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, UInt8

from vit_jax.models.masked_vit import MASK
from vit_jax.models.vit import patchify
from vit_jax.tasks.finite import NO_ANSWER, best_class
from vit_jax.training.inputs import TakesImages
from vit_jax.training.losses import Loss, Objective, StepContext

_LEVELS = 8  # Levels of a channel: 3 bits.
_LEVEL = 256 // _LEVELS  # Values of a channel that share a level.
COLOURS = _LEVELS**3
_MASKED, _SWAPPED = 0.8, 0.1  # Shares of the corrupted patches; the rest stay.
_PARTS = {"colour": 1, "colour4x4": 4}  # Predictions along a patch's side.


@dataclasses.dataclass(frozen=True)
class Masking(TakesImages, Objective):
  """The objective of masked patches, a `losses.Objective`.

  Raises ValueError for the target "colour4x4" if a side of the patches is no
  multiple of 4 pixels.
  """

  # Share of the patches to corrupt, rounded to a number of patches.
  rate: float
  target: str  # One of `settings.TARGETS`.
  # Side of a patch in pixels; in a hybrid, pixels of the image for each patch.
  patch_size: int
  mean: Sequence[float]
  std: Sequence[float]
  metric = "colours_right"

  def __post_init__(self):
    if self.target == "colour4x4" and self.patch_size % 4:
      raise ValueError(
        f"masked.target='colour4x4' cuts patches into 4 x 4 parts, and they "
        f"have {self.patch_size} pixels a side: take 'colour' or 'pixels'."
      )

  @property
  def outputs(self) -> int:
    """Number of values that the model predicts for a patch."""
    if self.target == "pixels":
      return self.patch_size**2 * len(self.mean)
    return COLOURS * _PARTS[self.target] ** 2

  def prepare(
    self,
    batch: Mapping[str, Array],
    key: Key[Array, ""],
    examples: Int[Array, " B"] | None = None,
  ) -> tuple[Float[Array, "B H W C"], dict[str, Any]]:
    """Returns a batch's normalised images, and what to corrupt and predict.

    The batch has `image`, uint8 (B, H, W, C). The second result has `draw`, as
    `draw_patches` returns it, and the true `colours` of the corrupted patches,
    with their `pixels` if these are the target. The key and each example's
    number, by default its place in the batch, decide what is drawn.
    """
    images = self.inputs(batch)
    B, H, W, _ = images.shape
    N = H // self.patch_size * (W // self.patch_size)
    if examples is None:
      examples = jnp.arange(B)
    draw = draw_patches(key, examples, N, self.rate)
    positions = draw["where"][..., None]  # (B, M, 1)
    parts = _PARTS.get(self.target, 1)
    colours = mean_colours(batch["image"], self.patch_size, parts)
    targets = {
      "draw": draw,
      "colours": jnp.take_along_axis(colours, positions, axis=1),
    }
    if self.target == "pixels":
      pixels = patchify(images, self.patch_size).reshape(B, N, -1)
      targets["pixels"] = jnp.take_along_axis(pixels, positions, axis=1)
    return images, targets

  def loss(
    self,
    apply: Callable[..., Any],
    inputs: Float[Array, "B H W C"],
    targets: dict[str, Any],
    context: StepContext,
  ) -> Loss:
    """The mean loss, and share of right colours, of each image's patches."""
    del context
    predicted = apply(inputs, corruption=targets["draw"])
    right = self.colours(predicted) == targets["colours"]
    return Loss(self.loss_of(predicted, targets), right.mean(axis=(1, 2)))

  def predict(
    self, model: Any, params: Any, batch: dict[str, Array], examples: Array
  ) -> tuple[dict[str, Any], Float[Array, "B M K"]]:
    """The targets and the predictions of an evaluation.

    The same patches of an example are corrupted in every evaluation.
    """
    images, targets = self.prepare(batch, jax.random.key(0), examples)
    variables = {"params": params, "corruption": targets["draw"]}
    return targets, model.apply(variables, images)

  def loss_of(
    self, predicted: Float[Array, "B M K"], targets: dict[str, Any]
  ) -> Float[Array, " B"]:
    """The loss of each image, from its predictions and its targets."""
    if self.target == "pixels":
      return ((predicted - targets["pixels"]) ** 2).mean(axis=(1, 2))
    logits = _by_colour(predicted)
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(
      logits, targets["colours"]
    )
    return losses.mean(axis=(1, 2))

  def colours(
    self, predicted: Float[Array, "B M K"]
  ) -> Int[Array, "B M parts"]:
    """The indices of the predicted colours; for pixels, of their mean colour.

    An index is `NO_ANSWER` where a prediction is not finite.
    """
    if self.target != "pixels":
      return best_class(_by_colour(predicted))
    B, M, _ = predicted.shape
    C = len(self.mean)
    mean = predicted.reshape(B, M, -1, C).mean(axis=2)
    scale, shift = (jnp.array(x)[None, None] for x in (self.std, self.mean))
    levels = (mean * scale + shift) * (255 / _LEVEL)
    colours = _index(levels.astype(jnp.int32))
    is_known = jnp.isfinite(levels).all(axis=-1)
    return jnp.where(is_known, colours, NO_ANSWER)[..., None]


def num_corrupted(N: int, rate: float) -> int:
  """The number of patches to corrupt among N, the same for every image.

  >>> from vit_jax.tasks.masked.objective import num_corrupted
  >>> num_corrupted(196, rate=0.5)
  98
  """
  return round(rate * N)


def draw_patches(
  key: Key[Array, ""], examples: Int[Array, " B"], N: int, rate: float
) -> dict[str, Int[Array, "B ..."]]:
  """Draws the patches to corrupt, `where` (B, M), and the `source`s, (B, N).

  `source` has the number of the patch that `MaskedVit` sees at each place, or
  `MASK`. A corrupted patch's embedding becomes [mask] in 80 % of the cases and
  that of another patch of the image, each with equal probability, in 10 %; in
  10 % it stays as it is. The draw of an image depends on the key and on the
  image's number in `examples` alone.
  """

  def draw(example: Array) -> dict[str, Array]:
    keys = jax.random.split(jax.random.fold_in(key, example), 3)
    positions = jax.random.permutation(keys[0], N)[: num_corrupted(N, rate)]
    fate = jax.random.uniform(keys[1], positions.shape)
    other = (positions + jax.random.randint(keys[2], positions.shape, 1, N)) % N
    swapped = jnp.where(fate < _MASKED + _SWAPPED, other, positions)
    source = jnp.where(fate < _MASKED, MASK, swapped)
    return {
      "where": positions,
      "source": jnp.arange(N).at[positions].set(source),
    }

  return jax.vmap(draw)(examples)


def mean_colours(
  images: UInt8[Array, "B H W 3"], P: int, parts: int = 1
) -> Int[Array, "B N parts2"]:
  """The mean colour of each patch in 3 bits a channel, one of 512.

  The means are of values in [0, 255], and 32 values share a level. In the
  number of a colour, red counts 64 and green 8 times as much as blue. A patch
  of P x P pixels is cut into parts x parts, row by row; each part has a colour.

  >>> import jax.numpy as jnp
  >>> from vit_jax.tasks.masked.objective import mean_colours
  >>> image = jnp.full((1, 16, 16, 3), 255, jnp.uint8)
  >>> mean_colours(image, 8).tolist()  # White is the last of 512 colours.
  [[[511], [511], [511], [511]]]
  """
  B, H, W, C = images.shape
  side = P // parts
  shape = (B, H // P, parts, side, W // P, parts, side, C)
  total = images.astype(jnp.int32).reshape(shape).sum(axis=(3, 6))
  levels = total.transpose(0, 1, 3, 2, 4, 5) // (_LEVEL * side**2)
  return _index(levels).reshape(B, -1, parts**2)


def _index(levels: Int[Array, "*axes 3"]) -> Int[Array, "*axes"]:
  """The number of a colour, by the level of each channel."""
  red, green, blue = jnp.moveaxis(jnp.clip(levels, 0, _LEVELS - 1), -1, 0)
  return (red * _LEVELS + green) * _LEVELS + blue


def rgb(colours: Int[np.ndarray, "*axes"]) -> UInt8[np.ndarray, "*axes 3"]:
  """The red, green and blue, in [0, 255], of colours given by number.

  Each value is the middle of those that share the colour's level.

  >>> import numpy as np
  >>> from vit_jax.tasks.masked.objective import rgb
  >>> rgb(np.array([0, 511])).tolist()
  [[16, 16, 16], [240, 240, 240]]
  """
  levels = [colours // _LEVELS**k % _LEVELS for k in (2, 1, 0)]
  return (np.stack(levels, axis=-1) * _LEVEL + _LEVEL // 2).astype(np.uint8)


def _by_colour(predicted: Float[Array, "B M K"]) -> Float[Array, "B M parts c"]:
  """The predicted values as one logit for each colour of each part."""
  return predicted.reshape(*predicted.shape[:2], -1, COLOURS)
