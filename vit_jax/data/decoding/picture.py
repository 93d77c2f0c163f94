"""Pictures in memory or on disk, as the bytes of an image file."""

import io
import os
from typing import Any

import numpy as np
from PIL import Image

from vit_jax.data.decoding.orientation import upright
from vit_jax.data.example import MAX_BYTES
from vit_jax.runtime.files import open_regular

Picture = str | os.PathLike | Image.Image | np.ndarray | bytes
"""A path, a Pillow image, an array, uint8 (H, W) or (H, W, 1 to 4), or the
bytes of an image file."""

_MOST_CHANNELS = 4
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


def is_picture(shape: tuple[int, ...]) -> bool:
  """Whether an array of this shape is one picture: (H, W) or (H, W, 1 to 4).

  A grey picture (H, W) has to be wider than 4 pixels: an array (W, 3) is a row
  of pixels.
  """
  if 0 in shape:
    return False
  if len(shape) == 2:
    return shape[1] > _MOST_CHANNELS
  return len(shape) == 3 and 1 <= shape[2] <= _MOST_CHANNELS


def as_file(picture: Picture) -> bytes:
  """The bytes of an image file; an image in memory becomes a PNG file.

  So every image is decoded by the code whose pixels are compared with other
  libraries in tests. The bytes of a file are returned as they are.

  Raises ValueError for an array of another type or shape, and OSError for a
  file that cannot be opened or is too large.
  """
  if isinstance(picture, bytes):
    return picture
  if isinstance(picture, str | os.PathLike):
    with open_regular(picture, MAX_BYTES) as file:
      return file.read()
  image = picture if isinstance(picture, Image.Image) else _from_array(picture)
  image = upright(image)
  if image.mode not in _PNG_MODES:
    image = image.convert("RGB")
  file = io.BytesIO()
  image.save(file, "PNG", compress_level=0)
  return file.getvalue()


def _from_array(array: Any) -> Image.Image:
  """A Pillow image of an array; raises ValueError unless it is a `Picture`."""
  shape = getattr(array, "shape", ())
  dtype = getattr(array, "dtype", None)
  if dtype != np.uint8 or not is_picture(shape):
    floats = ""
    if dtype is not None and np.dtype(dtype).kind in "fV":  # bfloat16 is V.
      floats = (
        " Give normalised floats (B, H, W, C) to vit_jax.features(loaded, "
        'images), or to the model itself: model.apply({"params": params}, '
        "images)."
      )
    raise ValueError(
      f"an image of shape {tuple(shape)} and type {dtype or type(array)}; give "
      "a path, a Pillow image or an array, uint8 (H, W, 3), one image each."
      f"{floats}"
    )
  image = np.asarray(array)
  return Image.fromarray(image[..., 0] if shape[2:] == (1,) else image)
