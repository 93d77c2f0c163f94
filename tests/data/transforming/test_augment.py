"""Random boxes, 3-Augment, colour jitter and erasing, against NumPy."""

import math

import numpy as np
import pytest

from tests.data.pictures import rngs
from tests.image_files import GOOD
from vit_jax.data.settings import TrainTransformSettings
from vit_jax.data.transforming.augment import (
  colour_jitter,
  erase,
  inception_box,
  published_box,
  three_augment,
)
from vit_jax.data.transforming.transforms import make_train_transform

IMAGE = np.random.default_rng(0).integers(0, 256, (40, 48, 3), np.uint8)
GREY = np.round(IMAGE @ np.array([0.299, 0.587, 0.114]))


def test_inception_boxes_follow_the_formula():
  height, width = 600, 800
  boxes = np.array(
    [inception_box(height, width, 0.05, rng) for rng in rngs(4000)]
  )
  top, left, h, w = boxes.T
  assert (top >= 0).all() and (left >= 0).all()
  assert (top + h <= height).all() and (left + w <= width).all()
  area, log_ratio = h * w / (height * width), np.log(w / h)
  assert 0.049 < area.min() and area.max() <= 1
  assert np.abs(log_ratio).max() < math.log(4 / 3) + 0.02
  # Boxes up to 9/16 of the area fit whatever their ratio (4/3 is the widest
  # that 800 x 600 holds whole, 3/4 then has 9/16): among these the area is
  # uniform, and the logarithm of the ratio too.
  free = area < 9 / 16
  quantiles = np.quantile(area[free], [0.25, 0.5, 0.75])
  expected = 0.05 + (9 / 16 - 0.05) * np.array([0.25, 0.5, 0.75])
  np.testing.assert_allclose(quantiles, expected, atol=0.02)
  quantiles = np.quantile(log_ratio[free], [0.25, 0.5, 0.75])
  expected = math.log(4 / 3) * np.array([-0.5, 0, 0.5])
  np.testing.assert_allclose(quantiles, expected, atol=0.02)
  # Positions are uniform over those that remain.
  slack = height - h[free]
  assert abs(np.mean(top[free] / slack) - 0.5) < 0.02


@pytest.mark.parametrize(
  "shape, expected",
  [((10, 1000), (0, 493, 10, 13)), ((1000, 12), (492, 0, 16, 12))],
)
def test_long_images_give_their_largest_central_box(shape, expected):
  # A box of 60 % of such an image, at a ratio of 4/3 at most, never fits.
  assert inception_box(*shape, 0.6, np.random.default_rng(0)) == expected


@pytest.mark.parametrize(
  "draw, mean, small",
  [(inception_box, 0.42, 0.28), (published_box, 0.34, 0.43)],
)
def test_areas_of_boxes_on_photographs(draw, mean, small):
  """The figures were counted with TensorFlow's op and with ours."""
  boxes = np.array([draw(375, 500, 0.05, rng) for rng in rngs(4000)])
  areas = boxes[:, 2] * boxes[:, 3] / (375 * 500)
  assert areas.mean() == pytest.approx(mean, abs=0.015)
  assert (areas < 1 / 4).mean() == pytest.approx(small, abs=0.025)


def test_published_boxes_follow_the_formula():
  height, width = 600, 800
  boxes = [published_box(height, width, 0.05, rng) for rng in rngs(4000)]
  top, left, h, w = np.array(boxes).T
  assert (top + h <= height).all() and (left + w <= width).all()
  assert (top + h == height).sum() == (h == height).sum()
  ratio = w / h
  assert 0.745 < ratio.min() and ratio.max() < 1.335
  # Any ratio fits at all heights up to 600, since 1.33 x 600 = 798: both are
  # uniform, and the least height is that of the least area.
  np.testing.assert_allclose(
    np.quantile(ratio, [0.25, 0.5, 0.75]), [0.895, 1.04, 1.185], atol=0.02
  )
  least = np.sqrt(0.05 * height * width / ratio)
  place = (h - least) / (height - least)
  assert -0.01 < place.min() and place.max() <= 1
  np.testing.assert_allclose(
    np.quantile(place, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.03
  )


def test_where_no_published_box_fits_it_is_the_whole_image():
  rng = np.random.default_rng(0)
  assert published_box(10, 1000, 0.6, rng) == (0, 0, 10, 1000)
  for _ in range(20):
    assert published_box(1, 1, 0.05, rng) == (0, 0, 1, 1)


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
