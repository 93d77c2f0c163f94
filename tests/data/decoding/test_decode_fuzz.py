"""Rubbish in place of an image: it is decoded, or refused in one line.

VIT_JAX_FUZZ=1000 pytest tests/data/decoding/test_decode_fuzz.py -n 0 -s
"""

import numpy as np
import pillow_heif
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.fuzzing import damaged, examples, outcome
from tests.image_files import encode
from vit_jax.data import decode_rgb, make_train_transform

pillow_heif.register_heif_opener()


def make_images() -> dict[str, bytes]:
  rng = np.random.default_rng(0)
  pixels = Image.fromarray(rng.integers(0, 256, (40, 30, 3), np.uint8))
  exif = Image.Exif()
  exif[0x0112] = 6
  wide = Image.fromarray(rng.integers(0, 1 << 16, (40, 30), np.uint16))
  frames = dict(save_all=True, append_images=[pixels.rotate(90, expand=False)])
  return {
    "JPEG": encode(pixels, "JPEG", exif=exif),
    "JPEG, progressive": encode(pixels, "JPEG", progressive=True),
    "JPEG, CMYK": encode(pixels.convert("CMYK"), "JPEG"),
    "PNG": encode(pixels, "PNG"),
    "PNG, palette": encode(pixels.quantize(16), "PNG", transparency=0),
    "PNG, alpha": encode(pixels.convert("RGBA"), "PNG", exif=exif),
    "GIF": encode(pixels, "GIF", **frames),
    "WebP": encode(pixels, "WEBP"),
    "WebP, moving": encode(pixels, "WEBP", **frames),
    "BMP": encode(pixels, "BMP"),
    "TIFF": encode(pixels, "TIFF", compression="tiff_lzw"),
    "TIFF, 16 bits": encode(wide, "TIFF"),
    "PNG, 16 bits": encode(wide, "PNG"),
    "AVIF": encode(pixels, "AVIF"),
    "JPEG 2000": encode(pixels, "JPEG2000"),
    "HEIC": encode(pixels, "HEIF"),
  }


IMAGES = make_images()


@examples(100)
@given(st.data(), st.integers(0, 9))
def test_damaged_images_to_train_on(data, seed):
  """Covers JPEGs too, which are decoded only as far as a random box shows."""
  name = data.draw(st.sampled_from([*IMAGES, *["JPEG"] * 5]))
  content = data.draw(damaged(IMAGES[name]))
  transform = make_train_transform((8, 12))
  rng = np.random.default_rng(seed)
  kept = []
  outcome("images, cropped", lambda: kept.append(transform(content, rng)))
  assert all(image.shape == (8, 12, 3) for image in kept)


@examples(300)
@given(st.data())
def test_damaged_images(data):
  name = data.draw(st.sampled_from([*IMAGES]))
  content = data.draw(damaged(IMAGES[name]))
  kept = []
  window = data.draw(st.sampled_from([None, (0, 4095)]))
  ended = outcome("images", lambda: kept.append(decode_rgb(content, window)))
  if ended == "read":
    (image,) = kept
    assert image.dtype == np.uint8
    assert image.ndim == 3 and image.shape[2] == 3
