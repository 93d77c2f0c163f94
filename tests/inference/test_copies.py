"""Copies of an image are told from other images of its kind by pixels."""

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import noise
from vit_jax.data.example import ImageSpec
from vit_jax.inference.copies import Copies, are_copies, thumbnail

H, W = 96, 128


def photograph(seed):
  """Large and small shapes, the large ones stronger, as photographs have."""
  rng = np.random.default_rng(seed)
  total = np.zeros((H, W, 3), np.float32)
  for cells in (3, 6, 12, 24):
    shapes = rng.normal(size=(cells, cells, 3)).astype(np.float32) / cells
    total += cv2.resize(shapes, (W, H), interpolation=cv2.INTER_CUBIC)
  total -= total.min()
  return (total / total.max() * 220).astype(np.uint8)


def jpeg(image):
  quality = [cv2.IMWRITE_JPEG_QUALITY, 20]
  return cv2.imdecode(cv2.imencode(".jpg", image, quality)[1], 1)


def brighter(image):
  return np.clip(image * 1.25, 0, 255).astype(np.uint8)


COPIES = {
  "same": lambda x: x,
  "jpeg": jpeg,
  "smaller": lambda x: cv2.resize(x, (32, 24), interpolation=cv2.INTER_AREA),
  "larger": lambda x: cv2.resize(x, (300, 225)),
  "other proportions": lambda x: cv2.resize(x, (100, 100)),
  "darker": lambda x: (x * 0.8).astype(np.uint8),
  "brighter": brighter,
  "grey": lambda x: x.mean(-1, keepdims=True).astype(np.uint8),
  "inner part": lambda x: x[H // 10 : -H // 10, W // 10 : -W // 10],
  "corner": lambda x: x[: H * 9 // 10, : W * 9 // 10],
  "without a strip": lambda x: x[H // 10 :],
  "mirrored": lambda x: x[:, ::-1],
  "turned": lambda x: np.rot90(x),
  "upside down": lambda x: x[::-1, ::-1],
  "several": lambda x: jpeg(brighter(x[4:-4, ::-1][:, 4:-4])),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_found_from_both_sides(name):
  image = photograph(0)
  one, other = thumbnail(image), thumbnail(COPIES[name](image))
  assert are_copies(one, other) and are_copies(other, one)


def test_other_images_of_a_kind_are_none():
  """All pairs of twenty."""
  pictures = [thumbnail(photograph(seed)) for seed in range(20)]
  rows = [(a, b) for a in range(20) for b in range(a)]
  assert not [1 for a, b in rows if are_copies(pictures[a], pictures[b])]


def test_plain_images_are_alike_and_like_no_other():
  plain = np.full((9, 9, 3), 200, np.uint8)
  assert are_copies(thumbnail(plain), thumbnail(plain // 2))
  assert not are_copies(thumbnail(plain), thumbnail(photograph(0)))


def test_files_are_read_once_and_a_lost_one_is_no_copy(tmp_path, monkeypatch):
  pictures = [photograph(0), brighter(photograph(0)), noise(60, 40)]
  files = [str(tmp_path / f"{n}.png") for n in range(4)]
  for file, picture in zip(files, pictures, strict=False):
    Image.fromarray(picture).save(file)
  copies = Copies(files, ImageSpec(3))
  rows, others = np.array([0, 1, 0, 3, 2]), np.array([1, 0, 2, 0, 3])
  expected = [True, True, False, False, False]
  assert copies(rows, others).tolist() == expected
  (tmp_path / "0.png").unlink()
  assert copies(rows, others).tolist() == expected
