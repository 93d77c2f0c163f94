"""The command that predicts the classes of image files."""

import csv
import json
import os
import pathlib
import subprocess
import sys
import types
from collections import Counter

import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny
from tests.commands import refused
from tests.old_runs import CHECKPOINTS
from tests.photos import (
  PARAMS,
  VIT,
  logits_of,
  pixels_of,
  softmax,
  write_photos,
)
from vit_jax.inference.answers import count_classes, csv_lines
from vit_jax.inference.features import features
from vit_jax.inference.predictor import Prediction
from vit_jax.predict import predict_files
from vit_jax.pretrained.load import load_pretrained
from vit_jax.runtime.display import Display
from vit_jax.tasks.choose import task_class
from vit_jax.tasks.multilabel.task import MultiLabelTask
from vit_jax.tasks.regression.task import RegressionTask


@pytest.fixture
def photos(tmp_path):
  return write_photos(tmp_path)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
  """The tiny ViT in a file like those that Google publishes."""
  path = tmp_path_factory.mktemp("published") / "vit.npz"
  tiny.save_google(path, VIT, PARAMS)
  return str(path)


def _start(*arguments):
  return subprocess.Popen(
    [sys.executable, "-m", "vit_jax.predict", *arguments],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env={**os.environ, "JAX_PLATFORMS": "cpu"},
  )


@pytest.mark.slow
def test_the_command(photos, tmp_path, checkpoint):
  """Two commands run at once, as most of their time is Python's start."""
  bad = tmp_path / "photo 04 [x].png"
  bad.write_bytes(b"no image")
  features = str(tmp_path / "features.npz")
  wrong = _start(checkpoint, str(tmp_path / "*.tiff"))
  right = _start(checkpoint, str(tmp_path), "--json", f"--features={features}")
  out, err = right.communicate(timeout=240)
  assert right.returncode == 1, err
  assert err == (
    f"{bad}: not an image of a known format.\n"
    "1 of 11 images could not be read.\n"
  )
  lines = [json.loads(line) for line in out.splitlines()]
  assert [line["image"] for line in lines] == photos
  error = {"image": str(bad), "error": "not an image of a known format."}
  assert lines.pop(4) == error
  model, params = load_pretrained(checkpoint)
  pixels = [pixels_of(path) for path in photos if path != str(bad)]
  images = (np.stack(pixels) / 127.5 - 1).astype(np.float32)
  expected = softmax(logits_of(model, params, images))
  for line, row in zip(lines, expected, strict=True):
    best = np.argsort(-row)[:3].tolist()
    for given, i in zip(line["predictions"], best, strict=True):
      assert given.keys() == {"class", "index", "probability"}
      assert (given["class"], given["index"]) == (f"class {i}", i)
      assert given["probability"] == pytest.approx(row[i], abs=1e-5)
  with np.load(features) as arrays:
    assert arrays["images"].tolist() == [line["image"] for line in lines]
    y = logits_of(model.clone(num_classes=0), params, images)
    np.testing.assert_allclose(arrays["features"], y, atol=1e-5)
    assert arrays["features"].dtype == np.float32
  assert sorted(os.listdir(tmp_path))[0] == "features.npz"

  out, err = wrong.communicate(timeout=240)
  assert (wrong.returncode, out) == (2, "")
  assert err.startswith("error: ") and err.count("\n") == 1
  assert "*.tiff' matches no image" in err


@pytest.mark.parametrize("out", [None, "answers.csv"])
def test_a_missing_file_is_named_and_the_others_are_predicted(
  photos, tmp_path, checkpoint, capsys, monkeypatch, out
):
  totals = []

  def track(_, items, what, total):
    totals.append(total)
    return items

  monkeypatch.setattr(Display, "track", track)
  near = str(tmp_path / "foto 00 x.png")
  out = out and str(tmp_path / out)
  assert predict_files(checkpoint, [near, photos[1]], out=out) == 1
  shown = capsys.readouterr()
  assert shown.err.startswith(f"{near!r} matches no image: did you mean ")
  assert shown.err.count("\n") == 1
  answers = pathlib.Path(out).read_text() if out else shown.out
  assert photos[1] in answers and near not in answers
  assert totals == [1] * bool(out)  # One batch, in the bar of --out.


def test_a_model_without_head_writes_features(photos, tmp_path, capsys):
  path = tmp_path / "headless.npz"
  tiny.save_google(path, VIT.clone(num_classes=0), PARAMS)
  with pytest.raises(ValueError, match="no classes to choose from: give --fea"):
    predict_files(str(path), photos)
  features = tmp_path / "new" / "folder" / "features.npz"
  assert predict_files(str(path), photos, features=str(features)) == 0
  answers, notes = capsys.readouterr()
  assert answers == f"Wrote features (11, 24) to {features}.\n"
  lines = notes.splitlines()
  assert lines and all("features are the class token" in one for one in lines)
  with np.load(features) as arrays:
    assert arrays["features"].shape == (11, 24)


