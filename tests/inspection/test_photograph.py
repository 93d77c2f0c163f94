"""The part of a photograph that a model sees, at its own resolution."""

import numpy as np
import pytest

from tests.data.pictures import png
from vit_jax.data.example import UnreadableImageError
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.settings import EvalTransformSettings
from vit_jax.inspection.photograph import seen_part

PHOTO = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)


def test_a_squashed_photograph_is_shown_whole():
  seen = seen_part(png(PHOTO), Preprocessing((32, 32)))
  np.testing.assert_array_equal(seen, PHOTO)


@pytest.mark.parametrize("size", [(64, 64), (224, 224)])
@pytest.mark.parametrize("crop, columns", [("center", 72), ("squash", 96)])
def test_a_cropped_photograph_shows_what_the_model_sees(size, crop, columns):
  """At a ratio of 1.25, that is the middle 72 of 90 rows."""
  settings = EvalTransformSettings(crop=crop, resize_ratio=1.25)
  seen = seen_part(png(PHOTO), Preprocessing(size, settings))
  left = (120 - columns) // 2
  np.testing.assert_array_equal(seen, PHOTO[9:81, left : left + columns])


def test_a_large_photograph_is_shrunk():
  wide = np.zeros((300, 3000, 3), np.uint8)
  seen = seen_part(png(wide), Preprocessing((32, 32)))
  assert seen.shape == (102, 1024, 3)


def test_what_is_no_photograph_is_refused():
  with pytest.raises(UnreadableImageError, match="known format"):
    seen_part(b"no image", Preprocessing((32, 32)))


def test_16_bits_are_seen_through_the_window_of_the_model():
  levels = np.linspace(1000, 3000, 40 * 50).reshape(40, 50).astype(np.uint16)
  seen = seen_part(png(levels), Preprocessing((8, 8), window=(1000, 3000)))
  assert seen.shape == (40, 50, 3)
  assert seen[0, 0, 0] == 0 and seen[-1, -1, 0] == 255


def test_the_upper_left_part_is_shown_if_the_model_sees_no_more():
  preprocessing = Preprocessing((9, 9), cut_from=(10, 12))
  seen = seen_part(png(PHOTO), preprocessing)
  np.testing.assert_array_equal(seen, PHOTO[:81, :90])
