"""Pictures of patches' features, as colours by their principal components."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, UInt8

from vit_jax.models.model import normalize
from vit_jax.models.student import PATCHES, outputs_of
from vit_jax.tasks.pictures import Draw, Photograph, as_photograph, side_by_side

_COLOURS = 3


def make_panels(model: Any, objective: Any) -> Draw:
  """Returns a function from parameters and examples to a picture of each.

  An example is its place in the split, its pixels and its label. A picture has
  the image and, beside it, its patches' features; the colours are those of all
  examples together.
  """
  mean, std = objective.mean, objective.std
  encoder = model.trunk

  @jax.jit
  def features(params: Any, images: Array) -> Array:
    """The features of the patches, (B, h, w, D)."""
    x = normalize(images, mean, std)
    variables = {"params": params}
    outputs: Any = encoder.apply(variables, x, method=outputs_of)
    return outputs[PATCHES]

  def draw(params: Any, examples: Sequence[tuple]) -> list[Photograph]:
    if not examples:
      return []
    _, images, _ = zip(*examples, strict=True)
    values = jax.device_get(features(params, np.stack(images)))
    B, h, w, D = values.shape
    rows = values.astype(np.float64).reshape(B, h * w, D)
    colours = as_colours(rows).reshape(B, h, w, _COLOURS)
    pairs = zip(images, colours, strict=True)
    return [_sheet(as_photograph(image), cells) for image, cells in pairs]

  return draw


def as_colours(
  features: Float[np.ndarray, "B N D"],
) -> UInt8[np.ndarray, "B N 3"]:
  """Colours with the first three principal components as red, green and blue.

  Each component is stretched from its lowest value, 0, to its highest, 255. If
  features have fewer than three channels, the last colours are 128.
  """
  B, N, D = features.shape
  rows = features.reshape(B * N, D)
  rows = rows - rows.mean(axis=0)
  _, _, axes = np.linalg.svd(rows, full_matrices=False)
  parts = rows @ axes[:_COLOURS].T
  low = parts.min(axis=0)
  spread = np.maximum(parts.max(axis=0) - low, 1e-12)
  levels = np.full((B * N, _COLOURS), 128, np.uint8)
  levels[:, : parts.shape[1]] = np.rint(255 * (parts - low) / spread)
  return levels.reshape(B, N, _COLOURS)


def _sheet(image: Photograph, cells: UInt8[np.ndarray, "h w 3"]) -> Photograph:
  """An image, and the colours of its patches beside it."""
  P = len(image) // len(cells)
  patches = cells.repeat(P, axis=0).repeat(P, axis=1)
  return side_by_side([image, patches])
