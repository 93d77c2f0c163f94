"""Pictures of a masked autoencoder: what it saw, its prediction, the image."""

from typing import Any

import flax.linen as nn
import numpy as np

from vit_jax.models.masked_vit import MASK
from vit_jax.tasks.autoencoder.objective import (
  Reconstruction,
  normalize_patches,
)
from vit_jax.tasks.hidden import hidden_panels, sheet
from vit_jax.tasks.pictures import Draw, Photograph, as_photograph


def make_panels(model: nn.Module, objective: Reconstruction) -> Draw:
  """Returns a function from parameters and examples to a picture of each.

  An example is its place in the split, its pixels and its label. The same
  patches are hidden as in the evaluation of the split. Predictions of
  normalised patches are drawn with the patches' true mean and deviation.
  """

  def predict(params: Any, images: Any, numbers: Any) -> tuple[Any, Any, Any]:
    """The draw, and the predicted and true hidden patches, (B, M, P^2 C)."""
    batch = {"image": images}
    targets, predicted = objective.predict(model, params, batch, numbers)
    truth = objective.hidden(objective.inputs(batch), targets["draw"])
    if objective.norm_pixels:
      true = normalize_patches(truth)
      predicted = predicted * true.deviation + true.mean
    return targets["draw"], predicted, truth

  def sheet_of(image: Photograph, rows: tuple[Any, Any, Any]) -> Photograph:
    """The picture of an image, from what `predict` gives for it."""
    draw, predicted, truth = rows
    seen = draw["seen"]
    hidden = draw["hidden"]
    source = np.full(len(seen) + len(hidden), MASK)
    source[seen] = seen
    return sheet(
      as_photograph(image),
      source=source,
      positions=hidden,
      guess=as_photograph(_pixels(objective, predicted)),
      truth=as_photograph(_pixels(objective, truth)),
    )

  return hidden_panels(predict, sheet_of)


def _pixels(objective: Reconstruction, values: np.ndarray) -> np.ndarray:
  """Patches (M, P, P, C) in [0, 255], from their normalised values (M, P^2 C).

  They are rounded, so that a true patch has exactly the image's pixels.
  """
  P = objective.patch_size
  pixels = values.reshape(len(values), P, P, -1)
  pixels = pixels * np.array(objective.std) + np.array(objective.mean)
  return np.clip(np.rint(255 * pixels), 0, 255).astype(np.uint8)
