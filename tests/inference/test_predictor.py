"""Predictions for image files, against logits and softmax computed by hand."""

import dataclasses
import itertools
import json
import operator
import os
import pathlib
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.photos import (
  ORIGIN,
  PARAMS,
  PREPROCESSING,
  VIT,
  logits_of,
  normalized,
  pixels_of,
  softmax,
  write_photos,
)
from tests.tiny import MEAN, STD, compilations, random_params
from vit_jax.config import base_config
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.settings import EvalTransformSettings
from vit_jax.inference import predictor
from vit_jax.inference.answers import json_lines, table
from vit_jax.inference.predictor import Prediction, predict, predict_images
from vit_jax.inference.text_head import TextHead
from vit_jax.models import ResNet, to_fields
from vit_jax.pretrained.load import load_pretrained
from vit_jax.tasks.classification.task import ClassificationTask
from vit_jax.tasks.multilabel.task import MultiLabelTask
from vit_jax.tasks.regression.task import RegressionTask
from vit_jax.training.state import TrainState
from vit_jax.workdir.checkpoint import Checkpoints

NAMES = ("a", "b", "c", "d")
SEVERAL = Prediction("1.jpg", index=(2, 0, 3), probability=(0.9, 0.6, 0.2))
NUMBERS = Prediction("2.jpg", values=(31.25, -1500.0))


@pytest.fixture
def photos(tmp_path):
  return write_photos(tmp_path)


def predictions(*arguments, preprocessing=PREPROCESSING, **options):
  """Batches of predictions, with the preprocessing of `VIT`."""
  options = {"task": ClassificationTask(), **options}
  return predict(*arguments, preprocessing=preprocessing, **options)


def _all(*arguments, **options):
  return [p for batch in predictions(*arguments, **options) for p in batch]


def _dense(predictions, num_classes):
  """Probabilities in the order of the classes; NaN if a class is missing."""
  found = np.full((len(predictions), num_classes), np.nan)
  for row, prediction in enumerate(predictions):
    found[row, list(prediction.index)] = prediction.probability
  return found


@pytest.mark.slow
def test_probabilities_are_the_softmax_of_the_logits(photos):
  images = normalized([pixels_of(path) for path in photos])
  logits = logits_of(VIT, PARAMS, images)
  y = logits_of(VIT.clone(num_classes=0), PARAMS, images)

  found = _all(VIT, PARAMS, photos, top=9, features=True)
  assert [p.image for p in found] == photos
  np.testing.assert_allclose(_dense(found, 5), softmax(logits), atol=1e-6)
  np.testing.assert_allclose([p.features for p in found], y, atol=1e-5)
  for prediction, row in zip(found, logits, strict=True):
    assert prediction.index == tuple(np.argsort(-row))

  for short, long in zip(_all(VIT, PARAMS, photos, top=2), found, strict=True):
    assert short.index == long.index[:2]
    assert short.probability == pytest.approx(long.probability[:2], abs=1e-6)
    assert short.features is None


def test_batches_change_nothing_and_compile_once(photos):
  # Batch sizes are rounded up to multiples of the eight devices: two batches
  # of 8, and one of 16.
  options = {"batch_size": 3, "features": True}
  list(predictions(VIT, PARAMS, photos[:8], **options))
  with compilations() as found:
    two = list(predictions(VIT, PARAMS, iter(photos), **options))
  assert not found
  one = list(predictions(VIT, PARAMS, photos, batch_size=32, features=True))
  assert [len(batch) for batch in two] == [8, 3]
  assert [len(batch) for batch in one] == [11]
  for a, b in zip(itertools.chain(*two), one[0], strict=True):
    assert (a.image, a.index) == (b.image, b.index)
    np.testing.assert_allclose(a.probability, b.probability, atol=1e-6)
    np.testing.assert_allclose(a.features, b.features, atol=1e-5)


