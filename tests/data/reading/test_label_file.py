"""Files of labels beside a folder, against the rows written into them."""

import dataclasses
import json
import os
import pickle
import re
import shutil

import numpy as np
import pytest

from tests.data.pictures import png
from vit_jax.data.batching.batches import EvalBatches, TrainBatches
from vit_jax.data.reading.named_images import find_images
from vit_jax.data.reading.sources import open_source, open_splits
from vit_jax.data.transforming.transforms import (
  make_eval_transform,
  make_train_transform,
)
from vit_jax.tasks.settings import DataSettings

FILES = [f"{k}.png" for k in range(10)]


@pytest.fixture
def folder(tmp_path):
  """Ten images; image k has the grey level k."""
  (tmp_path / "deep").mkdir()
  for k, name in enumerate([*FILES, "deep/a, b.png"]):
    (tmp_path / name).write_bytes(png(np.full((4, 4, 3), k, np.uint8)))
  return tmp_path


def settings(folder, text, name="labels.csv", **changes):
  content = text if isinstance(text, bytes) else text.encode()
  (folder / name).write_bytes(content)
  return DataSettings(labels_file=str(folder / name), **changes)


def rows(*labels):
  pairs = zip(FILES, labels, strict=False)
  return "\n".join(["file,label", *(f"{k},{label}" for k, label in pairs)])


def labels(source):
  every = source.labels(range(len(source))).tolist()
  files = [name.rsplit("/", 1)[-1] for name in source.ids(range(len(source)))]
  return dict(zip(files, every, strict=True))


def test_a_split_column_gives_the_splits(folder):
  text = "file,label,split\n0.png,dog,train\n1.png,cat,training\n"
  text += "2.png,cat,val\n3.png,dog,Test\n"
  splits = open_splits(settings(folder, text))
  assert splits.train.class_names == ("cat", "dog")
  assert labels(splits.train) == {"0.png": 1, "1.png": 0}
  assert labels(splits.eval) == {"2.png": 0}
  assert splits.test is not None and labels(splits.test) == {"3.png": 1}
  assert splits.found.startswith("labels.csv: train 2, val 1, test 1 image")
  assert splits.train[0]["image"] == (folder / "0.png").read_bytes()
  assert splits.train[0]["label"] == 1
  on_test = settings(folder, text, eval_split="test")
  assert open_splits(on_test).test is None
  assert labels(open_source("eval", on_test)) == {"3.png": 1}


def test_two_files_and_another_root(folder, tmp_path_factory):
  place = tmp_path_factory.mktemp("labels")
  (place / "val.csv").write_text("file,label\n2.png,b\n")
  given = settings(
    place,
    "file,label\n0.png,a\n1.png,b\n",
    root=str(folder),
    eval_labels_file="val.csv",
  )
  with pytest.raises(
    ValueError, match="data.labels_file='val.csv' is not a file, here or"
  ):
    open_splits(given)
  (place / "val.csv").rename(folder / "val.csv")
  splits = open_splits(given)
  assert labels(splits.train) == {"0.png": 0, "1.png": 1}
  assert labels(splits.eval) == {"2.png": 1} and splits.eval.split == "val"
  with pytest.raises(ValueError, match="has no row with split=test"):
    open_source("test", given)


def test_a_part_of_each_class_is_held_out(folder):
  given = settings(folder, rows(*"aaaaabbbbb"), eval_fraction=0.4)
  splits = open_splits(given)
  train, evaluation = labels(splits.train), labels(splits.eval)
  assert sorted([*train, *evaluation]) == FILES
  assert sorted(evaluation.values()) == [0, 0, 1, 1]
  assert labels(open_source("eval", given)) == evaluation
  assert "held out 4" in splits.found


@pytest.mark.parametrize(
  "head, keys",
  [
    ("id,breed", dict(label_columns="breed")),
    ("image_id,label", {}),
    ("name,label", dict(file_column="name")),
    ("file,name,label", dict(file_column="name", label_columns="label")),
  ],
)
def test_names_may_lack_an_ending_and_stand_in_any_column(folder, head, keys):
  (folder / "4.png").rename(folder / "4.JPG")
  first = "x," if head.startswith("file,") else ""
  text = f"{head}\n{first}0,a\n{first}1.png,b\n{first}4,a\n{first}2,b\n"
  source = open_source(
    "train", settings(folder, text, eval_split="train", **keys)
  )
  found = {"0.png": 0, "1.png": 1, "4.JPG": 0, "2.png": 1}
  assert labels(source) == found
  with pytest.raises(ValueError, match="no column 'nope'.*data.file_column"):
    open_source("train", settings(folder, text, file_column="nope"))


