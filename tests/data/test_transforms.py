"""Crops and operations against their formulas."""

import io
import math
import pickle

import cv2
import numpy as np
import pytest
from PIL import Image

from vit_jax.data import make_eval_transform, make_train_transform, transforms
from vit_jax.data.randaugment import GREY, OPS, rand_augment
from vit_jax.data.settings import EvalTransformSettings, TrainTransformSettings
from vit_jax.data.transforms import inception_box, resize


def png(pixels: np.ndarray) -> bytes:
  file = io.BytesIO()
  Image.fromarray(pixels).save(file, "PNG")
  return file.getvalue()


def noise(height: int, width: int) -> np.ndarray:
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (height, width, 3), np.uint8)


def coordinates(height: int, width: int) -> np.ndarray:
  """A picture whose red is the column and whose green is the row."""
  rows, columns = np.mgrid[:height, :width]
  return np.stack([columns, rows, 0 * rows], axis=-1).astype(np.uint8)


def rngs(count: int) -> list[np.random.Generator]:
  return [np.random.default_rng(i) for i in range(count)]


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
  # And places are uniform over those left.
  slack = height - h[free]
  assert abs(np.mean(top[free] / slack) - 0.5) < 0.02


@pytest.mark.parametrize(
  "shape, expected",
  [((10, 1000), (0, 493, 10, 13)), ((1000, 12), (492, 0, 16, 12))],
)
def test_long_images_give_their_largest_central_box(shape, expected):
  # A box of 60 % of such an image, at a ratio of 4/3 at most, never fits.
  assert inception_box(*shape, 0.6, np.random.default_rng(0)) == expected


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
    # Columns grow to the right, rows downwards, both by the box's size / 32.
    w = (columns[:, -1] - columns[:, 0]).mean() * 32 / 31
    h = (rows[-1] - rows[0]).mean() * 32 / 31
    assert 0.045 < w * h / 200**2 <= 1.02
    assert 0.72 < w / h < 1.4
    assert np.abs(np.diff(columns, axis=0)).max() <= 1


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_large_jpeg_is_decoded_small_and_shows_the_same_box(orientation):
  y, x = np.mgrid[:900, :1300]
  waves = [np.sin(x / 161 + y / 147), np.cos(x / 153), np.sin(y / 173)]
  pixels = np.stack([127.5 + 100 * w for w in waves], -1).astype(np.uint8)
  exif = Image.Exif()
  exif[0x0112] = orientation
  file = io.BytesIO()
  Image.fromarray(pixels).save(file, "JPEG", quality=95, exif=exif)
  turned = pixels if orientation == 1 else np.rot90(pixels, k=-1)
  transform = make_train_transform(
    96, TrainTransformSettings(min_area=0.5, flip=False)
  )
  for one, other in zip(rngs(8), rngs(8), strict=True):
    found = transform(file.getvalue(), one).astype(int)
    assert np.abs(found - transform(png(turned), other)).mean() < 3


def test_a_jpeg_that_has_to_go_to_another_decoder_is_cropped_alike(monkeypatch):
  file = io.BytesIO()
  Image.fromarray(noise(60, 70)).save(file, "JPEG", quality=95)
  transform = make_train_transform(32, TrainTransformSettings(min_area=0.5))
  expected = transform(file.getvalue(), np.random.default_rng(0))
  monkeypatch.setattr(transforms, "decode_jpeg", lambda *_, **__: None)
  found = transform(file.getvalue(), np.random.default_rng(0))
  assert found.shape == expected.shape == (32, 32, 3)


@pytest.mark.parametrize(
  "h, w", [(8, 12), (7, 30), (16, 24), (41, 24), (90, 9)]
)
def test_random_boxes_lose_no_pixel_and_no_brightness(h, w):
  """Linear in each pixel, so tried one pixel at a time."""
  size = 8, 12
  weights = np.empty((h, w))
  for at in np.ndindex(h, w):
    image = np.zeros((h, w, 3), np.uint8)
    image[at] = 255
    weights[at] = transforms._resize_fast(image, size)[..., 0].sum()
  assert weights.min() > 0
  area = 255 * size[0] * size[1] / (h * w)
  np.testing.assert_allclose(weights.mean(), area, rtol=0.05)


