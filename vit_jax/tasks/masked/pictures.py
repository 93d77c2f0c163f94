"""Pictures of hidden patches: as seen, as predicted, and as they are."""

from typing import Any

import flax.linen as nn
import numpy as np

from vit_jax.tasks.hidden import hidden_panels, sheet
from vit_jax.tasks.masked.objective import Masking, rgb
from vit_jax.tasks.pictures import Draw, Photograph


def make_panels(model: nn.Module, masking: Masking) -> Draw:
  """Returns a function from parameters and examples to a picture of each.

  An example is its place in the split, its pixels and its label. A picture has
  three panels: the image with its corrupted patches ([mask] is grey), with the
  predictions in their place, and with the targets. The patches are corrupted as
  in the evaluation of the split.
  """

  def predict(params: Any, images: Any, numbers: Any) -> tuple[Any, Any, Any]:
    """The targets, the predictions and the predicted colours' indices."""
    batch = {"image": images}
    targets, predicted = masking.predict(model, params, batch, numbers)
    return targets, predicted, masking.colours(predicted)

  def sheet_of(image: Photograph, rows: tuple[Any, Any, Any]) -> Photograph:
    """The picture of an image, from what `predict` gives for it."""
    targets, predicted, colours = rows
    if masking.target == "pixels":
      guess = predicted
      truth = targets["pixels"]
    else:
      guess = colours
      truth = targets["colours"]
    return sheet(
      image,
      source=targets["draw"]["source"],
      positions=targets["draw"]["where"],
      guess=patches_of(masking, guess),
      truth=patches_of(masking, truth),
    )

  return hidden_panels(predict, sheet_of)


def patches_of(masking: Masking, values: np.ndarray) -> np.ndarray:
  """Patches (M, P, P, 3) of predicted or true colours (M, n) or pixels."""
  P = masking.patch_size
  M = len(values)
  if masking.target == "pixels":
    pixels = values.reshape(M, P, P, -1) * masking.std + masking.mean
    return np.clip(255 * pixels, 0, 255).astype(np.uint8)
  parts = round(values.shape[1] ** 0.5)
  cells = rgb(values).reshape(M, parts, parts, 3)
  return cells.repeat(P // parts, axis=1).repeat(P // parts, axis=2)
