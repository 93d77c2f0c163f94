"""Batches for a training loop of one's own: order, passes and refusals."""

import ast
import json
import operator
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.image_files import write_noise
from tests.pages import ROOT, blocks
from vit_jax import data
from vit_jax.data.batching.own_loop import (
  describe_data,
  load_dataset,
  open_data,
)
from vit_jax.data.example import Subset
from vit_jax.data.settings import EvalTransformSettings, TrainTransformSettings
from vit_jax.run.settings import read_saved
from vit_jax.runtime.printable import said_once

DIGITS = data.DataSettings(name="digits")


def test_a_loop_goes_on_with_the_batch_it_missed():
  pad = TrainTransformSettings(crop="pad", pad=1)
  source, batches = open_data("train", DIGITS, (8, 8), 16, transform=pad)
  assert source.class_names == tuple("0123456789")
  with batches:
    whole = [next(batches) for _ in range(4)]
  _, rest = open_data("train", DIGITS, (8, 8), 16, transform=pad, first_batch=2)
  with rest:
    for expected in whole[2:]:
      found = next(rest)
      for key in ("image", "label"):
        np.testing.assert_array_equal(found[key], expected[key])


def test_every_pass_over_the_evaluation_split_has_each_example_once():
  source, passes = open_data("eval", DIGITS, (8, 8), 100)
  with passes:
    for _ in range(2):
      counted = sum(int(batch["mask"].sum()) for batch in passes)
      assert counted == len(source) == 359


@pytest.mark.parametrize(
  "split, transform, named",
  [
    ("train", EvalTransformSettings(), "TrainTransformSettings"),
    ("eval", TrainTransformSettings(), "EvalTransformSettings"),
  ],
)
def test_the_transform_of_another_split_is_refused(split, transform, named):
  with pytest.raises(ValueError, match=f"transform of .* must be {named}"):
    open_data(split, DIGITS, (8, 8), 16, transform=transform)


def test_a_window_makes_its_values_black_and_white(tmp_path):
  """Of 12 bits in files of 16: 1000 is black, 2020 white, 1510 between."""
  levels = np.array([900, 1000, 1510, 2020], np.uint16)
  for name in ("a", "b"):
    for split in ("train", "val"):
      place = tmp_path / split / name
      place.mkdir(parents=True)
      pixels = np.repeat(levels, 16).reshape(8, 8)
      Image.fromarray(pixels).save(place / "0.png")
  folder = data.DataSettings(root=str(tmp_path))
  _, batches = open_data("eval", folder, (8, 8), 2, window=(1000, 2020))
  with batches:
    (batch,) = batches
  found = batch["image"][0, ::2, 0, 0]
  np.testing.assert_allclose(found, [0, 0, 127.5, 255], atol=0.5)


@pytest.mark.slow
def test_the_program_of_the_page_runs_to_its_last_line(
  tmp_path, monkeypatch, capsys
):
  """It trains, saves, evaluates, and goes on when it is run again."""
  page = (ROOT / "docs/howto/own_loop.md").read_text()
  block = next(block for block in blocks(page) if block.language == "python")
  photos = tmp_path / "my_photos"
  write_noise(photos, "cat", "dog", count=10, size=(40, 40))
  monkeypatch.chdir(tmp_path)
  exec(block.text, {})
  saved, done, measured = capsys.readouterr().out.splitlines()
  assert (saved.split()[0], done.split()[0]) == ("10", "20")
  result = ast.literal_eval(measured)
  assert 0 <= result["top1"] <= 1 and result["examples"] > 0
  found = vit_jax.evaluate("runs/own_loop", out="answers.csv")
  assert {k: found[f"eval/{k}"] for k in result} == pytest.approx(result)
  capsys.readouterr()
  exec(block.text, {})  # Nothing is left to train.
  assert capsys.readouterr().out.splitlines() == [measured]