@pytest.mark.slow
def test_a_second_call_compiles_nothing(photos):
  texts = np.eye(3, VIT.hidden_size, dtype=np.float32)
  head = TextHead(("x", "y", "z"), texts)
  for options in ({}, {"top": 1}, {"layers": (1,)}, {"text_head": head}):
    _all(VIT, PARAMS, photos, **options)
    with compilations() as found:
      _all(VIT, PARAMS, photos, **options)
    assert not found, options


def test_images_are_decoded_while_the_device_computes(photos, monkeypatch):
  events, fetch = [], jax.device_get

  def asked_for():
    for photo in photos * 3:
      events.append("read")
      yield photo

  def fetching(found):
    events.append("fetch")
    return fetch(found)

  monkeypatch.setattr(jax, "device_get", fetching)
  for _ in predictions(VIT, PARAMS, asked_for(), batch_size=8):
    pass
  # Three batches are on the device when the first answer is fetched.
  assert events.index("fetch") >= 24 and events.count("fetch") == 5


def test_no_more_is_decoded_than_a_few_batches_ahead(photos):
  asked = []

  def endless():
    while True:
      asked.append(1)
      yield photos[0]

  batches = predictions(VIT, PARAMS, endless(), batch_size=8)
  next(batches)
  assert len(asked) <= 8 * 6
  batches.close()


def test_larger_images_are_resized_whole(tmp_path):
  """The image is twice too large, so that each pixel is the mean of four."""
  rng = np.random.default_rng(2)
  pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
  Image.fromarray(pixels).save(tmp_path / "large.png")
  means = pixels.reshape(16, 2, 16, 2, 3).mean(axis=(1, 3))
  logits = logits_of(VIT, PARAMS, normalized([np.floor(means + 0.5)]))
  area = dataclasses.replace(
    PREPROCESSING, crop=EvalTransformSettings(interpolation="area")
  )
  found = _all(
    VIT, PARAMS, [str(tmp_path / "large.png")], top=5, preprocessing=area
  )
  np.testing.assert_allclose(_dense(found, 5), softmax(logits), atol=1e-5)


@pytest.mark.parametrize(
  "model, width",
  [
    (VIT.clone(representation_size=7), 7),
    pytest.param(
      ResNet(5, layers=(1,), width=32, origin=ORIGIN),
      128,
      marks=pytest.mark.slow,
    ),
  ],
)
def test_features_are_what_the_head_sees(photos, model, width):
  params = random_params(model, (16, 16), 0)
  found = _all(model, params, photos[:2], top=5, features=True)
  y = np.stack([p.features for p in found])
  assert y.shape == (2, width)
  kernel, bias = (np.asarray(params["head"][k]) for k in ("kernel", "bias"))
  logits = y @ kernel + bias
  np.testing.assert_allclose(_dense(found, 5), softmax(logits), atol=1e-5)
  images = normalized([pixels_of(path) for path in photos[:2]])
  expected = logits_of(model, params, images)
  np.testing.assert_allclose(logits, expected, atol=1e-4)


@pytest.mark.slow
def test_a_runs_own_preprocessing_and_loss_are_used(tmp_path):
  """The description gives crop, mean, std, class names and the sigmoid."""
  config = base_config()
  config.image_size = (16, 16)
  config.eval_transform.update(crop="center", resize_ratio=1.0)
  config.loss.kind = "sigmoid"
  config.normalization.update(mean=MEAN, std=STD)
  description = {
    "config": config.to_dict(),
    "model": to_fields(VIT),
    "class_names": ["a", "b", "c"],
  }
  checkpoints = Checkpoints(str(tmp_path / "run"))
  state = TrainState(jnp.int32(1), PARAMS, {"count": np.zeros(1)})
  checkpoints.save(state, 1, description, None)
  checkpoints.close()
  rng = np.random.default_rng(3)
  pixels = rng.integers(0, 256, (16, 40, 3), dtype=np.uint8)
  Image.fromarray(pixels).save(tmp_path / "wide.png")

  loaded = load_pretrained(str(tmp_path / "run"))
  found = _all(
    *loaded,
    [str(tmp_path / "wide.png")],
    top=5,
    preprocessing=loaded.preprocessing,
    task=loaded.task,
  )
  logits = logits_of(VIT, PARAMS, normalized([pixels[:, 12:28]]))
  sigmoid = 1 / (1 + np.exp(-np.float64(logits)))
  np.testing.assert_allclose(_dense(found, 5), sigmoid, atol=1e-6)
  rows = table(loaded.task.answers, loaded.class_names)(found)
  names = dict(enumerate(["a", "b", "c", "class 3", "class 4"]))
  words = [names[i] for i in np.argsort(-logits[0]).tolist()]
  assert [row.split("%  ")[1] for row in rows] == words
  assert rows[0].startswith(str(tmp_path / "wide.png"))
  assert len({row.index("%") for row in rows}) == 1


