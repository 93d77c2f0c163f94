"""What is meant by a path or a name that does not exist."""

import contextlib
import csv
import dataclasses
import importlib
import importlib.resources
import operator
import os
import re

import pytest

import vit_jax
from vit_jax.data.reading.image_folder import ImageFolder
from vit_jax.inference.predictor import Prediction
from vit_jax.pretrained.loaded import Loaded
from vit_jax.run.in_python import FinishedRun
from vit_jax.runtime import hints
from vit_jax.runtime.aliases import aliases


@pytest.mark.parametrize(
  "typed, meant",
  [
    ("nope.jpg", []),  # Only its ending is like that of another.
    ("cats.jpg", ["cat.jpg"]),
    ("cat.jpeg", ["cat.jpg"]),
    ("cat.png", ["cat.jpg"]),
    ("my-photos/", ["my_photos"]),
    ("picture", ["picture.jpg"]),
  ],
)
def test_a_path_is_near_by_its_name_not_its_ending(
  tmp_path, monkeypatch, typed, meant
):
  monkeypatch.chdir(tmp_path)
  for name in ("cat.jpg", "picture.jpg", "my_photos"):
    (tmp_path / name).touch()
  assert hints.similar_path(typed) == meant


@pytest.mark.parametrize(
  "typed, meant",
  [("goood", "good"), ("goood.csv", "good.csv"), ("good1.jpg", "good.jpg")],
)
def test_of_names_that_differ_in_their_endings_the_most_similar_is_near(
  tmp_path, monkeypatch, typed, meant
):
  """Whatever the order in which the system lists them."""
  names = ["good.csv", "good.jpg", "good"]
  for listed in (names, names[::-1]):
    monkeypatch.setattr(os, "listdir", lambda _, listed=listed: listed)
    assert hints.similar_path(typed) == [meant]


@hints.accepts("loaded.save(1, top=3)", same={"k": "top"})
def _f(x, *, top=3):
  return x, top


def test_arguments_are_known_by_their_names_elsewhere():
  assert _f(1, k=5) == _f(1, top=5) == (1, 5)


@pytest.mark.parametrize(
  "keywords, said",
  [
    ({}, "missing a required argument: 'x'; as in loaded.save(1, top=3)"),
    ({"x": 1, "kind": 2}, "argument 'kind'; did you mean to=\"timm\"?"),
    ({"x": 1, "force": 2}, "before: nothing is written over."),
    ({"x": 1, "topp": 2}, "argument 'topp'; did you mean top?"),
    ({"x": 1, "zzzzzz": 2}, "argument 'zzzzzz'; as in loaded.save(1, top=3)"),
    ({"x": 1, "k": 2, "top": 2}, "top is given twice: leave k out."),
  ],
)
def test_a_wrong_argument_names_the_right_one(keywords, said):
  with pytest.raises(TypeError) as caught:
    _f(**keywords)
  assert str(caught.value).endswith(said)


def test_several_arguments_in_front_are_answered_by_an_example():
  with pytest.raises(TypeError, match="others have names: vit_jax.list_models"):
    operator.call(vit_jax.list_models, "vit", "dino")


TABLE = importlib.resources.files("vit_jax.runtime") / "hints.csv"
ROWS = [*csv.DictReader(TABLE.read_text("utf-8").splitlines())]
OWN = {
  "vit_jax": vit_jax,  # It has a `__dir__` of its names.
  "loaded": Loaded,
  "run": FinishedRun,
  "answer": Prediction,
  "source": ImageFolder,
}
OF_AN_INSTANCE = {
  "answer": {field.name for field in dataclasses.fields(Prediction)},
  "loaded": {"model", "params", "description", "notes"},
  "run": {"workdir", "metrics", "step"},
  "source": {"class_names", "name"},
}


def has(of, name):
  alias = name in aliases(of)
  own = name in OF_AN_INSTANCE.get(of, ())
  return alias or own or name in dir(OWN[of])


def test_a_name_of_another_library_has_one_hint():
  names = [(row["of"], name) for row in ROWS for name in row["others"].split()]
  assert len(names) == len({*names})


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["instead"][:30])
def test_what_a_hint_advises_is_there(row):
  text = row["instead"]
  for module, name in re.findall(r"(vit_jax\.[a-z_]+\.[a-z_]+)\.(\w+)", text):
    assert hasattr(importlib.import_module(module), name)
    text = text.replace(f"{module}.{name}", "")
  names = re.findall(r"\b(vit_jax|loaded|run|answer|source)\.([a-z_]+)", text)
  for of, name in names:
    assert has(of, name), text


@pytest.mark.parametrize("of", OWN)
def test_what_works_has_no_hint(of):
  for name in hints.names_elsewhere(of):
    assert not (of != "vit_jax" and has(of, name)), name
    assert name not in vit_jax.__all__ or of != "vit_jax", name


@pytest.mark.parametrize(
  "name, said",
  [
    ("predictt", "; did you mean loaded.predict?"),  # It is misspelt.
    ("get_weights", "; did you mean loaded.params?"),
    ("Get-Weights", "; did you mean loaded.params?"),
    ("clone", "; nothing is changed in a loaded model: no copy is needed."),
    ("zzzzzz", "; dir(loaded) lists what there is."),
    ("weightz_of_it", "; dir(loaded) lists what there is."),  # None is near.
  ],
)
def test_an_attribute_always_has_a_line(name, said):
  assert hints.hint_for_attribute(name, "loaded", ("predict", "params")) == said


def test_a_pattern_stands_for_names():
  text = hints.hint_instead("ViTImageProcessor", "vit_jax")
  assert text.startswith("; did you mean loaded.preprocess(images)")
  assert not hints.hint_instead("processor_of", "vit_jax")


@pytest.mark.parametrize(
  "path, said",
  [
    ("a.json", "it is a file."),
    ("photos", "it is a folder."),
    ("pipe", "it is no regular file."),
    ("link", "it is a link to 'gone', which is not there."),
  ],
)
def test_a_path_that_is_there_is_never_meant_by_itself(tmp_path, path, said):
  (tmp_path / "a.json").touch()
  (tmp_path / "a.jsonl").touch()
  (tmp_path / "photos").mkdir()
  os.mkfifo(tmp_path / "pipe")
  (tmp_path / "link").symlink_to("gone")
  path = str(tmp_path / path)
  assert path not in hints.similar_path(path)
  assert hints.hint_for_path(path) == said


def test_the_nearest_of_paths_and_names_is_meant(tmp_path):
  (tmp_path / "mydigits").mkdir()
  said = hints.hint_for_path(str(tmp_path / "digts"))
  assert said == f"did you mean {tmp_path / 'mydigits'}?"
  with contextlib.chdir(tmp_path):
    assert hints.hint_for_path("digit", ("digits",)) == "did you mean digits?"
    said = hints.hint_for_path("mydigit", ("digits",))
    assert said == "did you mean mydigits?"
    (tmp_path / "digits.log").touch()
    assert hints.hint_for_path("digit", ("digits",)) == "did you mean digits?"


@pytest.mark.parametrize("of", ["loaded", "run"])
def test_masks_are_written_by_a_command(of):
  said = hints.hint_for_attribute("masks", of, ())
  assert "vit_jax predict RUN IMAGES --masks FOLDER" in said
