"""Pictures of hidden patches: as seen, as predicted, and as they are."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt8

from vit_jax.models.masked_vit import MASK
from vit_jax.tasks.masked.objective import Masking, rgb

_SIDE = 192  # Smaller images are enlarged, with their pixels as squares.
_GAP = 4  # Pixels between two panels.
_GREY = 128

Photograph = UInt8[np.ndarray, "H W 3"]


def make_panels(
  model: nn.Module, masking: Masking
) -> Callable[[Any, Sequence[tuple]], list[Photograph]]:
  """Returns a function from parameters and examples to a picture of each.

  An example is its place in the split, its pixels and its label. A picture has
  three panels: the image with its corrupted patches ([mask] is grey), with the
  predictions in their place, and with the targets. The patches are corrupted as
  the evaluation of the split does.
  """

  def predict(params: Any, images: Any, numbers: Any) -> tuple[Any, Any, Any]:
    batch = {"image": images}
    targets, predicted = masking.predict(model, params, batch, numbers)
    return targets, predicted, masking.colours(predicted)

  step = jax.jit(predict)

  def draw(params: Any, examples: Sequence[tuple]) -> list[Photograph]:
    if not examples:
      return []
    indices, images, _ = zip(*examples, strict=True)
    results = step(params, np.stack(images), jnp.array(indices, jnp.int32))
    targets, predicted, colours = jax.device_get(results)
    guess = colours
    truth = targets["colours"]
    if masking.target == "pixels":
      guess = predicted
      truth = targets["pixels"]
    draws = targets["draw"]
    patches = partial(_patches, masking)
    every = zip(
      images,
      draws["source"],
      draws["where"],
      map(patches, guess),
      map(patches, truth),
      strict=True,
    )
    return [sheet(*one) for one in every]

  return draw


def _patches(masking: Masking, values: np.ndarray) -> np.ndarray:
  """Patches (M, P, P, 3) of predicted or true colours (M, n) or pixels."""
  P = masking.patch_size
  M = len(values)
  if masking.target == "pixels":
    pixels = values.reshape(M, P, P, -1) * masking.std + masking.mean
    return np.clip(255 * pixels, 0, 255).astype(np.uint8)
  parts = round(values.shape[1] ** 0.5)
  cells = rgb(values).reshape(M, parts, parts, 3)
  return cells.repeat(P // parts, axis=1).repeat(P // parts, axis=2)


def sheet(
  image: Photograph,
  source: np.ndarray,
  positions: np.ndarray,
  guess: np.ndarray,
  truth: np.ndarray,
) -> Photograph:
  """Three panels: the image as the model saw it, as predicted, and as it is.

  Args:
    source: The patch that the model saw at each place, or `MASK`, (N,).
    positions: The places of the patches in `guess` and `truth`, (M,).
    guess: The predicted patches, (M, P, P, 3).
    truth: The true ones.
  """
  P = guess.shape[1]
  H, W, _ = image.shape
  panels = np.stack([image] * 3)
  cut = panels.reshape(3, H // P, P, W // P, P, 3).swapaxes(2, 3)  # A view.
  corrupted = cut[0][np.divmod(source, W // P)]  # (N, P, P, 3)
  corrupted[source == MASK] = _GREY
  cut[0] = corrupted.reshape(cut[0].shape)
  places = np.divmod(positions, W // P)
  cut[1][places] = guess
  cut[2][places] = truth
  times = max(1, _SIDE // max(H, W))
  large = panels.repeat(times, axis=1).repeat(times, axis=2)
  gap = np.full((len(large[0]), _GAP, 3), 255, np.uint8)
  return np.concatenate([large[0], gap, large[1], gap, large[2]], axis=1)
