"""The operations of RandAugment against their formulas."""

import math

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import coordinates, noise, rngs
from vit_jax.data.transforming import randaugment
from vit_jax.data.transforming.randaugment import (
  GREY,
  OPS,
  PUBLISHED,
  rand_augment,
)

# RandAugment, at magnitude 10 m (m = 1 is the top of the paper's scale).


def augmented(name: str, pixels: np.ndarray, strength: float, seed=0, ops=OPS):
  rng = np.random.default_rng(seed)
  return np.asarray(ops[name](Image.fromarray(pixels), strength, rng))


def test_the_sixteen_operations():
  assert len(OPS) == 16
  for name in OPS:
    for strength in (0, 0.3, 1, 1.5, 3):
      result = augmented(name, noise(9, 7), strength)
      assert result.shape == (9, 7, 3) and result.dtype == np.uint8


def test_operations_that_map_values():
  x = noise(16, 16)
  wide = x.astype(int)
  expected = {
    ("invert", 1.0): 255 - wide,
    ("posterize", 1.0): wide & 0xF0,
    ("posterize", 0.5): wide & 0xC0,
    ("solarize", 0.5): np.where(wide < 128, wide, 255 - wide),
    ("solarize", 1.0): wide,
    ("solarize_add", 1.0): np.where(
      wide < 128, np.minimum(wide + 110, 255), wide
    ),
  }
  for (name, strength), result in expected.items():
    np.testing.assert_array_equal(augmented(name, x, strength), result)


def test_operations_that_blend():
  x = noise(16, 16).astype(float)
  grey = x @ [0.299, 0.587, 0.114]
  towards = {
    "brightness": np.zeros_like(x),
    "contrast": np.full_like(x, round(grey.mean())),
    "color": grey[..., None].repeat(3, 2),
  }
  for name, other in towards.items():
    for strength in (0.0, 0.5, 1.0):
      factor = 0.1 + 1.8 * strength
      expected = np.clip(other + factor * (x - other), 0, 255)
      result = augmented(name, x.astype(np.uint8), strength)
      np.testing.assert_allclose(result, expected, atol=1.6, err_msg=name)


def test_sharpness_blends_with_a_smoothed_image():
  x = noise(16, 16).astype(float)
  kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
  smooth = sum(
    kernel[i, j] * x[i : i + 14, j : j + 14] for i in range(3) for j in range(3)
  )
  inside = x[1:-1, 1:-1]
  expected = np.clip(smooth + 1.9 * (inside - smooth), 0, 255)
  result = augmented("sharpness", x.astype(np.uint8), 1.0)[1:-1, 1:-1]
  np.testing.assert_allclose(result, expected, atol=1.6)


