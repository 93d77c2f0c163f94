"""Maps in colour on photographs: what is seen, and that it can be seen."""

import matplotlib
import numpy as np
import pytest

from vit_jax.inspection import overlay

RNG = np.random.default_rng(0)
LUMINANCE = (0.2126, 0.7152, 0.0722)
# A photograph of stripes, 4 pixels wide, and a map that rises to the right.
STRIPES = np.repeat(np.arange(80)[:, None] // 4 % 2, 300, axis=1)
SLOPE = np.tile(np.arange(6, dtype=np.float32), (2, 1))


def photograph(dark, light):
  levels = np.where(STRIPES, light, dark)
  return np.repeat(levels[..., None], 3, axis=2).astype(np.uint8)


def contrast(light, dark):
  return (light.mean() + 0.05) / (dark.mean() + 0.05)


@pytest.mark.parametrize("levels", [(0, 255), (0, 6), (120, 130), (250, 255)])
@pytest.mark.parametrize("flatness", [1, 1e-3])
def test_map_and_photograph_can_both_be_seen(levels, flatness):
  """Also on a dark photograph, and if the map is nearly flat."""
  seen = overlay.overlaid(photograph(*levels), 1 + flatness * SLOPE)
  # Relative luminance; sRGB is close to a power of 2.2.
  light = (seen / 255) ** 2.2 @ np.array(LUMINANCE)
  left, right = light[:, :30], light[:, -30:]
  # WCAG 2.1 asks for a contrast of 3 : 1 between the parts of a graphic.
  assert contrast(right, left) > 3
  stripe = STRIPES[:, :30] == 1
  assert contrast(left[stripe], left[~stripe]) > 3
  assert contrast(right[stripe], right[~stripe]) > 1.5


def test_the_colours_are_those_of_the_map():
  """On black, what is left is the colour map at the map's smooth values."""
  black = np.zeros((256, 384, 3), np.uint8)
  map_ = np.array([[1.0, 3.0]])
  seen = overlay.coloured(overlay.grey(black), map_, (1, 3))
  ends = matplotlib.colormaps["inferno"]([0.0, 1.0])[:, :3]
  np.testing.assert_allclose(seen[0, [0, -1]], 0.55 * 255 * ends, atol=1.5)
  # From left to right the picture only gets lighter, without a step.
  light = seen[128] @ np.array(LUMINANCE)
  assert (np.diff(light) > -1).all() and np.diff(light).max() < 3


def test_an_outlier_does_not_hide_the_rest():
  map_ = RNG.uniform(0.9, 1.1, (16, 16))
  map_[3, 3] = 100
  low, high = overlay.limits(map_)
  assert 0.9 < low < high < 1.1


@pytest.mark.parametrize("value", [0.0, 1 / 196, 7.0])
def test_a_constant_map_lies_in_the_middle_of_its_scale(value):
  map_ = np.full((4, 4), value, np.float32)
  low, high = overlay.limits(map_)
  assert low < value < high or (value == 0 and low < 0 < high)
  seen = overlay.overlaid(np.zeros((256, 256, 3), np.uint8), map_)
  middle = 0.55 * 255 * np.array(matplotlib.colormaps["inferno"](0.5)[:3])
  np.testing.assert_allclose(seen[0, 0], middle, atol=2)


def test_a_share_of_1_is_an_even_one():
  np.testing.assert_allclose(overlay.relative(np.full((2, 2), 0.3)), 1)
  np.testing.assert_array_equal(overlay.relative(np.zeros((2, 2))), 0)


def test_a_tiny_photograph_is_enlarged_and_a_large_one_kept():
  tiny = RNG.integers(0, 256, (8, 10, 3), dtype=np.uint8)
  large = overlay.enlarged(tiny)
  assert large.shape == (208, 260, 3)
  np.testing.assert_array_equal(large[::26, ::26], tiny)
  assert overlay.overlaid(tiny, SLOPE).shape == large.shape
  photo = photograph(0, 255)
  assert overlay.overlaid(photo, SLOPE).shape == photo.shape