@pytest.mark.parametrize("splits", [[""], ["train", "val", "test"]])
def test_a_checkpoint_is_evaluated_on_the_images_that_were_held_out(
  tmp_path, splits
):
  for split in splits:
    write_noise(tmp_path / split, "cat", "dog", count=20)
  photos = data.DataSettings(root=str(tmp_path))
  train, batches = open_data("train", photos, (8, 8), 2)
  batches.close()
  held_out, passes = open_data("eval", photos, (8, 8), 2)
  passes.close()
  described = describe_data(train, photos, (8, 8))
  saved = read_saved(json.loads(json.dumps(described)))
  found = data.open_source("eval", saved.data)
  assert found.ids(range(len(found))) == held_out.ids(range(len(held_out)))
  assert saved.eval_transform == EvalTransformSettings()
  assert saved.image_size == (8, 8)


def test_a_folder_and_one_side_describe_data(tmp_path):
  photos = write_noise(tmp_path, "a", "b", count=4)
  source, batches = open_data("train", photos, 8, 2)
  with batches:
    assert next(batches)["image"].shape == (2, 8, 8, 3)
    assert batches  # As an object is, though it has no length.
    with pytest.raises(TypeError, match=r"no end: .* len\(train\) // batch_s"):
      len(batches)
  with pytest.raises(
    AttributeError, match=r"'classes'; .* source\.class_names"
  ):
    operator.attrgetter("classes")(source)


ASSUMED = 'the split "train"; image_size=8, that of its files; batch_size=32'


@pytest.mark.parametrize(
  "given, keywords, split, side, rows, said",
  [
    (["digits"], {}, "train", 8, 32, ASSUMED),
    ([DIGITS], {}, "train", 8, 32, ASSUMED),
    ([], {"dataset": "digits"}, "train", 8, 32, ASSUMED),
    (["digits"], {"split": "val"}, "eval", 8, 32, "image_size=8, that of"),
    (["eval", "digits"], {"size": 8}, "eval", 8, 32, "batch_size=32"),
    (["digits", "validation", 8, 4], {}, "eval", 8, 4, ""),
    (["training", "digits", 8], {"bs": 4}, "train", 8, 4, ""),
  ],
)
def test_data_are_opened_as_other_libraries_do(
  given, keywords, split, side, rows, said, capsys
):
  said_once.clear()
  source, batches = operator.call(open_data, *given, **keywords)
  with batches:
    batch = next(iter(batches))
  assert batch["image"].shape == (rows, side, side, 3)
  assert len(source) == (1438 if split == "train" else 359)
  told = " ".join(capsys.readouterr().err.split())
  assert said in told if said else "takes what was not given" not in told


@pytest.mark.parametrize(
  "given, said",
  [
    ([], "data is missing: give a folder"),
    (["train"], "data is missing: give a folder"),
    (["test", None], "data is missing: give a folder"),
    (["half", "digits"], "split='half' is unknown; use"),
    (["digits", "digits"], "split='digits' is unknown; use"),
  ],
)
def test_without_data_or_with_another_split_nothing_is_opened(given, said):
  with pytest.raises(ValueError, match=said):
    operator.call(open_data, *given)


def test_a_folder_named_as_a_split_is_data_beside_one(tmp_path, monkeypatch):
  write_noise(tmp_path / "train", "a", "b", count=4)
  monkeypatch.chdir(tmp_path)
  source, batches = open_data("train", "train", 8, 2)
  batches.close()
  assert source.class_names == ("a", "b")


@pytest.mark.parametrize("given", [{"root": "my_photos"}, 3])
def test_data_are_described_by_settings(given):
  with pytest.raises(ValueError, match=r"^data=.*give vit_jax\.DataSettings"):
    open_data("train", given, (8, 8), 4)


@pytest.mark.parametrize(
  "width, side", [((20, 20), (20, 20)), ((20, 21), 224), ((65, 65), 224)]
)
def test_small_images_of_one_size_keep_it(tmp_path, width, side, capsys):
  """Unlike images of several sizes, and those above 64 pixels."""
  for name, pixels in zip("ab", width, strict=True):
    write_noise(tmp_path, name, count=4, size=(pixels, pixels))
  with load_dataset(tmp_path, batch_size=2) as opened:
    assert next(opened)["image"].shape == (2, *np.broadcast_to(side, 2), 3)
  said = capsys.readouterr().err
  assert f"image_size={np.max(side)}" in said and tmp_path.name in said


@pytest.fixture
def opened():
  with load_dataset("digits", image_size=8, batch_size=100) as one:
    yield one


