"""Resizing against its formulas: means of areas, bilinear, fast boxes."""

import numpy as np
import pytest

from tests.data.pictures import noise
from vit_jax.data.transforming.resize import resize, resize_fast


@pytest.mark.parametrize(
  "h, w", [(8, 12), (7, 30), (16, 24), (41, 24), (90, 9)]
)
def test_random_boxes_lose_no_pixel_and_no_brightness(h, w):
  """Resizing is linear in each pixel, so one pixel at a time is tried."""
  size = 8, 12
  weights = np.empty((h, w))
  for at in np.ndindex(h, w):
    image = np.zeros((h, w, 3), np.uint8)
    image[at] = 255
    weights[at] = resize_fast(image, size)[..., 0].sum()
  assert weights.min() > 0
  area = 255 * size[0] * size[1] / (h * w)
  np.testing.assert_allclose(weights.mean(), area, rtol=0.05)


@pytest.mark.parametrize("h, w", [(8, 12), (16, 24), (8, 24)])
def test_random_boxes_by_whole_factors_are_means_of_blocks(h, w):
  pixels = noise(h, w)
  blocks = pixels.reshape(8, h // 8, 12, w // 12, 3).mean(axis=(1, 3))
  found = resize_fast(pixels, (8, 12))
  assert np.abs(found - blocks).max() <= 1


def test_shrinking_averages_areas():
  pixels = noise(12, 20)
  expected = pixels.reshape(3, 4, 5, 4, 3).mean((1, 3))
  np.testing.assert_allclose(resize(pixels, (3, 5)), expected, atol=0.51)
  # An axis that shrinks is averaged even if the other grows.
  mixed = resize(pixels, (24, 5)).astype(float)
  shrunk = pixels.reshape(12, 5, 4, 3).mean(2)
  np.testing.assert_allclose(mixed[0], shrunk[0], atol=1)
  assert resize(pixels, (12, 20)) is pixels


def test_enlarging_is_bilinear():
  pixels = np.array([[0, 100]], np.uint8)[..., None].repeat(3, 2)
  assert resize(pixels, (1, 4))[0, :, 0].tolist() == [0, 25, 75, 100]
