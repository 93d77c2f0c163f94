"""Photographs at their own resolution, cut as a model sees them."""

import numpy as np
from jaxtyping import Shaped, UInt8
from PIL import Image

from vit_jax.data.decoding.decode import decode_image
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.transforming.transforms import resized_shape

LONGEST = 1024  # The most pixels of a side of what `seen_part` returns.

Photograph = UInt8[np.ndarray, "H W 3"]


def seen_part(encoded: bytes, preprocessing: Preprocessing) -> Photograph:
  """The part of a photograph that a model sees, with the photograph's pixels.

  It has the photograph's own proportions even if the model's input squashes
  them, and fewer pixels only if a side would have more than `LONGEST`. Raises
  UnreadableImageError if the file cannot be decoded.
  """
  image = in_colours(decode_image(encoded, preprocessing.spec))
  shape = image.shape[:2]
  size = preprocessing.image_size
  whole = preprocessing.whole
  resized = resized_shape(shape, whole, preprocessing.crop)
  parts = []
  for side, full, crop, seen in zip(shape, resized, whole, size, strict=True):
    length = side * crop / full
    start = (side - max(1, round(length))) // 2
    parts.append(slice(start, start + max(1, round(length * seen / crop))))
  part = Image.fromarray(image[tuple(parts)])
  part.thumbnail((LONGEST, LONGEST))
  return np.asarray(part)


def in_colours(
  image: Shaped[np.ndarray, "*B H W C"],
) -> Shaped[np.ndarray, "*B H W 3"]:
  """Makes pictures of images with any number of channels.

  The first of one or two channels is shown in grey; the first three of more
  channels are shown as red, green and blue.
  """
  if image.shape[-1] < 3:
    return np.repeat(image[..., :1], 3, axis=-1)
  return image[..., :3]
