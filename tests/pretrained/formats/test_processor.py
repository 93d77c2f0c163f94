"""`preprocessor_config.json`: what it says, and what it gives back."""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest

from tests import encoders, published
from vit_jax.data.preprocessing import HALF, Preprocessing
from vit_jax.data.settings import EvalTransformSettings
from vit_jax.pretrained.formats import processor
from vit_jax.pretrained.load import open_checkpoint

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
TYPE = "image_processor_type"
CLIP, DEIT = {TYPE: "CLIPImageProcessor"}, {TYPE: "DeiTImageProcessor"}
CONVNEXT = {TYPE: "ConvNextImageProcessor"}
OLD_CLIP = {
  "feature_extractor_type": "CLIPFeatureExtractor",
  "size": {"shortest_edge": 256},
  "crop_size": {"height": 224, "width": 224},
}
CENTER = EvalTransformSettings("center", 256 / 224, "bicubic")
LOOSE = dataclasses.replace(CENTER, resize_ratio=320 / 224)
LONGEST = (224, 224), dataclasses.replace(CENTER, longest_ratio=2.0)


@pytest.mark.parametrize(
  "config, size, crop",
  [
    ({}, (224, 224), EvalTransformSettings()),
    ({"size": 384, "resample": 3}, (384, 384), ("resize", "bicubic")),
    ({"size": [32, 48]}, (32, 48), ("resize", "bilinear")),
    ({"size": {"height": 32, "width": 48}}, (32, 48), ("resize", "bilinear")),
    ({**CLIP, "size": 256}, (224, 224), CENTER),
    (OLD_CLIP, (224, 224), CENTER),
    ({TYPE: "BitImageProcessorFast", "size": 256}, (224, 224), CENTER),
    (DEIT, (224, 224), EvalTransformSettings("squash", 256 / 224, "bicubic")),
    ({**DEIT, "do_center_crop": False}, (256, 256), ("resize", "bicubic")),
    ({"resample": 1}, (224, 224), ("resize", "lanczos")),
    ({"resample": 0}, (224, 224), ("resize", "nearest")),
    ({"resample": "Bicubic"}, (224, 224), ("resize", "bicubic")),
    ({**CLIP, "size": {"shortest_edge": 256, "longest_edge": 448}}, *LONGEST),
    ({**CONVNEXT, "size": {"shortest_edge": 224}}, (224, 224), CENTER),
    ({**CONVNEXT, "size": 224, "crop_pct": 0.7}, (224, 224), LOOSE),
    (CONVNEXT, (384, 384), ("resize", "bicubic")),
  ],
)
def test_sizes_crops_and_filters(config, size, crop):
  found = processor.read(config)
  if isinstance(crop, tuple):
    crop = EvalTransformSettings(crop[0], interpolation=crop[1])
  crop = dataclasses.replace(crop, resizer="torchvision")
  assert (found.size, found.crop) == (size, crop)
  assert processor.read(processor.write(found)) == found


@pytest.mark.parametrize("cut", [{}, {"do_center_crop": True}])
def test_dinov3s_processor_resizes_floats(cut):
  cut = cut and {**cut, "size": {"shortest_edge": 256}, "crop_size": 224}
  found = processor.read({TYPE: "DINOv3ViTImageProcessorFast", **cut})
  assert found.crop.resizer == "torchvision_float"
  written = processor.write(found)
  assert written[TYPE] == "DINOv3ViTImageProcessor"
  assert processor.read(written) == found


@pytest.mark.parametrize(
  "config, mean, std",
  [
    ({}, HALF, HALF),
    (CLIP, CLIP_MEAN, None),
    ({"image_mean": 0.25, "image_std": 1}, (0.25,) * 3, (1.0,) * 3),
    ({"image_mean": [0.25], "image_std": 0.5}, (0.25,), (0.5,)),
    ({"do_normalize": False}, (0.0,) * 3, (1.0,) * 3),
    ({"rescale_factor": 1 / 127.5}, (0.25,) * 3, (0.25,) * 3),
    ({"do_rescale": False, "do_normalize": False}, (0.0,) * 3, (1 / 255,) * 3),
    (
      {"do_rescale": False, "image_mean": [127.5] * 3, "image_std": [51.0] * 3},
      (0.5,) * 3,
      (0.2,) * 3,
    ),
  ],
)
def test_the_range_of_values_is_in_mean_and_std(config, mean, std):
  """(255 - m) / s is where white ends, as the library computes it."""
  found = processor.read(config)
  assert found.mean == pytest.approx(mean)
  assert std is None or found.std == pytest.approx(std)
  assert processor.read(processor.write(found)) == found


