"""Models in memory are written, and come back as they were."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vit_jax
from tests import published
from tests.tiny import random_params
from vit_jax.data import Preprocessing
from vit_jax.data.settings import EvalTransformSettings
from vit_jax.models import Origin
from vit_jax.pretrained.in_memory import loaded_from

SIZES = dict(hidden_size=24, num_layers=2, mlp_size=36, num_heads=3)
X = np.random.default_rng(0).normal(size=(2, 16, 24, 3)).astype(np.float32)


def drawn(**fields):
  """A tiny model that has no origin, with a head that is not zeros."""
  model = vit_jax.make_vit("Ti/8", num_classes=2, **SIZES, **fields)
  return model, random_params(model, (16, 24), 0)


def logits_of(model, params, x=X):
  return np.asarray(jax.jit(model.apply)({"params": params}, jnp.asarray(x)))


@pytest.mark.slow
@pytest.mark.parametrize("scan", [False, True])
def test_a_model_of_ones_own_comes_back_with_its_names(tmp_path, scan):
  model, params = drawn(scan=scan)
  crop = EvalTransformSettings("center", resize_ratio=1.25)
  images = Preprocessing((16, 24), crop, (0.4, 0.5, 0.6), (0.2, 0.2, 0.3))
  how = dict(class_names=["cat", "dog"], preprocessing=images)
  vit_jax.save(model, params, tmp_path / "mine", to="timm", **how)
  loaded = vit_jax.load_pretrained(str(tmp_path / "mine"))
  assert loaded.class_names == ("cat", "dog")
  again = loaded.preprocessing
  assert (again.size, again.mean, again.std) == (
    (16, 24),
    images.mean,
    images.std,
  )
  assert (again.crop.crop, again.crop.resize_ratio) == ("center", 1.25)
  np.testing.assert_allclose(
    logits_of(*loaded), logits_of(model, params), atol=1e-5
  )


@pytest.mark.slow
def test_what_was_trained_on_is_saved_without_the_names_it_had(tmp_path):
  loaded = vit_jax.load_pretrained(published.path("google_vit.npz"))
  vit_jax.save(loaded, tmp_path / "same")
  same = vit_jax.load_pretrained(str(tmp_path / "same"))
  x = X[:, :, :16].repeat(2, 1).repeat(2, 2)  # (2, 32, 32, 3)
  np.testing.assert_allclose(
    logits_of(*same, x), logits_of(*loaded, x), atol=1e-5
  )
  model, params = vit_jax.new_head(*loaded, num_classes=7)
  vit_jax.save(model, params, tmp_path / "other", to="google")
  other = vit_jax.load_pretrained(str(tmp_path / "other" / "model.npz"))
  assert (other.model.num_classes, other.class_names) == (7, ())
  assert other.preprocessing.size == (32, 32)


@pytest.mark.slow
@pytest.mark.parametrize(
  "options, message",
  [
    ({}, "the size .* is not known: give image_size"),
    ({"image_size": 0}, "image_size=0 must"),
    (
      {"image_size": 32},
      r"not those .* 32 x 32: 1 wrong shape: .*E_pos is \(7, 24\)",
    ),
    ({"image_size": (16, 24), "class_names": ["a"]}, "1 names, .* 2 classes"),
    (
      {"image_size": 16, "preprocessing": Preprocessing((16, 16))},
      "image_size is a part of preprocessing",
    ),
    ({"image_size": (16, 24), "to": "keras"}, "'keras' is unknown"),
  ],
)
def test_what_cannot_be_saved_is_one_line(tmp_path, options, message):
  with pytest.raises(ValueError, match=message):
    vit_jax.save(*drawn(), tmp_path / "mine", **options)
  assert not (tmp_path / "mine").exists()


def test_the_model_stands_before_its_parameters():
  call: Any = vit_jax.save
  with pytest.raises(ValueError, match="^model is of type dict: give"):
    call({"head": {}}, "my_model")


@pytest.mark.parametrize(
  "more, message",
  [
    ({"params": {}}, r"^params: .* or call vit_jax\.save\(loaded\.model,"),
    ({"class_names": ["a", "b"]}, "^class_names: .* has its own"),
    ({"image_size": 32, "loss": "mse"}, "^image_size and loss: "),
  ],
)
def test_a_loaded_model_is_written_as_it_is(tmp_path, more, message):
  loaded = loaded_from(*drawn(), image_size=(16, 24))
  call: Any = vit_jax.save
  with pytest.raises(ValueError, match=message):
    call(loaded, folder=tmp_path / "mine", **more)
  assert not (tmp_path / "mine").exists()


def test_the_format_may_follow_the_folder_of_a_loaded_model(tmp_path):
  loaded = loaded_from(*drawn(), image_size=(16, 24))
  vit_jax.save(loaded, tmp_path / "mine", "big_vision")
  assert [file.name for file in tmp_path.iterdir()] == ["mine"]
  assert [*(tmp_path / "mine").glob("*.npz")]


@pytest.mark.parametrize(
  "options, message",
  [
    ({"class_names": "ab"}, "class_names='ab' is one text: give a list"),
    ({"loss": "hinge"}, "loss='hinge' is unknown; choose one of softmax"),
  ],
)
def test_what_describes_no_model_in_memory(options, message):
  with pytest.raises(ValueError, match=message):
    loaded_from(*drawn(), image_size=(16, 24), **options)


def test_a_module_cannot_be_converted(tmp_path):
  call: Any = vit_jax.convert
  with pytest.raises(ValueError, match="of type Vit: .* vit_jax.save"):
    call(drawn()[0], tmp_path / "mine")


def test_a_missing_folder_is_asked_for():
  model, params = drawn()
  with pytest.raises(ValueError, match="give a folder to write, as in"):
    vit_jax.save(model, params, image_size=(16, 24))


def test_a_preprocessing_that_is_left_out_is_said(tmp_path, capsys):
  """Of a published model; that of one's own has none to leave out."""
  model, params = drawn()
  loaded_from(model, params, image_size=(16, 24))
  assert not capsys.readouterr().err
  model = model.clone(origin=Origin("a/file.npz", "google", (16, 24)))
  loaded_from(model, params)
  said = capsys.readouterr().err
  assert "resized to 16 x 24 (bilinear): the crop and the filter of" in said
  assert "a/file.npz are left out unless you give preprocessing" in said
  loaded_from(model, params, preprocessing=Preprocessing((16, 24)))
  assert not capsys.readouterr().err
