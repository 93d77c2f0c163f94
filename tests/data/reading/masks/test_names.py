"""Where images and their masks lie, in folders as people have them."""

import os

import pytest

from tests.data.reading.archives import IMAGE, MASK, some
from tests.data.reading.layouts import write
from vit_jax.data.reading.masks import names as mask_names

ADE20K = ("training", "validation")
SPLITS = ("train", "val")


def found(root, **options):
  """The folders of each split, from the root on, and the lines."""
  places, lines = mask_names.find_places(os.fsencode(root), **options)
  top = os.path.join(root, "")
  below = {
    split: tuple(os.fsdecode(path).removeprefix(top) for path in place)
    for split, place in places.items()
  }
  return below, [line.replace(top, "") for line in lines]


def filled(*folders):
  files = {}
  for folder in folders:
    content = MASK if folder.endswith(("masks", "gtFine")) else IMAGE
    files |= some(folder, 1, ".png", content)
  return files


@pytest.mark.parametrize(
  "folders, expected",
  [
    (["images", "masks"], {"": ("images", "masks")}),
    (["IMG", "labels"], {"": ("IMG", "labels")}),
    (
      [f"{a}/{b}" for a in ("images", "annotations") for b in ADE20K],
      {
        "train": ("images/training", "annotations/training"),
        "val": ("images/validation", "annotations/validation"),
      },
    ),
    (
      [
        "images/train2017",
        "images/val2017",
        "masks/train2017",
        "masks/val2017",
      ],
      {
        "train": ("images/train2017", "masks/train2017"),
        "val": ("images/val2017", "masks/val2017"),
      },
    ),
    (
      ["train/images", "train/masks", "valid/images", "valid/masks"],
      {
        "train": ("train/images", "train/masks"),
        "val": ("valid/images", "valid/masks"),
      },
    ),
    (
      [f"{a}/{b}/x" for a in ("leftImg8bit", "gtFine") for b in SPLITS],
      {
        "train": ("leftImg8bit/train", "gtFine/train"),
        "val": ("leftImg8bit/val", "gtFine/val"),
      },
    ),
    (
      ["JPEGImages", "SegmentationClass", "SegmentationObject"],
      {"": ("JPEGImages", "SegmentationClass")},
    ),
    (
      ["train", "train_labels", "val", "val_labels"],
      {"train": ("train", "train_labels"), "val": ("val", "val_labels")},
    ),
    (
      ["train_images", "train_masks"],
      {"": ("train_images", "train_masks")},
    ),
    (["images/train", "masks/train"], {"": ("images/train", "masks/train")}),
    (
      ["train/images", "train/masks"],
      {"": ("train/images", "train/masks")},
    ),
    (
      ["images", "annotations/trimaps"],
      {"": ("images", "annotations/trimaps")},
    ),
    (["images/a", "masks/a"], {"": ("images", "masks")}),
    (["photos", "masks"], {"": ("photos", "masks")}),
    (["scans", "labels"], {"": ("scans", "labels")}),
  ],
)
def test_images_and_masks(tmp_path, folders, expected):
  assert found(write(tmp_path, filled(*folders))) == (expected, [])


def test_annotations_without_pictures_beside_masks(tmp_path):
  files = {**filled("images", "masks"), "annotations/x.json": "{}"}
  root = write(tmp_path, files)
  assert found(root) == ({"": ("images", "masks")}, [])


@pytest.mark.parametrize(
  "folders, line",
  [
    (["images/train", "masks/train", "images/test"], "images/test"),
    (["train/images", "train/masks", "test/images"], "test"),
    (["train", "train_masks", "test"], "test"),
  ],
)
def test_a_test_split_without_masks_is_left_out(tmp_path, folders, line):
  places, lines = found(write(tmp_path, filled(*folders)))
  assert [*places] in (["train"], [""])
  assert lines == [f"{line} has no masks, and is left out."]


@pytest.mark.parametrize(
  "folders, message",
  [
    ([], "has 0 folders named images, image, img, and segmentation needs one"),
    (["images"], "has 0 folders named masks, mask, annotations, labels"),
    (["images", "img", "masks"], "has 2 folders named images, image, img, and"),
    (["images", "masks", "labels"], "has 2 folders named masks, mask, annota"),
    (
      ["images/train", "images/val", "masks/train"],
      "masks' has no folder 'val",
    ),
  ],
)
def test_folders_without_masks_are_refused(tmp_path, folders, message):
  root = write(tmp_path, filled(*folders))
  with pytest.raises(ValueError, match=message):
    mask_names.find_places(os.fsencode(root))


def test_a_folder_of_a_pair_points_to_the_one_above(tmp_path):
  root = write(tmp_path, filled("images", "masks"))
  for name in ("images", "masks"):
    with pytest.raises(ValueError, match=f"{root}' has both: give that"):
      mask_names.find_places(os.fsencode(f"{root}/{name}"))


def test_earlier_runs_read_what_they_did(tmp_path):
  folders = ["images/train2017", "images/val2017", "masks/train2017"]
  root = write(tmp_path, filled(*folders, "masks/val2017"))
  assert found(root, earlier=True) == ({"": ("images", "masks")}, [])


def test_earlier_runs_do_not_hold_out_a_part_of_train(tmp_path):
  root = write(tmp_path, filled("images/train", "masks/train"))
  expected = {"train": ("images/train", "masks/train")}
  assert found(root, earlier=True) == (expected, [])
