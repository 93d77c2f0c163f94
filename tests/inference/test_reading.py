"""Images read from files, from Pillow and from arrays are the same pixels."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.photos import PREPROCESSING, pixels_of, write_photos
from vit_jax.data.decoding.decode import decode_rgb
from vit_jax.inference.reading import read_images


@pytest.fixture
def photos(tmp_path):
  return write_photos(tmp_path)


def test_images_are_read_as_for_a_prediction(photos, tmp_path):
  images = read_images(PREPROCESSING, photos)
  assert images.dtype == np.uint8
  np.testing.assert_array_equal(images, [pixels_of(path) for path in photos])
  bad = tmp_path / "text.jpg"
  bad.write_text("not an image")
  with pytest.raises(ValueError, match=r"text\.jpg: "):
    read_images(PREPROCESSING, [photos[0], str(bad)])


def _tall(mode):
  pixels = np.random.default_rng(0).integers(0, 256, (40, 16, 3), np.uint8)
  return Image.fromarray(pixels).convert(mode)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_a_pillow_image_is_read_as_its_file(mode):
  file = io.BytesIO()
  _tall(mode).save(file, "PNG")
  expected = PREPROCESSING.transform()(file.getvalue())
  (found,) = read_images(PREPROCESSING, [_tall(mode)])
  np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "HSV"])
def test_modes_that_png_lacks_become_rgb(mode):
  picture = _tall(mode)
  (found,) = read_images(PREPROCESSING, [picture])
  (expected,) = read_images(PREPROCESSING, [np.array(picture.convert("RGB"))])
  np.testing.assert_array_equal(found, expected)


def test_a_turned_photograph_is_upright(tmp_path):
  path = tmp_path / "turned.jpg"
  exif = Image.Exif()
  exif[0x0112] = 6  # The camera was held upright.
  _tall("RGB").save(path, exif=exif, quality=95)
  assert decode_rgb(path.read_bytes()).shape == (16, 40, 3)
  with Image.open(path) as opened:
    from_pillow, from_file = read_images(PREPROCESSING, [opened, path])
  # Pillow and our decoder differ by rounding in the colours.
  difference = np.abs(from_pillow.astype(int) - from_file)
  assert difference.mean() < 1


@pytest.mark.parametrize(
  "array",
  [
    np.zeros((16, 16, 3), np.float32),
    np.zeros((1, 16, 16, 3), np.uint8),
    np.zeros((3, 16, 16), np.uint8),
    [[0, 1], [1, 0]],
  ],
)
def test_other_arrays_are_refused(array):
  with pytest.raises(ValueError, match="give a path, a Pillow image or an arr"):
    read_images(PREPROCESSING, [array])
