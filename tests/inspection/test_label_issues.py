"""The file, the picture and the lines of likely label errors."""

import csv
import os
import pathlib
import types
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.image_files import encode
from vit_jax.inspection import label_issues
from vit_jax.inspection.data_sheet import inspect_folder
from vit_jax.inspection.label_issues import issue_lines
from vit_jax.inspection.settings import InspectSettings
from vit_jax.runtime.display import Display
from vit_jax.tasks.probes import label_errors

MODEL = str(
  pathlib.Path(__file__).parents[1] / "checkpoints" / "google_vit.npz"
)
SETTINGS = InspectSettings(image_size=(16, 16))


def fill(root, wrong=("red/3.png", "test/blue/13.png")):
  """Red and blue pictures in two splits; those of `wrong` in the other's."""
  rng = np.random.default_rng(0)
  for name, channel in (("red", 0), ("blue", 2)):
    for i in range(15):
      file = f"{name}/{i}.png" if i < 12 else f"test/{name}/{i}.png"
      pixels = rng.integers(0, 60, (24, 40, 3), np.uint8)
      shown = 2 - channel if file in wrong else channel
      pixels[..., shown] += 150
      path = root / (file if "/" in file[5:] else f"train/{file}")
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(encode(Image.fromarray(pixels), "PNG"))
  return str(root)


@pytest.mark.slow
def test_the_picture_has_short_names_of_classes_in_full(tmp_path, monkeypatch):
  root = pathlib.Path(fill(tmp_path / "photos"))
  for split in ("train", "test"):
    (root / split / "red").rename(root / split / "lobster")
    (root / split / "blue").rename(root / split / "spinach")
  seen, cut = [], []

  def shortened(text, fits):
    seen.append(text)
    if not fits(text):
      cut.append(text)
    return text

  monkeypatch.setattr("vit_jax.inspection.fonts.shortened", shortened)
  inspect_folder(
    str(root),
    SETTINGS,
    model=MODEL,
    out=str(tmp_path / "batch.png"),
    issues=str(tmp_path / "i.csv"),
  )
  assert {"lobster: spinach?", "spinach: lobster?"} <= {*seen}
  assert not [text for text in cut if "lobster" in text]


@pytest.mark.slow
def test_wrong_labels_of_all_splits_are_listed(tmp_path, capsys):
  root = fill(tmp_path / "photos")
  bad = tmp_path / "photos" / "train" / "red" / "bad.png"
  bad.write_bytes(b"no image")
  to = {"out": str(tmp_path / "batch.png"), "issues": str(tmp_path / "i.csv")}
  to["probabilities"] = str(tmp_path / "p.npz")
  assert inspect_folder(root, SETTINGS, model=MODEL, **to) == 1
  with open(to["issues"], newline="") as file:
    every = [*csv.DictReader(file)]
  assert len(every) == 30
  margins = [float(row["margin"]) for row in every]
  assert margins == sorted(margins)
  rows = [row for row in every if row["listed"] == "yes"]
  assert rows == every[:2]
  found = {row["file"]: (row["given"], row["likely"]) for row in rows}
  assert found == {
    f"{root}/train/red/3.png": ("red", "blue"),
    f"{root}/test/blue/13.png": ("blue", "red"),
  }
  said = capsys.readouterr().out
  assert "2 labels of 30 images are contradicted by a probe that was" in said
  assert "red/3.png: red, perhaps blue" in said
  assert f"the first 2 in {tmp_path / 'i.png'}" in said
  with Image.open(tmp_path / "i.png") as sheet:
    assert sheet.width > 2 * 192 and sheet.height > 192
  with np.load(to["probabilities"]) as arrays:
    p, labels, names = (
      arrays[name] for name in ("probabilities", "labels", "class_names")
    )
    files = arrays["files"].tolist()
    assert arrays["features"].shape[0] == len(p) == len(files) == 30
  np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)
  assert str(bad) not in files and names.tolist() == ["blue", "red"]
  folders = [pathlib.Path(file).parent.name for file in files]
  assert [names[k] for k in labels] == folders
  again = label_errors.label_errors(labels, p).only_listed()
  assert [files[i] for i in again.index] == [row["file"] for row in rows]
  for i, row in zip(again.index, rows, strict=True):
    own = p[i, labels[i]]
    assert float(row["probability_given"]) == pytest.approx(own, abs=1e-6)
    margin = float(row["probability_given"]) - float(row["probability_likely"])
    assert (
      float(row["margin"]) == pytest.approx(margin, abs=3e-6) and margin < 0
    )


class Ten:
  """A split of ten files, of which only the names are asked for."""

  name, class_names = "ten", ("low", "high")

  def __len__(self):
    return 10

  def ids(self, indices):
    return [f"{index}.png" for index in indices]


