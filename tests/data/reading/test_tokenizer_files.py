"""The files of a tokenizer: new ones, and those of a run."""

import json
import pickle

import numpy as np
import pytest

from vit_jax.data.reading.tokenizer_files import TokenizerFiles, new_tokenizer

TEXTS = ["a red disc", "a red square", "a blue disc", "Two discs, one blue."]


@pytest.fixture(scope="module")
def files():
  return new_tokenizer(TEXTS, 400, 8)


def test_a_new_tokenizer_knows_every_text(files):
  tokenizer = files.tokenizer
  ids = tokenizer(["A RED disc", "Ünïcödé 猫"])
  assert ids.shape == (2, 8) and tokenizer.size > ids.max() >= 0
  assert files.text(ids[0]) == "a red disc"
  assert 1 in ids[0] and ids[0][-1] == 0  # The end, and what fills up.
  again = new_tokenizer(TEXTS, 400, 8)
  assert again == files


def test_the_files_survive_json_and_pickle(files):
  for copy in (
    TokenizerFiles.from_json(json.loads(json.dumps(files.as_json()))),
    pickle.loads(pickle.dumps(files)),
  ):
    assert copy == files
    np.testing.assert_array_equal(copy.tokenizer(TEXTS), files.tokenizer(TEXTS))


@pytest.mark.parametrize(
  "change",
  [
    {"files": {"tokenizer.json": "no base64"}},
    {"files": []},
    {"length": "many"},
    {"family": None},
  ],
)
def test_damaged_files_are_one_line(files, change):
  with pytest.raises(ValueError, match="its tokenizer is damaged"):
    TokenizerFiles.from_json({**files.as_json(), **change})


def test_files_are_named_by_where_they_came_from(files, tmp_path):
  """Not by a folder that is there only while they are opened."""
  stored = files.as_json()
  broken = dict(files.files) | {"tokenizer.json": b"{}"}
  place = tmp_path / "tokenizer"
  place.mkdir()
  for name, content in broken.items():
    (place / name).write_bytes(content)
  read = TokenizerFiles.read(place, files.family, files.length)
  of_run = TokenizerFiles.from_json(read.as_json())
  for one, source in ((read, f"{place}/"), (of_run, "the run's ")):
    with pytest.raises(ValueError) as error:  # noqa: PT011
      _ = one.tokenizer
    assert str(error.value).startswith(
      f"{source}tokenizer.json is not a tokenizer"
    )
  opened = TokenizerFiles.from_json(stored).tokenizer
  with pytest.raises(
    ValueError, match=r" that the run's tokenizer\.json takes"
  ):
    opened(["a" * (1 << 24)])
