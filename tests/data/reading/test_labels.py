"""Labels as people write them into files, against what they mean."""

import dataclasses
import os
import re
from typing import Any

import numpy as np
import pytest

from tests.data.pictures import png
from vit_jax.data.reading import cells, label_file
from vit_jax.data.reading.captions import CAPTIONS
from vit_jax.data.reading.labels import SINGLE
from vit_jax.data.reading.several import SEVERAL
from vit_jax.data.reading.targets import NUMBERS
from vit_jax.data.settings import DataSettings
from vit_jax.runtime.settings import from_dict, to_dict
from vit_jax.tasks.settings import DataSettings as TaskSettings

PNG = png(np.zeros((4, 4, 3), np.uint8))


def opened(folder, text, kind=SINGLE, name="l.csv", **changes):
  """The training split of a file; all images are trained on."""
  for k in range(12):
    (folder / f"im{k}.jpg").write_bytes(PNG)
  (folder / name).write_text(text)
  changes = {"eval_split": "train", **changes}
  settings = DataSettings(labels_file=str(folder / name), **changes)
  return label_file.open_folder(settings, kind)["train"]


def labels(source):
  files = [os.path.basename(name) for name in source.ids(range(len(source)))]
  every = source.labels(range(len(source))).tolist()
  return dict(zip(files, every, strict=True))


def sets(source):
  """The names of the labels of each image."""
  return {
    file.removesuffix(".jpg"): [
      name for name, bit in zip(source.class_names, bits, strict=True) if bit
    ]
    for file, bits in labels(source).items()
  }


def rows(*cells, head="file,label"):
  return "\n".join(
    [head, *(f"im{k}.jpg,{cell}" for k, cell in enumerate(cells))]
  )


def about(source, what):
  """The only warning that has these words."""
  (line,) = [line for line in source.warnings() if what in line]
  assert "\n" not in line
  return line


SPACES = rows(*["scab rust", "healthy", "scab", "rust complex"] * 3)
COMMAS = rows(*['"cat, dog"', '"cat"', '"dog, sun"', '"sun"'] * 3)


@pytest.mark.parametrize(
  "text, key, example, found",
  [
    (SPACES, " ", "scab rust", "complex healthy rust scab"),
    (COMMAS, ",", "cat, dog", "cat dog sun"),
    (rows(*["a/b", "b", "c", "a"]), "/", "a/b", "a b c"),
  ],
)
def test_labels_that_may_be_apart_are_said_and_parted(
  tmp_path, text, key, example, found
):
  source = opened(tmp_path, text, SEVERAL)
  assert example in source.class_names and len(source.class_names) == 4
  line = about(source, "may each be several labels")
  assert repr(example) in line
  assert f"--config.data.label_separator={key!r} separates" in line
  source = opened(tmp_path, text, SEVERAL, label_separator=key)
  assert source.class_names == tuple(found.split())
  assert sets(source)["im0"] == sorted(re.split("[ ,/]+", example))
  assert not [line for line in source.warnings() if "several labels" in line]


def test_a_class_that_looks_like_several_labels_is_said(tmp_path):
  for text, key in ((SPACES, " "), (COMMAS, ",")):
    line = about(opened(tmp_path, text), "look like several labels")
    assert "--config.data.task=multilabel" in line
    assert f"--config.data.label_separator={key!r} reads" in line


SENTENCES = [f"a dog, by tree {k} of it" for k in range(12)]


def test_sentences_in_place_of_classes_are_told_as_captions(tmp_path):
  path = tmp_path / "l.csv"
  command = re.escape(f"vit_jax train {path} --config pairs")
  text = rows(*(f'"{cell}"' for cell in SENTENCES), head="photo,what you see")
  with pytest.raises(ValueError, match=f"12 classes, so .*captions.*{command}"):
    opened(tmp_path, text, eval_split=None)
  line = about(opened(tmp_path, text), "look like captions")
  assert re.search(command, line) and "several labels" not in line
  drawn = [f"a {k} {shape}" for k in ("red", "blue") for shape in "xyz"] * 2
  told = opened(tmp_path, rows(*drawn))  # A drawing may be described again.
  assert about(told, "look like captions")
  again = text + "\nim0.jpg,another view of it"
  with pytest.raises(ValueError, match=f"one row for a file, or .*{command}"):
    opened(tmp_path, again)
  captions = opened(tmp_path, again, CAPTIONS)
  assert len(captions) == 12 and captions.kind is CAPTIONS