def test_two_of_ten_labels_are_wrong(monkeypatch, capsys):
  """By probes that tell the first five images from the others."""
  labels = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 0])
  found = np.zeros((10, 1)), labels, np.arange(10)
  p = np.repeat([[0.9, 0.1], [0.2, 0.8]], 5, axis=0)
  monkeypatch.setattr(label_issues, "read_features", lambda *_: found)
  monkeypatch.setattr(label_errors, "out_of_fold", lambda *_, **__: p)
  loaded: Any = types.SimpleNamespace(notes=())
  issues = label_issues.inspect_labels(loaded, [Ten()], None, Display())
  told = {(one.image, one.given, one.likely) for one in issues}
  assert told == {("4.png", "high", "low"), ("9.png", "low", "high")}
  said = " ".join(capsys.readouterr().out.split())
  assert "2 labels of 10 images are contradicted by " in said
  assert "agrees with 80.0% of all labels" in said


@pytest.mark.slow
def test_a_folder_without_errors_has_an_empty_list(tmp_path, capsys):
  root = fill(tmp_path / "photos", wrong=())
  issues = tmp_path / "i.csv"
  out = str(tmp_path / "batch.png")
  code = inspect_folder(root, SETTINGS, out, model=MODEL, issues=str(issues))
  assert code == 0
  lines = issues.read_text().splitlines()
  assert len(lines) == 31 and all(line.endswith(",no") for line in lines[1:])
  assert not (tmp_path / "i.png").exists()
  assert "no label of 30 images is contradicted by" in capsys.readouterr().out


@pytest.mark.parametrize(
  ("given", "says"),
  [
    ({"probabilities": "p.npz"}, "--probabilities needs --model=CHECKPOINT"),
    ({"issues": "i.csv"}, "--issues needs --model=CHECKPOINT"),
    ({"image_size": (24, 40)}, "--image_size needs --model=CHECKPOINT"),
    ({"model": MODEL, "pooling": "most"}, r'has no (--)?pooling="?most'),
    ({"model": MODEL, "issues": "i.png"}, "i.png': .png says another format"),
    (
      {"model": MODEL, "probabilities": "p.csv"},
      "p.csv': .csv says another format",
    ),
    ({"model": "no_such_model"}, "no_such_model"),
  ],
)
def test_bad_input_is_one_line_before_a_file_is_read(
  tmp_path, capsys, given, says
):
  root = fill(tmp_path / "photos")
  out = str(tmp_path / "batch.png")
  with pytest.raises(ValueError, match=says) as error:
    inspect_folder(root, SETTINGS, out, **given)
  assert "\n" not in str(error.value)
  assert not capsys.readouterr().out


def test_the_commonest_mistake_is_said():
  given = ["steak", "pizza", "steak"]
  likely = ["pizza", "sushi", "pizza"]
  first = [("a.jpg", "steak", "pizza")]
  title, hard, shown, commonest = issue_lines(
    given, likely, first, images=225, right=0.9
  )
  assert title == (
    "3 labels of 225 images are contradicted by a probe that was fitted to "
    "other images and agrees with 90.0% of all labels"
  )
  assert "may be right, as hard images are contradicted too: look" in hard
  assert shown == "  a.jpg: steak, perhaps pizza"
  assert commonest == "  most often steak, perhaps pizza: 2"


@pytest.mark.slow
def test_label_errors_are_a_list_in_python(tmp_path, capsys, monkeypatch):
  """It names the files of the CSV file's listed rows, and writes on request."""
  monkeypatch.chdir(tmp_path)
  root = fill(tmp_path / "photos")
  loaded = vit_jax.load_pretrained(MODEL)
  found = loaded.label_errors(root)
  assert {*os.listdir(tmp_path)} == {"photos"}
  assert "2 labels of 30 images are contradicted" in capsys.readouterr().out
  wrong = {(f"{root}/train/red/3.png", "red", "blue")}
  wrong |= {(f"{root}/test/blue/13.png", "blue", "red")}
  assert {issue[:3] for issue in found} == wrong
  assert found[0].margin <= found[1].margin < 0
  again = vit_jax.label_errors(MODEL, root, out="issues.csv")
  assert {issue[:3] for issue in again} == wrong
  with open("issues.csv", newline="") as file:
    rows = [row for row in csv.DictReader(file) if row["listed"] == "yes"]
  assert [(row["given"], row["likely"]) for row in rows] == [
    (issue.given, issue.likely) for issue in again
  ]
  assert pathlib.Path("issues.png").exists()


def test_a_loaded_model_takes_no_other_settings_for_label_errors(tmp_path):
  loaded = vit_jax.load_pretrained(MODEL)
  root = fill(tmp_path / "photos")
  with pytest.raises(ValueError, match="^image_size: give these to vit_jax.lo"):
    vit_jax.label_errors(loaded, root, image_size=32)
  for call in (  # In the order of the command's words.
    lambda: vit_jax.label_errors("nowhere", model=loaded),
    lambda: vit_jax.label_errors("nowhere", loaded),
  ):
    with pytest.raises(ValueError, match="data.root='nowhere' is not a folder"):
      call()
  with pytest.raises(TypeError, match=r"as in vit_jax.label_errors\(loaded, f"):
    loaded.label_errors()
