"""The probe of segmentation: counts by a loop, and shapes that it must find."""

import shutil

import numpy as np
import pytest
from PIL import ExifTags, Image

import vit_jax
from tests import tiny
from tests.photos import VIT
from tests.scenes import write, write_all
from vit_jax import fewshot
from vit_jax.data.example import UnreadableImageError
from vit_jax.data.reading import mask_folder
from vit_jax.data.reading.mask_folder import (
  IGNORED,
  MASKS,
  SegmentationFolder,
  resize_mask,
)
from vit_jax.data.reading.sources import open_splits
from vit_jax.data.settings import DataSettings
from vit_jax.run.experiments.probe import probe_segmentation
from vit_jax.run.settings import ProbeSettings
from vit_jax.runtime.display import Display
from vit_jax.runtime.settings import replaced
from vit_jax.tasks.probes.segmentation import Segmentation, count


def test_pixels_are_counted_by_class_and_answer():
  rng = np.random.default_rng(0)
  label = rng.integers(0, 4, (2, 5, 6))
  label[label == 3] = IGNORED
  answer = rng.integers(0, 3, (2, 5, 6))
  expected = np.zeros((3, 3), int)
  for place in np.ndindex(label.shape):
    if label[place] != IGNORED:
      expected[label[place], answer[place]] += 1
  assert (
    count(label.astype(np.float32), answer, 3)
    == [expected.diagonal(), expected.sum(1), expected.sum(0)]
  ).all()
  with pytest.raises(ValueError, match="the class 2, and the training mask"):
    count(label, answer, 2)


def test_the_table_names_the_classes(capsys):
  found = Segmentation(
    iou=(0.5, None),
    mean_iou=0.5,
    pixels_right=0.75,
    examples=2,
    train_examples=20,
    skipped_images=0,
    l2=1.0,
    class_names=("sky", "road"),
  )
  fewshot.show_segmentation(Display(), found)
  shown = capsys.readouterr().out
  assert "(too few images to judge by)" in shown
  lines = [line.split() for line in shown.splitlines()]
  expected = [["class", "IoU"], ["sky", "50.00%"], ["road", "absent"]]
  assert lines[:3] == expected


@pytest.mark.parametrize("size", [(5, 7), (24, 9), (12, 30)])
def test_masks_are_resized_by_nearest_neighbour(size):
  mask = np.random.default_rng(0).integers(0, 200, (12, 15), np.uint8)
  pillow = Image.fromarray(mask).resize(size[::-1], Image.Resampling.NEAREST)
  assert (resize_mask(mask, size) == np.asarray(pillow)).all()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return write_all(tmp_path_factory.mktemp("shapes"), train=20, val=6)


@pytest.mark.slow
def test_coloured_shapes_are_found(folder, tmp_path):
  checkpoint = tmp_path / "vit.npz"
  tiny.save_google(checkpoint, VIT, tiny.random_params(VIT, (48, 64), 0))
  shutil.copytree(folder, tmp_path / "named")
  settings = replaced(ProbeSettings(), {"data.root": str(tmp_path / "named")})
  write_classes(tmp_path / "named", "sky\nball\nbox\n")
  found = probe_segmentation(str(checkpoint), settings, grid=(6, 8))
  assert found.class_names == ("sky", "ball", "box")
  assert len(found.iou) == 3 and min(found.iou) > 0.7  # Chance is about 0.3.
  assert found.mean_iou == pytest.approx(np.mean(found.iou))
  assert found.pixels_right > 0.9
  assert (found.examples, found.train_examples) == (6, 20)
  loaded = vit_jax.load_pretrained(checkpoint, grid=(6, 8))
  assert loaded.fewshot(tmp_path / "named", probe="segment") == found


