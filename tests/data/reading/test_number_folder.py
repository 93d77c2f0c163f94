"""Folders of images with numbers for their pixels."""

import io
import re

import numpy as np
import pytest
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from tests.image_files import encode
from vit_jax.data.example import UnreadableImageError
from vit_jax.data.reading import image_folder, number_folder
from vit_jax.data.reading.number_folder import (
  PIXEL_NUMBERS,
  open_folder,
  open_split,
)
from vit_jax.data.reading.sources import check_same_classes
from vit_jax.data.settings import DataSettings, TrainTransformSettings
from vit_jax.data.transforming.transforms import make_train_transform
from vit_jax.data.transforming.with_masks import with_numbers
from vit_jax.tasks.settings import DataSettings as TaskData

RNG = np.random.default_rng(0)
DEPTH = RNG.integers(1, 9000, (6, 8)).astype(np.uint16)
DEPTH[0, :4] = 0


def picture(array, form="PNG", **options):
  return encode(Image.fromarray(array), form, **options)


def npy(array, **options):
  out = io.BytesIO()
  np.save(out, array, **options)
  return out.getvalue()


def tiff(array, **tags):
  table = ImageFileDirectory_v2()
  for tag, value in tags.items():
    table[int(tag[1:])] = value
  return picture(array, "TIFF", tiffinfo=table)


def write(root, *targets, ending="png", folder="depth", size=(6, 8)):
  """Images with these files beside them, of which the last is evaluated on."""
  for number, content in enumerate(targets):
    split = "val" if number == len(targets) - 1 else "train"
    for kind, one, end in (
      ("images", picture(np.zeros((*size, 3), np.uint8)), "png"),
      (folder, content, ending),
    ):
      path = root / kind / split / f"{number}.{end}"
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(one)
  return str(root)


FORMS = {
  "16 bits": ("png", picture(DEPTH), DEPTH),
  "8 bits": ("png", picture(np.uint8(DEPTH % 256)), DEPTH % 256),
  "grey in colours": (
    "png",
    picture(np.repeat(np.uint8(DEPTH % 256)[..., None], 3, axis=2)),
    DEPTH % 256,
  ),
  "float TIFF": ("tif", picture(DEPTH / np.float32(7), "TIFF"), DEPTH / 7),
  "whole TIFF": ("tiff", picture(DEPTH.astype(np.int32), "TIFF"), DEPTH),
  "float32": ("npy", npy(DEPTH / np.float32(7)), DEPTH / 7),
  "float64, a channel": ("npy", npy((DEPTH / 7)[None]), DEPTH / 7),
  "by columns": ("npy", npy(np.asfortranarray(DEPTH)), DEPTH),
}


@pytest.mark.parametrize("form", FORMS)
def test_numbers_are_those_of_every_form(tmp_path, form):
  ending, content, expected = FORMS[form]
  root = write(tmp_path, content, content, ending=ending)
  settings = DataSettings(root=root, target_scale=0.5, unknown="none")
  label = open_split(settings, "eval")[0]["label"]
  assert label.dtype == np.float32 and label.shape == (6, 8)
  np.testing.assert_allclose(label, expected * 0.5, rtol=1e-6)


def test_what_is_unknown_is_nan_and_said(tmp_path):
  root = write(tmp_path, picture(DEPTH), picture(DEPTH))

  def opened(**options):
    source = open_folder(DataSettings(root=root, **options))["train"]
    return np.isnan(source[0]["label"]), "\n".join(source.warnings())

  unknown, said = opened()
  np.testing.assert_array_equal(unknown, DEPTH == 0)
  assert "0 is taken for unknown depth (8.3% of the pixels)" in said
  assert "data.target_scale=0.001 turns millimetres" in said
  unknown, said = opened(unknown="none", target_scale=0.001)
  assert not unknown.any() and "0 is" not in said and "millimetres" not in said
  second = int(DEPTH[1, 1])
  unknown, said = opened(unknown=f"0,{second}")
  np.testing.assert_array_equal(unknown, np.isin(DEPTH, (0, second)))
  with pytest.raises(ValueError, match="data.unknown='x': give the valu"):
    opened(unknown="x")


