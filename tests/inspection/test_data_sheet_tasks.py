"""`vit_jax inspect_data` for the labels of every task."""

import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests import commands
from tests.data.pictures import encode, noise
from tests.data.reading.archives import COCO, some
from tests.data.reading.layouts import write
from vit_jax.data.reading import (
  labels,
  mask_folder,
  number_folder,
  several,
  targets,
)
from vit_jax.data.reading.captions import Captions
from vit_jax.data.reading.mask_folder import MASKS
from vit_jax.data.reading.survey import Look, Survey
from vit_jax.inspection import data_sheet
from vit_jax.inspection.settings import InspectSettings
from vit_jax.tasks import choose
from vit_jax.tasks.settings import DataSettings
from vit_jax.tasks.table import ALL_TASKS, LABELLED_TASKS

SPLITS = ("train", "train", "train", "train", "val", "val")
"""The splits of six images."""


def picture(number):
  return encode(Image.fromarray(noise(20, 30 + number)), "PNG")


def table(root, header, rows):
  """A file of labels of images of random pixels; returns its path."""
  lines = [f"file,{header},split"]
  for number, (row, split) in enumerate(zip(rows, SPLITS, strict=True)):
    (root / f"{number}.png").write_bytes(picture(number))
    lines.append(f"{number}.png,{row},{split}")
  file = root / "l.csv"
  file.write_text("\n".join(lines))
  return file


def masks(root):
  """Images of 20 x 16 with masks, two thirds of which are class 0, of three."""
  mask = np.zeros((20, 16), np.uint8)
  mask[:5] = 2
  mask[5, :] = 255
  for number, split in enumerate(SPLITS):
    for kind, content in (
      ("images", encode(Image.fromarray(noise(20, 16)), "PNG")),
      ("masks", encode(Image.fromarray(mask), "PNG")),
    ):
      folder = root / kind / split
      folder.mkdir(parents=True, exist_ok=True)
      (folder / f"{number}.png").write_bytes(content)
  return root


def numbers(root):
  """Images of 20 x 16 with depth of 1 to 4 m, a quarter of which is unknown."""
  depth = np.full((20, 16), 1000, np.uint16)
  depth[10:], depth[:5] = 4000, 0
  for number, split in enumerate(SPLITS):
    for kind, content in (
      ("images", encode(Image.fromarray(noise(20, 16)), "PNG")),
      ("depth", encode(Image.fromarray(depth), "PNG")),
    ):
      folder = root / kind / split
      folder.mkdir(parents=True, exist_ok=True)
      (folder / f"{number}.png").write_bytes(content)
  return root


def classes(root):
  for number, split in enumerate(SPLITS):
    folder = root / split / "ab"[number % 2]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{number}.png").write_bytes(picture(number))
  return root


# By kind: what makes the data, and the rows of the table that are right.
KINDS = {
  labels.Labels: (classes, [["a", "2", "1"], ["b", "2", "1"]]),
  labels.IgnoredLabels: (classes, [["unlabelled", "4", "2"]]),
  several.SeveralLabels: (
    lambda root: table(
      root,
      "cat,dog,rare",
      ["1,0,1", "1,1,0", "1,0,0", "0,0,0", "1,1,0", "1,0,0"],
    ),
    [
      ["cat", "3", "2"],
      ["dog", "1", "1"],
      ["rare", "1", "0"],
      ["(no", "label)", "1", "none"],
    ],
  ),
  targets.Numbers: (
    lambda root: table(
      root, "age,size", ["1,2", "2,2", "3,2.5", "6,4", "5,9", "7,9"]
    ),
    [
      ["age", *"1 to 6, mean 3".split(), *"5 to 7, mean 6".split()],
      ["size", *"2 to 4, mean 2.625".split(), *"9 to 9, mean 9".split()],
    ],
  ),
  Captions: (
    lambda root: table(root, "caption", [f"a thing of {n}" for n in range(6)]),
    [["caption", "4", "2"]],
  ),
  mask_folder.Masks: (
    masks,
    [
      ["0", "70.0%", "70.0%"],
      ["1", "none", "none"],
      ["2", "25.0%", "25.0%"],
      ["(no", "class)", "5.0%", "5.0%"],
    ],
  ),
}
KINDS[number_folder.PixelNumbers] = (
  numbers,
  [["depth", *2 * "1000 to 4000, mean 3000, 25.0% unknown".split()]],
)
COLUMNS = {several.SeveralLabels: "cat,dog,rare", targets.Numbers: "age,size"}