def test_a_part_of_an_unsplit_folder_is_held_out(folder, tmp_path):
  for kind in ("images", "Annotations"):
    source = "images" if kind == "images" else "masks"
    (tmp_path / kind).symlink_to(folder / source / "train")
  settings = DataSettings(root=str(tmp_path))
  train, val = (
    SegmentationFolder(settings, split, (24, 32)) for split in ("train", "val")
  )
  assert (len(train), len(val)) == (16, 4) and len(train.class_names) == 3
  assert not {e["id"] for e in train} & {e["id"] for e in val}
  assert train[0]["label"].shape == (24, 32)
  assert {*np.unique(train[0]["label"])} <= {0, 1, 2, IGNORED}


def test_a_test_folder_is_called_by_its_name(tmp_path):
  rng = np.random.default_rng(0)
  for number, split in enumerate(("train", "test")):
    write(tmp_path, split, number, rng)
  settings = DataSettings(root=str(tmp_path))
  for split, name in (("train", "train"), ("val", "test")):
    found = SegmentationFolder(settings, split, (24, 32))
    assert (found.split, len(found)) == (name, 1)
    assert found.name == f"{tmp_path.name}, {name}"


def test_the_highest_index_of_16_bits_is_no_class(tmp_path):
  rng = np.random.default_rng(0)
  mask = write(tmp_path, "train", 0, rng).astype(np.uint16)
  mask[mask == IGNORED] = 65535
  Image.fromarray(mask).save(tmp_path / "masks" / "train" / "00.png")
  write(tmp_path, "val", 0, rng)
  found = SegmentationFolder(
    DataSettings(root=str(tmp_path)), "train", mask.shape
  )
  assert len(found.class_names) == 3
  ignored = np.asarray(found[0]["label"]) == IGNORED
  assert (ignored == (mask == 65535)).all()


def test_mistakes_are_one_line(folder, tmp_path):
  def opened():
    return SegmentationFolder(DataSettings(root=str(tmp_path)), "train", (8, 8))

  with pytest.raises(ValueError, match="has 0 folders named images, ima"):
    opened()
  write(tmp_path, "train", 0, np.random.default_rng(0))
  colours = Image.new("RGB", (64, 48), (1, 2, 3))
  colours.save(tmp_path / "masks/train/00.png")
  with pytest.raises(ValueError, match="mode RGB: a mask has one numbe"):
    opened()[0]
  write_classes(tmp_path, "a\nb")
  # Read as 48 x 64: the Exif turns it by a quarter.
  exif = Image.Exif()
  exif[ExifTags.Base.Orientation] = 6
  colours.save(tmp_path / "images/train/00.png", "JPEG", exif=exif)
  Image.new("L", (64, 48)).save(tmp_path / "masks/train/00.png")
  with pytest.raises(UnreadableImageError, match="is 48 x 64, .* mask 64 x 48"):
    opened()[0]
  Image.new("L", (24, 32)).save(tmp_path / "masks/train/00.png")
  assert opened()[0]["label"].shape == (8, 8)
  # Pillow tells a file's type by its content, not by its name.
  negative = Image.fromarray(np.full((48, 64), -1, np.int32))
  negative.save(tmp_path / "masks/train/00.png", "TIFF")
  with pytest.raises(ValueError, match="has the class -1: classes are counted"):
    opened()[0]
  (tmp_path / "masks/train/00.png").unlink()
  with pytest.raises(ValueError, match="no mask .*00.png for '00.png'"):
    opened()
  with pytest.raises(ValueError, match="segment takes --config.data.ro"):
    probe_segmentation("no checkpoint", ProbeSettings())


def write_classes(root, text):
  (root / "classes.txt").write_text(text)
  return DataSettings(root=str(root))


def test_the_splits_of_a_task_share_their_classes(tmp_path):
  rng = np.random.default_rng(0)
  for number, split in enumerate(("train", "val", "testing")):
    write(tmp_path, split, number, rng)
  settings = DataSettings(root=str(tmp_path))
  opened = mask_folder.open_folder(settings)
  assert [s.split for s in opened.values()] == ["train", "val", "test"]
  assert {s.class_names for s in opened.values()} == {("0", "1", "2")}
  said = mask_folder.summary([*opened.values()])
  assert said == (
    f"{tmp_path.name}: train 1, val 1, test 1 image, masks of 3 classes"
  )
  for split, one in opened.items():
    again = mask_folder.open_split(settings, split)
    assert again.name == one.name and again.ids([0]) == [one[0]["id"]]
    np.testing.assert_array_equal(again[0]["label"], one[0]["label"])
  test = mask_folder.open_split(
    replaced(settings, {"eval_split": "test"}), "eval"
  )
  assert test.split == "test"
  assert test[0]["label"].shape == (48, 64)  # Its own size.


