"""Which folders are splits, classes, or neither, in archives as people have."""

import os

import pytest

from tests.data.reading.layouts import classes, write
from tests.image_files import GOOD
from vit_jax import data
from vit_jax.data.reading import folders
from vit_jax.data.reading.image_folder import lies_among_classes
from vit_jax.data.reading.layouts import find_layout, find_unlabelled_layout
from vit_jax.data.reading.sources import check_same_classes, open_splits
from vit_jax.data.reading.split_names import OLDER
from vit_jax.tasks.settings import DataSettings

AB = ("a", "b")


def opened(root, **settings):
  return open_splits(data.DataSettings(root=str(root), **settings))


def counts(splits):
  """The number of images and the name of each split but a held-out one."""
  every = (splits.train, splits.eval, splits.test)
  found = {s.split: len(s) for s in every if s is not None}
  return found if "held out" not in found else {"all": sum(found.values())}


def three(train, val="", test="", n=(6, 3, 2)):
  files = {}
  for name, count in zip((train, val, test), n, strict=True):
    files |= classes(name, AB, count) if name else {}
  return files


@pytest.mark.parametrize(
  "files, found, ignored",
  [
    (three("seg_train/seg_train", "", "seg_test/seg_test"), (12, 0, 4), ""),
    (
      {
        **three("seg_train/seg_train", "", "seg_test/seg_test"),
        "seg_pred/seg_pred/": 2,
      },
      (12, 0, 4),
      "folder seg_pred",
    ),
    (three("training_set", "", "test_set"), (12, 0, 4), ""),
    (
      three("training_set/training_set", "", "test_set/test_set"),
      (12, 0, 4),
      "",
    ),
    (three("train", "Validate", "test"), (12, 6, 4), ""),
    (three("train", "eval"), (12, 6, 0), ""),
    (three("Train-Set", "valid_", "testing"), (12, 6, 4), ""),
    (three("train2017", "val2017"), (12, 6, 0), ""),
    (three("TrainSet", "ValSet", "TestSet"), (12, 6, 4), ""),
    (three("trainset", "valset", "testset"), (12, 6, 4), ""),
    (three("imagesTr", "", "imagesTs"), (12, 0, 4), ""),
    (three("train_images", "", "test_images"), (12, 0, 4), ""),
    (three("flowers_train", "flowers_dev"), (12, 6, 0), ""),
    (three("clean_train", "", "noisy_test"), (12, 0, 4), ""),
    (three("dataset_split/train", "dataset_split/val"), (12, 6, 0), ""),
    (
      {**three("Training", "", "Test"), "test-multiple_fruits/": 5},
      (12, 0, 4),
      "folder test-multiple_fruits",
    ),
    (
      {**three("train", "valid", "test"), **classes("valid_copy", AB, 3)},
      (12, 6, 4),
      "folder valid_copy",
    ),
    (
      {
        **three("chest_xray/train", "chest_xray/val", "chest_xray/test"),
        **three("chest_xray/chest_xray/train", "chest_xray/chest_xray/val"),
        **three("chest_xray/__MACOSX/train"),
      },
      (12, 6, 4),
      "folder chest_xray",
    ),
    ({**three("train_images"), "test_images/": 4}, (12, 0, 0), "test_images"),
    ({**three("train"), "test/test/": 4}, (12, 0, 0), "folder test"),
    (
      {**three("filtered/train", "filtered/validation"), "filtered/x.py": ""},
      (12, 6, 0),
      "1 not images",
    ),
  ],
)
def test_splits_of_many_names(tmp_path, files, found, ignored):
  splits = opened(write(tmp_path, files))
  assert splits.train.class_names == AB
  train, val, test = found
  if not (val or test):
    assert counts(splits) == {"all": train}
  else:
    here = {"train": train, "val": val, "test": test}
    assert counts(splits) == {s: n for s, n in here.items() if n}
  assert ignored in splits.found
  assert ignored or "ignored" not in splits.found


