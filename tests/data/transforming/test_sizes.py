"""The sizes of images that keep their proportions, and their patches."""

import math
import pickle

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import coordinates, encode, noise, png, rngs
from vit_jax.data import make_eval_transform, make_train_transform
from vit_jax.data.settings import EvalTransformSettings, TrainTransformSettings
from vit_jax.data.transforming.patches import IntoPatches, pictures
from vit_jax.data.transforming.sizes import AnySize

# Height, width, P, tokens and the size, by transformers 5.24's
# get_image_size_for_max_num_patches.
PUBLISHED = [
  (480, 640, 16, 256, (224, 288)),
  (640, 480, 16, 256, (288, 224)),
  (1, 1000, 16, 256, (16, 4096)),
  (1000, 1, 14, 64, (896, 14)),
  (1, 1, 16, 256, (112, 112)),
  (224, 224, 16, 196, (224, 224)),
  (333, 500, 14, 256, (182, 266)),
  (3000, 4000, 16, 1024, (432, 576)),
  (37, 1999, 16, 576, (48, 2608)),
  (512, 512, 16, 255, (240, 240)),
  (8, 8, 2, 16, (8, 8)),
  (6000, 100, 32, 49, (1568, 32)),
]


@pytest.mark.parametrize("height, width, P, tokens, expected", PUBLISHED)
def test_a_size_is_that_of_siglip2(height, width, P, tokens, expected):
  assert AnySize(tokens, P).of((height, width)) == expected


@pytest.mark.parametrize("tokens", [1, 2, 7, 256, 1024])
@pytest.mark.parametrize(
  "shape", [(1, 1), (1, 1000), (1000, 1), (3, 7), (1, 50_000_000), (17, 16)]
)
def test_there_is_a_patch_along_each_side_and_never_one_too_many(shape, tokens):
  h, w = AnySize(tokens, 16).grid(shape)
  assert h >= 1 and w >= 1 and h * w <= tokens


def test_the_scale_is_the_largest_and_the_same_for_both_sides():
  draw = np.random.default_rng(0)
  for height, width in draw.integers(64, 4000, (50, 2)):
    h, w = AnySize(256, 14).grid((height, width))
    # Of scales in patches a pixel, those that need h rows and w columns.
    least = max((h - 1) / height, (w - 1) / width)
    most = min(h / height, w / width)
    assert least < most
    # Beyond them, one side or both need another patch.
    beyond = most + 1e-5 / 14
    assert math.ceil(height * beyond) * math.ceil(width * beyond) > 256


@pytest.mark.parametrize("shape", [(60, 41), (41, 60), (1, 300), (32, 32)])
def test_patches_are_the_pixels_of_pillows_resize(shape):
  size = AnySize(tokens=24, patch_size=8)
  image = noise(*shape)
  transform = IntoPatches(make_eval_transform(size), size, 3)
  row = transform.row({"image": png(image), "label": 0, "id": ""})
  h, w = row["size"][0]
  whole = Image.fromarray(image).resize(
    (w * 8, h * 8), Image.Resampling.BILINEAR
  )
  for n in range(h * w):
    top, left = n // w * 8, n % w * 8
    part = np.asarray(whole)[top : top + 8, left : left + 8]
    np.testing.assert_array_equal(row["image"][n], part.reshape(-1))
  assert not row["image"][h * w :].any()
  assert row["image"].shape == transform.spec["image"].shape
  assert row["size"].shape == transform.spec["size"].shape


@pytest.mark.parametrize("crop", ["inception", "pad", "resize"])
@pytest.mark.parametrize("resizer", ["fast", "bicubic"])
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_training_shows_images_of_their_own_size(crop, resizer, kind):
  size = AnySize(tokens=20, patch_size=4)
  settings = TrainTransformSettings(
    crop=crop, resizer=resizer, pad=2, randaugment_layers=2, erase=1.0
  )
  train = make_train_transform(size, settings)
  transform = pickle.loads(pickle.dumps(IntoPatches(train, size, 3)))
  for shape in [(90, 40), (40, 90), (1, 70), (300, 200)]:
    example = {
      "image": encode(Image.fromarray(noise(*shape)), kind),
      "label": 0,
      "id": "",
    }
    for one, other in zip(rngs(3), rngs(3), strict=True):
      row = transform.row(example, one)
      h, w = row["size"][0]
      assert 1 <= h * w <= 20
      np.testing.assert_array_equal(
        row["image"], transform.row(example, other)["image"]
      )


def test_a_random_box_has_the_images_proportions():
  size = AnySize(tokens=64, patch_size=4)
  settings = TrainTransformSettings(flip=False, min_area=0.25)
  transform = make_train_transform(size, settings)
  shares = []
  for rng in rngs(20):
    image = transform(png(coordinates(120, 240)), rng).astype(float)
    assert image.shape[0] in (20, 24) and image.shape[1] in (40, 44)
    h = (image[-1, :, 1] - image[0, :, 1]).mean() * 120 / 119
    w = (image[:, -1, 0] - image[:, 0, 0]).mean()
    shares.append(h * w / (120 * 240))
    assert abs(w / h - 2) < 0.25
  assert 0.2 < min(shares) < 0.5 < max(shares) <= 1.02


def test_images_of_any_size_have_no_common_shape():
  transform = make_eval_transform(AnySize(16, 4), EvalTransformSettings())
  with pytest.raises(ValueError, match="no common height and width"):
    _ = transform.image_shape


def test_a_picture_is_put_together_from_its_patches():
  size = AnySize(tokens=24, patch_size=8)
  images = make_eval_transform(size)
  transform = IntoPatches(images, size, 3)
  file = png(noise(41, 60))
  row = transform.row({"image": file, "label": 0, "id": ""})
  (found,) = pictures({name: x[None] for name, x in row.items()}, 3)
  np.testing.assert_array_equal(found, images(file))
  with pytest.raises(
    ValueError, match="at most 24 patches.* images of one size"
  ):
    transform(file)