def test_a_loop_over_a_split_is_an_epoch_of_a_stream(opened):
  _, batches = open_data("train", DIGITS, 8, 100)
  with batches:
    expected = [next(batches)["label"] for _ in range(30)]
  assert len(opened) == 14
  found = [batch["label"] for batch in opened]
  found += [next(iter(opened))["label"], next(opened)["label"]]
  assert len(found) == 16
  np.testing.assert_array_equal(found, expected[:16])


def test_an_opened_split_opens_the_others_once(opened):
  held_out = opened["validation"]
  assert held_out is opened["eval"] and opened["train"] is opened
  assert (len(held_out.source), len(held_out), held_out.batch_size) == (
    *(359, 4),
    100,
  )
  for _ in range(2):
    rows = [len(batch["label"]) for batch in held_out]
    assert rows == [100, 100, 100, 59]
  for _ in range(2):  # As `for` does, `next` ends at the end of an epoch.
    assert len([*iter(lambda: next(held_out, None), None)]) == 4
  assert opened.class_names == held_out.class_names == tuple("0123456789")
  assert held_out.show_batch().size == opened.show_batch(count=16).size
  assert "359 examples" in repr(held_out)


def test_an_opened_split_is_opened_anew_as_its_loader(opened):
  for given in ([opened], [opened, "train"], ["train", opened]):
    with operator.call(load_dataset, *given, batch_size=7) as again:
      assert next(again)["image"].shape == (7, 8, 8, 3)
  plain = TrainTransformSettings(crop="pad", pad=0)
  with opened.again(transform=plain) as other:  # Kept for "train" alone.
    assert next(other["eval"])["image"].shape == (100, 8, 8, 3)


def test_without_test_images_the_held_out_ones_are_the_test(tmp_path, capsys):
  photos = write_noise(tmp_path / "photos", "a", "b", count=10, size=(8, 8))
  with load_dataset(photos, "test", batch_size=3) as held_out:
    expected = load_dataset(photos, "eval", batch_size=3)
    expected.close()
    ours: Any = held_out.source
    theirs: Any = expected.source
    every = range(len(ours))
    assert ours.ids(every) == theirs.ids(every)
  assert 'has no test folder: "eval", the images' in capsys.readouterr().err
  with pytest.raises(ValueError, match=r'no test folder: .* split="eval"'):
    open_data(photos, "test")


def test_few_images_make_a_batch_of_all(tmp_path):
  """The default is no size that the caller chose."""
  photos = write_noise(tmp_path / "photos", "a", "b", count=5, size=(8, 12))
  train, batches = open_data(photos)
  with batches:
    images = next(batches)["image"]
  assert images.shape == (len(train), 8, 12, 3)
  with pytest.raises(ValueError, match="batch_size=0 must be 1 or more"):
    open_data("train", photos, 8, 0)


def test_the_pair_is_a_pair_with_names():
  pair = open_data("train", DIGITS, 8, 4)
  with pair.batches:
    assert len(pair) == 2 and pair[0] is pair.source
    assert pair.class_names == pair.classes == tuple("0123456789")
    assert pair.show_batch().size[0] > 8


@pytest.mark.parametrize(
  "asked, error, said",
  [
    (lambda pair, _: pair["train"], TypeError, "is a pair|has no .train."),
    (lambda pair, _: pair[0]["image"], TypeError, r'next\(batches\)\["image'),
    (lambda pair, _: pair.train, AttributeError, 'load_dataset.*"train"'),
    (lambda _, split: split["image"], TypeError, r'next\(data\)\["image"\]'),
    (lambda _, split: split[0], TypeError, r"data\.source\[0\] is"),
    (lambda _, split: split.num_classes, AttributeError, r"len\(data\.class"),
  ],
)
def test_what_an_opened_split_is_not_gets_a_line(opened, asked, error, said):
  pair = open_data("train", DIGITS, 8, 4)
  with pair.batches, pytest.raises(error, match=said):
    asked(pair, opened)


def test_every_reader_refuses_the_name_of_an_array(tmp_path):
  photos = write_noise(tmp_path, "a", "b", count=4)
  sources: list[Any] = [
    data.open_source("train", data.DataSettings(root=str(photos)))
  ]
  sources.append(Subset(sources[0], [0]))
  for source in sources:
    with pytest.raises(TypeError, match="by the number of an example"):
      operator.getitem(source, "image")
