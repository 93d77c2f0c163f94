"""Small images whose pixels are known, and the files that hold them."""

import functools

import numpy as np
from PIL import ExifTags, Image

from tests.image_files import encode

RED, GREEN, BLUE = (250, 10, 20), (15, 240, 25), (5, 30, 230)


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


def refuse(*_, **__):
  """Stands in for a decoder that cannot decode a file."""
  raise ValueError


def scene(height: int, width: int, seed: int = 0) -> np.ndarray:
  """Waves of all lengths, as photographs have them, and a few sharp edges."""
  rng = np.random.default_rng(seed)
  waves = 24
  lengths = np.exp(rng.uniform(np.log(2.5), np.log(80), (2, waves)))
  phases = rng.uniform(0, 2 * np.pi, (2, waves, 1))
  y, x = (
    np.sin(2 * np.pi * np.arange(side) / length[:, None] + phase)
    for side, length, phase in zip(
      (height, width), lengths, phases, strict=True
    )
  )
  colours = rng.normal(0, 1, (waves, 3)) * lengths.mean(0)[:, None] ** 0.5
  image = np.einsum("kh,kw,kc->hwc", y, x, colours, optimize=True)
  image[height // 3 :, : width // 2] += 12 * rng.normal(size=3)
  return np.clip(128 + 4 * image, 0, 255).astype(np.uint8)


def disc(colour: tuple[int, int, int]) -> tuple[Image.Image, np.ndarray]:
  """A noisy disc before green, 300 x 400, and where it is, as booleans."""
  y, x = np.mgrid[:300, :400]
  inside = (y - 150) ** 2 + (x - 200) ** 2 < 90**2
  pixels = np.where(inside[..., None], colour, (40, 120, 60))
  pixels = pixels + np.random.default_rng(0).normal(0, 8, pixels.shape)
  pixels = np.clip(pixels, 0, 255).astype(np.uint8)
  return Image.fromarray(pixels), inside


@functools.cache
def photographs() -> dict[str, bytes]:
  """PNG files of all the kinds that libraries have treated differently."""
  alpha = np.full((61, 90, 1), 255, np.uint8)
  alpha[:, :30] = np.linspace(0, 255, 30)[:, None]
  exif = Image.Exif()
  exif[ExifTags.Base.Orientation] = 6
  return {
    "tall": png(scene(131, 60)),
    "wide": png(scene(61, 150)),
    "tiny": png(scene(7, 5)),
    "narrow": png(noise(113, 11)),
    "low": png(scene(9, 20)),
    "huge": png(scene(1100, 1503)),
    "grey": encode(Image.fromarray(scene(70, 97)).convert("L"), "PNG"),
    "alpha": png(np.concatenate([scene(61, 90), alpha], axis=2)),
    "turned": encode(Image.fromarray(scene(80, 53)), "PNG", exif=exif),
  }
