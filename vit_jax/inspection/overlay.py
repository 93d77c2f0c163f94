"""Maps over patches, drawn in colour on the photograph that they belong to.

The photograph becomes grey, with its contrast stretched, so that a dark one is
visible too. The map is smoothly enlarged to the photograph's size and gives the
colour. Higher values are lighter, also in black and white.
"""

import functools
import math

import cv2
import numpy as np
from jaxtyping import Float
from PIL import Image

from vit_jax.inspection.photograph import Photograph

COLORS = "inferno"  # Perceptually uniform.
_SHARE = 0.55  # Weight of the colour; the rest is the grey photograph.
PERCENTILES = 2, 98  # The values at the ends of the colour scale.
# Weights of R, G and B (ITU-R BT.709).
_LUMINANCE = (0.2126, 0.7152, 0.0722, 0.0)
_LEAST_SIDE = 256  # Smaller photographs are enlarged before they are coloured.

Limits = tuple[float, float]


def relative(map_: Float[np.ndarray, "*axes"]) -> Float[np.ndarray, "*axes"]:
  """The map divided by its mean, so that 1 is an even share; 0 stays 0."""
  mean = map_.mean()
  return map_ / mean if mean else map_


def limits(maps: Float[np.ndarray, "*axes"]) -> Limits:
  """The 2nd and 98th percentile of all values: the ends of a colour scale.

  If all values are equal, the ends are a little apart, and the value lies in
  the middle.
  """
  low, high = (float(np.percentile(maps, at)) for at in PERCENTILES)
  if high - low <= 1e-6 * abs(high):
    least = max(1e-3 * abs(high), 1e-30)
    return low - least, high + least
  return low, high


def overlaid(image: Photograph, map_: Float[np.ndarray, "h w"]) -> Photograph:
  """Draws a map on a photograph, at the photograph's own resolution.

  A photograph with less than 256 pixels on its longer side is enlarged first.
  `map_` has a value for each patch of a regular grid.
  """
  return coloured(grey(enlarged(image)), map_)


def coloured(
  grey: Image.Image,
  map_: Float[np.ndarray, "h w"],
  between: Limits | None = None,
) -> Photograph:
  """`overlaid`, on a photograph that `grey` has made grey.

  `between` are the values at the two ends of the colours; by default `limits`.
  """
  low, high = limits(map_) if between is None else between
  # Values are clipped first, or bicubic resizing would draw a dark ring around
  # an outlier. With 0.5, the conversion to bytes rounds; alone, it truncates.
  levels = np.clip((map_ - low) / (high - low), 0, 1)
  levels = np.float32(255 * levels + 0.5)
  color = Image.fromarray(levels).resize(grey.size, Image.Resampling.BICUBIC)
  color = color.convert("L")
  color.putpalette(palette())
  mixed = Image.blend(grey, color.convert("RGB"), _SHARE)
  return np.asarray(mixed)


@functools.cache
def palette() -> bytes:
  """R, G and B of the 256 colours, from the lowest value to the highest."""
  import matplotlib  # Pictures without maps need no matplotlib.

  return matplotlib.colormaps[COLORS](range(256), bytes=True)[:, :3].tobytes()


def enlarged(image: Photograph) -> Photograph:
  """A photograph, enlarged to 256 pixels or more with its pixels as squares."""
  return in_squares(image, math.ceil(_LEAST_SIDE / max(image.shape[:2])))


def in_squares(image: Photograph, times: int) -> Photograph:
  """A photograph with each pixel as a square of `times` by `times`."""
  size = times * image.shape[1], times * image.shape[0]
  return cv2.resize(image, size, interpolation=cv2.INTER_NEAREST)


def grey(image: Photograph) -> Image.Image:
  """Luminance in grey, stretched between its 1st and 99th percentile."""
  whole = Image.fromarray(np.ascontiguousarray(image)).convert("L", _LUMINANCE)
  below = np.cumsum(whole.histogram()) / (whole.width * whole.height)
  low, high = np.searchsorted(below, (0.01, 0.99))
  levels = 255 * (np.arange(256) - low) / max(high - low, 1)
  return whole.point(np.clip(levels, 0, 255).round().tolist()).convert("RGB")
