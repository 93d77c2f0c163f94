"""Captions of images: files, tokenizers, and what is drawn of them."""

import json
import pickle

import cv2
import numpy as np
import pytest

from vit_jax.data.example import Example
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading import label_file
from vit_jax.data.reading.captions import (
  NONE,
  Captions,
  PairTransform,
  TokenizerFiles,
  new_tokenizer,
)
from vit_jax.data.settings import DataSettings

TEXTS = ["a red disc", "a red square", "a blue disc", "Two discs, one blue."]
PNG = cv2.imencode(".png", np.zeros((4, 4, 3), np.uint8))[1].tobytes()


@pytest.fixture(scope="module")
def files():
  return new_tokenizer(TEXTS, 400, 8)


def write(folder, rows, name="pairs.csv"):
  """A file of captions, and an image for each that it names."""
  for row in rows:
    (folder / row["file"]).write_bytes(PNG)
  if name.endswith("jsonl"):
    lines = [json.dumps(row) for row in rows]
  else:
    columns = [*rows[0]]
    cells = ['"' + '","'.join(row[c] for c in columns) + '"' for row in rows]
    lines = [",".join(columns), *cells]
  (folder / name).write_text("\n".join(lines))
  return DataSettings(labels_file=str(folder / name))


def row(file, caption, **more):
  return {"file": file, "caption": caption, **more}


def opened(folder, rows, labels, **options):
  settings = write(folder, rows, **options)
  return label_file.open_folder(settings, labels)


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


@pytest.mark.parametrize("name", ["pairs.csv", "pairs.jsonl"])
def test_an_image_has_the_captions_of_all_its_rows(files, tmp_path, name):
  labels = Captions(tokenizer=files, most=3)
  rows = [
    row("a.png", TEXTS[0], split="train"),
    row("b.png", TEXTS[1], split="train"),
    row("a.png", TEXTS[2], split="train"),
    row("c.png", TEXTS[3], split="val"),
    row("d.png", TEXTS[0], split="val"),
  ]
  if name.endswith("jsonl"):
    rows = [row("a.png", [TEXTS[0], TEXTS[2]], split="train"), *rows[1:2]]
    rows += [row("c.png", TEXTS[3], split="val")]
    rows += [row("d.png", TEXTS[0], split="val")]
  splits = opened(tmp_path, rows, labels, name=name)
  train = splits["train"]
  assert train.label_spec.shape == (3, 8)
  found = train.labels(range(2))
  expected = np.full((2, 3, 8), NONE)
  expected[0, :2] = files.tokenizer([TEXTS[0], TEXTS[2]])
  expected[1, 0] = files.tokenizer(TEXTS[1])
  np.testing.assert_array_equal(found, expected)
  assert len(splits["eval"]) == 2


@pytest.mark.parametrize(
  "rows, message",
  [
    ([row("a.png", ""), row("b.png", "x")], "line 2 has an empty caption"),
    ([row("a.png", "x")], "line 2 is the only pair to train on"),
    (
      [row("a.png", "x", split="train"), row("a.png", "y", split="val")],
      "line 3 puts 'a.png' into another split than .*line 2",
    ),
  ],
)
def test_bad_rows_are_one_line(files, tmp_path, rows, message):
  with pytest.raises(ValueError, match=message):
    opened(tmp_path, rows, Captions(tokenizer=files))


def test_a_caption_that_is_no_text_is_refused(files, tmp_path):
  rows = [row("a.png", 3), row("b.png", "x")]
  with pytest.raises(ValueError, match="line 1 has the caption 3, which is no"):
    opened(tmp_path, rows, Captions(tokenizer=files), name="pairs.jsonl")


def test_missing_images_are_counted(files, tmp_path):
  settings = write(tmp_path, [row("a.png", "x"), row("b.png", "y")])
  (tmp_path / "b.png").unlink()
  with pytest.raises(ValueError, match="line 3 names 'b.png', .*1 of 2 files"):
    label_file.open_folder(settings, Captions(tokenizer=files))


def test_what_is_cut_and_left_out_is_said(files, tmp_path):
  labels = Captions(tokenizer=files, most=1)
  long = "a red disc and a blue disc and a red square and so on"
  T = files.length
  exact = next(
    text
    for text in (long[:n] for n in range(1, len(long)))
    if len(files.longer.encode([text])[0]) == T
  )
  rows = [row(f"{k}.png", text) for k, text in enumerate([long, exact, "x"])]
  rows += [row("2.png", "y")]
  splits = opened(tmp_path, [*rows, row("3.png", "z")], labels)
  seen = [*splits["train"].warnings(), *splits["eval"].warnings()]
  assert any(f"have more than the {T} tokens" in line for line in seen)
  cut = labels.cut([long, exact, "x"])
  assert cut[0].startswith(f"1 of 3 captions have more than the {T} tokens")
  more = [line for line in seen if "more than 1 captions" in line]
  assert len(more) == 1 and "1 of" in more[0]


def test_training_draws_one_caption_of_an_image(files):
  labels = Captions(tokenizer=files, most=4)
  transform = PairTransform(Preprocessing((4, 4)).transform(), files.length)
  ids = labels.ids([TEXTS[:3]])[0]
  example = Example(image=PNG, label=ids, id="x")
  drawn = [
    transform.row(example, np.random.default_rng(seed))["text"]
    for seed in range(60)
  ]
  counts = [sum(np.array_equal(d, ids[k]) for d in drawn) for k in range(4)]
  assert min(counts[:3]) > 8 and sum(counts) == 60 and counts[3] == 0
  again = transform.row(example, np.random.default_rng(0))["text"]
  np.testing.assert_array_equal(again, drawn[0])
  np.testing.assert_array_equal(transform.row(example)["text"], ids[0])