@pytest.mark.parametrize(
  "names",
  [
    ("bus", "car", "train"),
    ("freight_train", "passenger_train", "train_station"),
    ("bullet_train", "test_tube"),
    ("valid", "invalid"),
    ("with_mask", "without_mask"),
    ("masks", "no_masks"),
    ("mask", "no_mask", "mask_worn_wrongly"),
    ("test_positive", "test_negative"),
    ("0", "1", "2"),
    ("images_of_cats", "images_of_dogs"),
    ("class_1", "class_2"),
    ("set", "unset"),
  ],
)
def test_classes_that_are_called_nearly_as_splits(tmp_path, names):
  splits = opened(write(tmp_path, classes("", names, 10)))
  assert splits.train.class_names == tuple(sorted(names))
  assert counts(splits) == {"all": 10 * len(names)}
  assert "ignored" not in splits.found


@pytest.mark.parametrize(
  "names, said",
  [
    (("cat", "dog", "val"), "the folder val is taken for a class, as those"),
    (("Test", "cat"), "the folder Test is taken for a class, as those beside"),
    (("part_1", "part_2"), "part_1, part_2 are named like parts of one dat"),
    (("bus", "car", "train"), ""),
    (("part_of_a_car", "whole_car"), ""),
    (("grade_1_images", "grade_2_images"), ""),
    (("photo", "photo_seg"), ""),
  ],
)
def test_names_that_are_doubtful_are_said(tmp_path, names, said):
  splits = opened(write(tmp_path, classes("", names, 10)))
  assert splits.train.class_names == tuple(sorted(names))
  lines = splits.warnings
  assert len(lines) == bool(said)
  assert all(line.startswith(said) for line in lines)


def test_labels_beside_the_images_of_a_class(tmp_path):
  files = {f"{name}/images/": 10 for name in "ab"}
  files |= {f"{name}/labels/0.txt": "0" for name in "ab"}
  splits = opened(write(tmp_path, files))
  assert counts(splits) == {"all": 20}
  assert not splits.warnings


@pytest.mark.parametrize("of", ["{}_mask", "{}_gt", "{}"])
def test_masks_among_the_images_of_a_class_are_said(tmp_path, of):
  files = {f"{name}/{n}.png": GOOD for name in "ab" for n in range(10)}
  files |= {f"a/{of.format(n)}.png": GOOD for n in range(10)}
  lines = opened(write(tmp_path, files)).warnings
  assert len(lines) == (of != "{}")
  assert all("named like masks of those beside them" in x for x in lines)


def test_classes_called_as_splits_may_hold_the_same_folders(tmp_path):
  files = {}
  for name in ("freight_train", "test_tube", "bus", "car"):
    files |= classes(name, ("day", "night"), 5)
  splits = opened(write(tmp_path, files))
  assert len(splits.train.class_names) == 4
  (line,) = splits.warnings
  assert line.startswith(
    "all class folders looked into hold folders of the same names, 'day' and"
  )


@pytest.mark.parametrize(
  "files, names, ignored",
  [
    (
      {**classes("data", ("cat", "dog"), 6)}
      | {**classes("data/data", ("cat", "dog"), 6)},
      ("cat", "dog"),
      "folder data (a copy of its neighbours)",
    ),
    (
      {**classes("", ("cat", "dog"), 6)}
      | {**classes("split/train", ("cat", "dog"), 4)}
      | {**classes("split/val", ("cat", "dog"), 2)},
      ("cat", "dog"),
      "folder split (a copy of its neighbours)",
    ),
    (
      {**classes("images", ("pie", "pizza"), 6), "meta/classes.txt": "pie"},
      ("pie", "pizza"),
      "folder meta",
    ),
    (
      {
        **classes("CUB/images", ("001.x", "002.y"), 6),
        "CUB/attributes/a.txt": "1",
        "CUB/parts/parts.txt": "1",
        "CUB/images.txt": "1",
      },
      ("001.x", "002.y"),
      "folder attributes, folder parts, 1 not images",
    ),
    (
      {
        **classes("101_ObjectCategories", ("accordion", "ant"), 6),
        "Annotations/ant/annotation_0001.mat": "",
      },
      ("accordion", "ant"),
      "folder Annotations",
    ),
  ],
)
def test_folders_beside_or_among_classes(tmp_path, files, names, ignored):
  splits = opened(write(tmp_path, files))
  assert splits.train.class_names == names
  assert counts(splits) == {"all": 12}
  assert splits.found.endswith(f"; ignored: {ignored}")


