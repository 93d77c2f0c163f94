"""Photographs at their own resolution, cut as a model sees them."""

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vit_jax.data.decode import decode_rgb
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.transforms import resized_shape

LONGEST = 1024

Photograph = UInt8[np.ndarray, "H W 3"]


def seen_part(encoded: bytes, preprocessing: Preprocessing) -> Photograph:
  """The part of a photograph that a model sees, with the photograph's pixels.

  It has the photograph's own proportions even if the model's input squashes
  them, and fewer pixels only if a side would have more than `LONGEST`.

  Raises:
    UnreadableImageError: if the file cannot be decoded.
  """
  image = decode_rgb(encoded, preprocessing.window)
  shape, size = image.shape[:2], preprocessing.image_size
  whole = preprocessing.whole
  resized = resized_shape(shape, whole, preprocessing.crop)
  parts = []
  for side, full, kept, seen in zip(shape, resized, whole, size, strict=True):
    length = side * kept / full
    start = (side - max(1, round(length))) // 2
    parts.append(slice(start, start + max(1, round(length * seen / kept))))
  part = Image.fromarray(image[tuple(parts)])
  part.thumbnail((LONGEST, LONGEST))
  return np.asarray(part)