def test_classes_that_are_numbers_keep_their_order(folder):
  given = settings(folder, rows(*(10, 2, 1, 10, 2, 1)))
  assert open_source("train", given).class_names == ("1", "2", "10")


@pytest.mark.parametrize(
  "text",
  [
    '\ufefffile,label\r\n"deep/a, b.png",x\r\n0.png,y\r\n\r\n',
    'label;file_name\nx;"deep\\a, b.png"\ny; 0.png\n',
    "path\tclass\ndeep/a, b.png\tx\n0.png\ty",
  ],
)
def test_what_spreadsheets_write_is_read(folder, text):
  given = settings(folder, text, eval_split="train")
  source = open_source("train", given)
  assert labels(source) == {"a, b.png": 0, "0.png": 1}
  assert source[0]["image"] == (folder / "deep/a, b.png").read_bytes()


JSON = """{"file": "0.png", "label": ["dog", "cat"]}
{"file": "1.png", "label": ["cat", "bird"]}

{"file": "2.png", "label": []}"""


@pytest.mark.parametrize(
  "text, name",
  [
    ("file,label\n0.png,cat;dog\n1.png, bird | cat|\n2.png,\n", "labels.csv"),
    (JSON, "labels.jsonl"),
    (
      "file,bird,cat,dog\n0.png,0,1,1.0\n1.png,1,true,0\n2.png,0,0,False\n",
      "labels.csv",
    ),
  ],
)
def test_several_labels(folder, text, name):
  several = {"label_columns": "bird,cat,dog"} if "bird,cat" in text else {}
  given = settings(
    folder, text, name, task="multilabel", eval_split="train", **several
  )
  source = open_source("train", given)
  assert source.class_names == ("bird", "cat", "dog")
  expected = {"0.png": [0, 1, 1], "1.png": [1, 1, 0], "2.png": [0, 0, 0]}
  assert labels(source) == expected


def test_numbers_reach_the_batches(folder):
  text = "file,age,split,height\n" + "\n".join(
    f"{k}.png,{k / 4},{'val' if k > 7 else 'train'},{100 - k}e-1"
    for k in range(10)
  )
  given = settings(folder, text, task="regression")
  train, evaluation = (open_source(s, given) for s in ("train", "eval"))
  assert train.class_names == ("age", "height")
  train = pickle.loads(pickle.dumps(train))
  batches = TrainBatches(train, make_train_transform(4), 4, range(4), 0, False)
  for k in range(2):
    batch = batches.compute(k)
    level = batch["image"][:, 0, 0, 0].astype(float)
    expected = np.stack([level / 4, 10 - level / 10], axis=1)
    np.testing.assert_allclose(batch["label"], expected, rtol=1e-6)
    assert batch["label"].dtype == np.float32
  passes = EvalBatches(evaluation, make_eval_transform(4), 4, range(4), False)
  labels = passes.compute(0)["label"]
  assert labels.tolist()[2:] == [[0, 0], [0, 0]]
  np.testing.assert_allclose(labels[:2], [[2, 9.2], [2.25, 9.1]])
  chosen = settings(folder, text, task="regression", label_columns="height")
  assert open_source("train", chosen).class_names == ("height",)


ONE = "file,label\n0.png,a\n"
SEVERAL = {"task": "multilabel", "label_columns": "a,b"}


