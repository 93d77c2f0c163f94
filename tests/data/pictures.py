"""Small images whose pixels are known, and the files that hold them."""

import io

import numpy as np
from PIL import Image

RED, GREEN, BLUE = (250, 10, 20), (15, 240, 25), (5, 30, 230)


def encode(image: Image.Image, file_format: str, **options) -> bytes:
  file = io.BytesIO()
  image.save(file, file_format, **options)
  return file.getvalue()


def corners(mode: str = "RGB") -> Image.Image:
  """32 x 48, red and green above blue and black, in blocks a JPEG keeps."""
  pixels = np.zeros((32, 48, 3), np.uint8)
  pixels[:16, :16], pixels[:16, 16:], pixels[16:, :16] = RED, GREEN, BLUE
  return Image.fromarray(pixels).convert(mode)


def png(pixels: np.ndarray) -> bytes:
  return encode(Image.fromarray(pixels), "PNG")


def noise(height: int, width: int) -> np.ndarray:
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (height, width, 3), np.uint8)


def coordinates(height: int, width: int) -> np.ndarray:
  """An image whose red is the column and whose green is the row."""
  rows, columns = np.mgrid[:height, :width]
  return np.stack([columns, rows, 0 * rows], axis=-1).astype(np.uint8)


def rngs(count: int) -> list[np.random.Generator]:
  return [np.random.default_rng(i) for i in range(count)]