def test_an_unreadable_image_changes_no_other(photos, tmp_path, capsys):
  whole = _all(VIT, PARAMS, photos)
  bad = tmp_path / "photo 04 [x].png"
  bad.write_bytes(bad.read_bytes()[:200])
  gone = str(tmp_path / "gone.png")
  found = _all(VIT, PARAMS, [*photos, gone])
  assert "truncated" in found[4].error
  assert found[11].error == "No such file or directory."
  assert found[4].index == found[11].index == ()
  for k in {*range(11)} - {4}:
    assert found[k] == whole[k]


def test_files_pillow_images_and_arrays_get_the_same_answers(photos):
  pictures = [photos[0], Image.open(photos[1]), pixels_of(photos[2])]
  found = predict_images(VIT, PARAMS, pictures, preprocessing=PREPROCESSING)
  expected = _all(VIT, PARAMS, photos[:3])
  assert [p.image for p in found[1:]] == ["image 2", "image 3"]
  for one, other in zip(found, expected, strict=True):
    assert one == dataclasses.replace(other, image=one.image)


def test_a_single_picture_gets_one_answer(photos):
  given = [photos[0], pathlib.Path(photos[0]), pixels_of(photos[0])]
  expected = _all(VIT, PARAMS, photos[:1])
  for picture in given:
    found = predict_images(VIT, PARAMS, picture, preprocessing=PREPROCESSING)
    assert [dataclasses.replace(p, image=photos[0]) for p in found] == expected
  with pytest.raises(ValueError, match=r"\(3, 16, 16\) is neither a picture"):
    channels = pixels_of(photos[0]).transpose(2, 0, 1)
    predict_images(VIT, PARAMS, channels, preprocessing=PREPROCESSING)


def test_parameters_of_nan_are_reported(photos):
  params = jax.tree.map(lambda x: x * np.nan, PARAMS)
  with pytest.raises(ValueError, match="the model answers with NaN"):
    _all(VIT, params, photos)


def test_an_unknown_image_size_must_be_given(photos):
  with pytest.raises(ValueError, match="give --image_size"):
    _all(VIT, PARAMS, photos, preprocessing=Preprocessing(None))


def test_a_name_that_is_no_utf_8_can_be_printed(photos, tmp_path):
  strange = os.path.join(os.fsencode(tmp_path), b"\xff.png")
  os.rename(photos[0], strange)
  (found,) = _all(VIT, PARAMS, [os.fsdecode(strange)])
  assert found.error is None
  assert found.image == f"{tmp_path}/\\xff.png"


def test_labels_that_reach_the_threshold_are_shown_beyond_the_top_ones():
  (first, second) = table(MultiLabelTask().answers, NAMES, top=1)([SEVERAL])
  assert first.split() == ["1.jpg", "90.00%*", "c"]
  assert second.split() == ["60.00%*", "a"]
  third = table(MultiLabelTask().answers, NAMES, top=3)([SEVERAL])[2]
  assert third.split() == ["20.00%", "d"]
  (line,) = json_lines(MultiLabelTask(threshold=0.7).answers, NAMES, top=2)(
    [SEVERAL]
  )
  told = json.loads(line)["predictions"]
  assert [(p["class"], p["given"]) for p in told] == [("c", True), ("a", False)]


