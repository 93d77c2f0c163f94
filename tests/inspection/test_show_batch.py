"""What may be handed to `show_batch`: arrays, batches, pairs and folders."""

import operator
import types

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.inspection.test_data_sheet_tasks import KINDS, settings_of
from tests.workdir.saved import begun
from vit_jax.config import base_config
from vit_jax.data.reading import labels, several, targets
from vit_jax.data.reading.captions import Captions
from vit_jax.data.reading.mask_folder import Masks
from vit_jax.data.reading.number_folder import PixelNumbers
from vit_jax.inspection import show_batch as module

DIGITS = vit_jax.DataSettings(name="digits")
TASKS = {
  labels.Labels: "classification",
  several.SeveralLabels: "multilabel",
  targets.Numbers: "regression",
  Captions: "pairs",
  Masks: "segmentation",
  PixelNumbers: "dense_regression",
}


@pytest.fixture
def drawn(monkeypatch):
  """What is handed on to be drawn."""
  seen = []
  sheet = module.batch_sheet

  def watch(*arguments):
    seen.append(arguments)
    return sheet(*arguments)

  monkeypatch.setattr(module, "batch_sheet", watch)
  return seen


def test_a_batch_is_shown_however_it_is_given(drawn):
  source, batches = pair = vit_jax.open_data("train", DIGITS, (16, 16), 8)
  with batches:
    batch = next(batches)
    on_device = {key: jnp.asarray(x) for key, x in batch.items()}
    for given in (
      (batch, source),
      (batch, source.class_names),
      (on_device, source),
      ((batch["image"], batch["label"]), source),
      (batch["image"], batch["label"]),
    ):
      assert isinstance(vit_jax.show_batch(*given, count=5), Image.Image)
    assert drawn.pop()[2] == ()
    for images, shown, names, _ in drawn:
      np.testing.assert_array_equal(images, batch["image"][:5])
      np.testing.assert_array_equal(shown, batch["label"][:5])
      assert names == tuple("0123456789")
    vit_jax.show_batch(batch["image"])
    vit_jax.show_batch(batch["image"][0])
    assert [(len(x), y) for x, y, *_ in drawn[4:]] == [(8, None), (1, None)]
    for given in ((batches, source), (pair,), pair):
      vit_jax.show_batch(*given)
  _, again = vit_jax.open_data("train", DIGITS, (16, 16), 8, first_batch=1)
  with again:  # Each of these three took the next batch.
    for images, *_ in drawn[6:]:
      np.testing.assert_array_equal(images, next(again)["image"])


@pytest.mark.parametrize(
  "given, keywords", [(["digits"], {"n": 4}), ([DIGITS], {"num": 4})]
)
def test_data_are_shown_by_their_name(given, keywords, drawn):
  operator.call(vit_jax.show_batch, *given, **keywords)
  ((images, shown, names, _),) = drawn
  assert images.shape == (4, 224, 224, 3) and len(shown) == 4
  assert names == tuple("0123456789")


def test_the_data_of_a_run_are_shown(tmp_path, drawn):
  config = base_config()
  config.data.name = "digits"
  vit_jax.show_batch(begun(tmp_path, config.to_dict()), count=4)
  assert drawn[0][2] == tuple("0123456789")


def test_what_fills_up_a_batch_is_not_shown(drawn):
  source, passes = vit_jax.open_data("eval", DIGITS, (8, 8), 200)
  with passes:
    *_, last = passes
    vit_jax.show_batch(last, source, count=1_000)
    vit_jax.show_batch(passes, source)
  assert [len(images) for images, *_ in drawn] == [159, 16]


def test_floats_are_drawn_from_the_lowest_to_the_highest(drawn):
  x = np.float32([-1, 0, 1, 3]).reshape(1, 2, 2, 1)
  vit_jax.show_batch({"image": x})
  ((images, *_),) = drawn
  assert images.dtype == np.uint8
  assert images.ravel().tolist() == [0, 64, 128, 255]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_batch_of_every_kind_of_labels(tmp_path, drawn, kind):
  """Of what `open_data` opens, and of the folder or the file alone."""
  place = KINDS[kind][0](tmp_path)
  fields = settings_of(kind, TASKS.get(kind))
  fields["labels_file" if place.is_file() else "root"] = str(place)
  if kind is several.SeveralLabels:
    fields["label_columns"] = "cat,dog,rare"
  data = vit_jax.DataSettings(**fields)
  for split in ("train", "eval"):
    pair = vit_jax.open_data(split, data, (16, 16), 2)
    assert isinstance(vit_jax.show_batch(pair), Image.Image)
    (images, label, _, shown) = drawn.pop()
    if kind is Masks:
      assert label.shape == images.shape[:3] and {*label.ravel()} <= {0, 2, 255}
    if kind is Captions:
      assert "a thing of" in shown.label_text(label[0], ())
  vit_jax.show_batch(data)
  # Two folders are classes to one who looks.
  if kind is not labels.IgnoredLabels:
    vit_jax.show_batch(place)
  for images, *_ in drawn:
    assert images.shape == (4, 224, 224, 3)


def test_a_loaded_model_has_no_images():
  loaded = types.SimpleNamespace(origin=types.SimpleNamespace(source="runs/x"))
  with pytest.raises(ValueError, match='give its folder, as in "runs/x"'):
    vit_jax.show_batch(loaded)


def test_settings_of_a_table_are_said_as_they_are_given(tmp_path):
  table = tmp_path / "tags.csv"
  table.write_text("file,red,blue\na.png,1,?\nb.png,0,1\n")
  said = r'as in vit_jax\.DataSettings\(label_columns="red"\); a line then'
  with pytest.raises(ValueError, match=said):
    vit_jax.show_batch(table)


def test_a_packed_folder_is_shown(tmp_path, drawn):
  (tmp_path / "dataset_info.json").write_text("{}")
  with pytest.raises(ValueError, match="dataset_info.json"):
    vit_jax.show_batch(tmp_path)


@pytest.mark.parametrize(
  "given, message",
  [
    (3, "this is of type int: give a batch with an array 'image'"),
    ({"pixels": 1}, "the batch has pixels, and no 'image': give a batch"),
    ([], r"images of shape \(0,\): give a batch"),
    (np.zeros((2, 2)), r"images of shape \(2, 2\): give a batch"),
    ((np.zeros((3, 2, 2, 3)), [1, 2]), "3 images have 2 labels"),
    (
      {"image": np.zeros((1, 2, 2, 3)), "mask": [0.0]},
      "every row of the batch is padding",
    ),
    ("my_photo", "data.root='my_photo' is not a folder"),
  ],
)
def test_what_is_no_batch_is_refused(given, message):
  with pytest.raises(ValueError, match=f"^{message}"):
    vit_jax.show_batch(given)


def test_at_least_one_image_is_asked_for():
  with pytest.raises(ValueError, match="count=0 must be 1 or more"):
    vit_jax.show_batch(np.zeros((1, 2, 2, 3), np.uint8), count=0)