def settings_of(kind, task):
  """The settings of data whose labels are of a kind."""
  if not kind.are_used:
    return {"labels": False}
  return {"task": task if task in LABELLED_TASKS else "classification"}


@pytest.mark.parametrize("task", ALL_TASKS)
def test_every_task_has_its_labels_counted_and_shown(tmp_path, capsys, task):
  kind = choose.task_class(task)().labels
  make, expected = KINDS[type(kind)]
  place = make(tmp_path)
  fields: Any = settings_of(kind, task)
  if place.is_file():
    fields["labels_file"] = str(place)
    if type(kind) in COLUMNS:
      fields["label_columns"] = COLUMNS[type(kind)]
  settings = InspectSettings(image_size=(18, 18), data=DataSettings(**fields))
  out = tmp_path / "out.png"
  assert data_sheet.inspect_folder(str(place), settings, str(out)) == 0
  said = [line.split() for line in capsys.readouterr().out.splitlines()]
  for row in expected:
    assert row in said
  (heading,) = [row for row in said if row[-2:] == ["train", "val"]]
  assert heading[:-2] == kind.heading.split()
  with Image.open(out) as sheet:
    assert sheet.format == "PNG"


def test_masks_that_do_not_fit_are_listed(tmp_path, capsys):
  masks(tmp_path)
  narrow = Image.new("L", (4, 20))
  (tmp_path / "masks" / "train" / "1.png").write_bytes(encode(narrow, "PNG"))
  data = DataSettings(root=str(tmp_path), task="segmentation")
  settings = InspectSettings(image_size=(18, 18), data=data)
  out = str(tmp_path / "out.png")
  assert data_sheet.inspect_folder(str(tmp_path), settings, out) == 1
  said = capsys.readouterr().out
  assert "1 unreadable: images/train/1.png: " in said
  assert "4 x 20" in said and "train  val" in said


def test_equal_pictures_with_other_labels(tmp_path, capsys):
  file = table(tmp_path, "age", ["1", "2", "3", "6", "5", "7"])
  (tmp_path / "1.png").write_bytes(picture(0))
  data = DataSettings(labels_file=str(file), task="regression")
  settings = InspectSettings(image_size=(18, 18), data=data)
  data_sheet.inspect_folder(str(file), settings, str(tmp_path / "out.png"))
  said = capsys.readouterr().out.splitlines()
  assert "1 picture is there with different targets: 0.png = 1.png" in said


def test_the_only_column_of_classes_is_named(tmp_path, capsys):
  file = table(tmp_path, "kind", ["a", "b", "a", "b", "a", "b"])
  settings = InspectSettings(image_size=(18, 18))
  data_sheet.inspect_folder(str(file), settings, str(tmp_path / "out.png"))
  assert "and kind is the label; --config" in capsys.readouterr().out


@pytest.mark.slow
def test_a_file_of_labels_as_the_argument(tmp_path):
  file = table(tmp_path, "cat,dog", ["1,0", "0,1", "1,1", "0,0", "1,0", "0,1"])
  keys = ("task=multilabel", "label_columns=cat,dog")
  words = [*(f"--config.data.{key}" for key in keys), f"--out={tmp_path}/o.png"]
  run = commands.run("vit_jax.inspect_data", str(file), *words)
  assert run.returncode == 0, run.stderr
  rows = [line.split() for line in run.stdout.splitlines()]
  assert ["cat", "2", "1"] in rows and ["dog", "2", "1"] in rows
  other = tmp_path / "notes.md"
  other.write_text(json.dumps({}))
  line = commands.refused("vit_jax.inspect_data", str(other))
  assert "nor a file of labels" in line and "did you mean" not in line


