"""Crops and resizing against their formulas."""

import dataclasses
import itertools
import pickle

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from tests.data.pictures import (
  coordinates,
  encode,
  noise,
  png,
  refuse,
  rngs,
  scene,
)
from vit_jax.data import ImageSpec, make_eval_transform, make_train_transform
from vit_jax.data.decoding.decode import decode_image
from vit_jax.data.settings import (
  EVAL_CROPS,
  TRAIN_CROPS,
  EvalTransformSettings,
  TrainTransformSettings,
)
from vit_jax.data.transforming import augment
from vit_jax.data.transforming.transforms import UpperLeft, resize, resize_fast
from vit_jax.runtime.settings import untuned


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (2, 3)])
@pytest.mark.parametrize("crop", ["inception", "pad", "resize"])
def test_tiny_images_become_the_right_size(shape, crop):
  transform = make_train_transform(
    (6, 5), TrainTransformSettings(crop=crop, pad=2)
  )
  for rng in rngs(5):
    image = transform(png(noise(*shape)), rng)
    assert image.shape == (6, 5, 3) and image.dtype == np.uint8


def test_inception_transform_shows_a_box_of_the_image():
  transform = make_train_transform(32, TrainTransformSettings(flip=False))
  for rng in rngs(20):
    image = transform(png(coordinates(200, 200)), rng).astype(int)
    columns, rows = image[..., 0], image[..., 1]
    # Columns grow to the right and rows downwards, by the box's size / 32.
    w = (columns[:, -1] - columns[:, 0]).mean() * 32 / 31
    h = (rows[-1] - rows[0]).mean() * 32 / 31
    assert 0.045 < w * h / 200**2 <= 1.02
    assert 0.72 < w / h < 1.4
    assert np.abs(np.diff(columns, axis=0)).max() <= 1


@pytest.mark.slow
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_large_jpeg_is_decoded_small_and_shows_the_same_box(orientation):
  y, x = np.mgrid[:900, :1300]
  waves = [np.sin(x / 161 + y / 147), np.cos(x / 153), np.sin(y / 173)]
  pixels = np.stack([127.5 + 100 * w for w in waves], -1).astype(np.uint8)
  exif = Image.Exif()
  exif[0x0112] = orientation
  file = encode(Image.fromarray(pixels), "JPEG", quality=95, exif=exif)
  turned = pixels if orientation == 1 else np.rot90(pixels, k=-1)
  transform = make_train_transform(
    96, TrainTransformSettings(min_area=0.5, flip=False)
  )
  for one, other in zip(rngs(8), rngs(8), strict=True):
    found = transform(file, one).astype(int)
    assert np.abs(found - transform(png(turned), other)).mean() < 3


def test_a_jpeg_that_has_to_go_to_another_decoder_is_cropped_alike(monkeypatch):
  file = encode(Image.fromarray(noise(60, 70)), "JPEG", quality=95)
  transform = make_train_transform(32, TrainTransformSettings(min_area=0.5))
  expected = transform(file, np.random.default_rng(0))
  monkeypatch.setattr(simplejpeg, "decode_jpeg", refuse)
  found = transform(file, np.random.default_rng(0))
  assert found.shape == expected.shape == (32, 32, 3)


def test_pad_crops_are_the_shifts_of_an_image_on_black():
  pixels = noise(12, 10)
  padded = np.pad(pixels, ((3, 3), (3, 3), (0, 0)))
  shifts = {
    padded[top : top + 12, left : left + 10].tobytes()
    for top in range(7)
    for left in range(7)
  }
  transform = make_train_transform(
    (12, 10), TrainTransformSettings(crop="pad", pad=3, flip=False)
  )
  found = {transform(png(pixels), rng).tobytes() for rng in rngs(600)}
  assert found == shifts


def test_half_of_the_images_are_mirrored():
  pixels = noise(8, 8)
  transform = make_train_transform(8, TrainTransformSettings(crop="resize"))
  results = [transform(png(pixels), rng) for rng in rngs(400)]
  mirrored = [np.array_equal(r, pixels[:, ::-1]) for r in results]
  straight = [np.array_equal(r, pixels) for r in results]
  assert sum(mirrored) + sum(straight) == 400
  assert 160 < sum(mirrored) < 240  # 4 standard deviations.