def test_a_copy_in_each_split(tmp_path):
  files = three("train", "val")
  files |= {**three("train/train", "val/val")}
  splits = opened(write(tmp_path, files))
  assert counts(splits) == {"train": 12, "val": 6}
  assert "folder train (a copy of its neighbours)" in splits.found


@pytest.mark.parametrize(
  "files, message",
  [
    (
      {"train2017/": 3, "val2017/": 2, "annotations/x.json": "{}"},
      "has train2017 and val2017, but no train folder that holds a folder for",
    ),
    ({"train/": 3, "test1/": 2}, "has train and test1, but no train folder"),
    ({"train/train/": 3, "test/test/": 2}, "has test and train, but no train"),
    (
      {"trainA/": 3, "trainB/": 3, "testA/": 2, "testB/": 2},
      "has testA and testB and trainA and trainB, but no train folder",
    ),
    (
      {**three("train"), "val/": 2},
      "val' holds images and no class folders, which 'train' has: sort them",
    ),
    (
      {**three("train"), "valid/images/": 2},
      "valid' holds images and no class",
    ),
    (three("seg_train", "", "test1") | three("test2"), "'test1' and 'test2'"),
    (
      {"images/": 3, "masks/": 3},
      "images and masks, which are not classes: --config segmentation reads",
    ),
    (
      {"images/train/": 3, "images/val/": 2, "annotations/train/": 3}
      | {"annotations/val/": 2},
      "images and annotations, .*--config segmentation .*--probe=segment of",
    ),
    (
      {
        "train/images/": 3,
        "train/masks/": 3,
        "val/images/": 1,
        "val/masks/": 1,
      },
      "train' has images and masks, which are not classes",
    ),
    (
      {"train/": 3, "train_masks/": 3, "test/": 2},
      "train and train_masks, which are .*--config segmentation reads this",
    ),
    (
      {"JPEGImages/": 3, "SegmentationClass/": 3, "SegmentationObject/": 3}
      | {"Annotations/1.xml": "", "ImageSets/Main/train.txt": ""},
      "JPEGImages and SegmentationClass, .*--config segmentation reads this",
    ),
    (
      {"JPEGImages/": 3, "Annotations/1.xml": "", "ImageSets/x.txt": ""},
      "Annotations likely has boxes as VOC writes them, which no task learns",
    ),
    (
      {"leftImg8bit/train/bonn/": 3, "gtFine/train/bonn/": 3},
      "leftImg8bit and gtFine, which .*--config segmentation reads this",
    ),
    (
      {"images/train/": 3, "images/val/": 1, "labels/train/0.txt": "0"}
      | {"labels/val/0.txt": "0 1 1 1 1"},
      r"labels likely has boxes as YOLO writes them, .*detection",
    ),
    (
      {"train/images/": 3, "train/labels/0.txt": "0", "valid/images/": 1}
      | {"valid/labels/0.txt": "0"},
      "train' has images and labels, .* as YOLO writes",
    ),
    (
      {"images/": 3, "annotations/instances.json": "{}"},
      "annotations likely has boxes as COCO writes them",
    ),
    (
      {"images/": 3, "annotations/trimaps/": 3, "annotations/xmls/1.xml": ""},
      "images and annotations, which are .*--config segmentation reads this",
    ),
    (
      {"JPEGImages/": 4, "SegmentationClass/": 2},
      "if each image has a mask, but there is no mask .*/2.png .*: give it one",
    ),
    (
      {"HAM10000_images_part_1/": 3, "HAM10000_images_part_2/": 3},
      "HAM10000_images_part_2, whose names are no more than a word for images",
    ),
    (
      {"ill/images/": 3, "ill/masks/": 3, "well/images/": 3, "well/masks/": 3},
      "ill' has images and masks, as other class folders do, and masks are no",
    ),
    (
      {"images_001/images/": 3, "images_002/images/": 3},
      "images_001, images_002, whose names are no more than a word for imag",
    ),
    (
      {**three("bottle", n=(0, 0, 0)), **classes("bottle/train", ["good"], 3)}
      | classes("bottle/test", ["bad"], 3)
      | classes("cable/train", ["good"], 3)
      | classes("cable/test", ["bad"], 3),
      "bottle' holds test and train, named after splits: give this",
    ),
    (
      {**three("plants(augmented)/plants(augmented)/train")}
      | {**three("plants(augmented)/plants(augmented)/valid"), "test/test/": 2},
      r"plants\(augmented\)' holds train and valid, named after splits",
    ),
    (
      {**three("labeled/train"), "unlabeled/": 3},
      "labeled' holds train, named after splits: give this",
    ),
    ({"cat/train/": 3, "cat/test/": 1, "dog/train/": 3}, "cat' holds test and"),
    (
      {
        **three("fold1/train", "fold1/val"),
        **three("fold2/train", "fold2/val"),
      },
      "fold1' holds train and val, named after splits: give this",
    ),
    (
      three("fold_1", "fold_2", "fold_3"),
      "has fold_1, fold_2, fold_3, which look like parts of one data set",
    ),
    (
      {**classes("", ("a", "b", "c"), 3), **classes("mixed", AB, 3)},
      "mixed' holds folders that are named like the class folders beside it",
    ),
  ],
)
def test_folders_that_are_no_classes_are_refused(tmp_path, files, message):
  root = write(tmp_path, files)
  with pytest.raises(ValueError, match=message) as error:
    opened(root)
  assert "\n" not in str(error.value)