@pytest.mark.parametrize(
  "cells",
  [
    ["American pit bull terrier", "great white shark"] * 6,
    [f"plate {k}" for k in range(12)],
    [f"warm, cheese {k}, raw" for k in range(12)],
  ],
)
def test_other_names_are_not_told_as_captions(tmp_path, cells):
  source = opened(tmp_path, rows(*(f'"{cell}"' for cell in cells)))
  assert not any("captions" in line for line in source.warnings())


def test_a_single_column_is_not_said_to_have_0_and_1(tmp_path):
  text = COMMAS.replace("file,label", "photo,seen")
  assert text != COMMAS
  lines = opened(tmp_path, text, SEVERAL).warnings()
  assert any("seen is the label" in line for line in lines)
  assert not any("have 0 and 1" in line for line in lines)


@pytest.mark.parametrize(
  "cells",
  [
    ["polar bear", "cat", "dog", "cat"],
    ["polar bear;snow", "brown bear;snow", "snow", "grass"],
    ["polar bear|snow", "brown bear", "snow", "polar bear"],
    ["sweet pepper", "maple tree", "oak tree|pepper", "pickup truck"],
  ],
)
@pytest.mark.parametrize("kind", [SINGLE, SEVERAL])
def test_a_space_in_a_name_is_not_doubted(tmp_path, kind, cells):
  source = opened(tmp_path, rows(*cells), kind)
  names = {part for cell in cells for part in cell.replace("|", ";").split(";")}
  assert kind is SINGLE or {*source.class_names} == names
  assert not any("label_separator" in line for line in source.warnings())


@pytest.mark.parametrize(
  "kind, message",
  [(SINGLE, "set data.task=multilabel"), (NUMBERS, "set data.task=multilabe")],
)
def test_a_separator_is_for_several_labels(tmp_path, kind, message):
  with pytest.raises(
    ValueError, match=f"label_separator=' ' separates .*{message}"
  ):
    opened(tmp_path, SPACES, kind, label_separator=" ")
  with pytest.raises(ValueError, match="label_separator='x' must be spaces or"):
    DataSettings(labels_file="l.csv", label_separator="x")


LISTS = rows('"[""cat"", ""dog""]"', "\"['cat']\"", "[]", '"[""sun""]"')


def test_a_list_in_text_is_several_labels_or_captions(tmp_path):
  source = opened(tmp_path, LISTS, SEVERAL)
  expected = {"im0": ["cat", "dog"], "im1": ["cat"], "im2": [], "im3": ["sun"]}
  assert sets(source) == expected
  with pytest.raises(
    ValueError, match=r"line 2 has label=\['cat', 'dog'\]; da"
  ):
    opened(tmp_path, LISTS)
  with pytest.raises(
    ValueError, match="line 2 has label='.*', which begins like a list and"
  ):
    opened(tmp_path, rows('"[""cat"", ""dog"', "x"), SEVERAL)


def test_a_run_of_before_reads_its_file_as_before(tmp_path):
  settings = DataSettings(labels_file="l.csv")
  saved = to_dict(settings)
  assert from_dict(DataSettings, saved, saved=True) == settings
  del saved["label_separator"]
  before = from_dict(DataSettings, saved, saved=True).label_separator
  source = opened(tmp_path, LISTS, SEVERAL, label_separator=before)
  assert source.class_names == ('["cat", "dog"]', '["sun"]', "['cat']", "[]")
  source = opened(tmp_path, rows("a;b", "a|c", "b"), SEVERAL)
  assert source.class_names == ("a", "b", "c")
  same = opened(
    tmp_path, rows("a;b", "a|c", "b"), SEVERAL, label_separator=before
  )
  assert labels(same) == labels(source)


ONE_HOT = "filename, healthy, rust, scab\n" + "\n".join(
  f"im{k}.jpg, {', '.join('1' if k % 3 == c else '0' for c in range(3))}"
  for k in range(12)
)
CLASSES = {f"im{k}.jpg": k % 3 for k in range(12)}


def test_columns_with_a_single_1_are_the_classes(tmp_path):
  columns = "healthy,rust,scab"
  source = opened(tmp_path, ONE_HOT, label_columns=columns)
  assert source.class_names == ("healthy", "rust", "scab")
  assert labels(source) == CLASSES and source.labels([0]).dtype == np.int32
  assert "columns healthy, rust, scab are" in about(source, "a single 1.")
  guessed = opened(tmp_path, ONE_HOT)
  assert labels(guessed) == CLASSES
  about(guessed, "columns healthy, rust, scab are the classes, as each row has")
  several = opened(tmp_path, ONE_HOT, SEVERAL)
  about(several, "columns healthy, rust, scab have 0 and 1, and are taken for")
  expected = {file: np.eye(3)[k].tolist() for file, k in CLASSES.items()}
  assert labels(several) == expected
  moved = opened(
    tmp_path, ONE_HOT.replace("0, 1, 0", "false, TRUE, "), eval_split=None
  )
  assert labels(moved).items() <= CLASSES.items()


