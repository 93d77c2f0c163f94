"""The configuration that data choose, as commands and as Python have it."""

import numpy as np
import pytest
from PIL import Image

from tests.image_files import GOOD
from tests.workdir.saved import begun
from vit_jax.run import data_choice, few_images


@pytest.fixture
def made(tmp_path):
  def make(*names, text=None):
    for name in names:
      file = tmp_path / "data" / name
      file.parent.mkdir(parents=True, exist_ok=True)
      file.write_bytes(GOOD)
    if text is None:
      return str(tmp_path / "data")
    path = tmp_path / "l.csv"
    path.write_text(text)
    return str(path)

  return make


CAPTIONS = "file,caption\na.png,a cat"
SEVERAL = "file,x,y\na.png,0,1\nb.png,1,1"


@pytest.mark.parametrize(
  "text, pretrained, chosen",
  [
    (CAPTIONS, {}, {"config": "pairs"}),
    (CAPTIONS, {"pretrained": "b16"}, {"config": "pairs"}),
    (
      SEVERAL,
      {},
      {
        "config": "image_folder",
        "data.task": "multilabel",
        "loss.label_smoothing": "0.0",
        "data.label_columns": "x,y",
      },
    ),
    (
      "file,label\na.png,1\nb.png,2.5",
      {"pretrained": "b16"},
      {
        "config": "finetune",
        "data.task": "regression",
        "loss.label_smoothing": "0.0",
      },
    ),
    ("file,label\na.png,cat", {}, {"config": "image_folder"}),
  ],
)
def test_a_file_says_what_is_to_be_learned(made, text, pretrained, chosen):
  file = made(text=text)
  values = {"data.labels_file": file, **pretrained}
  found, why = data_choice.suited(file, values)
  assert found == chosen
  assert why.startswith(", as ") == (chosen != {"config": "image_folder"})


@pytest.mark.parametrize(
  "values",
  [
    {"data.task": "classification"},
    {"data.label_columns": "file"},
    {"masked.rate": "0.5"},
    {"self_distillation.prototypes": "9"},
  ],
)
def test_what_is_asked_for_is_not_guessed(made, values):
  found, why = data_choice.suited(made(text=CAPTIONS), values)
  assert (found, why) == ({"config": "image_folder"}, "")


@pytest.mark.parametrize("task", ["multilabel", "regression"])
@pytest.mark.parametrize("weights", [{}, {"pretrained": "b16"}])
def test_a_task_that_is_said_has_no_labels_to_smooth(made, task, weights):
  """Whatever the file looks like: of numbers, few differ."""
  file = made(text="image,age\n0.png,1.5\n1.png,1.5\n2.png,2\n")
  values = {"data.labels_file": file, "data.task": task, **weights}
  chosen, _ = data_choice.suited(file, values)
  assert chosen["loss.label_smoothing"] == "0.0"
  given = {**values, "loss.label_smoothing": "0.2"}
  assert "loss.label_smoothing" not in data_choice.suited(file, given)[0]


def test_masks_take_weights(made):
  data = made("images/0.png", "masks/0.png")
  with pytest.raises(ValueError, match="is for segmentation, as it has images"):
    data_choice.suited(data, {})
  for said in ({}, {"data.task": "segmentation"}):
    found, why = data_choice.suited(data, {"pretrained": "b16", **said})
    assert found == {"config": "segmentation"} and "images and masks" in why


def test_numbers_of_pixels_take_weights_and_masks_stay_masks(tmp_path):
  """By the folder's name, or by files that hold more than classes."""
  rng = np.random.default_rng(0)
  pictures = {
    "depth": np.full((8, 8), 3, np.uint8),
    "masks": rng.integers(0, 3, (8, 8)).astype(np.uint16),
    "labels": rng.permutation(1024).reshape(32, 32).astype(np.uint16),
    "mask": rng.normal(size=(8, 8)).astype(np.float32),
  }
  chosen = {}
  for name, picture in pictures.items():
    root = tmp_path / f"of_{name}"
    ending = ".tif" if picture.dtype == np.float32 else ".png"
    for kind, pixels in (
      ("images", np.zeros((8, 8), np.uint8)),
      (name, picture),
    ):
      (root / kind).mkdir(parents=True)
      Image.fromarray(pixels).save(root / kind / f"0{ending}")
    found, _ = data_choice.suited(str(root), {"pretrained": "b16"})
    chosen[name] = found["config"]
  assert chosen == {
    "depth": "dense_regression",
    "masks": "segmentation",
    "labels": "dense_regression",
    "mask": "dense_regression",
  }


def test_images_without_labels_are_answered_by_the_commands_for_them(
  made, monkeypatch
):
  data = made("0.png", "1.png", "2.png")
  for enough, says in (
    (10, f"{data} --config dino:continue --pretrained hf_s14_dinov2 .goes on"),
    (10, f": vit_jax similar hf_s14_dinov2 {data} "),
    (10, f", vit_jax predict hf_s14_dinov2 {data} --features="),
    (3, f"; or an encoder of your own: vit_jax train {data} --config mae$"),
  ):
    monkeypatch.setattr(few_images, "ENOUGH", enough)
    with pytest.raises(ValueError, match=says) as error:
      data_choice.suited(data, {})
    assert "\n" not in str(error.value)


def test_a_table_beside_unlabelled_images_is_named(made):
  data = made("0.png", "captions.csv", "notes.txt")
  table = f"To learn what {data}/captions.csv says: vit_jax train {data}/captio"
  with pytest.raises(ValueError, match=table) as error:
    data_choice.suited(data, {"pretrained": "runs/mine"})
  assert "--pretrained runs/mine" in str(error.value)
  assert "hf_" not in str(error.value) and "notes.txt" not in str(error.value)


def test_a_run_that_is_there_keeps_its_task(made, tmp_path):
  run = begun(tmp_path / "run", {"data": {"task": "classification"}})
  found, _ = data_choice.suited(made(text=CAPTIONS), {}, run)
  assert found == {"config": "image_folder"}


def test_a_column_that_is_not_there_is_said_before_the_run_that_is(
  made, tmp_path
):
  file = made(text="file,mean_size\na.png,0.5\nb.png,1.5")
  run = begun(tmp_path / "run", {"data": {"task": "regression"}})
  values = {"data.label_columns": "size"}
  with pytest.raises(ValueError, match="no column 'size'; its columns are fi"):
    data_choice.suited(file, values, run)


def test_keys_of_the_task_that_the_data_tell_change_nothing(tmp_path):
  """Those of another section say that something else is learned."""
  rows = ["file,caption", *(f"{n}.png,a thing" for n in range(4))]
  (tmp_path / "pairs.csv").write_text("\n".join(rows))
  place = str(tmp_path / "pairs.csv")
  chosen, why = data_choice.suited(place, {"pairs.text_size": "64"})
  assert chosen == {"config": "pairs"} and "it has the column caption" in why
  for key in ("masked.rate", "segmentation.layers", "data.task"):
    chosen, _ = data_choice.suited(place, {"pairs.text_size": "64", key: "1"})
    assert chosen == {"config": "image_folder"}
