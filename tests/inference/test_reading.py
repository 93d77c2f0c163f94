"""Images read from files, from Pillow and from arrays are the same pixels."""

import os

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.image_files import encode
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
  expected = PREPROCESSING.transform()(encode(_tall(mode), "PNG"))
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
    np.zeros((16, 3), np.uint8),  # A row of a picture, as of list(picture).
    np.zeros((0, 16, 3), np.uint8),
    [[0, 1], [1, 0]],
  ],
)
def test_other_arrays_are_refused(array):
  with pytest.raises(ValueError, match="give a path, a Pillow image or an arr"):
    read_images(PREPROCESSING, [array])


def test_floats_are_sent_to_the_model():
  floats = np.zeros((16, 16, 3), jnp.bfloat16)
  with pytest.raises(
    ValueError, match=r"Give normalised floats .* model\.apply\({.params"
  ):
    read_images(PREPROCESSING, [floats])
  with pytest.raises(ValueError, match="one image each[.]$"):
    read_images(PREPROCESSING, [np.zeros((16, 16, 3), np.int32)])


ONE = np.random.default_rng(1).integers(0, 256, (16, 24, 3), np.uint8)
ONES = {
  "array": lambda path: ONE,
  "grey": lambda path: ONE[..., 0],
  "grey with an axis": lambda path: ONE[..., :1],
  "path": str,
  "Path": lambda path: path,
  "Pillow image": Image.open,
}


@pytest.mark.parametrize("one", ONES)
def test_a_single_picture_is_a_batch_of_one(tmp_path, one):
  Image.fromarray(ONE).save(tmp_path / "one.png")
  picture = ONES[one](tmp_path / "one.png")
  found = read_images(PREPROCESSING, picture)
  pixels = ONE[..., [0, 0, 0]] if "grey" in one else ONE
  (expected,) = read_images(PREPROCESSING, [pixels])
  np.testing.assert_array_equal(found, expected[None])


def test_arrays_of_four_axes_and_of_paths_have_several(photos):
  expected = read_images(PREPROCESSING, [ONE, ONE[::-1]])
  found = read_images(PREPROCESSING, np.stack([ONE, ONE[::-1]]))
  np.testing.assert_array_equal(found, expected)
  found = read_images(PREPROCESSING, np.array(photos[:2]))
  np.testing.assert_array_equal(found, read_images(PREPROCESSING, photos[:2]))


@pytest.mark.parametrize(
  "images, message",
  [
    (ONE.astype(np.float32), r"shape \(16, 24, 3\) and type float32; give .*u"),
    (ONE[..., 0] / 255, r"shape \(16, 24\) and type float64; give .*uint8"),
    (ONE.transpose(2, 0, 1), r"\(3, 16, 24\) is neither a picture.* transpose"),
    (
      np.stack([ONE[..., 0]] * 9),
      r"\(9, 16, 24\) is neither .* as \(B, H, W, 1\)",
    ),
    (ONE[None, None], r"\(1, 1, 16, 24, 3\) is neither a picture"),
    (np.uint8(1), r"an array of shape \(\) is neither a picture"),
    (ONE[0], r"an array of shape \(24, 3\) is neither a picture"),
    (list(ONE), r"an image of shape \(24, 3\) and type uint8; give"),
    (3, "images of type int; give paths"),
    (None, "images of type NoneType; give paths"),
  ],
)
def test_what_may_be_one_picture_or_several_is_refused(images, message):
  with pytest.raises(ValueError, match=message):
    read_images(PREPROCESSING, images)


def test_the_bytes_of_a_file_and_an_open_file_are_a_picture(tmp_path):
  path = tmp_path / "a.png"
  Image.fromarray(ONE).save(path)
  expected = read_images(PREPROCESSING, path)
  content = path.read_bytes()
  with path.open("rb") as file:
    for given in (content, [content, content], file):
      for pixels in read_images(PREPROCESSING, given):
        np.testing.assert_array_equal(pixels, expected[0])
  with pytest.raises(ValueError, match="^image 1: "):
    read_images(PREPROCESSING, ONE.tobytes())


def test_a_picture_that_is_a_fifo_is_not_waited_for(tmp_path):
  os.mkfifo(tmp_path / "fifo.png")
  with pytest.raises(ValueError, match=r"fifo\.png: a FIFO, not a regular"):
    read_images(PREPROCESSING, [tmp_path / "fifo.png"])