@pytest.mark.parametrize(
  "row, message",
  [
    (
      "1, 1, 0",
      "line 13 has 2 times 1 in the columns healthy, rust, scab, and 1 of",
    ),
    ("0, 0, 0", "line 13 has no 1 in the columns healthy, rust, scab, and 1"),
    (
      "0, 2, 0",
      "takes one, or those of .* 13 has rust='2', .* or 1; data.task=reg",
    ),
  ],
)
def test_rows_without_a_single_1_are_named(tmp_path, row, message):
  text = ONE_HOT.rpartition("im11.jpg")[0] + f"im11.jpg, {row}"
  with pytest.raises(ValueError, match=message) as error:
    opened(tmp_path, text)
  if "2, 0" not in row:
    assert "data.task=multilabel takes any number" in str(error.value)
    assert len(opened(tmp_path, text, SEVERAL).class_names) == 3


LEFT_OUT = "and are left out of the loss and the metrics"


@pytest.mark.parametrize("empty", ["", "nan", "NaN", "None", "NA"])
def test_empty_cells_are_counted(tmp_path, empty):
  """They are unknown, but in a column without a 0, as of those that are so."""
  cells = [f"1,{empty}", f"{empty},{empty}", "0,1", "1.0,1"]
  text = rows(*cells, head="file,edema,effusion")
  source = opened(tmp_path, text, SEVERAL)
  expected = {"im0": [1, 0], "im1": [np.nan, 0], "im2": [0, 1], "im3": [1, 1]}
  np.testing.assert_equal(
    {file.removesuffix(".jpg"): bits for file, bits in labels(source).items()},
    expected,
  )
  assert about(source, "empty") == (
    "2 of 8 cells are empty and count as 0: effusion 2."
  )
  assert about(source, "do not say") == (
    f"1 of 8 cells do not say whether an image has the label, {LEFT_OUT}: "
    "edema 1."
  )
  earlier = opened(tmp_path, text, SEVERAL, empty_cells="absent")
  assert labels(earlier)["im1.jpg"] == [0, 0]
  assert earlier.labels([0]).dtype == np.uint8
  assert about(earlier, "empty").endswith("as 0: edema 1, effusion 2.")


def test_the_zeros_of_other_splits_do_not_change_what_empty_cells_mean(
  tmp_path,
):
  """As in CheXpert, whose "No Finding" is 1 or empty in training alone."""
  train = rows("1,", "0,1", ",", head="file,edema,healthy")
  (tmp_path / "val.csv").write_text(
    "file,edema,healthy\nim3.jpg,1,0\nim4.jpg,,"
  )
  files: Any = dict(
    eval_split="val", eval_labels_file=str(tmp_path / "val.csv")
  )
  source = opened(tmp_path, train, SEVERAL, **files)
  expected = {"im0.jpg": [1, 0], "im1.jpg": [0, 1], "im2.jpg": [np.nan, 0]}
  np.testing.assert_equal(labels(source), expected)
  settings = DataSettings(labels_file=str(tmp_path / "l.csv"), **files)
  held_out = label_file.open_split(settings, "eval", SEVERAL)
  expected = {"im3.jpg": [1, 0], "im4.jpg": [np.nan, 0]}
  np.testing.assert_equal(labels(held_out), expected)


def test_a_label_that_all_images_have_or_lack_is_said(tmp_path):
  text = rows("1,1,0,1", "1,0,0,", ",1,0,1", head="file,a,b,c,d")
  source = opened(tmp_path, text, SEVERAL, empty_cells="unknown")
  learns = "the model learns one answer for all images."
  assert about(source, "known to lack") == (
    f"no training image is known to lack the labels a, d: {learns}"
  )
  assert about(source, "training image has") == (
    f"no training image has the label c: {learns}"
  )


def test_a_column_of_empty_cells_says_nothing(tmp_path):
  text = rows("1,", "0,", head="file,a,b")
  with pytest.raises(ValueError, match="has b, and no training row"):
    opened(tmp_path, text, SEVERAL, label_columns="a,b")


