"""What a folder or a file of labels is for."""

import json

import numpy as np
import pytest

from tests.image_files import GOOD
from vit_jax.data.reading import recognise
from vit_jax.data.reading.captions import CAPTIONS
from vit_jax.data.reading.labels import NONE, SINGLE
from vit_jax.data.reading.mask_folder import MASKS
from vit_jax.data.reading.recognise import Recognised
from vit_jax.data.reading.several import SEVERAL
from vit_jax.data.reading.sources import open_splits
from vit_jax.data.reading.tables import cells_of
from vit_jax.data.reading.targets import NUMBERS
from vit_jax.data.settings import DataSettings

JSON_ROW = '{{"file": "{}.png", "label": "cat;dog"}}\n'


def fill(root, *folders):
  for folder in folders:
    (root / folder).mkdir(parents=True, exist_ok=True)
    for k in range(3):
      (root / folder / f"{k}.png").write_bytes(GOOD)
  return str(root)


@pytest.mark.parametrize(
  "folders, labels",
  [
    (["cat", "dog"], SINGLE),
    (["train/cat", "train/dog", "val/cat", "val/dog"], SINGLE),
    (["bus", "car", "train"], SINGLE),
    (["masks", "no_masks"], SINGLE),
    (["images", "masks"], MASKS),
    (["images/train", "annotations/train"], MASKS),
    (["."], NONE),
  ],
)
def test_a_folder_is_recognised_by_its_folders(tmp_path, folders, labels):
  found = recognise.recognise_folder(fill(tmp_path, *folders))
  assert found.labels == labels
  assert bool(found.why) == (labels != SINGLE)


def test_boxes_beside_images_are_no_masks(tmp_path):
  root = fill(tmp_path, "images")
  (tmp_path / "labels").mkdir()
  (tmp_path / "labels" / "0.txt").write_text("0 0.5 0.5 0.1 0.1")
  assert recognise.recognise_folder(root).labels == SINGLE


@pytest.mark.parametrize(
  "text, expected",
  [
    ("file,label\na.png,cat\nb.png,dog", Recognised(SINGLE)),
    ("file,label\na.png,1\nb.png,2", Recognised(SINGLE)),
    ("file,label\na.png,1.0\nb.png,2.0", Recognised(SINGLE)),
    ("file,caption\na.png,a cat", (CAPTIONS, "it has the column caption")),
    ("file,caption,label\na.png,a cat,cat", Recognised(SINGLE)),
    ("file,label\na.png,cat\nb.png,cat;dog", (SEVERAL, "cat;dog")),
    ('file,label\na.png,"[""cat"", ""dog""]"', (SEVERAL, "label has")),
    ("file,label\na.png,1\nb.png,2.5", (NUMBERS, "such as 2.5")),
    ("file,x,y\na.png,0.1,7\nb.png,0.2,8", (NUMBERS, "x, y")),
    ("file,x,y\na.png,0.1,7\nb.png,,8", (NUMBERS, "x, y")),
    ("file,x,y,split\na.png,0,1,train", Recognised(SINGLE)),
    ("file,x,y\na.png,0,1\nb.png,1,1", (SEVERAL, "x, y are 0 or 1")),
    ("file,x,y\na.png,0,1\nb.png,,1", Recognised(SINGLE)),
    ("file,x,y\na.png,yes,no\nb.png,,yes\nc.png,n,n", (SEVERAL, "0 or 1")),
    ("file,x,y\na.png,1,1\nb.png,,0", (SEVERAL, "cells may be unknown")),
    ("file,x,y\na.png,1,1\nb.png,-1,0", (SEVERAL, "cells may be unknown")),
    ("file,x,y\na.png,1,\nb.png,0,", Recognised(SINGLE)),
    ("file,x,y\na.png,1,0\nb.png,?,0", Recognised(SINGLE)),
  ],
)
def test_a_file_is_recognised_by_its_columns_and_cells(
  tmp_path, text, expected
):
  path = tmp_path / "l.csv"
  path.write_text(text)
  found = recognise.recognise_file(str(path))
  assert found.labels == expected[0] and expected[1] in found.why
  if "x,y" in text and found.labels != SINGLE:
    assert found.columns == ("x", "y")
  names, *rows = [line.split(",") for line in text.splitlines()]
  if '"' not in text:  # The same as JSONL.
    path = tmp_path / "l.jsonl"
    path.write_text(
      "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows)
    )
    assert recognise.recognise_file(str(path)) == found


def test_lists_in_json_are_several_labels(tmp_path):
  path = tmp_path / "l.jsonl"
  path.write_text(json.dumps({"file": "a.png", "labels": ["cat", "dog"]}))
  assert recognise.recognise_file(str(path)).labels == SEVERAL


def test_a_broken_list_is_named_with_its_line_as_the_file_is_opened(tmp_path):
  for name in ("a", "b"):
    (tmp_path / f"{name}.png").write_bytes(GOOD)
  path = tmp_path / "l.csv"
  path.write_text('file,label\na.png,["cat"\nb.png,dog\n')
  assert recognise.recognise_file(str(path)) == Recognised(SINGLE)
  with pytest.raises(
    ValueError, match="line 2 has label=.*, which begins like"
  ):
    open_splits(DataSettings(labels_file=str(path)))


def test_a_bounded_number_of_rows_is_looked_at(tmp_path):
  path = tmp_path / "l.csv"
  labels = [*np.repeat("cat", 1_000).tolist(), "cat;dog"]
  rows = [f"{k}.png,{label}" for k, label in enumerate(labels)]
  path.write_text("\n".join(["file,label", *rows]))
  assert recognise.recognise_file(str(path)).labels == SINGLE


@pytest.mark.parametrize(
  "name, row", [("l.csv", "{}.png,cat;dog\n"), ("l.jsonl", JSON_ROW)]
)
def test_a_long_file_is_recognised_by_its_first_rows(tmp_path, name, row):
  """It is read no further, and opening it reads the rest."""
  path = tmp_path / name
  rows = [row.format(k) for k in range(20_000)]
  head = "" if name.endswith("jsonl") else "file,label\n"
  content = (head + "".join(rows)).encode()
  path.write_bytes(content + b"\xff")
  assert recognise.recognise_file(str(path)).labels == SEVERAL
  with pytest.raises(
    ValueError, match=rf"is not UTF-8 \(at byte {len(content):,}\): save it as"
  ):
    list(cells_of(str(path)))
