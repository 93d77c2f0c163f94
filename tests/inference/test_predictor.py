"""Predictions for image files, beside logits and softmax taken by hand."""

import itertools
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests import tiny
from tests.tiny import MEAN, STD, random_params
from vit_jax.config import base_config
from vit_jax.data.image_files import check_found, find_images
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.inference import predictor
from vit_jax.inference.predictor import predict
from vit_jax.models import Origin, ResNet, to_fields
from vit_jax.predict import predict_files, table
from vit_jax.pretrained.load import load_pretrained
from vit_jax.training.state import TrainState
from vit_jax.workdir.checkpoint import Checkpoints

ORIGIN = Origin("test", "google", (16, 16), MEAN, STD)
VIT = tiny.vit(ORIGIN)
PARAMS = random_params(VIT, (16, 16), 0)
PREPROCESSING = Preprocessing((16, 16), mean=MEAN, std=STD)


@pytest.fixture
def photos(tmp_path):
  """Eleven noisy images of the model's size, in the order of their names."""
  rng = np.random.default_rng(1)
  paths = []
  for k in range(11):
    pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
    paths.append(str(tmp_path / f"photo {k:02} [x].png"))
    Image.fromarray(pixels).save(paths[-1])
  return paths


def _pixels(path):
  return np.array(Image.open(path))


def _normalized(pixels):
  return ((np.stack(pixels) / 255 - MEAN) / STD).astype(np.float32)


def _logits(model, params, images):
  apply = jax.jit(lambda x: model.apply({"params": params}, x))
  return np.asarray(apply(images))


def _softmax(logits):
  e = np.exp(np.float64(logits) - logits.max(axis=1, keepdims=True))
  return e / e.sum(axis=1, keepdims=True)


def predictions(*arguments, preprocessing=PREPROCESSING, **options):
  """Batches of predictions, with the preprocessing of `VIT`."""
  return predict(*arguments, preprocessing=preprocessing, **options)


def _all(*arguments, **options):
  return [p for batch in predictions(*arguments, **options) for p in batch]


def _dense(predictions, num_classes):
  """Probabilities in the order of classes."""
  found = np.full((len(predictions), num_classes), np.nan)
  for row, prediction in enumerate(predictions):
    found[row, list(prediction.index)] = prediction.probability
  return found


def test_probabilities_are_the_softmax_of_the_logits(photos):
  images = _normalized([_pixels(path) for path in photos])
  logits = _logits(VIT, PARAMS, images)
  y = _logits(VIT.clone(num_classes=0), PARAMS, images)

  found = _all(VIT, PARAMS, photos, top=9, features=True)
  assert [p.image for p in found] == photos
  np.testing.assert_allclose(_dense(found, 5), _softmax(logits), atol=1e-6)
  np.testing.assert_allclose([p.features for p in found], y, atol=1e-5)
  for prediction, row in zip(found, logits, strict=True):
    assert prediction.index == tuple(np.argsort(-row))

  for short, long in zip(_all(VIT, PARAMS, photos, top=2), found, strict=True):
    assert short.index == long.index[:2]
    assert short.probability == pytest.approx(long.probability[:2], abs=1e-6)
    assert short.features is None