ABOUT_FOUR = rows("1,0", "-1,1", "-1.0,?", "0,0", head="file,edema,effusion")
U = np.nan


@pytest.mark.parametrize(
  "changes, edema, effusion, left_out",
  [
    ({"uncertain": "ignore", "unknown": "?"}, [1, U, 0], [0, 1, 0], 1),
    ({"uncertain": "positive", "unknown": "?"}, [1, 1, 1, 0], [0, 1, U, 0], 0),
    ({"uncertain": "negative", "unknown": "?"}, [1, 0, 0, 0], [0, 1, U, 0], 0),
    ({"unknown": "-1, ?"}, [1, U, 0], [0, 1, 0], 1),
    # The key of a value goes before the one of all uncertain labels.
    ({"uncertain": "positive", "unknown": "-1,?"}, [1, U, 0], [0, 1, 0], 1),
  ],
)
def test_cells_say_that_a_label_is_unknown_or_uncertain(
  tmp_path, changes, edema, effusion, left_out
):
  source = opened(tmp_path, ABOUT_FOUR, SEVERAL, **changes)
  found = source.labels(range(len(source)))
  np.testing.assert_array_equal(found.T, [edema, effusion])
  assert source[1]["label"].dtype == np.float32
  lines = [line for line in source.warnings() if "nothing is known" in line]
  assert bool(lines) == bool(left_out)
  if lines:
    assert lines[0].startswith("1 of 4 rows are left out, as")


def test_yes_and_no_are_1_and_0(tmp_path):
  text = rows("yes,n", "No,Y", ",on", "y,OFF", head="file,round,red")
  source = opened(tmp_path, text, SEVERAL)
  wanted = [[1, 0], [0, 1], [np.nan, 1], [1, 0]]
  found = source.labels(range(4))
  np.testing.assert_array_equal(found, wanted)
  about(source, "have 0 and 1, and are taken for the labels")


@pytest.mark.parametrize(
  "cells, message",
  [
    (
      ("there,1", "gone,0", ",1"),
      "'there', which is not 0 or 1: in place of 'gone' and 'there', write 1 ",
    ),
    (
      ("yes,1", "no,0", "dim,1"),
      "'dim', which is not 0 or 1; if it means that nobody knows, add --con",
    ),
    (
      ("there,1", "gone,0", "dim,1"),
      "'there', which is not 0 or 1: write 1 where an image has the label, a",
    ),
  ],
)
def test_two_words_are_written_as_1_and_0(tmp_path, cells, message):
  text = rows(*cells, head="file,round,red")
  with pytest.raises(ValueError, match=re.escape(message)):
    opened(tmp_path, text, SEVERAL, label_columns="round,red")


@pytest.mark.parametrize(
  "cells, advice",
  [
    (
      ("circle", "", "square", '"circle, square"', "circle", "square"),
      "1 of 3 classes, such as 'circle, square', look like several labels; --",
    ),
    (("circle", "", "square"), "fill it in, or leave out the line."),
  ],
)
def test_a_row_without_a_class_says_what_to_do(tmp_path, cells, advice):
  text = rows(*cells, head="file,tags")
  message = f"line 3 has tags='', which is not a class: {advice}"
  with pytest.raises(ValueError, match=re.escape(message)):
    opened(tmp_path, text)


@pytest.mark.parametrize(
  "text, changes, kind, message",
  [
    ("1,-1", {}, SEVERAL, "effusion='-1', an uncertain label, it seems: set "),
    ("1,x", {"uncertain": "ignore"}, SEVERAL, "'x', which is not 0 or 1"),
    (
      "-1,9",
      {"unknown": "-1,9"},
      SEVERAL,
      "line 2 and no other row says whether an image has a label",
    ),
    (
      "1,9",
      {"unknown": "9"},
      SEVERAL,
      "data.label_columns has effusion, and no training row of",
    ),
    ("1,0", {"unknown": "9"}, SINGLE, "data.unknown='9' is for images with"),
    ("1,0", {"uncertain": "ignore"}, NUMBERS, "data.uncertain='ignore' is for"),
    (
      "1,0",
      {"empty_cells": "unknown"},
      SINGLE,
      "data.empty_cells='unknown' is",
    ),
  ],
)
def test_cells_without_a_meaning_are_refused(
  tmp_path, text, changes, kind, message
):
  text = rows(text, head="file,edema,effusion")
  with pytest.raises(ValueError, match=re.escape(message)):
    opened(tmp_path, text, kind, label_columns="edema,effusion", **changes)