def test_0_of_heights_is_a_number(tmp_path):
  root = write(tmp_path, picture(DEPTH), picture(DEPTH), folder="heights")
  source = open_split(DataSettings(root=root), "train")
  assert source.class_names == ("heights",)
  assert not np.isnan(source[0]["label"]).any()
  assert any("data.unknown=0 leaves it out" in x for x in source.warnings())


def test_nan_infinity_and_no_data_are_unknown(tmp_path):
  numbers = (DEPTH + 1).astype(np.float32)
  numbers[1, :3] = np.nan, np.inf, -9999
  content = tiff(numbers, _42113="-9999")
  root = write(tmp_path, content, content, ending="tif")
  source = open_split(DataSettings(root=root), "train")
  unknown = np.isnan(source[0]["label"])
  assert unknown[1, :3].all() and unknown.sum() == 3
  seen = source.statistics
  assert seen.known == seen.pixels - 3 and seen.least == 1
  known = numbers[~unknown].astype(np.float64)
  assert (seen.mean, seen.std) == pytest.approx((known.mean(), known.std()))
  assert seen.log_std == pytest.approx(np.log(known).std())


@pytest.mark.parametrize(
  "tag, masked", [("-9999", 0), ("nan", 0), ("65536", 0), ("0.5", 0), ("7", 1)]
)
def test_a_no_data_value_outside_of_the_type_masks_nothing(
  tmp_path, tag, masked
):
  numbers = np.full(DEPTH.shape, 9, np.uint16)
  numbers[0, 0] = 7
  content = tiff(numbers, _42113=tag)
  root = write(tmp_path, content, content, ending="tif")
  label = open_split(DataSettings(root=root), "train")[0]["label"]
  assert np.isnan(label).sum() == masked
  assert np.nanmax(label) == 9


@pytest.mark.parametrize(
  "filler, form, given, said",
  [
    (65535, picture, None, "65535 is taken .* (4.2% .*data.unknown=0,65535 l"),
    (65535, picture, "65535", "0 is taken .* (8.3% .*data.unknown=65535,0 lea"),
    (65535, picture, "0,65535", ""),
    (65535, picture, "none", ""),
    (-9999, npy, "0", "-9999 is taken .* (4.2% .*data.unknown=0,-9999 leaves"),
    (-9998, npy, "0", ""),
  ],
)
def test_values_that_may_stand_for_no_number_are_said(
  tmp_path, filler, form, given, said
):
  """Of 48 pixels, four are 0, and two have a value such as 65535."""
  depth = DEPTH.astype(np.uint16 if form is picture else np.float32)
  depth[3, 2:4] = filler
  ending = "png" if form is picture else "npy"
  root = write(tmp_path, form(depth), form(depth), ending=ending)
  source = open_split(DataSettings(root=root, unknown=given), "train")
  lines = [x for x in source.warnings() if "is taken for a number" in x]
  assert len(lines) == bool(said)
  pattern = said.replace("(", "[(]")
  assert not said or re.match(pattern, lines[0])


BIG = npy(DEPTH).replace(b"(6, 8), }", b"(600000, 800000), }")
DAMAGED = {
  "cut PNG": ("png", picture(DEPTH)[:60], "is truncated|broken|damaged|cannot"),
  "cut npy": ("npy", npy(DEPTH)[:-3], "smaller than requested"),
  "no header": ("npy", b"\x93NUMPY\x01\x00\xff\xffxx", "npy: "),
  "too large": ("npy", BIG, "800000 x 600000 pixels, more than"),
}


@pytest.mark.parametrize("form", DAMAGED)
def test_damaged_targets_can_be_skipped(tmp_path, form):
  ending, content, message = DAMAGED[form]
  good = npy(DEPTH) if ending == "npy" else picture(DEPTH)
  root = write(tmp_path, good, content, good, ending=ending)
  source = open_split(DataSettings(root=root), "train")
  with pytest.raises(UnreadableImageError, match=message):
    source[1]
  assert source[0]["label"].shape == (6, 8)


