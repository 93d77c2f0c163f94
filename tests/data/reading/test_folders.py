"""Folders as people have them: splits, classes, and what is ignored."""

import os
import pathlib
import socket

import pytest

from tests.image_files import GOOD
from vit_jax import data
from vit_jax.data.reading import folders
from vit_jax.data.reading.image_folder import ImageFolder
from vit_jax.data.reading.named_images import find_images
from vit_jax.data.reading.sources import open_splits


def fill(root: pathlib.Path, **counts: int) -> str:
  """Writes the classes a and b, with so many images of each, into folders."""
  for name, count in counts.items():
    for label in "ab":
      folder = root / name / label
      folder.mkdir(parents=True)
      for i in range(count):
        (folder / f"{i}.png").write_bytes(GOOD)
  return str(root)


def opened(root, **settings):
  return open_splits(data.DataSettings(root=str(root), **settings))


@pytest.mark.parametrize(
  "train, val, test",
  [
    ("train", "val", "test"),
    ("Training", "Validation", "Testing"),
    ("TRAIN", "valid", "TEST"),
    ("training", "dev", "testing"),
  ],
)
def test_splits_by_the_names_people_use(tmp_path, train, val, test):
  fill(tmp_path, **{train: 7, val: 2, test: 3})
  splits = opened(tmp_path)
  assert [len(splits.train), len(splits.eval)] == [14, 4]
  assert splits.test is not None and len(splits.test) == 6
  assert splits.found == (
    f"{tmp_path.name}: train 14, val 4, test 6 images of 2 classes"
  )
  assert splits.warnings == []


def test_the_evaluation_split_may_be_chosen(tmp_path):
  fill(tmp_path, train=5, val=2, test=3)
  splits = opened(tmp_path, eval_split="test")
  assert (len(splits.eval), splits.test) == (6, None)
  for name in ("val", "Valid"):
    splits = opened(tmp_path, eval_split=name)
    assert len(splits.eval) == 4 and splits.test is not None
  splits = opened(tmp_path, eval_split="train")
  assert [e["id"] for e in splits.eval] == [e["id"] for e in splits.train]
  with pytest.raises(ValueError, match="eval_split='best' is no split of a f"):
    opened(tmp_path, eval_split="best")


@pytest.mark.parametrize("name", ["val", "test"])
def test_the_only_split_to_evaluate_on(tmp_path, name):
  splits = opened(fill(tmp_path, train=5, **{name: 2}))
  assert splits.found.endswith(f": train 10, {name} 4 images of 2 classes")
  assert splits.test is None


def test_a_part_of_the_training_images_is_held_out(tmp_path):
  fill(tmp_path, train=10)
  splits = opened(tmp_path)
  assert splits.found.endswith(": train 16, held out 4 images of 2 classes")
  same = opened(tmp_path / "train")
  assert [e["id"] for e in same.eval] == [e["id"] for e in splits.eval]
  # Descriptions of older versions say "test" for any folder.
  assert len(opened(tmp_path, eval_split="test").eval) == 4
  with pytest.raises(
    ValueError, match="^data.eval_split=.*has no split val; add it"
  ):
    opened(tmp_path, eval_split="validation")


def test_the_root_may_be_nested(tmp_path):
  root = tmp_path / "archive"
  fill(root / "chest" / "chest", train=6, test=2)
  (root / "chest" / "__MACOSX" / "train").mkdir(parents=True)
  (root / "README.txt").touch()
  splits = opened(root)
  assert splits.found == (
    "archive: train 12, test 4 images of 2 classes; ignored: 1 not images"
  )
  (tmp_path / "loop").mkdir()
  (tmp_path / "loop" / "again").symlink_to(tmp_path / "loop")
  with pytest.raises(ValueError, match="has only one folder, 'again'"):
    opened(tmp_path / "loop")