@pytest.mark.parametrize(
  "cells, expected",
  [
    (("1,", "-1,1"), [1, 1]),  # One of both has it.
    (("0,", "-1,0"), [0, 0]),  # What is known goes before what is not.
    (("-1,0", "0,-1"), [0, 0]),
  ],
)
def test_rows_of_an_image_say_what_either_knows(tmp_path, cells, expected):
  first, second = (f"im0.jpg,{cell}" for cell in cells)
  text = f"file,a,b\n{first}\n{second}\nim1.jpg,1,0\nim2.jpg,0,1\n"
  source = opened(tmp_path, text, SEVERAL, uncertain="ignore")
  assert labels(source)["im0.jpg"] == expected


@pytest.mark.parametrize("first, said", [("", True), ("cat", False)])
def test_images_without_a_label_are_counted(tmp_path, first, said):
  source = opened(tmp_path, rows(first, "cat;dog", "dog", "cat"), SEVERAL)
  line = "1 of 4 images have no label: their cells of 'label' are empty."
  assert (line in source.warnings()) == said


@pytest.mark.parametrize("column, said", [("Split", True), ("split", False)])
def test_a_column_of_splits_of_another_name_is_said(tmp_path, column, said):
  cells = ["cat,train", "dog,train", "cat,train", "dog,val", "cat,val"]
  source = opened(tmp_path, rows(*cells, head=f"file,label,{column}"))
  line = (
    f"the column {column!r} seems to name splits, and is not read: rename "
    "it split to use it."
  )
  assert len(source) == (5 if said else 3)
  assert (line in source.warnings()) == said


def test_an_uncertain_label_is_refused(tmp_path):
  """CheXpert has -1.0 for what its labeller could not decide."""
  head = "Path,Sex,Age,Edema,Fracture"
  text = f"{head}\nim0.jpg,F,68,1.0,\nim1.jpg,M,70,,0.0\nim2.jpg,F,5,0.0,1.0\n"
  keys = {"label_columns": "Edema,Fracture"}
  source = opened(tmp_path, text, SEVERAL, **keys)
  assert labels(source)["im2.jpg"] == [0, 1]
  np.testing.assert_array_equal(source.labels([0, 1]), [[1, U], [U, 0]])
  with pytest.raises(
    ValueError,
    match="several that may be it: Sex, Age, Edema, .* 2 columns have 0 and 1: "
    ".*--config.data.task=multilabel --config.data.label_columns=Edema,Frac",
  ):
    opened(tmp_path, text, SINGLE)
  with pytest.raises(
    ValueError,
    match="line 3 has Edema='-1.0', an uncertain label, it seems: set --conf",
  ):
    opened(tmp_path, text.replace("70,,", "70,-1.0,"), SEVERAL, **keys)


REPEATED = "file,label\nim0.jpg,cat\nim1.jpg,dog\nim0.jpg,sun\nim1.jpg,dog\n"


def test_rows_of_an_image_are_put_together(tmp_path):
  source = opened(tmp_path, REPEATED, SEVERAL)
  assert sets(source) == {"im0": ["cat", "sun"], "im1": ["dog"]}
  about(source, "rows that name an image again add their labels to it: 2.")
  bits = "file,cat,sun\nim0.jpg,1,0\nim1.jpg,0,0\nim0.jpg,0,1\nim1.jpg,,0\n"
  source = opened(tmp_path, bits, SEVERAL, label_columns="cat,sun")
  assert sets(source) == {"im0": ["cat", "sun"], "im1": []}
  json = '{"file": "im0.jpg", "label": ["a", "b"]}\n' * 2
  json += (
    '{"file": "im0.jpg", "label": "c;a"}\n{"file": "im1.jpg", "label": []}'
  )
  source = opened(tmp_path, json, SEVERAL, name="l.jsonl")
  assert sets(source) == {"im0": ["a", "b", "c"], "im1": []}


def test_a_class_is_given_once(tmp_path):
  again = rows("a", "b", "a", "b") + "\nim0.jpg,a\n./im1.jpg,b\n"
  source = opened(tmp_path, again)
  assert labels(source) == {f"im{k}.jpg": k % 2 for k in range(4)}
  about(source, "rows that repeat an image and its label count once: 2.")
  with pytest.raises(
    ValueError,
    match=r"line 4 names 'im0.jpg' as .*line 2 does, with another label: keep "
    r"one row for a file \(data.task=multilabel takes several\)",
  ):
    opened(tmp_path, REPEATED)
  with pytest.raises(ValueError, match="with another label: keep one row for"):
    opened(tmp_path, "file,x\nim0.jpg,1\nim1.jpg,2\nim0.jpg,3\n", NUMBERS)


