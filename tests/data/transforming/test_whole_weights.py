"""Filters by whole weights; tests/test_pixels.py compares with torchvision."""

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.transforming.whole_weights import (
  KERNELS,
  resize,
  resize_nearest,
)


def test_two_pixels_become_four_by_quarters():
  image = np.array([[0, 255]], np.uint8)[..., None]
  found = resize(image, (2, 4), "bilinear")
  assert found[..., 0].tolist() == [[0, 64, 191, 255]] * 2
  # The weights are whole: 0.5 and 1.5 are hit exactly, and rounded up.
  found = resize(np.array([[[0], [2]]], np.uint8), (1, 4), "bilinear")
  assert found[..., 0].tolist() == [[0, 1, 2, 2]]


@pytest.mark.parametrize("size", [(9, 40), (31, 5), (20, 24)])
@pytest.mark.parametrize("interpolation", KERNELS)
def test_pixels_are_those_of_pillow_to_the_rounding_of_weights(
  interpolation, size
):
  """With the same order of passes; each channel is resized by itself."""
  rng = np.random.default_rng(0)
  image = rng.integers(0, 256, (20, 24, 5), np.uint8)
  found = resize(image, size, interpolation)
  assert found.shape == (*size, 5) and found.dtype == np.uint8
  how = Image.Resampling[interpolation.upper()]
  for channel in range(5):
    first = Image.fromarray(image[..., channel]).resize((size[1], 20), how)
    expected = np.asarray(first.resize(size[::-1], how), np.int32)
    difference = np.abs(expected - found[..., channel])
    assert difference.max() <= 2 and difference.mean() < 0.1


@pytest.mark.parametrize("interpolation", KERNELS)
def test_a_plain_picture_stays_as_it_is(interpolation):
  """The rounded weights of a line sum up to 1 within half a level."""
  for level in (0, 1, 127, 255):
    image = np.full((37, 501, 3), level, np.uint8)
    assert (resize(image, (24, 24), interpolation) == level).all()


def test_the_nearest_pixel_is_that_of_the_centre():
  """Pillow takes pixel 179 where the 11th of 28 centres is 180 of 480."""
  image = np.arange(480)[:, None, None] * np.ones((1, 7, 1), int)
  found = resize_nearest(image, (28, 7))[:, 0, 0]
  assert found.tolist() == [(2 * i + 1) * 480 // 56 for i in range(28)]
  small = resize_nearest(np.array([[[1], [2]]], np.uint8), (3, 4))[..., 0]
  assert small.tolist() == [[1, 1, 2, 2]] * 3