@pytest.mark.parametrize(
  "config, message",
  [
    ({"image_mean": True}, "image_mean=True must be a finite number"),
    ({"image_mean": ["a", 1, 1]}, "image_mean=.* must be a finite number"),
    ({"image_mean": [0, 0, 0, 0]}, "must have a number for each channel"),
    ({"image_std": [0, 0, 0]}, "image_std=.* must be a number above 0"),
    ({"resample": 9}, "resample=9: it must be one of 0 to 5"),
    ({"resample": "x\ny"}, "resample='x.*y' must be a whole number"),
    ({"do_resize": False}, "do_resize=False: pictures must be resized"),
    ({"do_pad": True}, "do_pad=True: this is not supported"),
    (
      {"size": {"shortest_edge": 224}},
      "size=.*: pictures keep their shapes then, .* it needs do_center_crop",
    ),
    ({**CLIP, "size": {"shortest_edge": 224, "longest_edge": 9}}, "is below a"),
    (
      {**CLIP, "crop_size": [192, 224]},
      r"crop_size=.192, 224.: only squares a",
    ),
    ({**CONVNEXT, "size": [224, 224]}, "ConvNext needs a shortest_edge"),
    (
      {**CONVNEXT, "size": 9, "crop_pct": 2},
      r"crop_pct=2 must lie in \(0, 1\]",
    ),
    ({"crop_pct": 0.9}, "crop_pct=0.9: this is not supported"),
    ({"size": {"longest_edge": 224}}, r"shortest_edge'\]=None must be a whole"),
    ({"size": {"height": 2}}, r"size=\[2, None\] must be a height and a wid"),
    ({"size": "big"}, "size='big' must be a height and a width"),
    ({"rescale_factor": 0}, "rescale_factor=0 must be more than 0"),
    ({"do_center_crop": "yes"}, "do_center_crop='yes' must be True or False"),
    ({"do_center_crop": True, "size": [256, 300]}, "multiple of it, not .256"),
    ({TYPE: "Sam3ImageProcessor"}, "it must be one of ViT, Beit"),
    ({TYPE: ["\n"]}, "image_processor_type=.* must be a te"),
  ],
)
def test_what_cannot_be_done_is_one_line(config, message):
  with pytest.raises(ValueError, match=message) as info:
    processor.read(config)
  assert str(info.value).isprintable()


def test_a_crop_that_is_no_square_has_no_file():
  wide = Preprocessing((16, 24), CENTER)
  assert "16 x 24 from the centre" in (processor.reason(wide) or "")
  whole = Preprocessing((16, 24))
  assert processor.reason(whole) is None
  assert processor.read(processor.write(whole)) == whole


def test_filters_of_ours_come_back_from_our_own_files():
  for crop in (
    EvalTransformSettings("center", 1.25, "area"),
    EvalTransformSettings(antialias=False),
  ):
    found = Preprocessing((32, 32), crop)
    assert processor.read(processor.write(found)) == found
    near = processor.nearest(found)
    assert near.crop == dataclasses.replace(
      crop, interpolation="bilinear", antialias=True
    )


def test_the_file_beside_any_checkpoint_is_read(tmp_path):
  shutil.copy(published.path("google_vit.npz"), tmp_path / "model.npz")
  given = json.dumps({**CLIP, "size": 36, "crop_size": 32})
  (tmp_path / processor.FILE).write_text(given)
  found = open_checkpoint(str(tmp_path)).preprocessing
  assert found.crop == dataclasses.replace(
    CENTER, resize_ratio=36 / 32, resizer="torchvision"
  )
  assert (found.size, found.mean) == ((32, 32), CLIP_MEAN)
  plain = open_checkpoint(published.path("google_vit.npz")).preprocessing
  assert plain.crop == EvalTransformSettings(antialias=False)


def test_a_size_that_the_positions_do_not_have_is_said(tmp_path, capsys):
  source = pathlib.Path(published.path("hf_vit"))
  for name in ("model.safetensors", "config.json"):
    shutil.copy(source / name, tmp_path)
  (tmp_path / processor.FILE).write_text('{"size": 64}')
  found = open_checkpoint(str(tmp_path))
  assert found.preprocessing.size == (32, 32)
  said = capsys.readouterr().err
  assert "pictures of 64 x 64, and its positions are for 32 x 32" in said


ANY_SIZE = {**CLIP, "do_normalize": False, "do_center_crop": False}


@pytest.mark.parametrize(
  "config, line",
  [
    ({**ANY_SIZE, "size": {"height": 48, "width": 48}}, ""),
    ({**ANY_SIZE, "size": 32, "do_resize": False}, "their own size or shape"),
    (
      {**ANY_SIZE, "size": {"shortest_edge": 48}},
      "resized to 32 x 32, since a",
    ),
    (
      {**DEIT, "size": 64, "crop_size": 48, "crop_to_patches": True},
      "seen whol",
    ),
  ],
)
def test_pictures_of_a_model_of_any_size_are_resized(
  tmp_path, capsys, config, line
):
  """A C-RADIO's preprocessor need not resize, but a batch has one size."""
  for name in ("model.safetensors", "config.json"):
    shutil.copy(encoders.FOLDER / "hf_radio" / name, tmp_path)
  (tmp_path / processor.FILE).write_text(json.dumps(config))
  found = open_checkpoint(str(tmp_path)).preprocessing
  assert found.size == (
    (32, 32) if "resized" in line or "own" in line else (48, 48)
  )
  said = capsys.readouterr().err
  assert line in said and ("preprocessor_config.json" in said) == bool(line)


def test_what_a_model_normalises_itself_comes_after_its_processor():
  first = Preprocessing((8, 8), mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
  second = Preprocessing(None, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
  x = np.linspace(0, 1, 12).reshape(4, 3)
  expected = ((x - first.mean) / first.std - second.mean) / second.std
  both = processor.compose(first, second)
  np.testing.assert_allclose((x - both.mean) / both.std, expected)
  assert both.size == (8, 8)


@pytest.mark.parametrize("resample, lines", [(0, 0), (1, 1), (2, 0), (3, 1)])
def test_levels_beyond_white_are_cut_with_a_line(resample, lines):
  config = {TYPE: "DINOv3ViTImageProcessorFast", "resample": resample}
  config |= {"size": 32, "image_mean": 0.5, "image_std": 0.5}
  said = processor.assumptions(config, "file.json")
  assert len(said) == lines and all("beyond black and" in x for x in said)
