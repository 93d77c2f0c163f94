"""Tokenizers from anywhere: each opens and encodes, or ends in one line."""

import io
import json
import shutil
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import damaged, distorted, examples, outcome
from tests.pretrained.test_text import FOLDER
from vit_jax.data.reading import tokenizer_bounds as bounds
from vit_jax.data.reading.tokenizer import open_tokenizer
from vit_jax.data.reading.tokenizer_files import TokenizerFiles
from vit_jax.runtime.libraries import hold_back_stderr, refusing

WORDS = {
  "type": "WordLevel",
  "vocab": {word: k for k, word in enumerate(("a", "photo", "of", "cat", "?"))},
  "unk_token": "?",
}
EMPTY = {
  "version": "1.0",
  "truncation": None,
  "padding": None,
  "added_tokens": [],
  "normalizer": None,
  "pre_tokenizer": {"type": "WhitespaceSplit"},
  "post_processor": None,
  "decoder": None,
}
PAIRS = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}


def replaced(pattern, content, kind="String"):
  return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def chain(*steps):
  return {"type": "Sequence", "normalizers": [*steps]}


def template(parts, ids):
  single = [{key: {"id": name, "type_id": 0}} for key, name in parts]
  tokens = {"id": "x", "ids": ids, "tokens": ["x"] * len(ids)}
  return {
    "type": "TemplateProcessing",
    "single": single,
    "pair": single,
    "special_tokens": {"x": tokens},
  }


def split(pattern):
  return {
    "type": "Split",
    "pattern": {"Regex": pattern},
    "behavior": "Isolated",
    "invert": False,
  }


BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
HOSTILE = {
  "no charsmap": {
    "normalizer": {"type": "Precompiled", "precompiled_charsmap": "ABAAAAA="}
  },
  "chained replacements": {
    "normalizer": chain(*[replaced("a", "aa")] * 40),
  },
  "nested replacements": {
    "normalizer": chain(chain(replaced("a", "a" * 40)), replaced("a", "a" * 40))
  },
  "prefixes replaced": {
    "normalizer": chain(
      {"type": "Prepend", "prepend": "a" * 1000}, replaced("a", "a" * 1000)
    )
  },
  "bytes of bytes": {
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES] * 30}
  },
  "parts of no length": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
  "a long prefix": {
    "model": {**PAIRS, "continuing_subword_prefix": "#" * 1000}
  },
  "no unknown token": {"model": {**WORDS, "vocab": {"a": 0}}},
  "no unknown piece": {
    "model": {"type": "Unigram", "unk_id": None, "vocab": [["b", 0.0]]}
  },
  "a long word": {
    "model": {
      "type": "WordPiece",
      "unk_token": "?",
      "continuing_subword_prefix": "##",
      "max_input_chars_per_word": 10**9,
      "vocab": {"?": 0},
    }
  },
  "a long piece": {"model": {**WORDS, "vocab": {"?": 0, "a" * 5000: 1}}},
  "a large id": {"model": {**WORDS, "vocab": {"a": 2**32 - 1, "?": 0}}},
  "a large id in a template": {
    "post_processor": template(
      [("Sequence", "A"), ("SpecialToken", "x")], [2**31]
    )
  },
  "more tokens than fit": {
    "post_processor": template(
      [("Sequence", "A"), ("SpecialToken", "x")], [3] * 30
    )
  },
  "millions of tokens": {
    "post_processor": template([("SpecialToken", "x")] * 2000, [3] * 2000)
  },
  "an unknown template": {"post_processor": template([("Sequence", "B")], [])},
  "a growing text of tokens": {
    "decoder": {"type": "Sequence", "decoders": [replaced("a", "aa")] * 40}
  },
}


def opened(folder, changes, length=8):
  file = folder / "tokenizer.json"
  file.write_text(json.dumps({**EMPTY, "model": WORDS, **changes}))
  return open_tokenizer(folder, "CLIP", length)


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(tmp_path, capfd, what):
  file = tmp_path / "tokenizer.json"
  with pytest.raises(ValueError, match="tokenizer.json") as caught:
    opened(tmp_path, HOSTILE[what])
  message = str(caught.value)
  assert message.startswith(str(file)) and message.isprintable()
  assert capfd.readouterr().err == ""  # Panics print lines of their own.


def test_what_is_usual_is_read(tmp_path):
  usual = {
    "normalizer": chain(
      {"type": "NFC"},
      replaced(r"\s+", " ", "Regex"),
      {"type": "Lowercase"},
      {"type": "Prepend", "prepend": "\u2581"},
      replaced(" ", "\u2581"),
    ),
    "pre_tokenizer": BYTES,
    "model": WORDS | {"vocab": {"?": 0}},
  }
  tokenizer = opened(tmp_path, usual)
  assert tokenizer(["A photo " * 5_000])[0, 0] == 0


def test_a_text_that_cannot_be_encoded_is_named(tmp_path):
  words = {**WORDS, "vocab": {"a": 0, "photo": 1, "cat": 2, "of": 3}}
  tokenizer = opened(tmp_path, {"model": words})
  assert tokenizer(["a cat"]).tolist() == [[0, 2, 0, 0, 0, 0, 0, 0]]
  with pytest.raises(
    ValueError, match="json makes no tokens of 'a dog': .*UNK"
  ):
    tokenizer(["a cat", "a dog"])
  with pytest.raises(ValueError, match="text 2 of 2 has 9,000,000 characters"):
    tokenizer(["a cat", "a" * 9_000_000])
  with pytest.raises(ValueError, match=r"text 'a \\ud800' has half"):
    tokenizer(["a \ud800"])
  endless = opened(tmp_path, {"pre_tokenizer": split("(a+)+$")})
  with pytest.raises(ValueError, match="makes no tokens of 'aaa.*retry-limit"):
    endless(["a" * 40 + "b"])