def said_of(root, capsys, tmp_path, place=None, **fields: Any):
  """The rows of what the command says of a folder."""
  settings = InspectSettings(image_size=(18, 18), data=DataSettings(**fields))
  out = str(tmp_path / "augmented.png")
  assert data_sheet.inspect_folder(str(place or root), settings, out) == 0
  return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_splits_in_names_are_counted_by_class(tmp_path, capsys):
  files = {}
  for split, count in (("train", 5), ("test", 3)):
    for name in ("buildings", "forest"):
      files[f"scenes/seg_{split}/seg_{split}/{name}/"] = count
  root = write(tmp_path, files | {"scenes/seg_pred/seg_pred/": 2})
  rows = said_of(root, capsys, tmp_path)
  assert ["class", "train", "test"] in rows
  assert ["buildings", "5", "3"] in rows and ["forest", "5", "3"] in rows


def test_several_labels_of_a_file_beside_the_images(tmp_path, capsys):
  lines = ["file,cat,dog,rare,split"]
  for n in range(12):
    (tmp_path / f"{n}.png").write_bytes(picture(n))
    rare = int(n in (2, 5))
    split = "val" if n % 3 == 0 else "train"
    lines.append(f"{n}.png,{n % 2},{1 - n % 2},{rare},{split}")
  file = tmp_path / "l.csv"
  file.write_text("\n".join(lines))
  columns = "cat,dog,rare"
  fields: Any = dict(
    labels_file=str(file), label_columns=columns, task="multilabel"
  )
  rows = said_of(tmp_path, capsys, tmp_path, **fields)
  assert ["cat", "4", "2"] in rows and ["dog", "4", "2"] in rows
  assert ["rare", "2", "0"] in rows


def test_captions_of_coco_are_looked_through(tmp_path, capsys):
  write(tmp_path, some("coco", 6))
  file = tmp_path / "coco" / "captions.json"
  file.write_text(json.dumps(COCO))
  rows = said_of(tmp_path, capsys, tmp_path, place=file)
  (line,) = [" ".join(row) for row in rows if "captions," in row]
  assert "all: " in line or "train: " in line


@pytest.mark.parametrize(
  "make, why, row",
  [
    (masks, "it has images and masks", "0"),
    (numbers, "it has images and depth", "depth"),
    (
      lambda root: table(root, "cat,dog", ["1,0", "1,1", "0,0"] * 2),
      "cat, dog are 0 or 1, and a row may have several 1s or none",
      "cat",
    ),
    (
      lambda root: (root / "0.png").write_bytes(picture(0)) and root,
      "it holds images and no class folders",
      "unlabelled",
    ),
  ],
)
def test_what_data_are_for_is_told_without_a_task(
  tmp_path, capsys, make, why, row
):
  root = str(make(tmp_path))
  for number in range(1, 6):  # Further images do no harm.
    (tmp_path / f"{number}.png").write_bytes(picture(number))
  out = str(tmp_path.parent / f"{tmp_path.name}.png")
  settings = InspectSettings(image_size=(16, 16))
  assert data_sheet.inspect_folder(root, settings, out) == 0
  said = capsys.readouterr().out
  assert f"There are no class labels, as {why}." in said
  assert any(line.split()[:1] == [row] for line in said.splitlines())


def test_the_table_says_over_which_images_its_shares_are():
  looks = [
    Look("train", label, "a.png", "PNG", None, (), None)
    for label in (np.array([3, 1, 0]), None, None)
  ]
  share = "train: the labels of 1 of 3 images could be read; only these count."
  for seen, is_said in ((looks, True), (looks[:1], False)):
    survey = Survey(("a", "b"), seen, MASKS)
    lines = data_sheet.survey_lines(survey, (16, 16))
    assert (share in lines) == is_said
