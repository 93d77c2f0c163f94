"""Rubbish in place of an image: it is decoded, or refused in one line.

VIT_JAX_FUZZ=1000 pytest tests/data/decoding/test_decode_fuzz.py -n 0 -s
"""

import io
import subprocess
import sys
from typing import Any

import numpy as np
import pillow_heif
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.fuzzing import damaged, examples, outcome
from vit_jax.data import decode_rgb, make_train_transform

pillow_heif.register_heif_opener()


def encode(image: Image.Image, file_format: str, **options: Any) -> bytes:
  file = io.BytesIO()
  image.save(file, file_format, **options)
  return file.getvalue()


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


CLAIMS = """
import io, resource, struct
from PIL import Image
from vit_jax.data import decode_rgb

def peak():
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def encode(file_format, **options):
  file = io.BytesIO()
  Image.new("RGB", (16, 16)).save(file, file_format, **options)
  return bytearray(file.getvalue())

jpeg, png, gif, bmp = map(encode, ("JPEG", "PNG", "GIF", "BMP"))
more = [Image.new("L", (16, 16), 9)]
webp = encode("WEBP", save_all=True, append_images=more)
frame, canvas = jpeg.index(b"\\xff\\xc0"), webp.index(b"VP8X")
jpeg[frame + 5 : frame + 9] = b"\\xff\\xdc" * 2
png[16:24] = b"\\x7f\\xff\\xff\\xff" * 2
gif[6:10] = b"\\xff" * 4
bmp[18:26] = struct.pack("<ii", 1 << 30, 1 << 30)
webp[canvas + 12 : canvas + 18] = struct.pack("<I", 16382)[:3] * 2
before = peak()
for content in (jpeg, png, gif, bmp, webp):
  try:
    decode_rgb(bytes(content))
  except ValueError as error:
    print(error)
print((peak() - before) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="others count otherwise")
def test_what_headers_claim_is_not_allocated():
  """By the system's count, which sees what libraries in C take."""
  command = [sys.executable, "-W", "ignore", "-c", CLAIMS]
  done = subprocess.run(command, capture_output=True, text=True, check=True)
  *refusals, grown = done.stdout.splitlines()
  assert len(refusals) == 5
  assert int(grown) < 64  # MiB, for what claims a GiB at the least.
