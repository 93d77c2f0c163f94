"""Masks in colours, on their images."""

import colorsys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8

from vit_jax.data.reading.mask_folder import IGNORED, ignored_label, resize_mask
from vit_jax.models.model import normalize
from vit_jax.tasks.finite import NO_ANSWER, best_class
from vit_jax.tasks.pictures import Draw, Photograph, as_photograph, side_by_side
from vit_jax.tasks.segmentation.objective import enlarged
from vit_jax.training.inputs import without_bands

STRIP = 1 << 21  # Pixels of an image that are made floats at a time.
_SHARE = 0.6  # Weight of the colour; the rest is the image.
_WHOLE = ((0, 0), (0, 0))  # No zeros around an image.
_GOLDEN = 0.618034  # Share of the colour circle between two classes.

Mask = Int[np.ndarray, "H W"]


def palette(count: int = 256) -> UInt8[np.ndarray, "count 3"]:
  """The colours of classes: black for class 0, then hues far apart.

  The last of 256 is white, for pixels of no class.
  """
  colours = [
    colorsys.hsv_to_rgb(
      (k * _GOLDEN) % 1, 1 - 0.35 * (k // 8 % 2), 1 - 0.3 * (k // 16 % 2)
    )
    for k in range(count)
  ]
  levels = np.rint(255 * np.array(colours)).astype(np.uint8)
  levels[0] = 0
  if count > IGNORED:
    levels[IGNORED] = 255
  return levels


def overlay(
  image: Photograph, mask: Mask, classes: int = IGNORED
) -> Photograph:
  """An image with the colour of each pixel's class mixed in.

  Pixels of no class stay as they are. `classes` is the number of classes.
  """
  colours = _SHARE * palette()
  drawn = np.empty_like(image)
  for rows in strips(mask.shape):
    mixed = colours[mask[rows] % 256] + (1 - _SHARE) * image[rows]
    no_class = (mask[rows] == ignored_label(classes))[..., None]
    drawn[rows] = np.rint(np.where(no_class, image[rows], mixed))
  return drawn


def strips(shape: Sequence[int]) -> Iterator[slice]:
  """Slices of an image's rows, so that few pixels are floats at a time."""
  step = max(1, STRIP // max(1, shape[1]))
  return (slice(top, top + step) for top in range(0, shape[0], step))


def make_logits(
  model: Any, images: Any
) -> Callable[..., Float[Array, "B h w K"]]:
  """Returns a compiled function from parameters and images to logits.

  The function's images are uint8 (B, H, W, C). Two more arguments may follow:
  `bands`, booleans (C,), says which bands all images have, and is None if they
  have all; `padding`, ((above, below), (left, right)), counts the zeros to add
  around the normalised images. `images` is an objective or a `Preprocessing`,
  with the `mean` and `std` of the images.
  """
  mean, std = images.mean, images.std

  @partial(jax.jit, static_argnums=3)
  def logits(
    params: Any, pixels: Array, bands: Any = None, padding: Any = _WHOLE
  ) -> Array:
    x = normalize(pixels, mean, std)
    x = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    if bands is not None:
      x = without_bands(x, bands[None])
    return model.apply({"params": params}, x)

  return logits


def make_panels(model: Any, objective: Any) -> Draw:
  """Returns a function from parameters and examples to a picture of each.

  An example's mask may have another size than its pixels. The picture has the
  image, its mask and the model's answer.
  """
  logits_of = make_logits(model, objective)

  def draw(params: Any, examples: Sequence[tuple]) -> list[Photograph]:
    sheets = []
    for _, pixels, mask, *bands in examples:
      height, width = size = pixels.shape[:2]
      logits = enlarged(logits_of(params, pixels[None], *bands), height, width)
      answer = best_class(np.asarray(logits[0]))
      K = logits.shape[-1]
      answer = np.where(answer == NO_ANSWER, ignored_label(K), answer)
      image = as_photograph(pixels)
      true = resize_mask(np.asarray(mask), size)
      panels = [image, overlay(image, true, K), overlay(image, answer, K)]
      sheets.append(side_by_side(panels))
    return sheets

  return draw