def test_classes_may_have_names_and_colours(tmp_path):
  rng = np.random.default_rng(0)
  mask = write(tmp_path, "train", 0, rng)
  settings = write_classes(tmp_path, "the sky\nroad\n\ncar\nboat\n")
  train = mask_folder.open_split(settings, "train")
  assert train.class_names == ("the sky", "road", "car", "boat")
  plain = train[0]["label"]
  np.testing.assert_array_equal(plain, mask)

  colours = np.zeros((256, 3), np.uint8)
  colours[:3] = [[128, 0, 7], [0, 0, 0], [255, 254, 1]]
  colours[IGNORED] = 9
  path = tmp_path / "masks" / "train" / "00.png"
  Image.fromarray(colours[mask]).save(path)
  text = "the sky 128 0 7\nroad 0,0,0\nignored 9 9 9\ncar 255 254 1\n"
  train = mask_folder.open_split(write_classes(tmp_path, text), "train")
  assert train.class_names == ("the sky", "road", "car")
  np.testing.assert_array_equal(train[0]["label"], plain)


@pytest.mark.parametrize(
  "classes, pixels, message",
  [
    ("a\nb\n", 2, "00.png has the class 2, and the classes are 0 to 1"),
    (
      "a 1 2 3\nb 3 2 1\n",
      (3, 2, 2),
      r"has the colour \(3, 2, 2\) in row 0, column 0, which is not a class of",
    ),
    ("a\nb\n", (1, 2, 3), "mode RGB: a mask has one number .* or colours that"),
    ("a 1 2 3\nb\n", 0, "has colours for some classes: give all of them"),
    ("a\na\n", 0, "line 2, is 'a': each line is the name of a class, whi"),
    ("a 1 2 300\n", 0, "line 1, is 'a 1 2 300': each line is"),
    ("a 1 2 3\nb 1 2 3\n", 0, "line 2, has the colour of another"),
    ("a\n", 0, "classes.txt names one class, a: give two or more"),
    (None, 0, "the training masks have one class: give two or more"),
  ],
)
def test_classes_that_do_not_fit_are_one_line(
  tmp_path, classes, pixels, message
):
  write(tmp_path, "train", 0, np.random.default_rng(0))
  settings = DataSettings(root=str(tmp_path))
  if classes is not None:
    settings = write_classes(tmp_path, classes)
  shape = (48, 64, 3) if np.ndim(pixels) else (48, 64)
  mask = np.broadcast_to(np.uint8(pixels), shape)
  Image.fromarray(np.ascontiguousarray(mask)).save(
    tmp_path / "masks" / "train" / "00.png"
  )
  with pytest.raises(ValueError, match=message) as error:
    mask_folder.open_split(settings, "train")[0]
  assert "\n" not in str(error.value)


def test_a_task_of_masks_needs_their_folder(tmp_path):
  for settings in (
    DataSettings(name="digits"),
    DataSettings(labels_file=str(tmp_path / "labels.csv")),
  ):
    for opened in (mask_folder.open_folder, open_splits):
      with pytest.raises(ValueError, match="takes --config.data.root, a folde"):
        opened(settings, labels=MASKS)
  write(tmp_path, "train", 0, np.random.default_rng(0))
  with pytest.raises(ValueError, match="has no images for eval"):
    mask_folder.open_split(DataSettings(root=str(tmp_path)), "eval")
  with pytest.raises(ValueError, match="has no test folder"):
    mask_folder.open_split(DataSettings(root=str(tmp_path)), "test")