def test_refused_for_classes_is_read_without(tmp_path):
  root = write(tmp_path, {"train2017/": 6, "val2017/": 3, "annotations/x": ""})
  splits = opened(root, labels=False)
  assert counts(splits) == {"train": 6, "val": 3}
  assert splits.found.endswith("; ignored: folder annotations")


@pytest.mark.parametrize(
  "files, found, ignored",
  [
    (
      three("seg_train/seg_train", "", "seg_test"),
      {"train": 12, "test": 4},
      "",
    ),
    ({"images/": 6, "masks/": 6}, {"all": 6}, "folder masks"),
    (
      {**classes("", AB, 5), **classes("copy", AB, 5)},
      {"all": 10},
      "folder copy (a copy of its neighbours)",
    ),
    ({"train/": 5, "val/": 2, "extra/": 3}, {"train": 5, "val": 2}, "extra"),
    ({"x/train/": 5, "x/val/": 2}, {"train": 5, "val": 2}, ""),
    ({"x/train/": 5, "x/val/": 2, "y.png": 1}, {"train": 5, "val": 2}, "1 out"),
    ({"train/": 5, "x.png": 1, "y/": 3}, {"all": 5}, "folder y, 1 outside"),
    ({**classes("", AB, 5), "c.png": 1}, {"all": 11}, ""),
  ],
)
def test_the_same_rule_without_labels(tmp_path, files, found, ignored):
  splits = opened(write(tmp_path, files), labels=False)
  assert counts(splits) == found
  assert ignored in splits.found
  assert bool(ignored) == ("ignored" in splits.found)


def test_the_workdir_may_lie_beside_the_splits(tmp_path):
  root = write(tmp_path, three("seg_train/seg_train", "", "seg_test/seg_test"))
  settings = data.DataSettings(root=root)
  assert not lies_among_classes(settings, f"{root}/runs")
  assert lies_among_classes(settings, f"{root}/seg_train/runs")


def test_large_folders_are_not_looked_through(tmp_path, monkeypatch):
  files = classes("", [f"c{k:03}" for k in range(90)], 1)
  root = write(tmp_path, files)
  listed, scandir = set(), os.scandir

  def noted(path):
    listed.add(path)
    return scandir(path)

  with monkeypatch.context() as patch:
    patch.setattr(os, "scandir", noted)
    assert find_layout(root.encode()).train == root.encode()
  assert len(listed - {root.encode()}) == 64
  monkeypatch.setattr(folders, "LOOKED_AT", 3)
  assert folders.holds_images(root.encode())
  assert find_unlabelled_layout(root.encode()).ignored == {}


def test_other_classes_than_an_older_run_had_are_explained():
  with pytest.raises(ValueError, match="earlier ones .* as seg_train, train"):
    check_same_classes(("seg_train",), "a run", AB, "today", OLDER)


def test_the_workdir_may_not_lie_among_images_and_masks(tmp_path):
  root = write(tmp_path, {"images/": 2, "masks/": 2})
  settings = DataSettings(root=root, task="segmentation")
  assert lies_among_classes(settings, f"{root}/images/run")
  assert not lies_among_classes(settings, f"{tmp_path}/../run")