@pytest.mark.slow
def test_layers_are_written_as_maps_or_tokens(photos, tmp_path, checkpoint):
  model, params = load_pretrained(checkpoint)
  pixels = np.stack([pixels_of(path) for path in photos[:3]])
  images = np.float32(pixels / 127.5 - 1)
  path = str(tmp_path / "dense.npz")
  for tokens in (False, True):
    options = {"features": path, "layers": (1, 1), "tokens": tokens}
    assert predict_files(checkpoint, photos[:3], **options) == 0
    (expected,) = features(
      model, params, jnp.array(images), layers=[1], as_maps=not tokens
    )
    with np.load(path) as arrays:
      assert arrays["layers"].tolist() == [1, 1]
      assert arrays["images"].tolist() == photos[:3]
      for layer in range(2):
        found = arrays["features"][:, layer]
        np.testing.assert_allclose(found, expected, atol=1e-5)
  for options, message in (
    ({"layers": (1,)}, "--layers needs --features"),
    ({"features": path, "tokens": True}, "--tokens needs --layers"),
    ({"features": path, "layers": (2,)}, "the model has layers 1 to 1"),
  ):
    with pytest.raises(ValueError, match=message):
      predict_files(checkpoint, photos[:3], **options)


@pytest.mark.parametrize(
  "kind",
  [
    "segmentation",
    *(
      pytest.param(kind, marks=pytest.mark.slow)
      for kind in ("autoencoder", "masked", "pairs", "self_distillation")
    ),
    pytest.param("student", marks=pytest.mark.slow),
  ],
)
@pytest.mark.parametrize(
  "out", [None, pytest.param("a.csv", marks=pytest.mark.slow)]
)
def test_runs_without_labels_write_features(
  photos, tmp_path, kind, out, capsys
):
  """As the refusal to predict their classes advises."""
  run = str(CHECKPOINTS / "saved_runs" / kind)
  with pytest.raises(ValueError, match="no classes .*--features=FILE.npz"):
    predict_files(run, photos)
  path = str(tmp_path / "features.npz")
  answers = out and str(tmp_path / out)
  assert predict_files(run, photos, features=path, out=answers) == 0
  said = capsys.readouterr().out
  assert f"features (11, 8) to {path}." in said and "%" not in said
  if answers:
    written = pathlib.Path(answers).read_text().splitlines()
    assert written == ["image,error", *(f"{name}," for name in photos)]
  loaded = load_pretrained(run)
  with np.load(path) as arrays:
    expected = loaded.features(photos)
    np.testing.assert_allclose(arrays["features"], expected, atol=1e-5)
    assert arrays["images"].tolist() == photos


@pytest.mark.parametrize(
  "features, message",
  [
    ("folder", "is a folder; name"),
    ("photo 00 [x].png/f.npz", r"f.npz' cannot be written \(Not a directory"),
    ("gs://bucket/f.npz", "only local files can be written"),
  ],
)
def test_features_that_cannot_be_written_are_refused_first(
  photos, tmp_path, monkeypatch, features, message
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "folder").mkdir()
  with pytest.raises((ValueError, OSError), match=message):
    predict_files("no checkpoint", photos, features=features)


def test_features_are_whole_or_not_there(photos, tmp_path, checkpoint, capsys):
  features = tmp_path / "features.npz"
  features.write_bytes(b"of an earlier run")
  for path in photos:
    open(path, "w").close()
  with pytest.raises(ValueError, match="no image could be read: there are no"):
    predict_files(checkpoint, photos, features=str(features))
  assert features.read_bytes() == b"of an earlier run"
  assert len(os.listdir(tmp_path)) == 12
  assert "11 of 11 images could not be read." in capsys.readouterr().err


