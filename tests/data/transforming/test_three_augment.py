"""3-Augment, colour jitter and random erasing, against NumPy."""

import numpy as np
import pytest

from tests.image_files import GOOD
from vit_jax.data.settings import TrainTransformSettings
from vit_jax.data.transforming.three_augment import (
  colour_jitter,
  erase,
  three_augment,
)
from vit_jax.data.transforming.transforms import make_train_transform

IMAGE = np.random.default_rng(0).integers(0, 256, (40, 48, 3), np.uint8)
GREY = np.round(IMAGE @ np.array([0.299, 0.587, 0.114]))


def test_an_image_becomes_grey_or_solarized_or_blurred():
  counts = {"grey": 0, "solarized": 0, "blurred": 0}
  solarized = np.where(IMAGE < 128, IMAGE, 255 - IMAGE)
  for seed in range(300):
    found = three_augment(IMAGE, np.random.default_rng(seed))
    assert found.shape == IMAGE.shape and found.dtype == np.uint8
    if np.array_equal(found, solarized):
      counts["solarized"] += 1
    elif np.abs(found - GREY[..., None]).max() <= 1:
      counts["grey"] += 1
    else:  # A blur keeps the mean and lessens the spread.
      assert found.mean() == pytest.approx(IMAGE.mean(), abs=2)
      assert found.std() <= IMAGE.std()
      counts["blurred"] += 1
  assert all(70 < count < 130 for count in counts.values())


class Fixed:
  """Gives the operations in order, and chosen factors."""

  def __init__(self, *factors):
    self.factors = list(factors)

  def permutation(self, count):
    return range(count)

  def uniform(self, low, high):
    assert (low, high) == pytest.approx((0.7, 1.3))
    return self.factors.pop(0)


@pytest.mark.parametrize("factor", [0.7, 1.2])
def test_jitter_scales_brightness_contrast_and_saturation(factor):
  bright = np.clip(IMAGE * factor, 0, 255)
  found = colour_jitter(IMAGE, Fixed(factor, 1, 1), 0.3)
  assert np.abs(found - bright).max() <= 1
  contrast = np.clip(GREY.mean() + factor * (IMAGE - GREY.mean()), 0, 255)
  found = colour_jitter(IMAGE, Fixed(1, factor, 1), 0.3)
  assert np.abs(found - contrast).max() <= 2
  grey = GREY[..., None]
  colour = np.clip(grey + factor * (IMAGE - grey), 0, 255)
  found = colour_jitter(IMAGE, Fixed(1, 1, factor), 0.3)
  assert np.abs(found - colour).max() <= 2


def test_erasing_fills_one_box_of_the_right_size():
  lost, shares = 0, []
  black = np.zeros((60, 60, 3), np.uint8)
  for seed in range(200):
    found = erase(black, np.random.default_rng(seed), 0.5)
    changed = found.any(axis=-1)
    if not changed.any():
      continue
    lost += 1
    rows, columns = (np.flatnonzero(changed.any(axis=a)) for a in (1, 0))
    h, w = np.ptp(rows) + 1, np.ptp(columns) + 1
    assert changed[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
    shares.append(h * w / 3600)
    assert 0.25 < h / w < 4
  assert 70 < lost < 130
  assert 0.015 < min(shares) and max(shares) < 0.36
  assert not black.any()  # The image itself is not written to.


def test_the_transform_applies_them_and_draws_nothing_else_when_off():
  plain_settings = TrainTransformSettings(crop="resize", flip=False)
  transform = make_train_transform(16, plain_settings)
  image = transform(GOOD, np.random.default_rng(0))
  settings = TrainTransformSettings(
    crop="resize", flip=False, three_augment=True, colour_jitter=0.3, erase=1.0
  )
  rng = np.random.default_rng(0)
  found = make_train_transform(16, settings)(GOOD, np.random.default_rng(0))
  expected = erase(colour_jitter(three_augment(image, rng), rng, 0.3), rng, 1.0)
  np.testing.assert_array_equal(found, expected)
