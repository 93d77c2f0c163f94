"""Images from bytes to the numbers a model takes, computed on the device."""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8


def normalize(
  images: UInt8[Array, "B H W C"], mean: Sequence[float], std: Sequence[float]
) -> Float[Array, "B H W C"]:
  """(x / 255 - mean) / std per channel; 0.5 and 0.5 give [-1, 1]."""
  shift, scale = (jnp.array(x).reshape(1, 1, 1, -1) for x in (mean, std))
  return (images.astype(jnp.float32) / 255 - shift) / scale
