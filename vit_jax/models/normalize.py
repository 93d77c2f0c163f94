"""Images from bytes to the numbers a model takes, computed on the device."""

import warnings
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Shaped

_MOST_CHANNELS = 4  # As an axis, more look like a height or a width.
_LARGEST = 20.0  # Normalised pixels stay far below, unnormalised ones do not.


def normalize(
  images: Shaped[Array, "B H W C"], mean: Sequence[float], std: Sequence[float]
) -> Float[Array, "B H W C"]:
  """(x / 255 - mean) / std per channel; 0.5 and 0.5 give [-1, 1].

  Raises ValueError unless the images are uint8: nobody can tell whether floats
  are of [0, 1], of [0, 255] or normalised already.
  """
  if images.dtype != jnp.uint8:
    raise ValueError(
      f"images of type {images.dtype}; vit_jax.normalize takes uint8. Of "
      "floats in [0, 1], compute (images - mean) / std yourself."
    )
  shift, scale = (jnp.array(x).reshape(1, 1, 1, -1) for x in (mean, std))
  return (images.astype(jnp.float32) / 255 - shift) / scale


def unit(x: Float[Array, "N D"]) -> Float[Array, "N D"]:
  """Rows scaled to length 1, in float32; a row of zeros stays zero."""
  x = x.astype(jnp.float32)
  return x / jnp.maximum(jnp.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def check_images(x: Any) -> None:
  """Raises ValueError unless images are normalised floats, (B, H, W, C).

  Values so large that the images can hardly have been normalised are warned of,
  where the values are known; under `jax.jit` they are not.
  """
  shape = tuple(x.shape)
  dtype = x.dtype
  if len(shape) != 4:
    fix = "; for a single image write images[None]" if len(shape) == 3 else ""
    raise ValueError(
      f"images of shape {shape}; the model takes (B, H, W, C){fix}."
    )
  if not jnp.issubdtype(dtype, jnp.floating):
    raise ValueError(
      f"images of type {dtype}; the model takes floats, which "
      "vit_jax.normalize(images, mean, std) makes of uint8."
    )
  if shape[1] <= _MOST_CHANNELS < min(shape[2:]):
    raise ValueError(
      f"images of shape {shape} look like (B, C, H, W); the model takes "
      "(B, H, W, C), which images.transpose(0, 2, 3, 1) makes of them."
    )
  here = not isinstance(x, Tracer) and getattr(x, "is_fully_addressable", True)
  if here and x.size:
    _warn_of_large(x)


def _warn_of_large(x: Any) -> None:
  # By NumPy, as JAX would trace it in a function that closes over images.
  largest = float(np.abs(np.asarray(x)).max())
  if largest > _LARGEST:
    warnings.warn(
      f"images have values of up to {largest:.0f}, and the model expects "
      "normalised ones, mostly in [-3, 3]: apply vit_jax.normalize to uint8.",
      stacklevel=4,
    )