@pytest.mark.parametrize("h, w", [(8, 12), (16, 24), (8, 24)])
def test_random_boxes_by_whole_factors_are_means_of_blocks(h, w):
  pixels = noise(h, w)
  blocks = pixels.reshape(8, h // 8, 12, w // 12, 3).mean(axis=(1, 3))
  found = transforms._resize_fast(pixels, (8, 12))
  assert np.abs(found - blocks).max() <= 1


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
  assert 160 < sum(mirrored) < 240  # 4 standard deviations


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


def test_shrinking_averages_areas():
  pixels = noise(12, 20)
  expected = pixels.reshape(3, 4, 5, 4, 3).mean((1, 3))
  np.testing.assert_allclose(resize(pixels, (3, 5)), expected, atol=0.51)
  # One axis alone, while the other grows: still averages.
  mixed = resize(pixels, (24, 5)).astype(float)
  shrunk = pixels.reshape(12, 5, 4, 3).mean(2)
  np.testing.assert_allclose(mixed[0], shrunk[0], atol=1)
  assert resize(pixels, (12, 20)) is pixels


def test_enlarging_is_bilinear():
  pixels = np.array([[0, 100]], np.uint8)[..., None].repeat(3, 2)
  assert resize(pixels, (1, 4))[0, :, 0].tolist() == [0, 25, 75, 100]


def test_eval_resize_takes_the_whole_image():
  pixels = noise(40, 60)
  expected = cv2.resize(pixels, (15, 10), interpolation=cv2.INTER_AREA)
  result = make_eval_transform((10, 15))(png(pixels))
  np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("shape", [(64, 96), (96, 64)])
def test_eval_center_keeps_seven_eighths_of_the_short_side(shape):
  # 64 -> 256, of which 224 are kept: pixels 4 to 60 of 64.
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
    (
      {"crop": "centre"},
      "crop='centre' is unknown; choose one of inception, pad",
    ),
    ({"image_size": 0}, "image_size=0"),
    ({"image_size": (8, 8, 3)}, "image_size="),
    ({"min_area": 0.0}, r"min_area=0\.0 must lie in"),
    ({"pad": -1}, "pad=-1"),
    ({"randaugment_layers": -1}, "randaugment_layers=-1"),
    (
      {"randaugment_magnitude": 31},
      r"randaugment_magnitude=31\.0 must .* 0 and 30",
    ),
  ],
)
def test_bad_arguments_to_train(arguments, match):
  with pytest.raises(ValueError, match=match):
    size = arguments.pop("image_size", 8)
    make_train_transform(size, TrainTransformSettings(**arguments))


def test_bad_arguments_to_eval():
  with pytest.raises(
    ValueError, match="crop='pad' is unknown; choose .* center"
  ):
    make_eval_transform(8, EvalTransformSettings(crop="pad"))
  with pytest.raises(ValueError, match=r"resize_ratio=0\.5 must be 1"):
    make_eval_transform(
      8, EvalTransformSettings(crop="center", resize_ratio=0.5)
    )


# RandAugment, at magnitude 10 m (m = 1 is the top of the paper's scale).


def augmented(name: str, pixels: np.ndarray, strength: float, seed=0):
  rng = np.random.default_rng(seed)
  return np.asarray(OPS[name](Image.fromarray(pixels), strength, rng))


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
  # A level goes to 255 times the share of pixels below it, in whole steps.
  even = augmented("equalize", x, 1.0)
  for channel in range(3):
    counts = np.bincount(x[..., channel].ravel(), minlength=256)
    step = (counts.sum() - counts[counts > 0][-1]) // 255
    below = np.cumsum(counts) - counts
    table = np.minimum((below + step // 2) // step, 255)
    np.testing.assert_array_equal(even[..., channel], table[x[..., channel]])


@pytest.mark.parametrize("seed", range(4))
def test_operations_that_move(seed):
  """Each is a map of places; found from where a ramp's values end up."""
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
    assert 40 <= len(rows) <= 80 and 40 <= len(columns) <= 80


def test_layers_are_drawn_uniformly():
  x = noise(8, 8)
  assert rand_augment(x, np.random.default_rng(0), 0) is x
  only_invert = 255 - x
  inverted = sum(
    np.array_equal(rand_augment(x, rng, 1, 10), only_invert)
    for rng in rngs(1600)
  )
  assert 60 < inverted < 140  # 1600 / 16, 4 standard deviations