def test_autocontrast_spreads_and_equalize_evens():
  x = (noise(64, 64) // 4 + 50).astype(np.uint8)
  spread = augmented("autocontrast", x, 1.0)
  low, high = x.min((0, 1)), x.max((0, 1))
  expected = (x - low) * (255.0 / (high - low))
  np.testing.assert_allclose(spread, expected, atol=1)
  # A level becomes 255 times the share of pixels below it, in whole steps.
  even = augmented("equalize", x, 1.0)
  for channel in range(3):
    counts = np.bincount(x[..., channel].ravel(), minlength=256)
    step = (counts.sum() - counts[counts > 0][-1]) // 255
    below = np.cumsum(counts) - counts
    table = np.minimum((below + step // 2) // step, 255)
    np.testing.assert_array_equal(even[..., channel], table[x[..., channel]])


@pytest.mark.parametrize("seed", range(4))
def test_operations_that_move(seed):
  """Each maps coordinates, which a ramp's values show."""
  x = coordinates(100, 120)
  rows, columns = np.mgrid[:100, :120].astype(float)
  angle = math.radians(30)
  dx, dy = columns - 59.5, rows - 49.5
  sources = {
    "translate_x": lambda s: (columns + s * 120 * 100 / 224, rows),
    "translate_y": lambda s: (columns, rows + s * 100 * 100 / 224),
    "shear_x": lambda s: (columns + s * 0.3 * rows, rows),
    "shear_y": lambda s: (columns, rows + s * 0.3 * columns),
    "rotate": lambda s: (
      59.5 + dx * math.cos(angle) - s * dy * math.sin(angle),
      49.5 + s * dx * math.sin(angle) + dy * math.cos(angle),
    ),
  }
  for name, source in sources.items():
    result = augmented(name, x, 1.0, seed).astype(float)

    def misses(sign, source=source, result=result):
      u, v = source(sign)
      inside = (u > 1) & (u < 118) & (v > 1) & (v < 98)
      there = np.stack([u, v], -1)[inside]
      return np.abs(result[inside][:, :2] - there).max()

    assert min(misses(1), misses(-1)) < 1.6, name


def test_places_from_outside_are_grey():
  x = np.zeros((50, 50, 3), np.uint8)
  moved = augmented("translate_x", x, 1.0)
  shift = 50 * 100 / 224
  assert (moved == GREY).all(-1).sum() == pytest.approx(50 * shift, abs=50)


def test_cutout_greys_one_square():
  x = np.zeros((224, 224, 3), np.uint8)
  for seed in range(20):
    grey = (augmented("cutout", x, 1.0, seed) == GREY).all(-1)
    rows, columns = np.flatnonzero(grey.any(1)), np.flatnonzero(grey.any(0))
    assert grey.sum() == len(rows) * len(columns)
    for filled in (rows, columns):  # Shorter only where it is cut off.
      at_edge = filled[0] == 0 or filled[-1] == 223
      assert 40 <= len(filled) <= 80 and (at_edge or len(filled) == 80)


def test_layers_are_drawn_uniformly():
  x = noise(8, 8)
  assert rand_augment(x, np.random.default_rng(0), 0) is x
  only_invert = 255 - x
  inverted = sum(
    np.array_equal(rand_augment(x, rng, 1, 10), only_invert)
    for rng in rngs(1600)
  )
  assert 60 < inverted < 140  # 1600 / 16; 4 standard deviations.


def test_timm_applies_an_operation_half_of_the_time(monkeypatch):
  monkeypatch.setattr(randaugment, "TIMM", {"invert": OPS["invert"]})
  x = noise(8, 8)
  inverted = [
    (rand_augment(x, rng, 1, timm=True) == 255 - x).all() for rng in rngs(400)
  ]
  assert 160 < sum(inverted) < 240  # 4 standard deviations.


@pytest.mark.parametrize("size, level", [(16, 1), (224, 196), (300, 255)])
def test_the_published_contrast_blends_with_the_number_of_pixels(size, level):
  x = noise(size, size).astype(float)
  for strength in (0.0, 0.5, 1.0):
    factor = 0.1 + 1.8 * strength
    expected = np.clip(level + factor * (x - level), 0, 255)
    result = augmented("contrast", x.astype(np.uint8), strength, ops=PUBLISHED)
    np.testing.assert_allclose(result, expected, atol=1)


def test_the_published_solarize_takes_its_threshold_modulo_256():
  """So it inverts an image at magnitude 10; posterize is the same as ours."""
  x = noise(9, 7)
  for strength, threshold in ((0.5, 128), (1.0, 0), (1.5, 128), (2.0, 0)):
    result = augmented("solarize", x, strength, ops=PUBLISHED)
    np.testing.assert_array_equal(result, np.where(x < threshold, x, 255 - x))
  for strength, mask in ((0.2, 0x80), (1.0, 0xF0), (2.5, 0x80)):
    result = augmented("posterize", x, strength, ops=PUBLISHED)
    np.testing.assert_array_equal(result, x & mask)


@pytest.mark.parametrize(
  "name", ["rotate", "shear_x", "shear_y", "translate_x", "translate_y"]
)
def test_published_moves_invent_no_colours(name):
  """Nearest neighbours: of two levels and grey, no other comes out."""
  x = np.where(noise(40, 40) < 128, 0, 255).astype(np.uint8)
  found = set(np.unique(augmented(name, x, 0.77, ops=PUBLISHED)))
  assert found <= {0, GREY, 255}
  assert not set(np.unique(augmented(name, x, 0.77))) <= {0, GREY, 255}


def test_published_operations_are_drawn_alike():
  assert list(PUBLISHED) == list(OPS)
  x = noise(8, 8)
  inverted = [
    (rand_augment(x, rng, 1, 10, True) == 255 - x).all() for rng in rngs(800)
  ]
  assert 70 < sum(inverted) < 130  # Invert and solarize: 800 / 8.