@pytest.mark.parametrize("crop", ["inception", "pad", "resize"])
def test_the_generator_decides_everything(crop):
  transform = pickle.loads(
    pickle.dumps(
      make_train_transform(
        16, TrainTransformSettings(crop=crop, randaugment_layers=2)
      )
    )
  )
  encoded = png(noise(40, 30))
  first, again, other = (
    transform(encoded, np.random.default_rng(seed)) for seed in (1, 1, 2)
  )
  np.testing.assert_array_equal(first, again)
  assert (first != other).any()


PUBLISHED, STRONG = {"as_published": True}, {"randaugment_magnitude": 30.0}


@pytest.mark.parametrize("crop", TRAIN_CROPS)
@pytest.mark.parametrize("layers", [0, 2])
@pytest.mark.parametrize(
  "key", [PUBLISHED, STRONG, {"min_area": 0.5}, {"pad": 1}]
)
def test_a_key_that_changes_no_training_image_is_named(crop, layers, key):
  settings = TrainTransformSettings(crop=crop, randaugment_layers=layers)
  other = dataclasses.replace(settings, **key)
  encoded = png(scene(40, 30))
  one, two = (
    [make_train_transform(16, s)(encoded, rng) for rng in rngs(20)]
    for s in (settings, other)
  )
  differ = any(map(np.any, np.not_equal(one, two)))
  assert differ == (next(iter(key)) not in untuned(other))


@pytest.mark.parametrize("crop", EVAL_CROPS)
@pytest.mark.parametrize("filters", [("bilinear", "bicubic"), ("area", "box")])
@pytest.mark.parametrize(
  "key, value",
  [
    ("resize_ratio", 1.5),
    ("corner", "even"),
    ("longest_ratio", 1.25),
    ("antialias", False),
  ],
)
def test_a_key_that_changes_no_evaluated_image_is_named(
  crop, filters, key, value
):
  for filter_name in filters:
    settings = EvalTransformSettings(crop=crop, interpolation=filter_name)
    other = dataclasses.replace(settings, **{key: value})
    sides = itertools.product((38, 41), (60, 63), (13, 15, 21))
    differ = any(
      (
        make_eval_transform(size, settings)(png(scene(height, width)))
        != make_eval_transform(size, other)(png(scene(height, width)))
      ).any()
      for height, width, size in sides
    )
    assert differ == (key not in untuned(other))


def weights(old, new, support=1.0):
  """Pillow's triangle filter along an axis: (new, old), rows sum to 1."""
  scale = old / new
  wide = support * max(scale, 1)
  centre = (np.arange(new)[:, None] + 0.5) * scale - 0.5
  w = np.maximum(1 - abs(np.arange(old) - centre) / wide, 0)
  return w / w.sum(1, keepdims=True)


@pytest.mark.parametrize("size", [(10, 15), (55, 20)])
def test_eval_resize_takes_the_whole_image(size):
  """Each output pixel is a weighted mean by a triangle as wide as the scale."""
  pixels = noise(40, 60)
  tall, wide = weights(40, size[0]), weights(60, size[1])
  expected = np.einsum("hH,wW,HWc->hwc", tall, wide, pixels.astype(float))
  result = make_eval_transform(size)(png(pixels))
  np.testing.assert_allclose(result, expected, atol=1.01)


def test_eval_resize_by_areas_and_without_antialiasing():
  pixels = noise(40, 60)
  area = EvalTransformSettings(interpolation="area")
  expected = pixels.reshape(10, 4, 15, 4, 3).mean((1, 3))
  result = make_eval_transform((10, 15), area)(png(pixels))
  np.testing.assert_allclose(result, expected, atol=0.51)
  # A quarter of the size: the four pixels around the centre of each patch.
  few = EvalTransformSettings(antialias=False)
  expected = pixels.reshape(10, 4, 15, 4, 3)[:, 1:3, :, 1:3].mean((1, 3))
  result = make_eval_transform((10, 15), few)(png(pixels))
  np.testing.assert_allclose(result, expected, atol=1)