@pytest.mark.parametrize(
  "text, changes, message",
  [
    ("", {}, "has no rows; write the line file,label"),
    ("name,label\nzero,a\n", {}, "line 2 has no column that names images; its"),
    ("file,kind,of\n0.png,a,b\n", {}, "no column 'label', and several that"),
    (ONE, {"label_columns": "no"}, "has no column 'no'"),
    ("file,label,label\n0.png,a,b\n", {}, "line 1 has two columns 'label'"),
    (ONE + "1.png,b,c\n", {}, "line 3 has 3 cells, not 2: put doub"),
    (ONE + '1.png,"b"c\n', {}, "line 3 is not CSV: "),
    (ONE + "x.png,b\ny.png,b\n", {}, "3 names 'x.png', .* \\(2 of 3 files are"),
    (ONE + "./0.png,b\n", {}, "line 3 names './0.png' as .*, line 2 does"),
    (ONE + "1.png,\n", {}, "line 3 has label='', which is not a class"),
    (ONE + "1.png,a\n", {}, "and all other rows have 1 different labels to"),
    (ONE + ",b\n", {}, "line 3 names no file: file=''"),
    (
      "file,label,split\n0.png,a,train\n1.png,b,train\n2.png,z,val\n",
      {},
      "line 4 has the label 'z', which no training row has",
    ),
    ("file,label,split\n0.png,a,fold 1\n", {}, "split='fold 1' is not train, "),
    ("file,label,split\n0.png,a,val\n", {}, "has no row with split=train"),
    (ONE + "1.png,b\n", {"eval_split": "val"}, "has no split val; add"),
    (b"\xff\xfef\0", {}, "is not UTF-8 \\(at byte 0\\): save it as UTF-8"),
    ("file,a,b\n0.png,x,y\n", {"label_columns": "a,b"}, "has 2 columns, and"),
    (
      "file,x\n0.png,1\n1.png,\"3,5\"\n",
      {"task": "regression"},
      "line 3 has x='3,5', which is not a number such as 3.5",
    ),
    ("file,x\n0.png,nan\n", {"task": "regression"}, "x='nan', which is no"),
    (rows(*[5] * 10), {"task": "regression"}, "label, which hardly varies"),
    ("file,a,b\n0.png,1,-1\n", SEVERAL, "line 2 has b='-1', an uncertain"),
    (ONE + "1.png,a\n", {"labels": False}, "labels=False and labels_file"),
  ],
)  # fmt: skip
def test_mistakes_are_one_line(folder, text, changes, message):
  with pytest.raises(ValueError, match=message) as error:
    open_splits(settings(folder, text, **changes))
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  "text, message",
  [
    ('{"file": "0.png", "label": "a"}\n{"file"', "line 2 is not JSON: "),
    ('{"file": "0.png", "label": "a"}\n[1]', "line 2 is not an object with"),
    ('{"file": "0.png", "label": "a"}\n{"file": "1.png"}', "2 has no 'label'"),
    ('{"file": 5.5, "label": "a"}', "names no file: file=5.5"),
    ('{"file": true, "label": "a"}', "names no file: file=True"),
    ('{"file": "0.png", "label": ["a"]}', "task=multilabel takes lists"),
    (
      '{"file": "0\\ud83d.png", "label": "a"}',
      r"1 names '0\ud83d.png', with h",
    ),
  ],
)
def test_mistakes_in_json_are_one_line(folder, text, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    open_splits(settings(folder, text, "labels.jsonl"))


@pytest.mark.parametrize("name", ["labels.csv", "labels.jsonl"])
@pytest.mark.parametrize(
  "file", ["/etc/passwd", "../hosts", "deep/../../hosts", "..\\hosts"]
)
def test_files_outside_of_the_folder_are_refused(folder, name, file):
  """Such a file exists, so that reading it would be the first to fail."""
  (folder / "in").mkdir()
  (folder / "hosts").write_text("secret")
  for k in (0, 1):
    shutil.copy(folder / FILES[k], folder / "in")
  rows = [{"file": "0.png", "label": "a"}, {"file": "1.png", "label": "b"}]
  rows.append({"file": file, "label": "b"})
  text = "\n".join(map(json.dumps, rows))
  if name.endswith("csv"):
    text = "\n".join(["file,label", *(",".join(r.values()) for r in rows)])
  (folder / "in/deep").mkdir()
  given = settings(folder / "in", text, name)
  with pytest.raises(ValueError, match="which is outside of .*data.outside=T"):
    open_splits(given)
  given = dataclasses.replace(given, outside=True)
  train, held_out = open_splits(given).train, open_splits(given).eval
  assert len(train) + len(held_out) == 3


def test_a_full_path_inside_of_the_folder_is_read(folder):
  text = rows("a", "b", "a", "b") + f"\n{folder}/4.png,a\ndeep/../5.png,b"
  found = open_splits(settings(folder, text))
  assert len(found.train) + len(found.eval) == 6


def test_a_split_is_given_once(folder):
  (folder / "val.csv").write_text("file,label\n2.png,a\n")
  text = "file,label,split\n0.png,a,train\n1.png,b,train\n"
  given = settings(folder, text, eval_labels_file="val.csv")
  with pytest.raises(ValueError, match="names a split, and data.eval_labels_f"):
    open_splits(given)
  (folder / "val.csv").write_text("file,class\n2.png,a\n")
  with pytest.raises(ValueError, match="has labels in class, and .* in label"):
    open_splits(settings(folder, rows("a", "b"), eval_labels_file="val.csv"))


def test_labels_of_several_parts_are_doubted(folder):
  given = settings(folder, rows("cat;dog", "cat", "cat;dog", "cat"))
  warnings = open_splits(given).warnings
  assert any("'cat;dog', look like several labels" in line for line in warnings)


EXCEL = """\ufefffile;label;"size, cm"
0.png;dog;"1,5"
1.png;cat;"-2,25"
2.png;dog;3,0e1
3.png;cat;4
"""


@pytest.mark.parametrize("mark", ";\t")
def test_what_excel_writes_in_europe_is_read(folder, mark):
  text = EXCEL.replace(";", mark)
  given = settings(folder, text, eval_split="train")
  assert open_source("train", given).class_names == ("cat", "dog")
  given = dataclasses.replace(
    given, task="regression", label_columns="size, cm".split(",")[0]
  )
  with pytest.raises(ValueError, match="has no column 'size'; its columns"):
    open_splits(given)
  text = text.replace("size, cm", "size")
  given = settings(
    folder, text, task="regression", label_columns="size", eval_split="train"
  )
  splits = open_splits(given)
  expected = {"0.png": [1.5], "1.png": [-2.25], "2.png": [30], "3.png": [4]}
  assert labels(splits.train) == expected
  assert splits.warnings == ["numbers such as '1,5' have a decimal comma."]


@pytest.mark.parametrize(
  "given, said",
  [
    ("0 1 1.0 0 1 1.0", "classes '1' and '1.0' are the same number, and are k"),
    ("0 1 nan 0 1 nan", "class 'nan' looks like a missing label, and is kept"),
    ("cat Cat dog cat Cat", "classes 'Cat' and 'cat' differ only in case or"),
    ("caf\xe9 cafe\u0301 x", "classes 'cafe\u0301' and 'caf\xe9' differ only"),
    (
      " ".join(f"{k}.0" for k in (0, 1, 2, 10)),
      "sorted as text: 0.0, 1.0, 10.0, 2.0, ...; a class's index is not its n",
    ),
  ],
)
def test_odd_labels_are_said(folder, given, said):
  text = rows(*given.split())
  found = open_splits(settings(folder, text, eval_split="train"))
  assert sum(said in line for line in found.warnings) == 1
  names = sorted(set(given.split()))
  assert found.train.class_names == tuple(names)  # As runs have recorded them.


def test_answers_of_a_model_are_not_taken_for_labels_without_a_word(folder):
  """The columns of `predict --out`; without its own, they are anybody's."""
  head = "image,class,class_1,probability_1,error"
  answers = [f"{name},{'ab'[k % 2]},a,0.75," for k, name in enumerate(FILES)]
  said = "its labels, in 'class', are a model's answers where nobody has"
  for title, is_said in ((head, True), (head.replace("class_1", "x"), False)):
    text = "\n".join([title, *answers])
    changes = {} if is_said else {"label_columns": "class"}
    splits = open_splits(settings(folder, text, **changes))
    assert splits.train.class_names == ("a", "b")
    assert any(said in line for line in splits.warnings) == is_said


def test_usual_labels_are_not_doubted(folder):
  for given in ("a b a b", "1 2 10", "0.5 1.5 0.5"):
    text = rows(*given.split())
    opened = settings(folder, text, eval_split="train")
    warnings = open_splits(opened).warnings
    assert [line for line in warnings if "fewer than" not in line] == []


@pytest.mark.parametrize("key", ["eval_labels_file", "label_columns", "task"])
def test_keys_about_files_of_labels_need_one(key):
  value = "regression" if key == "task" else "x"
  with pytest.raises(ValueError, match=f"{key}='{value}' needs labels_file"):
    DataSettings(root="photos", **{key: value})


def test_a_file_of_labels_that_is_a_fifo_is_refused(tmp_path):
  os.mkfifo(tmp_path / "labels.csv")
  settings = DataSettings(labels_file=str(tmp_path / "labels.csv"))
  with pytest.raises((OSError, ValueError), match=r"labels\.csv"):
    open_splits(settings)


@pytest.mark.parametrize(
  "there, named, said",
  [
    ("{}.jpg", "{}.JPG", "differ in upper and lower case from"),
    (
      "caf\u00e9{}.jpg",
      "cafe\u0301{}.jpg",
      "differ in the encoding of accents",
    ),
    ("000{}.jpg", "{}.jpg", "differ in the zeros before a number"),
    ("0000{}.jpg", "00{}", "differ in the zeros before a number"),
    ("{}.jpeg", "{}.jpg", "differ in the ending"),
  ],
)
def test_files_are_found_by_other_spellings(tmp_path, there, named, said):
  """The ids and what is held out are those of the files, not of the names."""
  levels = {there.format(k): k for k in range(12)}
  for name, k in levels.items():
    (tmp_path / name).write_bytes(png(np.full((4, 4, 3), k, np.uint8)))
  held_out = []
  for pattern in (there, named):
    cells = [f"{pattern.format(k)},{'ab'[k % 2]}" for k in range(12)]
    text = "\n".join(["file,label", *cells])
    splits = open_splits(settings(tmp_path, text))
    both = {**labels(splits.train), **labels(splits.eval)}
    assert both == {name: k % 2 for name, k in levels.items()}
    held_out.append({*labels(splits.eval)})
  assert held_out[0] == held_out[1]
  lines = [line for line in splits.warnings if said in line]
  assert len(lines) == 1 and "(12, such as" in lines[0]


@pytest.mark.parametrize(
  "text, message",
  [
    (
      ONE + "x/1.png,b\n",
      "'x/1.png', which is not .*; the most similar .* '1.png'.",
    ),
    (ONE + '"a, b.png",b\n', "the most similar name there is 'deep/a, b.png'."),
    (ONE + '"a, b.png",b\n', "deep/a, b.png': write the names with their fol"),
    (
      ONE + "unlike/any.jpg,b\n",
      "missing.; --config.data.root is the folder from whi",
    ),
    (ONE + '"deep/a b.png",b\n', "most similar name there is 'deep/a, b.png'."),
    ("0.png,a\n1.png,b\n", "a first line such as file,label has to name them."),
    (
      ",".join(["file", *map(str, range(50))]) + "\n0.png" + ",7" * 50,
      r"several that may be it: 0, .* 11, ... \(50 columns\)\. Name the one",
    ),
  ],
)
def test_what_is_missing_is_answered_by_what_is_there(folder, text, message):
  with pytest.raises(ValueError, match=message) as error:
    open_splits(settings(folder, text))
  assert "\n" not in str(error.value)


def _in_subfolders(folder, *subfolders):
  """The ten images lie in each of these folders, and no longer beside."""
  for subfolder in subfolders:
    (folder / subfolder).mkdir()
    for name in FILES:
      shutil.copy(folder / name, folder / subfolder)
  for name in FILES:
    (folder / name).unlink()


def test_images_in_the_only_subfolder_are_read_there(folder):
  _in_subfolders(folder, "images")
  splits = open_splits(settings(folder, rows(*"abababab")))
  found = {**labels(splits.train), **labels(splits.eval)}
  assert found == {f"{k}.png": k % 2 for k in range(8)}
  assert splits.train[0]["image"] in {
    (folder / f"images/{k}.png").read_bytes() for k in range(8)
  }
  says = (
    f"the images are read from the folder 'images', the only one in '{folder}'"
  )
  assert any(says in line for line in splits.warnings)
  found = [*find_images(str(folder / "labels.csv"))]
  assert found == [str(folder / f"images/{k}.png") for k in range(8)]


def test_of_two_subfolders_one_is_asked_for(folder):
  _in_subfolders(folder, "images", "more")
  says = "/images' and '.*/more' both have all of them: choose one by --config"
  with pytest.raises(ValueError, match=says):
    open_splits(settings(folder, rows(*"abab")))
  # One file is in neither of them.
  shutil.rmtree(folder / "more")
  (folder / "images/0.png").unlink()
  says = r"4 of 4 files .*; most are in '.*images': set --config.data.root=/"
  with pytest.raises(ValueError, match=says):
    open_splits(settings(folder, rows(*"abab")))


def test_an_id_in_json_names_a_file(folder):
  for name in FILES:
    (folder / name).rename(folder / f"00{name}")
  lines = [json.dumps({"id": k, "label": k % 2}) for k in range(10)]
  given = settings(folder, "\n".join(lines), "labels.jsonl", eval_split="train")
  found = labels(open_source("train", given))
  assert found == {f"00{k}.png": k % 2 for k in range(10)}


def test_a_quote_takes_in_no_row_of_an_image_that_is_there(folder):
  """Names without endings are told from text by the files."""
  for old, new in zip(FILES, ("ab", "xyz", "q"), strict=False):
    (folder / old).rename(folder / f"{new}.png")
  text = 'id,label\nab,"start\n{},end"\nq,y\n'
  with pytest.raises(
    ValueError, match="line 3 seems to be a row of its own, of"
  ):
    open_splits(settings(folder, text.format("xyz")))
  given = settings(folder, text.format("and more"), eval_split="train")
  names = open_source("train", given).class_names
  assert names == ("start\\nand more,end", "y")


@pytest.mark.parametrize(
  "names",
  [("1.png", "01.png"), ("1.PNG", "01.png"), ("1.png", "./01.png")],
)
def test_a_file_is_not_meant_by_another_name_as_well(folder, names):
  for first, second in (names, names[::-1]):
    text = ONE + f"{first},b\n{second},b\n"
    with pytest.raises(
      ValueError,
      match=r"names '[^']*(01.png|1.PNG)', .* of 3 files .* is '(./)?1.png'",
    ):
      open_splits(settings(folder, text))
  text = ONE + "1.png,b\n1,b\n./1.png,b\n"  # These are no other names.
  source = open_source("train", settings(folder, text, eval_split="train"))
  assert labels(source) == {"0.png": 0, "1.png": 1}


def scans(folder, split=""):
  """Thirty scans of ten patients, whose rows are in a file."""
  lines = ["file,label,patient" + ",split" * bool(split)]
  for k in range(30):
    (folder / f"s{k}.png").write_bytes((folder / "0.png").read_bytes())
    lines.append(f"s{k}.png,{k % 2},p{k % 10}{split and split.format(k)}")
  return "\n".join(lines)


def patients_of(source):
  names = map(os.path.basename, source.ids(range(len(source))))
  return {int(name[1:-4]) % 10 for name in names}


def test_no_patient_is_on_both_sides(folder):
  given = settings(folder, scans(folder), group_column="patient")
  train, held_out = (open_source(split, given) for split in ("train", "eval"))
  assert not patients_of(train) & patients_of(held_out)
  assert len(train) + len(held_out) == 30 and len(held_out) in (6, 9)
  assert train.class_names == ("0", "1")
  assert [*np.bincount(train.groups)] == [3] * (len(train) // 3)
  count = len(patients_of(held_out))
  start = f"groups by 'patient': train {10 - count}, held out {count}; none is"
  (line,) = (text for text in train.warnings() if text.startswith(start))
  assert "intervals" in line and line.endswith("so are too narrow.")


def test_groups_of_one_image_make_no_interval_too_narrow(folder):
  table = scans(folder).splitlines()
  own = [row.replace(",p", f",p{k}x") for k, row in enumerate(table[1:])]
  given = settings(folder, "\n".join([table[0], *own]), group_column="patient")
  warnings = open_source("train", given).warnings()
  (line,) = (text for text in warnings if text.startswith("groups by"))
  assert line.endswith("none is in two splits.")


@pytest.mark.parametrize(
  "text, column, message",
  [
    ("file,label\n0.png,a\n", "patient", "data.group_column='patient' is not"),
    (
      "file,label,patient\n0.png,a,p\n1.png,b,\n",
      "patient",
      "line 3 has no patient: give each image a group",
    ),
    (
      "file,label,patient,split\n0.png,a,p,train\n1.png,b,p,val\n2.png,b,q,train\n",
      "patient",
      "data.group_column='patient': .*line 3 puts an image of 'p' into val, ",
    ),
    (
      "file,label,patient\n0.png,a,p\n0.png,a,q\n1.png,b,q\n",
      "patient",
      "line 3 puts '0.png' into the group 'q', and .*line 2 into 'p'",
    ),
  ],
)
def test_groups_with_a_mistake_are_refused(folder, text, column, message):
  given = settings(folder, text, group_column=column)
  with pytest.raises(ValueError, match=message):
    open_source("train", given)
