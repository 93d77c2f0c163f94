"""Folders of images, checked against the files put into them."""

import os
import pathlib
import pickle
import shutil

import numpy as np
import pytest

from tests.data.pictures import png
from vit_jax import data
from vit_jax.data.reading.image_folder import ImageFolder
from vit_jax.data.reading.sources import check_same_classes, open_splits


def grey(value: int) -> bytes:
  return png(np.full((4, 4, 3), value, np.uint8))


def make_folder(root, files: dict[str, int]) -> str:
  """Writes image files, each of a single grey level."""
  for name, value in files.items():
    path = pathlib.Path(root) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(grey(value))
  return str(root)


def levels(source) -> list[int]:
  return [int(data.decode_rgb(e["image"])[0, 0, 0]) for e in source]


@pytest.mark.parametrize("folder", ["test", "val", "validation"])
def test_folders_already_split(tmp_path, folder):
  root = make_folder(
    tmp_path,
    {
      "train/cat/1.png": 1,
      "train/dog/2.PNG": 2,
      "train/dog/deep/er/3.png": 3,
      "train/dog/.hidden.png": 9,
      "train/.git/4.png": 9,
      f"{folder}/dog/5.png": 5,
    },
  )
  (tmp_path / "train/dog/notes.txt").write_text("no image")
  train = data.open_source("train", data.DataSettings(root=root))
  assert train.class_names == ("cat", "dog")
  labels = [e["label"] for e in train]
  assert {*zip(levels(train), labels, strict=True)} == {(1, 0), (2, 1), (3, 1)}
  held_out = data.open_source("eval", data.DataSettings(root=root))
  assert held_out.class_names == ("cat", "dog")
  assert levels(held_out) == [5] and held_out[0]["label"] == 1
  assert held_out[0]["id"].endswith("dog/5.png")


def test_an_unsplit_folder_is_split_by_class(tmp_path):
  files = {f"a/{i}.png": i for i in range(10)}
  # A class, not a split.
  files |= {f"train/{i}.png": 100 + i for i in range(25)}
  files |= {"one/1.png": 200}
  root = make_folder(tmp_path, files)
  settings = data.DataSettings(root=root, eval_fraction=0.2)
  train, held_out = (data.open_source(s, settings) for s in ("train", "eval"))
  assert train.class_names == ("a", "one", "train")
  labels = np.bincount([e["label"] for e in held_out], minlength=3)
  assert labels.tolist() == [2, 0, 5]
  assert sorted(levels(train) + levels(held_out)) == sorted(files.values())
  again = data.open_source("eval", settings)
  assert [e["id"] for e in again] == [e["id"] for e in held_out]


COMPOSED, DECOMPOSED = "caf\xe9", "cafe\u0301"


def test_a_class_of_two_spellings_is_one(tmp_path):
  files = {f"{COMPOSED}/{k}.png": k for k in range(5)}
  files |= {f"{DECOMPOSED}/{k}.png": 10 + k for k in range(5)}
  files |= {f"a/{k}.png": 20 + k for k in range(5)}
  files |= {f".22LR/{k}.png": 30 for k in range(5)} | {".git/x/1.png": 1}
  root = make_folder(tmp_path, files)
  splits = open_splits(data.DataSettings(root=root))
  assert splits.train.class_names == ("a", COMPOSED)
  cafe = [e for s in (splits.train, splits.eval) for e in s if e["label"] == 1]
  assert sorted(levels(cafe)) == [*range(5), *range(10, 15)]
  one, hidden = [s for s in splits.warnings if "fewer than" not in s]
  assert one.startswith(f"{COMPOSED!r} names 2 folders") and "one class" in one
  assert hidden.startswith(
    "1 folders with images have names that begin with a dot, such as '.2"
  )


@pytest.mark.parametrize(
  "name, other", [(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED)]
)
def test_spellings_may_differ_between_splits(tmp_path, name, other):
  files = {
    "train/a/1.png": 1,
    f"train/{name}/2.png": 2,
    f"val/{other}/3.png": 3,
  }
  settings = data.DataSettings(root=make_folder(tmp_path, files))
  splits = open_splits(settings)
  assert splits.train.class_names == ("a", name)  # As on the disk.
  assert splits.eval.class_names == ("a", name)
  assert [e["label"] for e in splits.eval] == [1] and levels(splits.eval) == [3]
  check_same_classes(("a", name), "one", ("a", other), "other")


def test_odd_names_and_links(tmp_path):
  files = {'train/it\'s "odd"/a b.png': 1, "train/plain/2.png": 2}
  root = make_folder(tmp_path, {**files, "val/plain/3.png": 3})
  strange = os.fsencode(root) + b"/train/plain/\xff.png"
  with open(strange, "wb") as file:
    file.write(grey(4))
  os.symlink(tmp_path / "train", tmp_path / "train" / "plain" / "loop")
  os.symlink(tmp_path / "nowhere", tmp_path / "train" / "plain" / "gone.png")
  source = data.open_source("train", data.DataSettings(root=root))
  assert source.class_names == ('it\'s "odd"', "plain")
  ids = [source_id(source, i) for i in range(len(source))]
  assert any(name.endswith(r"plain/\xff.png") for name in ids)
  readable = [i for i in range(len(source)) if "gone" not in ids[i]]
  assert {1, 2, 4} <= set(levels(source[i] for i in readable))
  gone = next(i for i in range(len(source)) if "gone" in ids[i])
  with pytest.raises(data.UnreadableImageError, match="gone.png: No such file"):
    source[gone]


