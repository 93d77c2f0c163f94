"""A file of labels that is new to a run, against the rows written into it."""

import numpy as np
import pytest

from tests.data.pictures import png
from vit_jax.data.reading.captions import Captions
from vit_jax.data.reading.labels import SINGLE
from vit_jax.data.reading.named_images import find_images
from vit_jax.data.reading.other_table import open_whole, root_with_images
from vit_jax.data.reading.several import SEVERAL
from vit_jax.data.reading.targets import NUMBERS
from vit_jax.tasks.settings import DataSettings

TASKS = {SINGLE: "classification", SEVERAL: "multilabel", NUMBERS: "regression"}


@pytest.fixture
def folder(tmp_path):
  for k in range(4):
    (tmp_path / f"{k}.png").write_bytes(png(np.full((4, 4, 3), k, np.uint8)))
  return tmp_path


def opened(folder, text, kind, names, **run):
  path = folder / "other.csv"
  path.write_text(text)
  task = TASKS.get(kind, "pairs")
  settings = DataSettings(labels_file=str(path), task=task, **run)
  return open_whole(settings, kind, names)


@pytest.mark.parametrize(
  "kind, names, text, expected",
  [
    (SINGLE, ("a", "b", "c"), "pic,what\n0.png,c\n1.png,a", [2, 0]),
    (SINGLE, ("a", "b", "c"), "file,label\n0.png,b\n1.png,b", [1, 1]),
    (SINGLE, ("a", "b", "c"), "f,c,a\n0.png,1,0\n1.png,0,1", [2, 0]),
    (NUMBERS, ("x",), "pic;price\n0.png;1,5\n1.png;2,5", [[1.5], [2.5]]),
    (NUMBERS, ("x",), "n,x,pic\n7,1,0.png\n8,2,1.png", [[1], [2]]),
    (NUMBERS, ("x", "y"), "y,x,pic\n7,1,0.png\n8,2,1.png", [[1, 7], [2, 8]]),
    (
      SEVERAL,
      ("a", "b", "c"),
      "pic,tags\n0.png,c;a\n1.png,",
      [[1, 0, 1], [0, 0, 0]],
    ),
    (SEVERAL, ("a", "b"), "b,pic,a\n1,0.png,0\n1,1.png,1", [[0, 1], [1, 1]]),
    (
      NUMBERS,
      ("x",),
      "pic,x,split\n2.png,5,train\n0.png,1,val\n1.png,2,val\n3.png,9,test",
      [[1], [2]],
    ),
  ],
)
def test_its_labels_are_those_of_the_run(folder, kind, names, text, expected):
  source = opened(folder, text, kind, names)
  assert source.class_names == names
  files = [name.rsplit("/", 1)[-1] for name in source.ids(range(len(source)))]
  assert files == ["0.png", "1.png"]
  assert source.labels(range(2)).tolist() == expected
  assert not [note for note in source.notes if "--config" in note]


@pytest.mark.parametrize(
  "kind, names, text, message",
  [
    (SINGLE, ("a", "b"), "f,l\n0.png,z", "line 2 has the label 'z', which the"),
    (SINGLE, ("a", "b"), "f,z,a\n0.png,0,1", "'z', .*; the run has a, b."),
    (
      SEVERAL,
      ("a", "b"),
      "f,l\n0.png,a;z",
      "the label 'z', which the run does",
    ),
    (SINGLE, ("a", "b"), "f,l,m\n0.png,a,b", "no column 'label', from which"),
    (
      NUMBERS,
      ("x",),
      "f,l,m\n0.png,1,2",
      "no column 'x', .*l, m: give the column",
    ),
    (
      SEVERAL,
      ("a", "b"),
      "f,l,m\n0.png,a,b",
      r"neither a column 'label' nor .* of the run \(a, b\); its ",
    ),
    (
      Captions(),
      ("caption",),
      "f,l,m\n0.png,a,b",
      "no column 'caption', from which .* the answers the name caption",
    ),
    (NUMBERS, ("x",), "f,l\n0.png,", "l='', which is not a number"),
  ],
)
def test_what_the_run_does_not_know_is_said(folder, kind, names, text, message):
  with pytest.raises(ValueError, match=message):
    opened(folder, text, kind, names)


@pytest.mark.parametrize(
  "kind, names, text, run, message",
  [
    (
      SEVERAL,
      ("a", "b", "c"),
      "f,a,x\n0.png,0,red",
      {"label_columns": "a,b,c"},
      r"lacks b, c of .* learned \(a, b, c\); its columns are f, a, x: add",
    ),
    (
      SEVERAL,
      ("a", "b"),
      "f,a,b\n0.png,0,1\n1.png,?,0",
      {},
      "a='[?]', .*; if it means that nobody knows, leave the cell empty[.]$",
    ),
    (
      SEVERAL,
      ("a", "b"),
      "f,a,b\n0.png,0,1\n1.png,?,0",
      {"empty_cells": "absent"},
      "nobody knows, leave out the row[.]$",
    ),
    (
      SEVERAL,
      ("a", "b"),
      "f,a,b\n0.png,0,1\n1.png,-1,0",
      {},
      "it seems: write 1 or 0, or leave the cell empty[.]$",
    ),
    (
      NUMBERS,
      ("x",),
      "f,x\n0.png,1\n1.png,big",
      {},
      "such as 3.5: correct it, or leave out the line[.]$",
    ),
    (
      NUMBERS,
      ("x",),
      "f,x\nq,1.5\nr,2.5",
      {},
      "gives another folder; rename the column of the images to file[.]$",
    ),
  ],
)
def test_errors_say_what_to_write_as_no_keys_are_taken(
  folder, kind, names, text, run, message
):
  with pytest.raises(ValueError, match=message):
    opened(folder, text, kind, names, **run)


def test_another_name_of_the_only_number_is_said(folder):
  source = opened(folder, "pic,price\n0.png,1", NUMBERS, ("cost",))
  assert source.notes == [
    "the column 'pic' names the images, and price is the label.",
    "'price' is compared with the run's 'cost'.",
  ]


def test_columns_of_the_run_are_taken_where_they_are_there(folder):
  run = {"label_columns": "m", "file_column": "gone"}
  source = opened(
    folder, "f,l,m\n0.png,a,b\n1.png,a,a", SINGLE, ("a", "b"), **run
  )
  assert source.labels(range(2)).tolist() == [1, 0]


def test_images_are_beside_a_table_or_where_they_were(folder, tmp_path_factory):
  elsewhere = tmp_path_factory.mktemp("elsewhere")
  path = elsewhere / "t.csv"
  path.write_text("pic,l\n0,a\n1,b\n0,a\n")
  roots = str(elsewhere), str(folder)
  assert root_with_images(str(path), roots) == str(folder)
  (elsewhere / "0.png").touch()
  (elsewhere / "1.png").touch()
  assert root_with_images(str(path), roots) == str(elsewhere)
  assert [*find_images(str(path))] == [
    str(elsewhere / "0.png"),
    str(elsewhere / "1.png"),
  ]
