"""From the arrays of a batch to what a model takes, and to its outputs."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Array

from vit_jax.models.layer import Images
from vit_jax.models.model import normalize


class TakesImages:
  """An objective whose model takes images alone."""

  mean: Sequence[float]
  std: Sequence[float]

  def inputs(self, batch: Mapping[str, Array]) -> Images:
    """The images of a batch, from uint8 (B, H, W, C), normalised."""
    return normalize(batch["image"], self.mean, self.std)

  def model_outputs(
    self,
    model: Any,
    params: Any,
    batch: Mapping[str, Array],
    method: Any = None,
  ) -> Any:
    """The outputs of a model, or of a `method` of it, for each image."""
    inputs = self.inputs(batch)
    return model.apply({"params": params}, inputs, method=method)


@dataclasses.dataclass(frozen=True)
class ImageInputs(TakesImages):
  """The images of a batch as a model takes them, without any objective."""

  mean: Sequence[float]
  std: Sequence[float]
