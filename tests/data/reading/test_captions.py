"""Captions of images: files, tokenizers, and what is drawn of them."""

import csv
import dataclasses
import io
import json
import types

import cv2
import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests import captioned
from vit_jax.data.batching.loader import Loader
from vit_jax.data.example import Subset, UnreadableImageError
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading import label_file
from vit_jax.data.reading.captions import NONE, Captions
from vit_jax.data.reading.sources import open_splits
from vit_jax.data.reading.tfds.captions import open_labels
from vit_jax.data.reading.tokenizer_files import new_tokenizer
from vit_jax.data.settings import DataSettings, TrainTransformSettings
from vit_jax.data.transforming.with_texts import WithTexts

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


@pytest.mark.parametrize("name", ["pairs.csv", "pairs.jsonl"])
def test_an_image_has_the_captions_of_all_its_rows(files, tmp_path, name):
  labels = Captions(files=files, most=3)
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
    opened(tmp_path, rows, Captions(files=files))


def test_a_caption_that_is_no_text_is_refused(files, tmp_path):
  rows = [row("a.png", 3), row("b.png", "x")]
  with pytest.raises(ValueError, match="line 1 has the caption 3, which is no"):
    opened(tmp_path, rows, Captions(files=files), name="pairs.jsonl")


def test_half_a_character_is_refused(files, tmp_path):
  rows = [row("a.png", "x"), row("b.png", "a \ud83d disc")]
  with pytest.raises(
    ValueError,
    match=r"line 2 has the caption .*lone surrogate\): write it whole",
  ) as error:
    opened(tmp_path, rows, Captions(files=files), name="pairs.jsonl")
  assert str(error.value).isprintable()


@pytest.mark.parametrize("name", ["pairs.csv", "pairs.jsonl"])
def test_a_list_in_text_is_several_captions(files, tmp_path, name):
  (tmp_path / "a.png").write_bytes(PNG)
  (tmp_path / "b.png").write_bytes(PNG)
  cells = [json.dumps(TEXTS[:2]), str(TEXTS[2:])]
  pairs = zip(("a.png", "b.png"), cells, strict=True)
  if name.endswith("jsonl"):
    lines = [json.dumps(row(file, cell)) for file, cell in pairs]
  else:
    table = io.StringIO()
    csv.writer(table).writerows([("image", "raw caption"), *pairs])
    lines = [table.getvalue().replace("raw caption", "Caption")]
  (tmp_path / name).write_text("\n".join(lines))
  settings = DataSettings(labels_file=str(tmp_path / name), eval_split="train")
  labels = Captions(files=files, most=3)
  found = label_file.open_folder(settings, labels)["train"].labels(range(2))
  expected = np.full((2, 3, 8), NONE)
  expected[0, :2] = files.tokenizer(TEXTS[:2])
  expected[1, :2] = files.tokenizer(TEXTS[2:])
  np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("cell", ["[]", '["", "a"]', '["a", 5]', '["a"'])
def test_bad_lists_of_captions_are_one_line(files, tmp_path, cell):
  rows = [row("a.png", cell), row("b.png", "x")]
  with pytest.raises(ValueError, match="line 1 has (no|an empty|the|caption=)"):
    opened(tmp_path, rows, Captions(files=files), name="pairs.jsonl")


def test_columns_of_captions_may_have_lists(files, tmp_path):
  rows = [{"file": "a.png", "one": str(TEXTS[:2]), "two": TEXTS[2]}]
  rows += [{"file": "b.png", "one": "x", "two": '["y"]'}]
  settings = write(tmp_path, rows, "pairs.jsonl")
  settings = dataclasses.replace(
    settings, label_columns="one,two", eval_split="train"
  )
  labels = Captions(files=files, most=3)
  train = label_file.open_folder(settings, labels)["train"]
  np.testing.assert_array_equal(
    train.labels([0])[0], files.tokenizer(TEXTS[:3])
  )


def test_a_separator_parts_captions(files, tmp_path):
  for name in ("a.png", "b.png"):
    (tmp_path / name).write_bytes(PNG)
  path = tmp_path / "captions.txt"
  path.write_text(f"image,caption\na.png,{TEXTS[0]} | {TEXTS[1]}\nb.png,x\n")
  found = [
    label_file.open_folder(
      DataSettings(labels_file=str(path), eval_split="train", **keys),
      Captions(files=files, most=2),
    )["train"].labels([0])[0]
    for keys in ({}, {"label_separator": "|"})
  ]
  assert (found[0][1] == NONE).all()
  np.testing.assert_array_equal(found[1], files.tokenizer(TEXTS[:2]))