def test_batches_change_nothing_and_compile_once(photos, monkeypatch):
  traced = []
  make = predictor.make_predict_step

  def counting(*arguments, **options):
    step = make(*arguments, **options)
    return lambda *xs: (traced.append(xs[1].shape), step(*xs))[1]

  monkeypatch.setattr(predictor, "make_predict_step", counting)
  # Rows are rounded up to the eight devices: two batches, then one.
  two = list(
    predictions(VIT, PARAMS, iter(photos), batch_size=3, features=True)
  )
  one = list(predictions(VIT, PARAMS, photos, batch_size=32, features=True))
  assert [len(batch) for batch in two] == [8, 3]
  assert [len(batch) for batch in one] == [11]
  assert traced == [(8, 16, 16, 3), (16, 16, 16, 3)]
  for a, b in zip(itertools.chain(*two), one[0], strict=True):
    assert (a.image, a.index) == (b.image, b.index)
    np.testing.assert_allclose(a.probability, b.probability, atol=1e-6)
    np.testing.assert_allclose(a.features, b.features, atol=1e-5)


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
  """Half of the size, so that pixels are the means of four."""
  rng = np.random.default_rng(2)
  pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
  Image.fromarray(pixels).save(tmp_path / "large.png")
  means = pixels.reshape(16, 2, 16, 2, 3).mean(axis=(1, 3))
  logits = _logits(VIT, PARAMS, _normalized([np.floor(means + 0.5)]))
  found = _all(VIT, PARAMS, [str(tmp_path / "large.png")], top=5)
  np.testing.assert_allclose(_dense(found, 5), _softmax(logits), atol=1e-5)


@pytest.mark.parametrize(
  "model, width",
  [
    (VIT.clone(representation_size=7), 7),
    (ResNet(5, layers=(1,), width=32, origin=ORIGIN), 128),
  ],
)
def test_features_are_what_the_head_sees(photos, model, width):
  params = random_params(model, (16, 16), 0)
  found = _all(model, params, photos[:2], top=5, features=True)
  y = np.stack([p.features for p in found])
  assert y.shape == (2, width)
  kernel, bias = (np.asarray(params["head"][k]) for k in ("kernel", "bias"))
  logits = y @ kernel + bias
  np.testing.assert_allclose(_dense(found, 5), _softmax(logits), atol=1e-5)
  images = _normalized([_pixels(path) for path in photos[:2]])
  expected = _logits(model, params, images)
  np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_a_run_is_asked_as_it_was_evaluated(tmp_path):
  """Centre crop, sigmoid, class names, mean and std of the description."""
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
    loss=loaded.loss,
  )
  logits = _logits(VIT, PARAMS, _normalized([pixels[:, 12:28]]))
  sigmoid = 1 / (1 + np.exp(-np.float64(logits)))
  np.testing.assert_allclose(_dense(found, 5), sigmoid, atol=1e-6)
  rows = table(loaded.class_names)(found)
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


def test_images_are_read_as_for_a_prediction(photos, tmp_path):
  images = predictor.read_images(PREPROCESSING, photos)
  assert images.dtype == np.uint8
  np.testing.assert_array_equal(images, [_pixels(path) for path in photos])
  bad = tmp_path / "text.jpg"
  bad.write_text("not an image")
  with pytest.raises(ValueError, match=r"text\.jpg: "):
    predictor.read_images(PREPROCESSING, [photos[0], str(bad)])


def test_parameters_of_nan_are_reported(photos):
  params = jax.tree.map(lambda x: x * np.nan, PARAMS)
  with pytest.raises(ValueError, match="the model answers with NaN"):
    _all(VIT, params, photos)


def test_an_unknown_image_size_has_to_be_given(photos):
  with pytest.raises(ValueError, match="give --image_size"):
    _all(VIT, PARAMS, photos, preprocessing=Preprocessing(None))


# Names of images.


@pytest.fixture
def folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for name in (
    "p/b.png",
    "p/a/2.JPG",
    "p/a/1.jpeg",
    "p/a-b/3.gif",
    "p/.hidden.png",
    "p/.git/4.png",
    "p/notes.txt",
    "q [1].png",
    "q 1.png",
    "~x.bmp",
  ):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
  (tmp_path / "p" / "a" / "itself").symlink_to(tmp_path / "p" / "a")
  (tmp_path / "empty").mkdir()


IN_P = ["p/a-b/3.gif", "p/a/1.jpeg", "p/a/2.JPG", "p/b.png"]