@pytest.mark.slow
def test_answers_go_to_a_file_and_are_summed_up(
  photos, tmp_path, checkpoint, capsys
):
  open(photos[1], "w").close()
  out = tmp_path / "new" / "answers.csv"
  assert predict_files(checkpoint, photos[:5], out=str(out), top=2) == 1
  with out.open(newline="") as file:
    rows = [*csv.DictReader(file)]
  assert [row["image"] for row in rows] == photos[:5]
  assert rows[1]["error"] and not rows[1]["class"]
  model, params = load_pretrained(checkpoint)
  pixels = [pixels_of(path) for path in photos[:5] if path != photos[1]]
  images = (np.stack(pixels) / 127.5 - 1).astype(np.float32)
  every = softmax(logits_of(model, params, images))
  del rows[1]
  for row, expected in zip(rows, every, strict=True):
    first, second = np.argsort(-expected)[:2]
    assert (row["class"], row["class_2"]) == (
      f"class {first}",
      f"class {second}",
    )
    assert float(row["probability_2"]) == pytest.approx(
      expected[second], abs=1e-5
    )
  shown = capsys.readouterr().out.splitlines()
  assert shown[-1] == f"Wrote 5 rows to {out}."
  counts = Counter(row["class"] for row in rows)
  table = [line.split(maxsplit=2) for line in shown[:-1]]
  assert {name: int(n) for n, _, name in table} == counts
  assert table[0][1] == f"{int(table[0][0]) / 5:.1%}"
  with pytest.raises(ValueError, match="--json prints the answers that --out"):
    predict_files(checkpoint, photos, out=str(out), as_json=True)
  out = tmp_path / "answers.jsonl"
  assert predict_files(checkpoint, photos[:5], out=str(out), top=2) == 1
  assert capsys.readouterr().out.splitlines()[:-1] == shown[:-1]
  answers = [json.loads(line) for line in out.read_text().splitlines()]
  assert [answer["image"] for answer in answers] == photos[:5]
  assert answers.pop(1).keys() == {"image", "error"}
  for answer, row in zip(answers, rows, strict=True):
    ranked = [x["class"] for x in answer["predictions"]]
    assert ranked == [row["class_1"], row["class_2"]]


def test_a_label_may_be_named_like_another_column():
  answers = MultiLabelTask(threshold=0.5).answers
  one = Prediction("a.png", index=(1, 0), probability=(0.75, 0.25))
  lines = csv_lines(answers, ("image", "error"), 1, 2)
  assert lines([one])[0].splitlines() == [
    "image,class,class_1,probability_1,image,error,error",
    "a.png,error,error,0.75,0.25,0.75,",
  ]


def test_rows_of_labels_and_of_numbers():
  """Several labels as a file of labels has them, and a column per target."""
  sea = Prediction("a.png", index=(2, 0, 1), probability=(0.9, 0.8, 0.1))
  bad = Prediction("b.png", error='none, "b"')
  counts, names = Counter(), ("sky", "cat", "sea")
  answers = MultiLabelTask(threshold=0.5).answers
  lines = csv_lines(answers, names, 2, 3)
  lines = count_classes(lines, answers, names, 2, counts)
  text = "\n".join(lines([bad]) + lines([sea, sea]))
  first, second, third = csv.DictReader(text.splitlines())
  assert first["error"] == bad.error and not first["class"]
  assert second == third
  assert second["class"] == "sea;sky" and not second["error"]
  assert second["class_2"] == "sky" and second["probability_2"] == "0.8"
  assert [second[name] for name in names] == ["0.8", "0.1", "0.9"]
  assert not any(first[name] for name in names)
  assert counts == {"sea": 2, "sky": 2}
  lines = csv_lines(RegressionTask().answers, ("age",), 3, 1)
  numbers = Prediction("a.png", values=(3.5,))
  assert lines([numbers]) == ["image,age,error\na.png,3.5,"]
  assert lines([numbers] * 2) == ["a.png,3.5,\na.png,3.5,"]


@pytest.mark.parametrize(
  "task, flag",
  [
    ("segmentation", "--masks=FOLDER"),
    ("dense_regression", "--masks=FOLDER"),
    ("pairs", '--texts="'),
    ("autoencoder", "--features=FILE.npz"),
  ],
)
def test_a_run_without_classes_says_how_it_is_asked(monkeypatch, task, flag):
  model = types.SimpleNamespace(num_classes=0)
  run = types.SimpleNamespace(model=model, notes=(), step=3)
  run.task = task_class(task)
  monkeypatch.setattr(
    "vit_jax.pretrained.load.open_checkpoint", lambda *_, **__: run
  )
  with pytest.raises(
    ValueError, match=f"^runs/a has .*: give {flag}"
  ) as caught:
    predict_files("runs/a", __file__)
  assert str(caught.value).count("--") == 1 + (task != "autoencoder")


@pytest.mark.parametrize("task, outputs", [("regression", 1), ("pairs", 0)])
def test_how_many_classes_to_show_is_for_answers_of_classes(
  monkeypatch, tmp_path, task, outputs
):
  model = types.SimpleNamespace(num_classes=outputs)
  run = types.SimpleNamespace(model=model, notes=(), step=3, class_names="a")
  run.task = task_class(task)()
  monkeypatch.setattr(
    "vit_jax.pretrained.load.open_checkpoint", lambda *_, **__: run
  )
  features = str(tmp_path / "f.npz")
  with pytest.raises(ValueError, match="^--top=2 is for classes, and runs/a"):
    predict_files("runs/a", __file__, top=2, features=features)


@pytest.mark.parametrize(
  "flag", ["--top=2", "--json", "--layers=1", "--batch_size=4"]
)
def test_a_flag_that_says_nothing_of_masks_is_refused(flag):
  said = refused("vit_jax.predict", "runs/x", "a.png", "--masks=m", flag)
  name = flag.partition("=")[0]
  assert f"{name} has no effect with --masks" in said
