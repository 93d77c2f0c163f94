"""Random boxes against their formulas, and against published figures."""

import math

import numpy as np
import pytest

from tests.data.pictures import rngs
from vit_jax.data.transforming.boxes import inception_box, published_box


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
