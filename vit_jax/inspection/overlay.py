"""Maps over patches, drawn in colour on the photograph that they belong to.

The photograph turns grey and its contrast is stretched, so that a dark one can
be seen too; the map is smoothly enlarged to the photograph's size and gives the
colour. Higher values are lighter, also in black and white.
"""

import math

import matplotlib
import numpy as np
from jaxtyping import Float
from PIL import Image

from vit_jax.inspection.photograph import Photograph

COLORS = "inferno"  # Perceptually uniform.
_SHARE = 0.55  # Weight of the colour; the rest is the grey photograph.
_PERCENTILES = 2, 98  # The values at the ends of the colour scale.
# Weights of R, G and B (ITU-R BT.709).
_LUMINANCE = np.array([0.2126, 0.7152, 0.0722], np.float32)
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
  low, high = (float(np.percentile(maps, at)) for at in _PERCENTILES)
  if high - low <= 1e-6 * abs(high):
    least = max(1e-3 * abs(high), 1e-30)
    return low - least, high + least
  return low, high


def overlaid(
  image: Photograph,
  map_: Float[np.ndarray, "h w"],
  between: Limits | None = None,
) -> Photograph:
  """Draws a map on a photograph, at the photograph's own resolution.

  A photograph with less than 256 pixels on its longer side is enlarged first.

  Args:
    map_: The map, with a value for each patch of a regular grid.
    between: The values at the two ends of the colours; by default `limits`.
  """
  image = enlarged(image)
  low, high = limits(map_) if between is None else between
  smooth = Image.fromarray(np.float32(map_)).resize(
    image.shape[1::-1], Image.Resampling.BICUBIC
  )
  value = np.clip((np.asarray(smooth) - low) / (high - low), 0, 1)
  color = np.float32(matplotlib.colormaps[COLORS](value)[..., :3])
  mixed = _SHARE * color + (1 - _SHARE) * _grey(image)[..., None]
  return np.round(255 * mixed).astype(np.uint8)


def enlarged(image: Photograph) -> Photograph:
  """A small photograph with each pixel as a square of several."""
  times = math.ceil(_LEAST_SIDE / max(image.shape[:2]))
  return image.repeat(times, axis=0).repeat(times, axis=1)


def _grey(image: Photograph) -> Float[np.ndarray, "H W"]:
  """Luminance in [0, 1], stretched between its 1st and 99th percentile."""
  luminance = image @ _LUMINANCE
  low, high = np.percentile(luminance, (1, 99))
  return np.clip((luminance - low) / max(high - low, 1), 0, 1)