@pytest.mark.parametrize("kind", [SINGLE, SEVERAL, CAPTIONS])
def test_an_image_has_one_split(tmp_path, kind):
  text = "file,label,split\nim0.jpg,a,train\nim1.jpg,b,train\nim0.jpg,a,val\n"
  text = text.replace("label", "caption") if kind is CAPTIONS else text
  with pytest.raises(
    ValueError, match="line 4 puts 'im0.jpg' into another split than .*line 2"
  ):
    opened(tmp_path, text, kind)


def test_open_images_denies_labels(tmp_path):
  head = "ImageID,Source,LabelName,Confidence"
  cells = ["im0,v,/m/1,1", "im0,v,/m/2,1", "im0,v,/m/3,0", "im1,v,/m/3,1"]
  source = opened(tmp_path, "\n".join([head, *cells]), SEVERAL)
  assert sets(source) == {"im0": ["/m/1", "/m/2"], "im1": ["/m/3"]}
  about(source, "that a label is absent, are left out: 1.")
  other = "file,label,Confidence\nim0.jpg,a,0\nim1.jpg,b,1\n"
  assert labels(opened(tmp_path, other)) == {"im0.jpg": 0, "im1.jpg": 1}


@pytest.mark.parametrize(
  "cells, said",
  [
    ("1 2 3 1", "named 1 to 3, and their indices are 0 to 2: class 0 is '1'."),
    ("0 1 2 0", ""),
    ("1 2 10 1", ""),
    ("2 3 4 2", ""),
  ],
)
def test_labels_from_1_are_said(tmp_path, cells, said):
  for kind in (SINGLE, SEVERAL):
    source = opened(tmp_path, rows(*cells.split()), kind)
    assert source.class_names[0] == cells.split()[0]
    found = [line for line in source.warnings() if "their indices" in line]
    assert len(found) == bool(said) and all(said in line for line in found)


def test_the_keys_survive_a_change_of_the_file(tmp_path):
  given = TaskSettings(
    labels_file="l.csv", task="multilabel", label_separator=" "
  )
  assert dataclasses.replace(given, labels_file="m.csv").label_separator == " "


HEAD = "file,red,round,large"


def test_flags_are_found_whatever_the_first_row_leaves_open(tmp_path):
  text = rows(",?,1", "1,0,0", "0,1,1", head=HEAD)
  source = opened(tmp_path, text, SEVERAL, unknown="?")
  assert source.class_names == ("red", "round", "large")
  np.testing.assert_array_equal(
    source.labels(range(3)),
    [[np.nan, np.nan, 1], [1, 0, 0], [0, 1, 1]],
  )


@pytest.mark.parametrize(
  "marks, kind, message",
  [
    (
      ("1,0,1", "0,?,1", "1,1,0"),
      SINGLE,
      (
        "red, round, large have 0 and 1, and '?' besides. Several labels of an "
        "image, of which some are unknown, are learned with "
        "--config.data.task=multilabel --config.data.unknown='?'."
      ),
    ),
    (
      ("1,0,1", "0,u,1", "1,1,x"),
      SINGLE,
      "and 'u' and 'x' besides. Several",
    ),
    (("1,a,1", "0,b,1"), SINGLE, "and several that may be it"),
  ],
)
def test_values_beside_0_and_1_are_named(tmp_path, marks, kind, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    opened(tmp_path, rows(*marks, head=HEAD), kind)


def test_a_value_beside_0_and_1_has_its_flag(tmp_path):
  message = re.escape("add --config.data.unknown='?'.")
  with pytest.raises(ValueError, match=f"round='.', which .* {message}"):
    text = rows("1,?,1", head=HEAD)
    opened(tmp_path, text, SEVERAL, label_columns="red,round")


@pytest.mark.parametrize("cell", ["red large", "red/large", "red_large"])
def test_labels_of_another_file_between_other_marks_are_told(tmp_path, cell):
  source = opened(tmp_path, rows("red;large", "round", "red"), SEVERAL)
  row = cells.Row("l.csv, line 2", "im0.jpg", None, [cell])
  message = "write 'red;large' in its place, with a ; between labels"
  with pytest.raises(ValueError, match=f"line 2 has .*{message}"):
    SEVERAL.fit_to(["label"], [row], source.class_names)([row])
