"""The line on images that a run was trained on."""

import functools
import pathlib
import shutil

import numpy as np
import pytest
from PIL import Image

from vit_jax import data
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.holdout import Holdout
from vit_jax.data.reading.labels import SINGLE
from vit_jax.pretrained import trained_on

CLASSES = ("ant", "bee")
EACH = 10
DIGITS = data.DataSettings(name="digits")


@pytest.fixture
def folder(tmp_path):
  root = tmp_path / "photos"
  for name in CLASSES:
    (root / name).mkdir(parents=True)
    for number in range(EACH):
      Image.new("RGB", (8, 8)).save(root / name / f"{number}.png")
  return root


def _rule(folder, by):
  """The rule of a run, and the files that it holds out."""
  rule = Holdout(by, 0.2, [])
  held_out = set()
  for place, name in enumerate(CLASSES):
    files = {f"{name}/{number}.png".encode() for number in range(EACH)}
    held_out |= {file.decode() for file in rule.of_class(place, files)}
  return rule, {folder / file for file in held_out}


def _described(folder, rule):
  data = {"root": str(folder), "eval_fraction": 0.2, **rule.as_settings()}
  return {"config": {"data": data | {"task": "classification"}}}


@pytest.mark.parametrize("by", ["name", "count", "rank"])
def test_the_images_of_the_training_split_are_counted(folder, by):
  rule, held_out = _rule(folder, by)
  description = _described(folder, rule)
  every = sorted(folder.rglob("*.png"))
  trained = len(every) - len(held_out)
  line = trained_on.overlap_of_answers(description, SINGLE, str(folder))
  assert line.startswith(f"{trained} of these 20 images were trained on: their")
  assert trained_on.overlap_of_answers(description, SINGLE, [*held_out]) == ""
  others = [path for path in every if path not in held_out]
  line = trained_on.overlap_of_answers(description, SINGLE, others)
  assert line.startswith(f"All {trained} images were trained on")
  line = trained_on.overlap_of_answers(description, SINGLE, others[0])
  assert line == (
    "This image was trained on: its answer says nothing about new ones."
  )


def test_a_picture_that_is_no_light_digit_on_black_is_told(tmp_path):
  light, dark = tmp_path / "light.png", tmp_path / "dark.png"
  pixels = np.zeros((40, 40), np.uint8)
  pixels[:, 15:25] = 255
  Image.fromarray(pixels).save(light)
  Image.fromarray(255 - pixels).save(dark)
  description = {"config": {"data": {"name": "digits"}}}
  reads = Preprocessing((8, 8))
  of = functools.partial(trained_on.digits_advice, description, reads)
  line = of([str(light)])
  assert line.startswith("This run was trained on light digits on black, as")
  assert line.endswith("and reads each picture in 8 x 8 pixels.")
  says = " The border of this picture is bright: invert dark digits on white "
  says += "paper."
  assert of(str(dark)) == line + says
  assert " 1 of these 2 pictures have bright borders: " in of([light, dark])
  in_memory = Image.open(dark), 255 - pixels, [255 - pixels]
  assert [of(picture) for picture in in_memory] == [line + says] * 3
  assert of(iter([dark])) == ""
  small = tmp_path / "small.png"
  wide = np.pad(pixels, 30)
  says = " The digit does not fill this picture: crop to the digit, and pad it "
  says += "with black to a square."
  for image, more in ((wide, ""), (255 - wide, " The border of this picture")):
    Image.fromarray(image).save(small)
    assert of(str(small)).startswith(line + more)
    assert of(str(small)).endswith(says)
  assert " 1 of these 2 pictures have a digit that does " in of([light, small])
  # No digit of the data is said to be so.
  source = data.open_source("train", DIGITS)
  for number in range(50):
    (tmp_path / f"{number}.png").write_bytes(source[number]["image"])
  assert of([*tmp_path.glob("[0-9]*.png")]) == line
  other = {"config": {"data": {"name": "digits", "root": str(tmp_path)}}}
  assert trained_on.digits_advice(other, reads, str(dark)) == ""


def test_a_score_on_images_that_were_trained_on_says_so(folder, monkeypatch):
  rule, held_out = _rule(folder, "name")
  description = _described(folder, rule)
  every = [str(path) for path in sorted(folder.rglob("*.png"))]
  others = [path for path in every if pathlib.Path(path) not in held_out]

  def line(files):
    return trained_on.overlap_of_score(description, SINGLE, files)

  assert line(every) == (
    f"{len(others)} of these 20 images were trained on: the score says little "
    "about new ones."
  )
  assert line(others) == (
    f"All {len(others)} images were trained on: the score says nothing about "
    "new ones."
  )
  assert line(others[:1]) == (
    "This image was trained on: its score says nothing about new ones."
  )
  assert line([str(path) for path in held_out]) == ""
  monkeypatch.setattr(trained_on, "MOST_IMAGES", 5)
  said = line(every)
  assert said.endswith(": the score says little about new ones.")


def test_other_images_and_other_models_get_no_line(folder, tmp_path):
  rule, _ = _rule(folder, "name")
  description = _described(folder, rule)
  Image.new("RGB", (8, 8)).save(tmp_path / "new.png")
  pixels = np.zeros((8, 8, 3), np.uint8)
  for images in (tmp_path / "new.png", pixels, [pixels], []):
    assert trained_on.overlap_of_answers(description, SINGLE, images) == ""
  assert trained_on.overlap_of_answers(None, SINGLE, folder) == ""
  gone = _described(pathlib.Path("gone"), rule)
  assert trained_on.overlap_of_answers(gone, SINGLE, folder) == ""


def test_copies_of_training_images_are_counted_wherever_they_are(
  folder, tmp_path
):
  """The folder's files were all alike: each is given pixels of its own."""
  for number, path in enumerate(sorted(folder.rglob("*.png"))):
    Image.new("RGB", (8, 8), (number, 0, 0)).save(path)
  rule, held_out = _rule(folder, "name")
  trained = 2 * EACH - len(held_out)
  description = _described(folder, rule) | {"train_examples": trained}
  copy = shutil.copytree(folder, tmp_path / "copy")
  (copy / "ant" / "0.png").rename(copy / "ant" / "renamed.png")
  Image.new("RGB", (8, 8), (0, 0, 1)).save(copy / "new.png")
  of = functools.partial(trained_on.overlap_of_score, description, SINGLE)
  every = [str(path) for path in copy.rglob("*.png")]
  assert of(every).startswith(f"{trained} of these 21 images were trained on: ")
  assert of([str(copy / path.relative_to(folder)) for path in held_out]) == ""
  assert of([str(copy / "new.png")]) == ""
  line = trained_on.overlap_of_answers(description, SINGLE, str(copy))
  assert line.startswith(f"{trained} of these 21 images were trained on: ")
  several = description | {"train_examples": 10_001}
  assert trained_on.overlap_of_answers(several, SINGLE, str(copy)) == ""


def test_a_large_folder_is_not_listed_whole(folder, monkeypatch):
  rule, _ = _rule(folder, "name")
  monkeypatch.setattr(trained_on, "MOST_IMAGES", 5)
  line = trained_on.overlap_of_answers(
    _described(folder, rule), SINGLE, folder / "ant"
  )
  assert line.startswith(f"This run was trained on images of {folder}: its")
