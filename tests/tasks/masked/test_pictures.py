"""Pictures of masked patches, against loops over their pixels."""

import numpy as np
import pytest

from vit_jax.models.masked_vit import MASK
from vit_jax.tasks.hidden import sheet
from vit_jax.tasks.masked.objective import Masking
from vit_jax.tasks.masked.pictures import patches_of

HALF = (0.5, 0.5, 0.5)


def test_colours_become_patches():
  colours = np.array([[0, 511, 7 * 64, 8, *[1] * 12]])
  found = patches_of(Masking(0.5, "colour4x4", 8, HALF, HALF), colours)
  assert found.shape == (1, 8, 8, 3)
  dark, light = 16, 240  # The middles of the first and the last level.
  for x, expected in enumerate(
    [(dark,) * 3, (light,) * 3, (light, dark, dark), (dark, 48, dark)]
  ):
    cell = found[0, :2, 2 * x : 2 * x + 2].reshape(-1, 3)
    assert (cell == expected).all()
  assert (found[0, 2:] == (dark, dark, 48)).all()


def test_pixels_become_patches():
  masking = Masking(0.5, "pixels", 4, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
  raw = np.random.default_rng(0).integers(1, 255, (2, 4, 4, 3))
  values = ((raw + 0.5) / 255 - masking.mean) / masking.std
  found = patches_of(masking, values.reshape(2, 48))
  np.testing.assert_array_equal(found, raw)
  assert (patches_of(masking, np.full((1, 48), 9.0)) == 255).all()


@pytest.mark.parametrize("side, times", [(8, 24), (256, 1)])
def test_the_panels_are_the_corrupted_the_predicted_and_the_true(side, times):
  P = side // 2
  rng = np.random.default_rng(0)
  image = rng.integers(0, 256, (side, side, 3), np.uint8)
  guess, truth = rng.integers(0, 256, (2, 3, P, P, 3), np.uint8)
  drawn = sheet(
    image, np.array([MASK, 1, 0, 3]), np.array([0, 2, 3]), guess, truth
  )
  assert drawn.shape == (side * times, 3 * side * times + 8, 3)
  width = side * times + 4

  def panel(number):
    whole = drawn[:, number * width : number * width + side * times]
    return whole[::times, ::times]

  upper, lower = slice(0, P), slice(P, None)
  places = [(upper, upper), (upper, lower), (lower, upper), (lower, lower)]
  corrupted = image.copy()
  corrupted[places[0]], corrupted[places[2]] = 128, image[places[0]]
  np.testing.assert_array_equal(panel(0), corrupted)
  for number, patches in ((1, guess), (2, truth)):
    expected = image.copy()
    for place, patch in zip((0, 2, 3), patches, strict=True):
      expected[places[place]] = patch
    np.testing.assert_array_equal(panel(number), expected)
