"""Published pairs of towers as one model, against other libraries' answers."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.pretrained.test_text import FOLDER, stored
from vit_jax.models.model import represent
from vit_jax.pretrained.load import load_pretrained, open_checkpoint
from vit_jax.pretrained.text import load_text

SLOW = pytest.mark.slow
NAMES = (
  *("hf_siglip", "open_clip"),
  *(
    pytest.param(name, marks=SLOW)
    for name in (
      *("hf_clip", "hf_metaclip2", "hf_siglip2", "hf_tips"),
      *("two_towers", "two_towers_scan"),
    )
  ),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_pair_answers_as_its_library_does(name):
  expected = stored(name)
  loaded = open_checkpoint(str(FOLDER / name), as_trained=True)
  ids = loaded.inputs["text"](expected["captions"])
  apply = jax.jit(loaded.model.apply)
  images = jnp.asarray(expected["images"])
  params = jax.tree.map(jnp.asarray, loaded.params)
  answer = apply({"params": params}, (images, ids))
  scale = np.abs(expected["logits"]).max()
  np.testing.assert_allclose(
    answer.logits(), expected["logits"], atol=1e-5 * scale
  )
  features = expected["features"]
  lengths = np.linalg.norm(features, axis=1, keepdims=True)
  np.testing.assert_allclose(answer.text, features / lengths, atol=1e-5)


def test_arrays_are_those_that_were_said():
  loaded = open_checkpoint(str(FOLDER / "hf_clip"), as_trained=True)
  assert {path: array.shape for path, array in loaded.read()} == loaded.shapes


def test_an_encoder_alone_is_no_pair():
  encoder = pathlib.Path(FOLDER).parent / "encoders" / "hf_dinov2"
  with pytest.raises(ValueError, match="no text tower and has no decoder"):
    open_checkpoint(str(encoder), as_trained=True)


def test_an_image_tower_of_open_clip_is_prepared_as_it_says(capsys):
  loaded = load_pretrained(str(FOLDER / "open_clip"))
  assert loaded.preprocessing.size == (16, 16)
  assert loaded.preprocessing.mean == (0.5, 0.5, 0.5)
  assert loaded.preprocessing.crop.interpolation == "bicubic"
  assert not loaded.guessed


@pytest.mark.slow
def test_a_tower_of_timms_in_open_clip_answers_beside_its_texts():
  expected, source = stored("open_siglip"), str(FOLDER / "open_siglip")
  model, params = load_pretrained(source, num_heads=2)
  y = represent(model, params, jnp.asarray(expected["images"]))
  head = load_text(source).head(expected["captions"], ["{}"])
  np.testing.assert_allclose(head.logits(y), expected["logits"], atol=1e-4)
