"""The bytes that are packed, against Pillow's pixels."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.image_files import encode
from vit_jax.data.decoding.decode import decode_rgb
from vit_jax.data.example import UnreadableImageError
from vit_jax.pack.shards import Encoding


def _picture(width, height):
  """A smooth picture, which JPEG hardly changes."""
  x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
  return Image.fromarray(np.stack([x, y, 255 - x], 2).astype(np.uint8))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("size", [None, 60, 80])
def test_images_that_are_small_enough_keep_their_bytes(kind, size):
  encoded = encode(_picture(80, 60), kind)
  assert Encoding(size).encode(encoded) == encoded


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
# A half, a size between halves, and one just below the full size.
@pytest.mark.parametrize("size", [150, 100, 37, 299])
def test_a_reduced_image_is_the_mean_of_its_pixels(kind, size):
  image = _picture(400, 300)
  found = Image.open(
    io.BytesIO(Encoding(size, 100).encode(encode(image, kind)))
  )
  sides = (round(400 * size / 300), size)
  assert found.format == "JPEG" and found.size == sides
  expected = np.asarray(image.resize(sides, Image.Resampling.BOX), float)
  off = np.abs(np.asarray(found, float) - expected)
  assert off.mean() < 2 and np.quantile(off, 0.99) < 8


@pytest.mark.parametrize("size", [None, 60, 37])
def test_raw_pixels_are_those_that_jpeg_would_be_made_of(size):
  encoded = encode(_picture(80, 60), "PNG")
  raw = Image.open(io.BytesIO(Encoding(size, None).encode(encoded)))
  sides = (round(80 * (size or 60) / 60), size or 60)
  assert raw.format == "BMP" and raw.size == sides
  if size == 37:  # Reduced, so both are made anew.
    jpeg = Image.open(io.BytesIO(Encoding(size, 100).encode(encoded)))
    off = np.abs(np.asarray(jpeg, float) - np.asarray(raw, float))
    assert off.mean() < 2
  else:
    np.testing.assert_array_equal(raw, _picture(80, 60))


def test_other_formats_become_jpeg_of_the_quality():
  encoded = encode(_picture(64, 48), "BMP")
  small, large = (Encoding(None, q).encode(encoded) for q in (10, 95))
  assert len(small) < len(large)
  assert Image.open(io.BytesIO(large)).size == (64, 48)


def _noise():
  """Small and coloured, of which JPEG changes every pixel."""
  pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
  return Image.fromarray(pixels)


_LOSSLESS = {
  "BMP": ("BMP", {}),
  "GIF": ("GIF", {}),
  "TIFF": ("TIFF", {}),
  "TIFF of LZW": ("TIFF", {"compression": "tiff_lzw"}),
  "TIFF of deflate": ("TIFF", {"compression": "tiff_adobe_deflate"}),
  "WebP": ("WEBP", {"lossless": True}),
  "WebP with Exif": (
    "WEBP",
    {"lossless": True, "exif": b"Exif\0\0" + b"x" * 9},
  ),
  "an animation": (
    "WEBP",
    {"lossless": True, "save_all": True, "append_images": [_noise()]},
  ),
  "JPEG 2000": ("JPEG2000", {"irreversible": False}),
}


@pytest.mark.parametrize("name", _LOSSLESS)
@pytest.mark.parametrize("size", [None, 7])
def test_lossless_images_stay_so(name, size):
  kind, options = _LOSSLESS[name]
  encoded = encode(_noise(), kind, **options)
  packed = Encoding(size, lossless=True).encode(encoded)
  assert Image.open(io.BytesIO(packed)).format == "PNG"
  np.testing.assert_array_equal(decode_rgb(packed), decode_rgb(encoded))
  before = Encoding(size).encode(encoded)  # As earlier versions did.
  assert Image.open(io.BytesIO(before)).format == "JPEG"
  assert np.abs(decode_rgb(before) - decode_rgb(encoded).astype(int)).max() > 50
  reduced = Encoding(5, lossless=True).encode(encoded)
  assert Image.open(io.BytesIO(reduced)).format == "JPEG"


@pytest.mark.parametrize(
  ("kind", "options"),
  [
    ("WEBP", {"quality": 90}),
    ("WEBP", {"save_all": True, "append_images": [_noise()]}),
    ("TIFF", {"compression": "jpeg"}),
    ("AVIF", {}),
    ("JPEG2000", {"irreversible": True}),
  ],
)
def test_lossy_images_become_jpeg(kind, options):
  encoded = encode(_noise(), kind, **options)
  packed = Encoding(None, lossless=True).encode(encoded)
  assert packed == Encoding().encode(encoded)
  assert Image.open(io.BytesIO(packed)).format == "JPEG"


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_files_that_are_kept_are_kept(kind):
  encoded = encode(_noise(), kind)
  assert Encoding(lossless=True).encode(encoded) == encoded


def test_a_turned_photograph_is_upright_once_reduced():
  exif = Image.Exif()
  exif[0x0112] = 6  # A quarter turn clockwise makes it upright.
  encoded = encode(_picture(80, 60), "JPEG", exif=exif)
  found = Image.open(io.BytesIO(Encoding(30).encode(encoded)))
  assert found.size == (30, 40)
  assert found.getexif().get(0x0112, 1) == 1


def test_what_cannot_be_decoded_is_refused():
  encoded = encode(_picture(80, 60), "JPEG")
  with pytest.raises(UnreadableImageError):
    Encoding().encode(encoded[: len(encoded) // 2])


def test_a_size_of_nothing_is_refused():
  with pytest.raises(ValueError, match="--size=0 must be 1 or more"):
    Encoding(0)