@pytest.mark.parametrize(
  "name, file", [("hf_siglip", "spiece"), ("hf_tips", "tokenizer")]
)
def test_hostile_pieces_are_refused(tmp_path, capfd, name, file):
  family = "SigLIP" if name == "hf_siglip" else "TIPSv2"
  path = tmp_path / f"{file}.model"
  for content, said in (
    (b"", "is empty"),
    (b"no model", "is not a sentencepiece model"),
    (growing(tmp_path), "may turn 16,384 bytes of text into"),
  ):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path.name} .*{said}"):
      open_tokenizer(tmp_path, family, 8)
  path.write_bytes((FOLDER / name / path.name).read_bytes())
  assert open_tokenizer(tmp_path, family, 8).file == path.name
  assert capfd.readouterr().err == ""


def growing(folder):
  """A model of sentencepiece that makes 600 bytes of each "a"."""
  sentencepiece = pytest.importorskip("sentencepiece")
  rules = folder / "rules.tsv"
  rules.write_text("61\t" + " ".join(["62"] * 600) + "\n")
  written = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(["a photo of a cat"] * 10),
    model_writer=written,
    vocab_size=12,
    hard_vocab_limit=False,
    normalization_rule_tsv=str(rules),
    minloglevel=2,
  )
  return written.getvalue()


@pytest.mark.parametrize("length", [10**9, 0, -1, 2**70, 8.5, "8"])
def test_a_stored_length_is_checked(length):
  stored = TokenizerFiles.read(FOLDER / "hf_clip", "CLIP", 8).as_json()
  with pytest.raises(ValueError, match="its tokenizer is damaged .length="):
    TokenizerFiles.from_json({**stored, "length": length})


def test_a_tokenizer_is_compared_with_the_rows_of_its_tower():
  files = TokenizerFiles.read(FOLDER / "hf_clip", "CLIP", 8)
  size = files.tokenizer.size
  same = TokenizerFiles(files.files, "CLIP", 8, vocabulary=size)
  assert same.tokenizer.size == size
  fewer = TokenizerFiles(files.files, "CLIP", 8, vocabulary=size - 1)
  said = (
    f"tokenizer.json has {size} tokens and the text tower {size - 1}: it is"
  )
  with pytest.raises(ValueError, match=said):
    fewer.open()


def test_what_ends_a_program_is_no_fault_of_a_file():
  for kind in (KeyboardInterrupt, SystemExit, MemoryError):
    with pytest.raises(kind), hold_back_stderr(), refusing("x"):
      raise kind
  with pytest.raises(ValueError, match="^x: KeyError.$"), refusing("x"):
    raise KeyError
  with pytest.raises(ValueError, match="^x: two lines.$"), refusing("x"):
    raise RuntimeError("two\nlines.")


def test_lines_of_a_library_that_succeeds_are_printed(capfd):
  with hold_back_stderr():
    print("a warning", file=sys.__stderr__, flush=True)
  assert capfd.readouterr().err == "a warning\n"


def test_growth_is_that_of_each_step():
  growth = bounds.Growth().then(bounds.Growth(2, 3)).then(bounds.Growth(5, 7))
  assert growth.of(10) == 5 * (2 * 10 + 3) + 7


WHOLE = {
  name: json.loads((FOLDER / name / "tokenizer.json").read_text())
  for name in ("hf_clip", "hf_metaclip2", "hf_siglip2", "hf_tips")
}


def tried(folder):
  tokenizer = open_tokenizer(folder, "CLIP", 16)
  ids = tokenizer(["a photo of \u00e9", "(" * 50])
  assert ids.shape == (2, 16) and ids.dtype == np.int32
  assert 0 <= ids.min() and ids.max() < tokenizer.size


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("tokenizer")


@pytest.mark.slow
@examples(25)
@given(st.data())
def test_distorted_tokenizers(folder, data):
  name = data.draw(st.sampled_from([*WHOLE]))
  tree = dict(WHOLE[name])
  kept = tree.pop("model"), tree.pop("added_tokens", [])
  tree = data.draw(distorted(tree)) | dict(model=kept[0], added_tokens=kept[1])
  (folder / "tokenizer.json").write_text(json.dumps(tree))
  outcome("tokenizer.json, distorted", lambda: tried(folder))


@examples(40)
@given(st.data())
def test_damaged_tokenizers(folder, data):
  name = data.draw(st.sampled_from([*WHOLE]))
  content = (FOLDER / name / "tokenizer.json").read_bytes()
  (folder / "tokenizer.json").write_bytes(data.draw(damaged(content)))
  outcome("tokenizer.json, damaged", lambda: tried(folder))


@examples(60)
@given(st.data())
def test_damaged_pieces(tmp_path_factory, data):
  place = tmp_path_factory.mktemp("pieces", numbered=True)
  name = data.draw(st.sampled_from(["hf_siglip/spiece", "hf_tips/tokenizer"]))
  content = (FOLDER / f"{name}.model").read_bytes()
  (place / "spiece.model").write_bytes(data.draw(damaged(content)))
  outcome("sentencepiece, damaged", lambda: tried(place))
  shutil.rmtree(place)