def test_captions_of_coco_are_those_of_its_files(files, tmp_path):
  """An image's captions stand apart, and the images in a folder beside."""
  (tmp_path / "train2017").mkdir()
  for k in (7, 9):
    (tmp_path / f"train2017/{k:012}.jpg").write_bytes(PNG)
  images = [{"id": k, "file_name": f"{k:012}.jpg"} for k in (7, 9)]
  annotations = [
    {"image_id": k, "id": n, "caption": text}
    for n, (k, text) in enumerate(zip((9, 7, 9, 7), TEXTS, strict=True))
  ]
  path = tmp_path / "captions.json"
  path.write_text(json.dumps({"images": images, "annotations": annotations}))
  labels = Captions(files=files, most=2)
  settings = DataSettings(labels_file=str(path), eval_split="train")
  found = label_file.open_folder(settings, labels)["train"]
  says = "the images are read from the folder 'train2017', the only one in"
  assert says in found.notes[0]
  settings = dataclasses.replace(settings, root=str(tmp_path / "train2017"))
  train = label_file.open_folder(settings, labels)["train"]
  assert [path[-6:] for path in train.ids(range(2))] == ["09.jpg", "07.jpg"]
  np.testing.assert_array_equal(
    train.labels(range(2)),
    [files.tokenizer(TEXTS[0::2]), files.tokenizer(TEXTS[1::2])],
  )


def test_missing_images_are_counted(files, tmp_path):
  settings = write(tmp_path, [row("a.png", "x"), row("b.png", "y")])
  (tmp_path / "b.png").unlink()
  with pytest.raises(ValueError, match="line 3 names 'b.png', .*1 of 2 files"):
    label_file.open_folder(settings, Captions(files=files))


def test_what_is_cut_and_left_out_is_said(files, tmp_path):
  labels = Captions(files=files, most=1)
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
  cut = labels.cut_lines([long, exact, "x"])
  assert cut[0].startswith(f"1 of 3 captions have more than the {T} tokens")
  more = [line for line in seen if "more than 1 captions" in line]
  assert len(more) == 1 and "1 of" in more[0]


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
  """What `data` is set to for each form of the same pairs."""
  root = tmp_path_factory.mktemp("forms")
  captioned.write_all(root)
  return {form: captioned.settings(root, form) for form in captioned.FORMS}


@pytest.fixture(scope="module")
def of_pairs():
  """The captions of all pairs, with a tokenizer of them."""
  texts = [text for pair in captioned.pairs() for text in pair.captions]
  return Captions(files=new_tokenizer(texts, 300, 12), most=3)


def in_order(source, split):
  """A source in the order of the pairs, which it has exactly once."""
  images = [example["image"] for example in source.read([*range(len(source))])]
  wanted = [p.image for p in captioned.pairs() if p.split == split]
  assert sorted(images) == sorted(wanted)
  return Subset(source, [images.index(image) for image in wanted])


@pytest.mark.parametrize("form", captioned.FORMS)
def test_every_form_gives_the_same_batches(forms, of_pairs, form):
  """Those of training, with what is drawn for them, and of evaluation."""
  preprocessing = Preprocessing((16, 16))
  changes = TrainTransformSettings(min_area=0.5)
  train = WithTexts(preprocessing.train_transform(changes), 12)
  evaluation = WithTexts(preprocessing.transform(), 12)

  def batches(form):
    splits = open_splits(DataSettings(**forms[form]), labels=of_pairs)
    assert splits.train.class_names == splits.eval.class_names == ("caption",)
    source = in_order(splits.train, "train")
    with Loader().train(source, train, batch_size=20, seed=3) as drawn:
      first = [next(drawn) for _ in range(3)]
    source = in_order(splits.eval, "val")
    with Loader().evaluate(source, evaluation, batch_size=20) as every:
      return [*first, *every]

  expected, found = batches("csv"), batches(form)
  texts = np.concatenate([batch["text"] for batch in expected[:3]])
  assert len(np.unique(texts, axis=0)) > 9  # Second captions are drawn too.
  for ours, theirs in zip(found, expected, strict=True):
    assert ours.keys() == theirs.keys()
    for name in theirs:
      np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def test_the_lines_say_which_texts_are_the_captions(forms, of_pairs):
  splits = open_splits(DataSettings(**forms["tfds"]), labels=of_pairs)
  assert splits.found == (
    "captioned/1.0.0, 27 training examples, 1 column of captions"
  )
  (line,) = splits.warnings
  assert line == (
    "the captions of captioned/1.0.0 are its captions/text; data.tfds_label "
    "chooses another of image/filename."
  )
  assert not open_splits(
    DataSettings(**forms["packed"]), labels=of_pairs
  ).warnings
  chosen = DataSettings(**forms["tfds"], tfds_label="image/filename")
  splits = open_splits(chosen, labels=of_pairs)
  ids = of_pairs.ids([["train_3.png"]])[0]
  (line,) = splits.warnings
  assert line.startswith("among 27 examples that were looked at, 27 of 27 cap")
  assert any(
    np.array_equal(example["label"], ids)
    for example in splits.train.read([*range(27)])
  )