def test_what_is_ignored_is_counted(tmp_path, monkeypatch):
  monkeypatch.setattr(folders, "EXTENSIONS", (b".png",))
  fill(tmp_path, train=10, test=2)
  cat = tmp_path / "train" / "a"
  for name in ("1.heic", "2.HEIC", "3.nef", "notes.txt", ".hidden.heic"):
    (cat / name).touch()
  os.mkfifo(cat / "pipe.png")
  with socket.socket(socket.AF_UNIX) as server:
    server.bind(str(cat / "socket.png"))
  (cat / "null.png").symlink_to("/dev/null")
  for name in ("__MACOSX", "@eaDir", ".git"):
    (cat / name).mkdir()
    (cat / name / "thumbnail.png").write_bytes(GOOD)
  (tmp_path / "train" / "stray.png").write_bytes(GOOD)
  (tmp_path / "test" / "labels.csv").touch()
  (tmp_path / "masks").mkdir()
  splits = opened(tmp_path)
  assert splits.found == (
    f"{tmp_path.name}: train 20, test 4 images of 2 classes; ignored: 2 .heic "
    '(pip install "vit_jax[heif]" reads .heic), 1 .nef, folder masks, 2 not '
    "images, 1 outside class folders, 3 pipes or devices"
  )
  # Reading these two then says what is missing.
  names = [*(f"{i}.png" for i in range(10)), "1.heic", "2.HEIC"]
  assert set(find_images([str(cat)])) == {str(cat / name) for name in names}


def test_files_that_nothing_reads_are_named_where_a_class_is_empty(tmp_path):
  root = fill(tmp_path, a=3)
  (tmp_path / "b").mkdir()
  (tmp_path / "b" / "1.cr2").touch()
  with pytest.raises(ValueError, match=r"has no images.*ignored: 1 .cr2"):
    opened(root)


def refused(root, message):
  with pytest.raises(ValueError, match=message) as info:
    opened(root)
  assert "\n" not in str(info.value)


def test_folders_that_would_be_trained_on_wrongly(tmp_path):
  two = fill(tmp_path / "two", train=2, Training=2, test=2)
  refused(two, "has both 'Training' and 'train', .* names of the train split")
  refused(
    fill(tmp_path / "none", val=2, test=2),
    "has test and val, but no train folder that holds a folder for each class",
  )
  flat = tmp_path / "flat"  # Kaggle's competitions, labels in a table.
  for name in ("train", "test"):
    (flat / name).mkdir(parents=True)
    (flat / name / "1.png").write_bytes(GOOD)
  refused(flat, "has test and train, but no train folder that holds a folder")
  one = tmp_path / "one" / "train" / "cat"
  one.mkdir(parents=True)
  (one / "1.png").write_bytes(GOOD)
  refused(tmp_path / "one", "has only one folder, 'cat'; .* two classes")


def test_unlabelled_test_images_are_no_split(tmp_path):
  fill(tmp_path, train=10)
  (tmp_path / "test").mkdir()
  (tmp_path / "test" / "1.png").write_bytes(GOOD)
  assert opened(tmp_path).found.endswith(
    "train 16, held out 4 images of 2 classes; ignored: folder test"
  )


def test_doubts(tmp_path):
  fill(tmp_path / "few", train=5, test=5)
  os.remove(tmp_path / "few" / "train" / "b" / "3.png")
  assert opened(tmp_path / "few").warnings == [
    "1 of 2 classes have fewer than 5 training images: b (4)."
  ]
  for i in range(1, 12):
    folder = tmp_path / "numbers" / str(i)
    folder.mkdir(parents=True)
    for k in range(10):
      (folder / f"{k}.png").write_bytes(GOOD)
  (line,) = opened(tmp_path / "numbers").warnings
  assert "named by numbers and sorted as text: 1, 10, 11, 2, ...; a cl" in line


def test_an_image_folder_opens_its_test_split(tmp_path):
  root = fill(tmp_path, train=5, val=2, test=3)
  assert len(ImageFolder(root, "test")) == 6
  with pytest.raises(ValueError, match="has no test folder"):
    ImageFolder(str(tmp_path / "train"), "test")
