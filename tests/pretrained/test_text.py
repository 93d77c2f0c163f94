"""Text towers and their tokenizers, against transformers' own answers."""

import json
import pathlib
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.model import represent
from vit_jax.pretrained.arrays import open_arrays, save_arrays
from vit_jax.pretrained.load import load_pretrained
from vit_jax.pretrained.text import load_text

FOLDER = pathlib.Path(__file__).parents[1] / "checkpoints" / "texts"
NAMES = ("hf_clip", "hf_siglip", "hf_siglip2", "hf_tips")


def stored(name):
  """The captions, and the arrays of `make.py`."""
  captions = json.loads((FOLDER / "captions.json").read_text())
  with np.load(FOLDER / name / "expected.npz") as arrays:
    return {key: arrays[key] for key in arrays.files} | {"captions": captions}


def copied(tmp_path, name):
  return shutil.copytree(FOLDER / name, tmp_path / name)


def change_json(path, **changes):
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_features_and_logits_are_the_librarys(name):
  expected = stored(name)
  captions = expected["captions"]
  text = load_text(str(FOLDER / name))
  features = text.embed(captions, batch_size=4)
  scale = np.abs(expected["features"]).max()
  np.testing.assert_allclose(features, expected["features"], atol=1e-5 * scale)
  # The image tower of the same file, whose answers the texts' head compares.
  model, params = load_pretrained(str(FOLDER / name))
  y = represent(model, params, jnp.asarray(expected["images"]))
  logits = text.head(captions, ["{}"]).logits(y)
  scale = np.abs(expected["logits"]).max()
  np.testing.assert_allclose(logits, expected["logits"], atol=1e-5 * scale)


def test_templates_are_averaged_as_unit_vectors():
  text = load_text(str(FOLDER / "hf_clip"))
  templates = ["a photo of a {}", "two {} on a table"]
  head = text.head(["cat", "dog"], templates)
  for row, name in zip(head.embeddings, ("cat", "dog"), strict=True):
    each = text.embed([t.replace("{}", name) for t in templates])
    mean = (each / np.linalg.norm(each, axis=1, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(row, mean / np.linalg.norm(mean), atol=1e-6)
  assert head.names == ("cat", "dog")


@pytest.mark.slow
def test_a_tower_alone_has_a_scale_that_is_said(tmp_path, capsys):
  folder = copied(tmp_path, "hf_siglip")
  file = folder / "model.safetensors"
  with open_arrays(file) as arrays:
    text = {
      name.removeprefix("text_model."): np.ascontiguousarray(arrays[name])
      for name in arrays
      if name.startswith("text_model.")
    }
  save_arrays(file, text)
  config = json.loads((folder / "config.json").read_text())["text_config"]
  (folder / "config.json").write_text(json.dumps(config))
  expected = stored("hf_siglip")
  loaded = load_text(str(folder))
  assert loaded.scale == 100.0
  assert "no scale is stored" in capsys.readouterr().err
  found = loaded.embed(expected["captions"])
  scale = np.abs(expected["features"]).max()
  np.testing.assert_allclose(found, expected["features"], atol=1e-5 * scale)


@pytest.mark.parametrize(
  "name, change, message",
  [
    (
      "hf_clip",
      lambda f: (f / "tokenizer.json").unlink(),
      "has no tokenizer beside its weights, tokenizer.json or spiece.model",
    ),
    (
      "hf_siglip",
      lambda f: (f / "spiece.model").write_bytes(b"no model"),
      "spiece.model is no model of sentencepiece",
    ),
    (
      "hf_clip",
      lambda f: (f / "tokenizer.json").write_text("{}"),
      "is no tokenizer that the library tokenizers .* reads",
    ),
    (
      "hf_siglip2",
      lambda f: shutil.copy(
        FOLDER / "hf_clip" / "tokenizer.json", f / "tokenizer.json"
      ),
      "tokenizer.json has .* tokens and the text tower .*: it is not the tok",
    ),
    (
      "hf_tips",
      lambda f: change_json(
        f / "config.json", text_config={"hidden_act": "mish"}
      ),
      "hidden_act='mish' is unknown; choose one of gelu, .*relu",
    ),
    (
      "hf_siglip",
      lambda f: shutil.copy(
        FOLDER / "hf_tips" / "tokenizer.model", f / "spiece.model"
      ),
      "spiece.model has .* tokens and the text tower .*: it is not the tok",
    ),
  ],
)
def test_a_folder_that_does_not_fit_is_refused_in_a_line(
  tmp_path, name, change, message
):
  folder = copied(tmp_path, name)
  change(folder)
  with pytest.raises(ValueError, match=message) as info:
    load_text(str(folder))
  assert "\n" not in str(info.value)


def test_what_has_no_text_tower_is_refused():
  encoder = FOLDER.parent / "encoders" / "hf_dinov2"
  with pytest.raises(ValueError, match="hold no text tower of CLIP, SigLIP or"):
    load_text(str(encoder))


def test_texts_that_cannot_be_embedded_are_refused():
  text = load_text(str(FOLDER / "hf_tips"))
  with pytest.raises(ValueError, match="text 2 of 2 is empty"):
    text.embed(["a cat", " "])
  with pytest.raises(ValueError, match="there is no text"):
    text.embed([])
  with pytest.raises(ValueError, match="template 'a cat' has no {}"):
    text.head(["cat"], ["a cat"])