def test_tensorflows_resizers_round_once_or_down():
  """A quarter of the size: the four pixels around the centre of each patch."""
  pixels = noise(40, 60)
  exact = pixels.reshape(10, 4, 15, 4, 3)[:, 1:3, :, 1:3].mean((1, 3))
  for name, whole in (
    ("vision_transformer", np.rint),
    ("big_vision", np.floor),
  ):
    own = TrainTransformSettings(crop="resize", flip=False, resizer=name)
    train = make_train_transform((10, 15), own)
    evaluate = make_eval_transform(
      (10, 15), EvalTransformSettings(resizer=name)
    )
    rng = np.random.default_rng(0)
    for result in (train(png(pixels), rng), evaluate(png(pixels))):
      np.testing.assert_array_equal(result, whole(exact))
  with pytest.raises(ValueError, match="has no interpolation='bicubic': set"):
    EvalTransformSettings(interpolation="bicubic", resizer="big_vision")


def test_bicubic_crops_are_resized_by_pillow():
  own = TrainTransformSettings(crop="resize", flip=False, resizer="bicubic")
  result = make_train_transform((20, 30), own)(
    png(noise(40, 60)), np.random.default_rng(0)
  )
  same = EvalTransformSettings(interpolation="bicubic")
  expected = make_eval_transform((20, 30), same)(png(noise(40, 60)))
  np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("resizer", ["bicubic", "big_vision"])
def test_exact_resizers_take_a_box_of_the_whole_jpeg(resizer):
  """Not of one that is decoded at a reduced size, and with chroma as there."""
  file = encode(Image.fromarray(noise(160, 120)), "JPEG", subsampling=2)
  own = TrainTransformSettings(min_area=0.3, flip=False, resizer=resizer)
  result = make_train_transform(16, own)(file, *rngs(1))
  fast = ImageSpec(fast_dct=resizer == "big_vision")
  top, left, h, w = augment.inception_box(160, 120, 0.3, *rngs(1))
  box = decode_image(file, fast)[top : top + h, left : left + w]
  same = make_train_transform(16, dataclasses.replace(own, crop="resize"))
  expected = same(png(box), np.random.default_rng(0))
  np.testing.assert_array_equal(result, expected)


def test_the_central_crop_is_of_256_pixels_for_224():
  pixels = noise(256, 256)
  crop = make_eval_transform(224, EvalTransformSettings(crop="center"))
  np.testing.assert_array_equal(crop(png(pixels)), pixels[16:240, 16:240])


def test_eval_squash_cuts_after_losing_proportions():
  settings = EvalTransformSettings("squash", 2.0, "nearest")
  result = make_eval_transform((8, 16), settings)(png(coordinates(32, 64)))
  rows, columns = np.mgrid[:8, :16] * 2 + 1
  np.testing.assert_array_equal(result[..., 0], columns + 16)
  np.testing.assert_array_equal(result[..., 1], rows + 8)


def test_the_corner_of_the_crop_is_rounded_as_asked():
  """11 - 8 = 3 spare columns: 1.5 becomes 1, or 2, which is even."""
  encoded = png(coordinates(8, 11))
  for corner, left in (("floor", 1), ("even", 2)):
    settings = EvalTransformSettings("center", 1.0, corner=corner)
    image = make_eval_transform(8, settings)(encoded)
    assert image[0, :, 0].tolist() == list(range(left, left + 8))


@pytest.mark.parametrize("shape", [(64, 96), (96, 64)])
def test_eval_center_keeps_seven_eighths_of_the_short_side(shape):
  # 64 becomes 256, of which 224 are kept: pixels 4 to 60 of 64.
  image = make_eval_transform(224, EvalTransformSettings(crop="center"))(
    png(coordinates(*shape))
  )
  assert image.shape == (224, 224, 3)
  for axis in (0, 1):
    first, last = (shape[1 - axis] - 56) / 2, (shape[1 - axis] + 56) / 2 - 1
    seen = image[..., axis].astype(int)
    assert abs(seen.min() - first) <= 1 and abs(seen.max() - last) <= 1