@pytest.mark.parametrize(
  "names, found",
  [
    (["p"], IN_P),
    (["p/"], IN_P),
    (["p/*"], ["p/a/1.jpeg", "p/a/2.JPG", "p/a-b/3.gif", "p/b.png"]),
    (["q [1].png"], ["q [1].png"]),
    (["q [[]1].png"], ["q [1].png"]),
    (["q*"], ["q 1.png", "q [1].png"]),
    (["p/b.png", "q 1.png", "p/b.png"], ["p/b.png", "q 1.png", "p/b.png"]),
    (["p/notes.txt"], ["p/notes.txt"]),
    (["./~x.bmp"], ["./~x.bmp"]),
  ],
)
def test_find_images(folder, names, found):
  assert list(find_images(names)) == found
  check_found(names)


def test_a_pattern_finds_each_image_once(folder):
  assert sorted(find_images(["p/**"])) == IN_P
  assert sorted(find_images(["**/*.JPG"]))[0] == "p/a/2.JPG"


@pytest.mark.parametrize(
  "name, message",
  [
    ("none.png", "'none.png' matches no image: give files, folders or quoted"),
    ("*.tiff", "'[*].tiff' matches no image"),
    ("p/*.txt", "matches no image"),
    ("empty", r"folder 'empty' holds no images \(.jpg, .jpeg, .png"),
  ],
)
def test_a_name_without_images_is_refused(folder, name, message):
  with pytest.raises(ValueError, match=message):
    check_found(["p", name])


def test_a_name_that_is_no_utf_8_can_be_printed(photos, tmp_path):
  strange = os.path.join(os.fsencode(tmp_path), b"\xff.png")
  os.rename(photos[0], strange)
  (found,) = _all(VIT, PARAMS, [os.fsdecode(strange)])
  assert found.error is None
  assert found.image == f"{tmp_path}/\\xff.png"


# The command.


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
  """The model without pooling or head changes, as Google publishes them."""
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


def test_the_command(photos, tmp_path, checkpoint):
  """Both at once, as most of either is starting Python."""
  bad = tmp_path / "photo 04 [x].png"
  bad.write_bytes(b"no image")
  features = str(tmp_path / "features.npz")
  wrong = _start(checkpoint, photos[0], str(tmp_path / "*.tiff"))
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
  pixels = [_pixels(path) for path in photos if path != str(bad)]
  images = (np.stack(pixels) / 127.5 - 1).astype(np.float32)
  expected = _softmax(_logits(model, params, images))
  for line, row in zip(lines, expected, strict=True):
    best = np.argsort(-row)[:3].tolist()
    for given, i in zip(line["predictions"], best, strict=True):
      assert given.keys() == {"class", "index", "probability"}
      assert (given["class"], given["index"]) == (f"class {i}", i)
      assert given["probability"] == pytest.approx(row[i], abs=1e-5)
  with np.load(features) as arrays:
    assert arrays["images"].tolist() == [line["image"] for line in lines]
    y = _logits(model.clone(num_classes=0), params, images)
    np.testing.assert_allclose(arrays["features"], y, atol=1e-5)
    assert arrays["features"].dtype == np.float32
  assert sorted(os.listdir(tmp_path))[0] == "features.npz"

  out, err = wrong.communicate(timeout=240)
  assert (wrong.returncode, out) == (2, "")
  assert err.startswith("error: ") and err.count("\n") == 1
  assert "*.tiff' matches no image" in err


def test_a_model_without_head_writes_features(photos, tmp_path, capsys):
  path = tmp_path / "headless.npz"
  tiny.save_google(path, VIT.clone(num_classes=0), PARAMS)
  with pytest.raises(ValueError, match="no classes to choose from: give --fea"):
    predict_files(str(path), photos)
  features = tmp_path / "new" / "folder" / "features.npz"
  assert predict_files(str(path), photos, features=str(features)) == 0
  assert capsys.readouterr() == ("", "")
  with np.load(features) as arrays:
    assert arrays["features"].shape == (11, 24)


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
