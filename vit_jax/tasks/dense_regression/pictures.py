"""Pictures of per-pixel numbers as colours, beside their images."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from vit_jax.data.reading.paired_folder import resize_mask
from vit_jax.tasks.pictures import Draw, Photograph, as_photograph, side_by_side
from vit_jax.tasks.segmentation.pictures import make_logits, strips

# From the least to the greatest number: dark blue, green, yellow.
_COLOURS = np.array(
  [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]
)
_UNKNOWN = 128  # A grey.

Numbers = Float[np.ndarray, "H W"]


def span(numbers: Numbers) -> tuple[float, float]:
  """The least and the greatest number; 0 and 1 if no number is known."""
  known = numbers[np.isfinite(numbers)]
  return (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)


def heat(numbers: Numbers, least: float, most: float) -> Photograph:
  """A colour for each number, from dark for `least` to yellow for `most`.

  Unknown numbers are grey.
  """
  drawn = np.empty((*numbers.shape, 3), np.uint8)
  places = np.linspace(least, most, len(_COLOURS)) if most > least else [least]
  for rows in strips(numbers.shape):
    is_known = np.isfinite(numbers[rows])
    values = np.where(is_known, numbers[rows], least)
    colours = [
      np.interp(values, places, channel[: len(places)])
      for channel in _COLOURS.T
    ]
    mixed = np.rint(np.stack(colours, axis=-1))
    drawn[rows] = np.where(is_known[..., None], mixed, _UNKNOWN)
  return drawn


def make_panels(model: Any, objective: Any) -> Draw:
  """Returns a function from parameters and examples to a picture of each.

  An example's target may have another size than its pixels. The picture has the
  image, its target and the answer; a number has the same colour in both.
  """
  outputs_of = make_logits(model, objective)

  def draw(params: Any, examples: Sequence[tuple]) -> list[Photograph]:
    sheets = []
    for _, pixels, target, *bands in examples:
      size = pixels.shape[:2]
      outputs = outputs_of(params, pixels[None], *bands)
      answer = np.asarray(objective.numbers(outputs, *size)[0])
      true = resize_mask(np.asarray(target), size)
      ends = span(true)
      panels = [as_photograph(pixels), heat(true, *ends), heat(answer, *ends)]
      sheets.append(side_by_side(panels))
    return sheets

  return draw
