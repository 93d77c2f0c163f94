"""The split of each image, however the folders are given."""

import glob
import os

import pytest

from tests.data.reading.layouts import write
from vit_jax.data.reading.named_images import find_images
from vit_jax.report.similar_splits import splits_of


def found(root, *names):
  """The split of each image by its path below the root."""
  folders = [os.path.join(root, name) for name in names]
  files = [*map(os.path.abspath, find_images(folders))]
  below = [os.path.relpath(file, root) for file in files]
  return dict(zip(below, splits_of(files, folders), strict=True))


@pytest.mark.parametrize(
  "names",
  [
    ["photos"],
    ["photos/train", "photos/test"],
    ["photos/train/", "photos/test/a", "photos/test/b"],
    ["photos/train/a", "photos/test/a", "photos/test/b"],
    ["photos/*/*/0.png"],
    ["photos/test", "photos/train/a/0.png"],
  ],
)
def test_folders_inside_and_above(tmp_path, names):
  files = {"photos/train/a/": 1, "photos/test/a/": 1, "photos/test/b/": 1}
  assert found(write(tmp_path, files), *names) == {
    "photos/train/a/0.png": "train",
    "photos/test/a/0.png": "test",
    "photos/test/b/0.png": "test",
  }


def test_files_that_the_shell_has_listed(tmp_path):
  root = write(tmp_path, {"p/train/": 2, "p/test/": 1})
  files = sorted(glob.glob(f"{root}/p/*/*.png"))
  assert splits_of(files, files) == ["test", "train", "train"]


@pytest.mark.parametrize(
  "names",
  [["x"], ["x/seg_train", "x/seg_test"], ["x/seg_train/a", "x/seg_test"]],
)
def test_names_with_other_words(tmp_path, names):
  root = write(tmp_path, {"x/seg_train/a/": 1, "x/seg_test/a/": 1})
  splits = found(root, *names)
  assert [*splits.values()].count("test") == 1
  if names[0] != "x/seg_train/a":
    assert splits["x/seg_train/a/0.png"] == "train"


def test_folders_that_are_no_splits(tmp_path):
  root = write(tmp_path, {"dev/photos/cat/": 1, "dev/photos/freight_train/": 1})
  assert {*found(root, "dev/photos").values()} == {""}
  assert {*found(root, "dev/photos/cat").values()} == {""}