REFUSED = {
  "colours": ("png", picture(RNG.integers(0, 255, (6, 8, 3), np.uint8))),
  "three numbers": ("npy", npy(np.zeros((6, 8, 3)))),
  "objects": ("npy", npy(np.array([[None]]), allow_pickle=True)),
  "complex": ("npy", npy(np.zeros((6, 8), complex))),
}


@pytest.mark.parametrize("form", REFUSED)
def test_what_is_no_number_for_each_pixel_is_refused(tmp_path, form):
  ending, content = REFUSED[form]
  root = write(tmp_path, content, content, ending=ending)
  with pytest.raises(ValueError, match="save a grey PNG of 8 or 16 bits, a fl"):
    open_split(DataSettings(root=root), "train")


def test_unknown_values_are_of_pixels_or_of_a_file_of_labels(tmp_path):
  with pytest.raises(ValueError, match="unknown='9' needs labels_file, the CS"):
    TaskData(root=str(tmp_path), unknown="9")
  TaskData(root=str(tmp_path), unknown="9", task="dense_regression")


def test_other_mistakes_are_a_line(tmp_path):
  root = write(tmp_path, picture(DEPTH), picture(DEPTH[:, :3]))
  with pytest.raises(UnreadableImageError, match="and its target 3 x 6 pix"):
    open_split(DataSettings(root=root), "eval")[0]
  (tmp_path / "depth" / "train" / "0.png").unlink()
  with pytest.raises(ValueError, match="there is no target .*0.png for '0"):
    open_split(DataSettings(root=root), "train")
  with pytest.raises(ValueError, match="takes --config.data.root, a folder"):
    open_split(DataSettings(name="digits"), "train")
  empty = write(tmp_path / "empty", *2 * [picture(0 * DEPTH)])
  with pytest.raises(ValueError, match="none of 1 target looked at has"):
    open_split(DataSettings(root=empty), "train")


def test_a_folder_of_classes_is_not_taken_for_one(tmp_path):
  root = write(tmp_path, picture(DEPTH), picture(DEPTH))
  message = "images and depth, which are not classes: --config dense_regression"
  with pytest.raises(ValueError, match=message):
    image_folder.open_folder(DataSettings(root=root))


def test_few_of_many_files_are_looked_at(tmp_path, monkeypatch):
  monkeypatch.setattr(number_folder, "LOOKED_AT", 3)
  root = write(tmp_path, *9 * [picture(DEPTH)])
  opened = open_folder(DataSettings(root=root))
  assert len(opened["train"]) == 8
  assert opened["eval"].statistics is opened["train"].statistics
  said = opened["train"].warnings()[0]
  assert said.startswith("depth of 3 of 8 training images: ")


@pytest.mark.parametrize("crop", ["inception", "pad", "resize"])
def test_a_crop_takes_each_number_along_and_mixes_none(crop):
  """The image shows each pixel's number, so that both must move alike."""
  numbers = np.kron(RNG.integers(20, 250, (4, 4)), np.ones((16, 16)))
  image = np.repeat(numbers[..., None], 3, axis=2).astype(np.uint8)
  label = numbers.astype(np.float32)
  label[:16, :16] = np.nan
  settings = TrainTransformSettings(crop=crop, min_area=0.3)
  transform = with_numbers(make_train_transform((32, 32), settings))
  example = {"image": picture(image), "label": label, "id": "x"}
  for seed in range(8):
    row = transform.row(example, np.random.default_rng(seed))
    found, shown = row["label"], row["image"][..., 0].astype(int)
    known = ~np.isnan(found)
    assert np.isin(found[known], label[~np.isnan(label)]).all()
    # Inside of a block, away from its edges, the image shows the number.
    near = np.abs(shown - np.where(known, found, shown)) <= 2
    assert near[known].mean() > 0.6


def test_numbers_of_another_name_are_told_to_rename_their_folder():
  said = PIXEL_NUMBERS.about_other_names(("depth",), new=True)
  with pytest.raises(
    ValueError,
    match="^it has 1 target and .* alone has disparity. .* rename the folder",
  ):
    check_same_classes(
      ("depth",), "it", ("disparity",), "that", said, PIXEL_NUMBERS
    )
