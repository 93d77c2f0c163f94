"""Code for users of an exported file makes what the model takes."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.settings import EvalTransformSettings
from vit_jax.data.transforming.sizes import AnySize
from vit_jax.inference.pillow_code import FILE, images_code

BANDS = dict(mean=(0.5,) * 4, std=(0.5,) * 4)


def _crop(crop, ratio=8 / 7, how="bicubic", longest=None):
  return EvalTransformSettings(
    crop=crop, resize_ratio=ratio, interpolation=how, longest_ratio=longest
  )


@pytest.mark.parametrize("shape", [(90, 61), (40, 200)])
@pytest.mark.parametrize(
  "fields",
  [
    dict(),
    dict(crop=_crop("center")),
    dict(crop=_crop("center", 1.0, "lanczos")),
    dict(crop=_crop("center", longest=1.0)),
    dict(crop=_crop("center"), size=(40, 56)),
    dict(crop=_crop("center", how="area")),
    dict(crop=_crop("squash", how="nearest")),
    dict(cut_from=(60, 60)),
    dict(mean=(0.5,), std=(0.5,)),
  ],
  ids=str,
)
def test_a_picture_becomes_what_the_model_takes(
  tmp_path, monkeypatch, shape, fields
):
  rng = np.random.default_rng(0)
  coarse = rng.integers(0, 256, (5, 7, 3), np.uint8)
  Image.fromarray(coarse).resize(shape).save(tmp_path / "photo.png")
  monkeypatch.chdir(tmp_path)
  images = Preprocessing(**{"size": (56, 56), **fields})
  found = {}
  exec(images_code(images).replace(FILE, "photo.png"), found)
  expected = images.transform()("photo.png")[None]
  assert found["images"].dtype == np.uint8
  assert found["images"].shape == expected.shape
  difference = np.abs(found["images"].astype(int) - expected)
  # Pillow has no areas; its box filter is near.
  is_area = images.crop.interpolation == "area"
  assert difference.max() <= (32 if is_area else 1)


@pytest.mark.parametrize("shape", [(90, 61), (40, 200), (7, 900)])
def test_a_picture_of_any_size_becomes_patches(tmp_path, monkeypatch, shape):
  coarse = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
  Image.fromarray(coarse).resize(shape).save(tmp_path / FILE)
  monkeypatch.chdir(tmp_path)
  images = Preprocessing((32, 32), _crop("resize"), patches=AnySize(12, 8))
  found = {}
  exec(images_code(images), found)
  transform: Any = images.transform()
  row = transform.row({"image": FILE, "label": 0, "id": ""})
  assert found["size"].tolist() == row["size"].tolist()
  assert (found["images"].dtype, found["size"].dtype) == (np.uint8, np.int32)
  difference = np.abs(found["images"].astype(int) - row["image"][None])
  assert difference.max() <= 1


@pytest.mark.parametrize("grey", [False, True])
@pytest.mark.parametrize("kind", ["I;16", "RGBA", "LA", "P", "CMYK"])
def test_odd_pictures_are_read_as_predict_reads_them(
  tmp_path, monkeypatch, kind, grey
):
  rng = np.random.default_rng(1)
  if kind == "I;16":
    picture = Image.fromarray(rng.integers(0, 1 << 16, (56, 56), np.uint16))
  elif kind == "P":
    picture = Image.fromarray(rng.integers(0, 256, (56, 56, 3), np.uint8))
    picture = picture.quantize(16)
    picture.info["transparency"] = 3
  else:
    size = 56 * 56 * len(kind)
    picture = Image.frombytes(kind, (56, 56), rng.bytes(size))
  file = "photo.tif" if kind == "CMYK" else "photo.png"
  picture.save(tmp_path / file)
  monkeypatch.chdir(tmp_path)
  grey_fields = dict(mean=(0.5,), std=(0.5,)) if grey else {}
  images = Preprocessing(size=(56, 56), **grey_fields)
  found = {}
  exec(images_code(images).replace(FILE, file), found)
  np.testing.assert_array_equal(found["images"], images.transform()(file)[None])


def test_samples_of_32_bits_are_refused(tmp_path, monkeypatch):
  Image.fromarray(np.ones((9, 9), np.float32)).save(tmp_path / "photo.tif")
  monkeypatch.chdir(tmp_path)
  code = images_code(Preprocessing(size=(56, 56))).replace(FILE, "photo.tif")
  with pytest.raises(ValueError, match="photo.tif: this code does not read"):
    exec(code, {})


@pytest.mark.parametrize("fields", [BANDS, dict(window=(0.0, 4095.0))])
def test_what_pillow_does_not_read_is_left_to_the_user(fields):
  images = Preprocessing((16, 24), **fields)
  found = {}
  exec(images_code(images), found)
  assert found["images"].shape == (1, *images.image_shape)
  assert "In the place of these zeros, give your images, " in images_code(
    images
  )
