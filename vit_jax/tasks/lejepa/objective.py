"""The objective of LeJEPA (arXiv:2511.08544).

The projections of all crops of an image predict the mean of the large crops'
projections. The projections of a batch are pushed towards a standard normal
distribution, along random directions. There is no teacher, and no gradient is
stopped. K is the width of the projections, and V the number of crops of an
image.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from vit_jax.models.model import normalize, unit
from vit_jax.tasks.crops import check_positions
from vit_jax.tasks.lejepa.settings import LeJepaSettings
from vit_jax.training.losses import Apply, Loss, Objective, StepContext
from vit_jax.training.schedules import RunLength

_KNOTS, _FARTHEST = 17, 5.0  # The integral from -5 to 5 is taken at 17 points.


@dataclasses.dataclass(frozen=True)
class LeJepa(Objective):
  """The objective of LeJEPA.

  A batch to train on has `image` and `second`, the large crops, and `small`, as
  `data.transforming.multi_crop` makes them. For a batch with `image` alone, as
  an evaluation has it, the loss is `mirrored_loss`.

  Attributes:
    settings: The weight, and the number of directions.
    mean, std: As in `losses.Classification`.
  """

  settings: LeJepaSettings
  mean: Sequence[float]
  std: Sequence[float]
  metric = "prediction"
  couples = True

  def for_run(self, model: Any, length: RunLength) -> "LeJepa":
    """The objective of a run.

    Raises ValueError for a batch of one image, which is no distribution, and
    for small crops, if the model's positions fit one size of images alone.
    """
    if length.batch_size < 2:
      raise ValueError(
        f"batch_size={length.batch_size}: LeJEPA compares the distribution of "
        "a batch's images with a normal one, so take 2 or more."
      )
    check_positions(self.settings.small_crops, model)
    return self

  def inputs(self, batch: Mapping[str, Array]) -> Any:
    """The images, or the crops: large (2B, H, W, C) and small (n B, h, w, C).

    The small crops of an image follow one another.
    """
    images = self._normalized(batch["image"])
    if "second" not in batch:
      return images
    second = self._normalized(batch["second"])
    crops = {"large": jnp.concatenate([images, second])}
    if "small" in batch:
      small = batch["small"]
      crops["small"] = self._normalized(small.reshape(-1, *small.shape[2:]))
    return crops

  def _normalized(self, pixels: Array) -> Float[Array, "B H W C"]:
    return normalize(pixels, self.mean, self.std)

  def prepare(
    self, batch: Mapping[str, Array], key: Key[Array, ""]
  ) -> tuple[Any, Key[Array, ""]]:
    """The crops, and the key of the directions."""
    return self.inputs(batch), key

  def loss(
    self,
    apply: Apply,
    inputs: Any,
    targets: Key[Array, ""],
    context: StepContext,
  ) -> Loss:
    """The loss of each image, (1 - lambda) prediction + lambda SIGReg.

    The score is the prediction loss: the mean squared distance of the
    projections of an image's crops from the mean of its large crops'.
    """
    del context
    if not isinstance(inputs, dict):  # The batch has `image` alone.
      return Loss(*self.mirrored_loss(apply, inputs))
    crops = self._projections(apply, inputs)  # (V, B, K)
    center = crops[:2].mean(axis=0, keepdims=True)
    prediction = ((crops - center) ** 2).mean(axis=(0, 2))
    keys = jax.random.split(targets, len(crops))
    tests = [
      normality(z, key, self.settings.directions)
      for z, key in zip(crops, keys, strict=True)
    ]
    sigreg = jnp.stack(tests).mean()
    weight = self.settings.weight
    value = (1 - weight) * prediction + weight * sigreg
    return Loss(value, prediction, {"normality": sigreg})

  def _projections(
    self, apply: Apply, crops: Mapping[str, Array]
  ) -> Float[Array, "V B K"]:
    """The projections of all crops, the two large ones first."""
    large = apply(crops["large"])["z"]
    large = large.reshape(2, -1, large.shape[-1])
    if "small" not in crops:
      return large
    small = apply(crops["small"])["z"]
    small = small.reshape(large.shape[1], -1, small.shape[-1])
    return jnp.concatenate([large, small.swapaxes(0, 1)])

  def mirrored_loss(
    self, apply: Apply, images: Float[Array, "B H W C"]
  ) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """The loss of an evaluation, and the score, which is the same.

    It is the part of the loss that compares projections: the mean squared
    distance of the projections of an image and of its mirror image from the
    mean of the two.
    """
    z, mirrored = (apply(x)["z"] for x in (images, images[:, :, ::-1]))
    distance = ((z - mirrored) ** 2).mean(axis=1) / 4
    return distance, distance


def normality(
  z: Float[Array, "B K"], key: Key[Array, ""], directions: int
) -> Float[Array, ""]:
  """How far projections are from a standard normal distribution (SIGReg).

  The mean over random directions of the test of Epps and Pulley (1983): B times
  the integral of |c(t) - exp(-t^2 / 2)|^2 exp(-t^2 / 2) over t, where c is the
  characteristic function of the projections' parts along the direction.

  >>> import jax
  >>> from vit_jax.tasks.lejepa.objective import normality
  >>> key = jax.random.key(0)
  >>> z = jax.random.normal(key, (1000, 4))
  >>> bool(normality(z, key, 8) < normality(2 * z, key, 8))
  True
  """
  along = unit(jax.random.normal(key, (z.shape[1], directions)), axis=0)
  t = jnp.linspace(-_FARTHEST, _FARTHEST, _KNOTS)
  normal = jnp.exp(-(t**2) / 2)
  ends = jnp.ones(_KNOTS).at[jnp.array([0, -1])].set(0.5)
  phases = (z @ along)[..., None] * t[None, None]  # (B, directions, knots)
  real = jnp.cos(phases).mean(axis=0)
  imaginary = jnp.sin(phases).mean(axis=0)
  error = (real - normal[None]) ** 2 + imaginary**2
  integrals = error @ (normal * ends) * (t[1] - t[0])  # By trapezoids.
  return len(z) * integrals.mean()
