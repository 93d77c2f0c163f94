"""The objective of dense regression: the error of the number of each pixel.

Symbols: y is the number of a pixel, y* its target, and a pixel without a target
is unknown, NaN.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.tasks.dense_regression.settings import DenseRegressionSettings
from vit_jax.tasks.segmentation.objective import OfPixels, enlarged, mean_of

Numbers = Float[Array, "B H W"]
_LEAST = 1e-3  # The least number whose logarithm is taken, as in DINOv2's code.


@dataclasses.dataclass(frozen=True)
class Scaling:
  """The meaning of an output: a number or its logarithm, standardised.

  Attributes:
    mean, std: Mean and deviation of the targets.
    log_mean, log_std: Mean and deviation of the targets' logarithms, which the
      outputs then stand for. Both are 0 if the outputs stand for the numbers,
      as where not all targets are above 0.
  """

  mean: float = 0.0
  std: float = 1.0
  log_mean: float = 0.0
  log_std: float = 0.0

  @property
  def of_logarithms(self) -> bool:
    """Whether the outputs stand for logarithms."""
    return self.log_std > 0

  def numbers(self, outputs: Any) -> Any:
    """The numbers that outputs, arrays of NumPy or JAX, stand for.

    A logarithm that is not finite becomes NaN.
    """
    if not self.of_logarithms:
      return outputs * self.std + self.mean
    finite = jnp.where(jnp.isfinite(outputs), outputs, jnp.nan)
    return jnp.exp(finite * self.log_std + self.log_mean)


@dataclasses.dataclass(frozen=True)
class PixelErrors(OfPixels):
  """The objective of dense regression, a `losses.Objective`.

  The outputs of patches are enlarged to the size of the targets. An image's
  loss is the mean over its known pixels, and 0 if none is known.

  Attributes:
    scaling: The meaning of the outputs.
    settings: The loss.
  """

  scaling: Scaling
  settings: DenseRegressionSettings
  metric = "mae"

  def numbers(
    self, outputs: Float[Array, "B h w 1"], height: int, width: int
  ) -> Numbers:
    """The number of each pixel."""
    return self.scaling.numbers(enlarged(outputs, height, width)[..., 0])

  def compare(
    self, outputs: Float[Array, "B h w 1"], targets: Numbers
  ) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """The loss and the mean absolute error of each image."""
    y = self.numbers(outputs, *targets.shape[1:])
    is_known = ~jnp.isnan(targets)
    # Unknown targets are replaced, so that their gradient is 0 and not NaN.
    target = jnp.where(is_known, targets, y)
    error = mean_of(jnp.abs(y - target), is_known)
    if self.settings.loss == "l1":
      return error / self.scaling.std, error
    is_positive = is_known & (targets > 0)
    if not self.scaling.of_logarithms:  # The head may give 0 or less.
      y = jnp.maximum(y, _LEAST)
    log_y = jnp.log(jnp.where(is_positive, y, 1.0))
    log_target = jnp.log(jnp.where(is_positive, targets, 1.0))
    d = jnp.where(is_positive, log_y - log_target, 0)
    mean_d = mean_of(d, is_positive)
    mean_square = mean_of(d**2, is_positive)
    # Eq. 4 of arXiv:1406.2283, with the settings' lambda.
    return mean_square - self.settings.silog_lambda * mean_d**2, error
