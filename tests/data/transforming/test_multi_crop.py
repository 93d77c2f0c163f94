"""Crops of two sizes: which part they show, and how they are changed."""

import dataclasses

import numpy as np
import pytest

from tests.data import pictures
from vit_jax.data.example import Example, ImageSpec
from vit_jax.data.transforming.augment import random_box
from vit_jax.data.transforming.multi_crop import MultiCrop, change_colours


def png(pixels):
  return Example(image=pictures.png(pixels), label=0, id="x")


def test_boxes_cover_their_share_of_the_image():
  rng = np.random.default_rng(0)
  boxes = np.array([random_box(60, 80, (0.1, 0.3), rng) for _ in range(2_000)])
  top, left, h, w = boxes.T
  assert top.min() == 0 and (top + h).max() == 60 and (left + w).max() == 80
  shares, ratios = h * w / 4800, w / h
  assert 0.09 < shares.min() and shares.max() < 0.32
  assert shares.mean() == pytest.approx(0.2, abs=0.005)
  assert 0.7 < ratios.min() and ratios.max() < 1.43
  assert np.log(ratios).mean() == pytest.approx(0, abs=0.02)
  assert random_box(4, 90, (0.9, 1.0), rng) == (0, 42, 4, 5)  # None fits.


def test_a_row_has_crops_of_two_sizes():
  """Of a picture whose colours tell the place."""
  y, x = np.mgrid[:128, :128]
  picture = np.stack([2 * y, 2 * x, 0 * x], axis=-1).astype(np.uint8)
  crops = MultiCrop((32, 24), (8, 8), 5, (0.05, 0.3, 1.0), colours=False)
  row = crops.row(png(picture), np.random.default_rng(0))
  assert {k: (v.shape, v.dtype) for k, v in row.items()} == {
    k: (one.shape, one.dtype) for k, one in crops.spec.items()
  }

  def share(crop):
    height, width = (np.ptp(crop[..., k].astype(int)) / 255 for k in (0, 1))
    return height * width

  assert share(row["image"]) > 0.2 and share(row["second"]) > 0.2
  small = [share(crop) for crop in row["small"]]
  assert max(small) < 0.31 and len({*small}) == 5
  again = crops.row(png(picture), np.random.default_rng(0))
  assert all((row[k] == again[k]).all() for k in row)
  assert "small" not in MultiCrop((8, 8), (4, 4), 0, (0.1, 0.3, 1.0)).spec


def test_large_crops_come_in_detail_as_well():
  """They show the same place, with their own colours, and change no draw."""
  y, x = np.mgrid[:128, :128]
  picture = png(np.stack([2 * y, 2 * x, 0 * x], axis=-1).astype(np.uint8))
  plain = MultiCrop((16, 12), (8, 8), 2, (0.05, 0.3, 1.0))
  crops = dataclasses.replace(plain, detail=(32, 24))
  assert crops.spec["detailed"].shape == (2, 32, 24, 3)
  for seed in range(8):
    row = crops.row(picture, np.random.default_rng(seed))
    other = plain.row(picture, np.random.default_rng(seed))
    assert all((row[name] == other[name]).all() for name in other)
    own = dataclasses.replace(crops, colours=False)
    row = own.row(picture, np.random.default_rng(seed))
    halved = row["detailed"][0].reshape(16, 2, 12, 2, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(halved, row["image"], atol=3)


def test_colours_are_changed_with_their_chances():
  rng = np.random.default_rng(0)
  noise = rng.integers(0, 256, (16, 16, 3), np.uint8)
  many = [change_colours(noise, (0.0, 0.0), rng) for _ in range(400)]
  same = np.mean([(image == noise).all() for image in many])
  grey = np.mean([(image == image[..., :1]).all() for image in many])
  assert same == pytest.approx(0.2 * 0.8, abs=0.06)
  assert grey == pytest.approx(0.2, abs=0.06)
  plain = np.full((16, 16, 3), 200, np.uint8)
  plain[8:] = 40
  edges = [
    np.unique(change_colours(plain, (1.0, 0.0), rng)[..., 0]).size
    for _ in range(50)
  ]
  assert np.mean(np.array(edges) > 2) > 0.8  # Blurred.
  solar = [change_colours(plain, (0.0, 1.0), rng) for _ in range(50)]
  assert np.mean([image.max() < 140 for image in solar]) > 0.8
  one = change_colours(noise[..., :1], (0.5, 0.5), rng)
  assert one.shape == (16, 16, 1) and one.dtype == np.uint8
  with pytest.raises(ValueError, match="colours=True is for images of 1 or 3"):
    MultiCrop((8, 8), (4, 4), 1, (0.1, 0.3, 1.0), image_spec=ImageSpec(5))
