"""Ids of texts, against those of transformers' tokenizers, stored with them."""

import json
import shutil

import numpy as np
import pytest

from tests.pretrained.test_text import FOLDER, NAMES, stored
from vit_jax.data.reading.tokenizer import open_tokenizer

FAMILIES = {"hf_clip": "CLIP", "hf_tips": "TIPSv2"}


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_the_librarys(name):
  expected = stored(name)
  captions = expected["captions"]
  family = FAMILIES.get(name, "SigLIP")
  tokenizer = open_tokenizer(FOLDER / name, family, expected["ids"].shape[1])
  np.testing.assert_array_equal(tokenizer(captions), expected["ids"])
  assert tokenizer.size > expected["ids"].max()
  np.testing.assert_array_equal(tokenizer(captions[3]), expected["ids"][3:4])


def test_pieces_are_read_where_there_is_nothing_else(tmp_path):
  """transformers makes a tokenizer.json of TIPS's tokenizer.model."""
  expected = stored("hf_tips")
  assert (FOLDER / "hf_tips" / "tokenizer.json").exists()
  file = "tokenizer.model"
  (tmp_path / file).write_bytes((FOLDER / "hf_tips" / file).read_bytes())
  tokenizer = open_tokenizer(tmp_path, "TIPSv2", expected["ids"].shape[1])
  assert tokenizer.file == file
  found = tokenizer(expected["captions"])
  np.testing.assert_array_equal(found, expected["ids"])


@pytest.mark.parametrize("library", ["tokenizers", "sentencepiece"])
def test_without_its_library_the_extra_is_named(monkeypatch, library):
  monkeypatch.setitem(__import__("sys").modules, library, None)
  name = "hf_clip" if library == "tokenizers" else "hf_siglip"
  family = FAMILIES.get(name, "SigLIP")
  with pytest.raises(ValueError, match=r'pip install "vit_jax\[text\]"'):
    open_tokenizer(FOLDER / name, family, 20)


@pytest.mark.parametrize(
  ("family", "clean", "kept"),
  [
    ("SigLIP", "", True),
    ("big_vision's SigLIP", "", True),
    ("open_clip", "", True),
    ("open_clip", "lower", False),
    ("open_clip", "canonicalize", False),
  ],
)
def test_one_tokenizer_under_three_libraries(tmp_path, family, clean, kept):
  """Each lowers texts, or says that it does not."""
  folder = shutil.copytree(FOLDER / "hf_siglip2", tmp_path / "gemma")
  content = json.loads((folder / "tokenizer.json").read_text())
  content["normalizer"] = content["normalizer"]["normalizers"][1]
  (folder / "tokenizer.json").write_text(json.dumps(content))
  path = folder / "tokenizer_config.json"
  about = json.loads(path.read_text()) | {"tokenizer_class": "GemmaTokenizer"}
  path.write_text(json.dumps(about))
  opened = open_tokenizer(folder, family, 20, clean)
  first, second = opened(["A photo of a CAT", "a photo of a cat"])
  assert (first != second).any() == kept
  said = [note for note in opened.notes if "keeps capital letters" in note]
  assert len(said) == kept


def test_open_clips_cleaning_repairs_texts_by_ftfy():
  """The ids are those of the repaired text, and padding stays at its side."""
  pytest.importorskip("ftfy", reason="needs ftfy")
  tokenizer = open_tokenizer(FOLDER / "open_clip", "open_clip", 20, "lower")
  odd = [
    "It\u2019s \u201ca cat\u201d",
    "AT&amp;amp;T",
    "\uff21 cat\uff01",
    "e\u0301t\u00e9",
  ]
  plain = ['it\'s "a cat"', "at&t", "a cat!", "\u00e9t\u00e9"]
  np.testing.assert_array_equal(tokenizer(odd), tokenizer(plain))
  assert tokenizer.notes == ()


def test_without_ftfy_a_line_says_what_stays(monkeypatch):
  monkeypatch.setitem(__import__("sys").modules, "ftfy", None)
  tokenizer = open_tokenizer(FOLDER / "open_clip", "open_clip", 20, "lower")
  assert "open_clip repairs curly quotes, full-width" in tokenizer.notes[-1]
  tokenizer(["AT&amp;T"])


@pytest.mark.parametrize("clean", ["", "whitespace", "lower", "canonicalize"])
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_a_gemma_tokenizer_fills_up_texts_at_the_left(tmp_path, side, clean):
  """Unless its file says otherwise; so do transformers and open_clip."""
  folder = shutil.copytree(FOLDER / "hf_siglip2", tmp_path / "gemma")
  path = folder / "tokenizer_config.json"
  about = json.loads(path.read_text()) | {"tokenizer_class": "GemmaTokenizer"}
  about.pop("padding_side")
  path.write_text(json.dumps(about | ({"padding_side": side} if side else {})))
  family = "open_clip" if clean else "SigLIP 2"
  (ids,) = open_tokenizer(folder, family, 12, clean)(["a photo of a cat"])
  text = [277, 304, 336, 304, 331, 304, 277, 304, 311, 1]  # transformers 5.24
  expected = [*text, 0, 0] if side == "right" else [0, 0, *text]
  assert ids.tolist() == expected
