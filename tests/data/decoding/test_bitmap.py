"""Stored pixels, against Pillow and OpenCV, and what is no such file."""

import io

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.image_files import encode
from vit_jax.data import example
from vit_jax.data.decoding import bitmap, decode
from vit_jax.data.example import ImageSpec, UnreadableImageError


def _noise(height, width):
  random = np.random.default_rng(height + width)
  return random.integers(256, size=(height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 53])  # Rows end at 4 bytes.
def test_every_reader_gives_the_pixels(width):
  image = _noise(37, width)
  encoded = bitmap.encode(image)
  np.testing.assert_array_equal(Image.open(io.BytesIO(encoded)), image)
  array = np.frombuffer(encoded, np.uint8)
  found = cv2.imdecode(array, cv2.IMREAD_COLOR_RGB)
  np.testing.assert_array_equal(found, image)
  np.testing.assert_array_equal(decode.decode_rgb(encoded), image)


def test_a_box_is_that_part_of_the_image():
  image = _noise(37, 53)
  box = decode.decode_box(
    bitmap.encode(image),
    lambda shape: (8, 8),
    lambda h, w: (h - 30, w - 50, 20, 40),
  )
  np.testing.assert_array_equal(box, image[7:27, 3:43])


def test_no_copy_is_made_until_a_box_is_known():
  encoded = bitmap.encode(_noise(37, 53))
  assert np.shares_memory(
    bitmap.read(encoded), np.frombuffer(encoded, np.uint8)
  )


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1"])
def test_other_bmp_files_are_pillows(mode):
  """Theirs begin with the lowest row."""
  picture = Image.fromarray(_noise(37, 53)).convert(mode)
  file = encode(picture, "BMP")
  assert bitmap.read(file) is None
  found = decode.decode_rgb(file)
  np.testing.assert_array_equal(found, picture.convert("RGB"))


def test_other_channels_are_as_from_png():
  image, file, spec = _noise(37, 53), io.BytesIO(), ImageSpec(channels=1)
  Image.fromarray(image).save(file, "PNG")
  np.testing.assert_array_equal(
    decode.decode_image(bitmap.encode(image), spec),
    decode.decode_image(file.getvalue(), spec),
  )


def test_a_file_that_is_cut_or_too_large_is_refused(monkeypatch):
  encoded = bitmap.encode(_noise(37, 53))
  for size in (1, 2, 53, 54, len(encoded) - 4):
    with pytest.raises(UnreadableImageError):
      decode.decode_rgb(encoded[:size])
  monkeypatch.setattr(example, "MAX_PIXELS", 37 * 53 - 1)
  with pytest.raises(UnreadableImageError, match="37"):
    decode.decode_rgb(encoded)