def test_eval_center_of_another_shape_fits():
  encoded = png(noise(50, 37))
  for size in ((20, 90), (91, 33)):
    assert make_eval_transform(size, EvalTransformSettings(crop="center"))(
      encoded
    ).shape == (*size, 3)


@pytest.mark.parametrize(
  "arguments, match",
  [
    ({"crop": "centre"}, "crop='centre' is unknown; choose one of incept"),
    ({"image_size": 0}, "image_size=0"),
    ({"image_size": (8, 8, 3)}, "image_size="),
    ({"min_area": 0.0}, r"min_area=0\.0 must lie in"),
    ({"pad": -1}, "pad=-1"),
    ({"randaugment_layers": -1}, "randaugment_layers=-1"),
    ({"randaugment_magnitude": 31}, r"randaugment_magnitude=31 must .* 0"),
  ],
)
def test_bad_arguments_to_train(arguments, match):
  with pytest.raises(ValueError, match=match):
    size = arguments.pop("image_size", 8)
    make_train_transform(size, TrainTransformSettings(**arguments))


def test_bad_arguments_to_eval():
  with pytest.raises(ValueError, match="crop='pad' is unknown; .* center"):
    make_eval_transform(8, EvalTransformSettings(crop="pad"))
  with pytest.raises(ValueError, match=r"resize_ratio=0\.5 must be 1"):
    make_eval_transform(
      8, EvalTransformSettings(crop="center", resize_ratio=0.5)
    )


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


@pytest.mark.parametrize("resolution", [1, 2])
@pytest.mark.parametrize(
  "settings",
  [
    *(
      TrainTransformSettings(crop=crop, pad=7, resizer=resizer)
      for crop in ("inception", "pad", "resize")
      for resizer in ("fast", "bicubic")
    ),
    EvalTransformSettings(),
    EvalTransformSettings(crop="center", resize_ratio=1.5),
    EvalTransformSettings(crop="squash", resize_ratio=1.2, corner="even"),
    EvalTransformSettings(crop="center", resize_ratio=1.0, longest_ratio=1.1),
  ],
  ids=str,
)
def test_a_mask_is_cut_as_its_image(settings, resolution):
  """Both show rows and columns; a mask may have half of the image's."""
  H, W = 200, 120
  pixels = coordinates(H, W)
  is_train = isinstance(settings, TrainTransformSettings)
  make = make_train_transform if is_train else make_eval_transform
  transform = UpperLeft(make((45, 52), settings), (40, 50))
  step = resolution * 256 / 200  # A pixel of the mask, in levels.
  for rng in rngs(6):
    image, places = transform.pixels_and_places(
      png(pixels), *((rng,) if is_train else ())
    )
    for channel in (0, 1):
      mask = pixels[::resolution, ::resolution, channel].astype(int)
      cut = places.take_from(mask, outside=-1)
      assert cut.shape == (40, 50) and cut.dtype == mask.dtype
      inside = cut >= 0
      assert inside.mean() > 0.5
      off = np.abs(cut - image[..., channel].astype(int))[inside]
      assert np.quantile(off, 0.95) <= 2 * step + 2
      # What lies outside of the image is black in it.
      assert (image[~inside] == 0).all()


def test_a_whole_mask_is_resized_by_nearest_neighbour():
  mask = np.random.default_rng(0).integers(0, 200, (12, 15), np.uint8)
  for size in ((5, 7), (24, 9), (12, 30)):
    _, places = make_eval_transform(size).pixels_and_places(png(noise(12, 15)))
    nearest = Image.fromarray(mask).resize(size[::-1], Image.Resampling.NEAREST)
    np.testing.assert_array_equal(
      places.take_from(mask, 0), np.asarray(nearest)
    )
