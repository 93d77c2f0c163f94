"""Pictures of every kind are the file that they would be stored in."""

import numpy as np
import pytest
from PIL import Image

from vit_jax import data

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)


def _kinds(folder):
  image = Image.fromarray(PIXELS)
  path = folder / "a.png"
  image.save(path)
  return [str(path), path, image, PIXELS, path.read_bytes()]


def test_transforms_take_files_paths_pillow_images_and_arrays(tmp_path):
  to_eval = data.make_eval_transform((20, 30))
  to_train = data.make_train_transform(8)
  cut = data.Preprocessing((10, 15), cut_from=(20, 30)).transform()
  rng = np.random.default_rng
  expected = to_train(_kinds(tmp_path)[-1], rng(0))
  for picture in _kinds(tmp_path):
    np.testing.assert_array_equal(to_eval(picture), PIXELS)
    np.testing.assert_array_equal(cut(picture), PIXELS[:10, :15])
    np.testing.assert_array_equal(to_train(picture, rng(0)), expected)


@pytest.mark.parametrize(
  "picture, message",
  [
    (np.zeros((4, 4, 3), np.float32), r"\(4, 4, 3\) and type float32; .*uint8"),
    (np.zeros((3, 40, 40), np.uint8), r"an image of shape \(3, 40, 40\)"),
    (None, "type .*NoneType.*; give a path, a Pillow image or"),
  ],
)
def test_what_is_no_picture_is_refused(picture, message):
  with pytest.raises(ValueError, match=message):
    data.make_eval_transform(16)(picture)