def source_id(source, index: int) -> str:
  try:
    return source[index]["id"]
  except data.UnreadableImageError as error:
    return str(error)


def test_paths_are_kept_compactly_and_pickled(tmp_path):
  root = make_folder(
    tmp_path, {f"{'cd'[i % 2]}/{i:04}.png": i % 256 for i in range(300)}
  )
  source = ImageFolder(root, "train", 0.5)
  assert len(pickle.dumps(source)) < 300 * 40
  copy = pickle.loads(pickle.dumps(source))
  assert [copy[i] for i in (0, 1, 147)] == [source[i] for i in (0, 1, 147)]
  assert len({copy[i]["id"] for i in range(len(copy))}) == 150


def test_labels_of_a_folder_need_no_file(tmp_path):
  files = {f"{name}/{i}.png": i for name in "abc" for i in range(10)}
  source = ImageFolder(make_folder(tmp_path, files), "train", 0.2)
  chosen = [0, 23, 9, 15]
  expected = [source[i]["label"] for i in chosen]
  shutil.rmtree(tmp_path / "c")
  labels = source.labels(chosen)
  assert labels.tolist() == expected == [0, 2, 1, 1]
  assert labels.dtype == np.int32


def test_folders_that_are_not_datasets(tmp_path):
  def fails(match, split="train", **kwargs):
    with pytest.raises(ValueError, match=match):
      data.open_source(split, data.DataSettings(root=str(tmp_path), **kwargs))

  with pytest.raises(ValueError, match="^data.root=.* is not a folder"):
    data.open_source("train", data.DataSettings(root=str(tmp_path / "missing")))
  with pytest.raises(ValueError, match="root='gs://b/c' lies .* pack them"):
    data.DataSettings(root="gs://b/c")
  fails("has no folders; put the images of each class")
  (tmp_path / "cat").mkdir()
  fails("has only one folder, 'cat'; put the images .* two classes or more.$")
  (tmp_path / "cat" / "0.png").touch()
  what = f"vit_jax train {tmp_path} --config dino:continue"
  fails(f"two classes or more. Without labels there are: vit_jax .*{what}")
  (tmp_path / "cat" / "0.png").unlink()
  (tmp_path / "cat").rmdir()
  fails(r"eval_fraction=1\.5 must lie", eval_fraction=1.5)
  make_folder(tmp_path, {"train/cat/1.png": 1, "train/cow/1.png": 1})
  make_folder(tmp_path, {"test/crow/1.png": 1})
  fails("has the class 'crow', which the train folder lacks", split="eval")
  (tmp_path / "train" / "dog").mkdir()
  fails(r"class folder .*dog' has no images")


def test_an_eval_split_with_nothing_in_it(tmp_path):
  root = make_folder(tmp_path, {"cat/1.png": 1, "dog/1.png": 1})
  with pytest.raises(ValueError, match="has no images for split='held out'"):
    data.open_source("eval", data.DataSettings(root=root))


def test_without_labels_all_images_count(tmp_path):
  names = ["1.png", "2.png", "a/3.png", "a/b/4.png", ".hidden/9.png", "c/5.png"]
  root = make_folder(tmp_path, {n: int(n[-5]) for n in names})
  settings = data.DataSettings(root=root, labels=False, eval_fraction=0.4)
  splits = open_splits(settings)
  assert splits.train.class_names == splits.eval.class_names
  assert len(splits.train.class_names) == 1 and len(splits.eval) == 2
  assert sorted(levels(splits.train) + levels(splits.eval)) == [1, 2, 3, 4, 5]
  assert splits.found.endswith("train 3, held out 2 images without labels")
  assert not splits.warnings

  make_folder(tmp_path, {"train/6.png": 6, "train/x/7.png": 7, "val/8.png": 8})
  splits = open_splits(settings)
  assert levels(splits.train) == [6, 7] and levels(splits.eval) == [8]
  assert splits.test is None


@pytest.mark.parametrize("by", ["name", "count", "rank", None])
@pytest.mark.parametrize("labels", [True, False])
def test_a_folder_without_splits_is_listed_once(
  tmp_path, monkeypatch, by, labels
):
  """Both sides are those that are opened one by one."""
  files = {f"{c}/deep/er/{i}.png": i for c in "ab" for i in range(9)}
  root = make_folder(tmp_path, files)
  settings = data.DataSettings(root=root, held_out_by=by, labels=labels)
  listed = []
  scandir = os.scandir

  def counted(path):
    listed.append(os.fsdecode(path).rstrip("/"))
    return scandir(path)

  with monkeypatch.context() as patched:
    patched.setattr(os, "scandir", counted)
    data.open_source("train", settings)
    of_one, listed[:] = [path for path in listed if "deep" in path], []
    splits = open_splits(settings)
  assert [path for path in listed if "deep" in path] == of_one
  for split in ("train", "eval"):
    alone, together = data.open_source(split, settings), getattr(splits, split)
    every = range(len(alone))
    assert alone.ids(every) == together.ids(range(len(together)))
    assert (alone.name, alone.split) == (together.name, together.split)
    np.testing.assert_array_equal(alone.labels(every), together.labels(every))
    assert alone.held_out == together.held_out
