"""Stores pixels as they are, in BMP files, and reads them without a copy.

Of the forms of BMP, this is the one of 24 bits a pixel, without compression,
whose first row is the top one. Pillow, OpenCV and TensorFlow read it too.
"""

import struct

import numpy as np

from vit_jax.data import example

# The file's and the picture's header: their sizes, where pixels begin, width,
# height (less than 0 if the top row is first), planes, bits, compression.
_HEADER = struct.Struct("<2sI4xIIiiHHI20x")
_PICTURE = 40  # Bytes of the picture's header.


def encode(image: np.ndarray) -> bytes:
  """A BMP file of an RGB image, uint8 (H, W, 3)."""
  height, width, _ = image.shape
  rows = np.zeros((height, _row_bytes(width)), np.uint8)
  rows[:, : 3 * width] = image[..., ::-1].reshape(height, -1)
  fields = _PICTURE, width, -height, 1, 24, 0
  start = _HEADER.size
  header = _HEADER.pack(b"BM", start + rows.size, start, *fields)
  return header + rows.tobytes()


def read(encoded: bytes) -> np.ndarray | None:
  """The pixels of a BMP file as `encode` writes it: a view, blue first.

  They are uint8 (H, W, 3); None for any other file. Raises UnreadableImageError
  if the image has too many pixels.
  """
  if not encoded.startswith(b"BM") or len(encoded) < _HEADER.size:
    return None
  _, _, start, *fields = _HEADER.unpack_from(encoded)
  header, width, height, planes, bits, compression = fields
  if (header, planes, bits, compression) != (_PICTURE, 1, 24, 0):
    return None
  height = -height
  row = _row_bytes(width)
  if min(height, width) < 1 or start + height * row > len(encoded):
    return None
  example.check_size(height, width)
  return np.ndarray(
    shape=(height, width, 3),
    dtype=np.uint8,
    buffer=encoded,
    offset=start,
    strides=(row, 3, 1),
  )


def _row_bytes(width: int) -> int:
  """The bytes of a row, which is padded to a multiple of 4."""
  return -(-3 * width // 4) * 4