def test_numbers_have_the_names_of_their_targets():
  assert [
    line.split()
    for line in table(RegressionTask().answers, ("age", "x"))([NUMBERS])
  ] == [["2.jpg", "31.25", "age"], ["-1500", "x"]]
  (line,) = json_lines(RegressionTask().answers, ("age", "x"))([NUMBERS])
  assert json.loads(line)["values"] == {"age": 31.25, "x": -1500.0}


def test_what_is_missing_for_an_answer_is_named(photos):
  with pytest.raises(ValueError, match="^preprocessing is missing: .*loaded"):
    predict_images(VIT, PARAMS, photos)
  with pytest.raises(ValueError, match="^images are missing: "):
    predict_images(VIT, PARAMS, preprocessing=PREPROCESSING)


def test_an_answer_has_the_likeliest_class_and_is_pairs_of_all():
  named = Prediction("a.png", None, (2, 0), (0.7, 0.3), names=("c", "a"))
  assert (named.label, named.score) == ("c", 0.7)
  assert dict(named) == {"c": 0.7, "a": 0.3}
  bare = Prediction("a.png", None, (2, 0), (0.7, 0.3))
  assert (bare.label, [*bare][1]) == ("class 2", ("class 0", 0.3))
  numbers = Prediction("a.png", values=(4.0,), names=("age",))
  assert (numbers.label, numbers.score) == (None, None)
  assert dict(numbers) == {"age": 4.0}
  assert dict(Prediction("a.png", values=(4.0,))) == {"target 0": 4.0}
  assert [*Prediction("a.png", "No such file")] == []


def test_a_list_of_answers_says_that_it_is_one():
  answers = predictor.Predictions([Prediction("a.png")])
  with pytest.raises(AttributeError, match=r"answers\[0\]\.names\[0\]$"):
    operator.attrgetter("zzz")(answers)
  assert answers.names == ()  # The only answer has it.
  with pytest.raises(
    AttributeError, match=r"\[answer\.label for answer in ans"
  ):
    operator.attrgetter("names")(predictor.Predictions(answers * 2))
  assert answers == [Prediction("a.png")]
  with pytest.raises(AttributeError, match=r"did you mean pandas\.DataFrame\("):
    operator.attrgetter("to_pandas")(answers)


def test_answers_show_a_line_each_and_a_notebook_their_pictures(tmp_path):
  Image.new("RGB", (300, 200), "red").save(tmp_path / "<b>.png")
  cat = {
    "index": (1, 0),
    "probability": (0.982, 0.018),
    "names": ("cat", "dog"),
  }
  answers = predictor.Predictions(
    [
      Prediction(str(tmp_path / "<b>.png"), **cat),
      Prediction("b.png", "No such file."),
      Prediction("c.png", values=(4.25,), names=("age",)),
      *[Prediction("d.png", **cat)] * 20,
    ]
  )
  lines = [" ".join(line.split()) for line in repr(answers).splitlines()]
  assert lines[0].endswith("<b>.png cat 98.2%, dog 1.8%")
  assert lines[1:3] == ["b.png No such file.", "c.png age 4.25"]
  assert lines[-1] == "... and 3 more" and len(lines) == 21
  page = answers._repr_html_()
  assert page.count("<img") == 1 and "&lt;b&gt;.png: cat" in page
  assert "<b>" not in page and "... and 3 more" in page
  assert repr(predictor.Predictions()) == "no answers"


@pytest.mark.parametrize(
  "name, meant",
  [
    ("decoded", "answer.label"),
    ("softmax", "answer.probability"),
    ("source", "answer.image"),
    ("_asdict", "dict(answer), or pandas.DataFrame(answers)"),
    ("probabilty", "answer.probability"),
  ],
)
def test_an_attribute_that_an_answer_lacks_names_the_near_one(name, meant):
  answer = Prediction("a.png")
  with pytest.raises(AttributeError, match=re.escape(f"did you mean {meant}?")):
    getattr(answer, name)
  with pytest.raises(
    TypeError, match=r"neither a dictionary .*: give answer\.label"
  ):
    answer[name]
  assert pickle.loads(pickle.dumps(answer)) == answer