IMAGE = tfds.features.Image()
TEXT = tfds.features.Text()
SEVERAL = tfds.features.Sequence(TEXT)


def told(features, labels, name=None):
  """The labels of a data set of these features."""
  info = types.SimpleNamespace(
    full_name="d/1.0.0",
    features=tfds.features.FeaturesDict(features),
    supervised_keys=None,
  )
  return open_labels(info, labels, name)


@pytest.mark.parametrize(
  "features, record, texts, most",
  [
    ({"caption": TEXT, "title": TEXT}, {"caption": b"a"}, ["a"], 1),
    (
      {"captions": tfds.features.Sequence(TEXT, length=2)},
      {"captions": np.array([b"a", b"b"], object)},
      ["a", "b"],
      2,
    ),
    (
      {"captions": tfds.features.Sequence({"id": np.int64, "text": TEXT})},
      {"captions": {"id": [1], "text": np.array([b"a"], object)}},
      ["a"],
      3,
    ),
    ({"said": {"by": SEVERAL}}, {"said": {"by": [b"a", b"b"]}}, ["a", "b"], 3),
    ({"id": TEXT, "words": TEXT}, {"words": "naïf".encode()}, ["naïf"], 1),
  ],
)
def test_features_of_texts(of_pairs, features, record, texts, most):
  labels = told({"photo": IMAGE, **features}, of_pairs)
  assert labels.image == "photo" and labels.most == most
  np.testing.assert_array_equal(labels.label(record), of_pairs.ids([texts])[0])


@pytest.mark.parametrize(
  "features, name, message",
  [
    ({"id": TEXT, "n": np.int64}, None, "^d/1.0.0 has no captions, which"),
    (
      {"a": TEXT, "b": TEXT},
      None,
      "^data.tfds_label is miss.* several texts, a, b;",
    ),
    ({"caption": {"en": TEXT, "de": TEXT}}, None, "texts, caption/.., caption"),
    ({"a": TEXT}, "b", "^data.tfds_label='b': d/1.0.0 has no such texts; .* a"),
    ({"caption": TEXT, "other": IMAGE}, None, "d/1.0.0 has 2 features of imag"),
  ],
)
def test_features_without_captions_are_one_line(
  of_pairs, features, name, message
):
  with pytest.raises(ValueError, match=message):
    told({"photo": IMAGE, **features}, of_pairs, name)


@pytest.mark.parametrize(
  "stored, message",
  [([], "has no caption in caption"), ([b"a", b" "], "has an empty caption")],
)
def test_a_record_without_a_caption_is_skipped_or_stops(
  of_pairs, stored, message
):
  labels = told({"photo": IMAGE, "caption": SEVERAL}, of_pairs)
  record = {"caption": stored}
  with pytest.raises(UnreadableImageError, match=message):
    labels.label(record)
  lines = labels.look([record, {"caption": [b"a red"] * 4}, record])
  assert lines[0].startswith("1 of 1 images have more than 3 captions")
  assert lines[1].startswith("2 have no caption, or an empty one: --config.l")


def test_a_record_without_a_caption_is_named(of_pairs, tmp_path):
  made = captioned.pairs()
  made[3].captions[:] = [""]
  captioned.prepare(tmp_path, made)
  where = DataSettings(name="captioned", data_dir=str(tmp_path))
  splits = open_splits(where, labels=of_pairs)
  assert (
    "among 27 examples that were looked at, 1 have no caption"
    in (splits.warnings[-1])
  )
  images = Preprocessing((16, 16)).train_transform(TrainTransformSettings())
  transform = WithTexts(images, 12)
  options = {"batch_size": 27, "seed": 0}
  with (
    pytest.raises(UnreadableImageError, match="train#.*: it has an empty cap"),
    Loader().train(splits.train, transform, **options) as batches,
  ):
    next(batches)
  loader = Loader(on_unreadable="skip")
  with loader.train(splits.train, transform, **options) as batches:
    assert next(batches)["skipped"].sum() == 1
