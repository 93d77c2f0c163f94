"""Text towers and their tokenizers, against transformers' own answers."""

import json
import pathlib
import re
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.model import represent
from vit_jax.pretrained import known
from vit_jax.pretrained.arrays import open_arrays, save_arrays
from vit_jax.pretrained.load import load_pretrained, load_text
from vit_jax.runtime.printable import quoted

FOLDER = pathlib.Path(__file__).parents[1] / "checkpoints" / "texts"
NAMES = ("hf_clip", "hf_metaclip2", "hf_siglip", "hf_siglip2", "hf_tips")
OTHERS = ("open_clip", "open_siglip", "two_towers", "two_towers_scan")
SLOW = pytest.mark.slow


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


@pytest.mark.parametrize(
  "name", [OTHERS[0], *(pytest.param(x, marks=SLOW) for x in OTHERS[1:])]
)
def test_ids_and_features_are_those_of_other_libraries(name):
  expected = stored(name)
  text = load_text(str(FOLDER / name))
  ids = text.tokenizer(expected["captions"])
  np.testing.assert_array_equal(ids, expected["ids"])
  found = text.embed(expected["captions"])
  scale = np.abs(expected["features"]).max()
  np.testing.assert_allclose(found, expected["features"], atol=1e-5 * scale)
  bias = None if name == "open_clip" else -10.0
  assert text.bias == bias
  assert text.scale == pytest.approx(10.0 if "two" in name else 1 / 0.07)


