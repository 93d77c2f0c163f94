"""Pictures of a masked autoencoder: what it saw, its prediction, the image."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models.masked_vit import MASK
from vit_jax.tasks.autoencoder.objective import Reconstruction, normalized
from vit_jax.tasks.masked.pictures import Photograph, sheet


def make_panels(
  model: nn.Module, objective: Reconstruction
) -> Callable[[Any, Sequence[tuple]], list[Photograph]]:
  """Returns a function from parameters and examples to a picture of each.

  An example is its place in the split, its pixels and its label. The same
  patches are hidden as in the evaluation of the split. Predictions of
  normalised patches get the mean and the deviation that these patches really
  have.
  """

  def predict(params: Any, images: Any, numbers: Any) -> tuple[Any, Any, Any]:
    batch = {"image": images}
    targets, predicted = objective.predict(model, params, batch, numbers)
    truth = objective.hidden(objective.inputs(batch), targets["draw"])
    if objective.norm_pixels:
      _, mean, deviation = normalized(truth)
      predicted = predicted * deviation + mean
    return targets["draw"], predicted, truth

  step = jax.jit(predict)

  def draw(params: Any, examples: Sequence[tuple]) -> list[Photograph]:
    if not examples:
      return []
    indices, images, _ = zip(*examples, strict=True)
    results = step(params, np.stack(images), jnp.array(indices, jnp.int32))
    draws, predicted, truth = jax.device_get(results)
    sheets = []
    for number, image in enumerate(images):
      seen = draws["seen"][number]
      hidden = draws["hidden"][number]
      source = np.full(len(seen) + len(hidden), MASK)
      source[seen] = seen
      guess, true = (
        as_photograph(_pixels(objective, values[number]))
        for values in (predicted, truth)
      )
      sheets.append(sheet(as_photograph(image), source, hidden, guess, true))
    return sheets

  return draw


def _pixels(objective: Reconstruction, values: np.ndarray) -> np.ndarray:
  """Patches (M, P, P, C) in [0, 255], from their normalised values (M, P^2 C).

  They are rounded, so that a true patch is the image's.
  """
  P = objective.patch_size
  pixels = values.reshape(len(values), P, P, -1)
  pixels = pixels * np.array(objective.std) + np.array(objective.mean)
  return np.clip(np.rint(255 * pixels), 0, 255).astype(np.uint8)


def as_photograph(image: np.ndarray) -> np.ndarray:
  """Images (..., C) as (..., 3): grey if C is 1 or 2, or the first three."""
  channels = image.shape[-1]
  return image[..., :3] if channels >= 3 else image[..., :1].repeat(3, axis=-1)