def test_templates_are_averaged_as_unit_vectors():
  text = load_text(str(FOLDER / "hf_clip"))
  templates = ["a photo of a {}", "two {} on a table"]
  head = text.head(["cat", "dog"], templates)
  for row, name in zip(head.embeddings, ("cat", "dog"), strict=True):
    each = text.embed([t.replace("{}", name) for t in templates])
    mean = (each / np.linalg.norm(each, axis=1, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(row, mean / np.linalg.norm(mean), atol=1e-6)
  assert head.names == ("cat", "dog")


def alone(tmp_path, name, base, kept):
  """The text tower of a model in files of its own, its arrays' names changed.

  Those that start with `kept` stay, and `base` stands for "text_model.".
  """
  folder = copied(tmp_path, name)
  file = folder / "model.safetensors"
  with open_arrays(file) as arrays:
    text = {
      name.replace("text_model.", base): np.ascontiguousarray(arrays[name])
      for name in arrays
      if name.startswith(("text_model.", *kept))
    }
    projection = arrays.get("text_projection.weight")
  save_arrays(file, text)
  config = json.loads((folder / "config.json").read_text())["text_config"]
  (folder / "config.json").write_text(json.dumps(config))
  return str(folder), projection


@pytest.mark.slow
@pytest.mark.parametrize(
  "name, base, kept",
  [
    ("hf_siglip", "", ()),  # SiglipTextModel.
    ("hf_siglip2", "text_model.", ()),  # The same, before release 5.
    ("hf_clip", "", ()),  # CLIPTextModel.
    ("hf_clip", "text_model.", ("text_projection.",)),  # ...WithProjection.
    ("hf_metaclip2", "", ()),
  ],
)
def test_a_tower_alone_answers_as_in_its_pair(
  tmp_path, capsys, name, base, kept
):
  folder, projection = alone(tmp_path, name, base, kept)
  expected = stored(name)
  loaded = load_text(folder)
  assert loaded.scale == 100.0
  assert "no scale is stored" in capsys.readouterr().err
  found = loaded.embed(expected["captions"])
  if not kept and projection is not None:
    found = found @ projection.T  # The tower alone ends before it.
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
      "spiece.model is not a sentencepiece model",
    ),
    (
      "hf_clip",
      lambda f: (f / "tokenizer.json").write_text("{}"),
      "is not a tokenizer that the library tokenizers .* can read",
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


@pytest.mark.parametrize(
  "change, message",
  [
    ({"hf_model_name": "xlm-roberta-base"}, "hf_model_name='xlm-roberta-base'"),
    ({"text_arch": "modern"}, "text_arch='modern': that text tower is not"),
    ({"pool_type": "first"}, "pool_type='first' is unknown; choose one of arg"),
    ({"tokenizer_kwargs": {"strip_sep_token": True}}, "says strip_sep_token="),
    (None, "open_clip_config.json, which tells how the text tower works, is"),
  ],
)
def test_a_tower_of_open_clip_that_is_not_ours_is_refused(
  tmp_path, change, message
):
  folder = copied(tmp_path, "open_clip")
  path = folder / "open_clip_config.json"
  if change is None:
    path.unlink()
  else:
    content = json.loads(path.read_text())
    content["model_cfg"]["text_cfg"] |= change
    path.write_text(json.dumps(content))
  with pytest.raises(ValueError, match=message) as info:
    load_text(str(folder))
  assert "\n" not in str(info.value)


def test_the_tokenizer_may_lie_elsewhere(tmp_path):
  folder = copied(tmp_path, "two_towers")
  (folder / "spiece.model").unlink()
  with pytest.raises(ValueError, match="has no tokenizer beside its weights"):
    load_text(str(folder))
  text = load_text(str(folder / "model.npz"), str(FOLDER / "hf_siglip"))
  assert text.tokenizer.file == "spiece.model"


CAPITALS = ["A photo of a CAT!", "a photo of a cat"]


def _as_gemma(folder):
  """Makes the tokenizer that of SigLIP 2's own repositories."""
  change_json(
    folder / "tokenizer_config.json", tokenizer_class="GemmaTokenizer"
  )
  content = json.loads((folder / "tokenizer.json").read_text())
  lower, spaces = content["normalizer"]["normalizers"]
  assert lower == {"type": "Lowercase"}
  change_json(folder / "tokenizer.json", normalizer=spaces)


def test_capital_letters_that_are_kept_are_said(tmp_path, capsys):
  """As by transformers, whose GemmaTokenizer lowers nothing."""
  folder = copied(tmp_path, "hf_siglip2")
  _as_gemma(folder)
  text = load_text(str(folder))
  assert capsys.readouterr().err == (
    f"{folder}: tokenizer.json keeps capital letters, and SigLIP was trained "
    "on texts in lower case: write texts in lower case, or scores are lower.\n"
  )
  # The ids of transformers 5.24.
  ids = text.tokenizer(CAPITALS)
  assert ids[0, :13].tolist() == [
    *(70, 304, 336, 304, 331, 304, 277, 304, 72, 70, 89, 263, 1)
  ]
  assert ids[1, :10].tolist() == [
    *(277, 304, 336, 304, 331, 304, 277, 304, 311, 1)
  ]


def test_open_clip_cleans_them(tmp_path, capsys):
  folder = copied(tmp_path, "open_siglip")
  _as_gemma(folder)
  text = load_text(str(folder))
  assert "capital letters" not in capsys.readouterr().err
  first, second = text.embed(CAPITALS)
  np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", ["hf_siglip", "hf_siglip2", "open_siglip"])
def test_tokenizers_that_lower_texts_say_nothing(name, capsys):
  text = load_text(str(FOLDER / name))
  assert "capital letters" not in capsys.readouterr().err
  first, second = text.tokenizer(["A photo of a CAT", "a photo of a cat"])
  np.testing.assert_array_equal(first, second)


def test_what_has_no_text_tower_is_refused():
  encoder = FOLDER.parent / "encoders" / "hf_dinov2"
  with pytest.raises(ValueError, match="hf_dinov2 has no text tower") as raised:
    load_text(str(encoder))
  advised = re.search(r"such as (.*)\.$", str(raised.value))
  assert advised
  assert known.KNOWN[advised[1]].url.startswith("hf://")


@pytest.mark.parametrize("name", ["hf_clip", "open_clip", "two_towers"])
def test_a_text_that_is_cut_is_said(name, capsys):
  text = load_text(str(FOLDER / name))
  # big_vision's last layer is a Dense; the others only multiply by a matrix.
  assert text.tower.projection_bias == (name == "two_towers")
  T = text.tokenizer.length
  words = "a cat and " * T
  lengths = [len(text.longer().encode([words[:n]])[0]) for n in range(2, 90)]
  exact = words[: 2 + max(k for k, n in enumerate(lengths) if n == T)]
  capsys.readouterr()
  text.embed([exact, "a cat"])
  assert capsys.readouterr().err == ""
  text.embed([words, exact])
  assert capsys.readouterr().err == (
    f"{FOLDER / name}: 1 of 2 texts have more than the {T} tokens that the "
    f"text tower reads, and are cut, such as {quoted(words)}.\n"
  )


def test_texts_that_cannot_be_embedded_are_refused():
  text = load_text(str(FOLDER / "hf_tips"))
  with pytest.raises(ValueError, match="text 2 of 2 is empty"):
    text.embed(["a cat", " "])
  with pytest.raises(ValueError, match="there is no text"):
    text.embed([])
  with pytest.raises(ValueError, match="template 'a cat' has no {}"):
    text.head(["cat"], ["a cat"])


def test_a_model_with_a_text_tower_is_asked_by_texts():
  loaded = load_pretrained(str(FOLDER / "hf_clip"))
  picture = np.zeros((8, 8, 3), np.uint8)
  with pytest.raises(ValueError, match=r"no classes .*texts=\[\.\.\.\]\) comp"):
    loaded.predict(picture)
