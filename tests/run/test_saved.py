"""A run on a folder with three splits, and its test split at the end."""

import hashlib
import json
import os
import re
import shutil
import types
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from configs import finetune
from tests import published, runs, tiny
from tests.image_files import write_noise
from vit_jax import data, load_pretrained
from vit_jax.config import base_config
from vit_jax.models.grid import grid_of
from vit_jax.models.vit import Vit
from vit_jax.report.measure import read_run
from vit_jax.report.page import headline_of
from vit_jax.run import loop, saved
from vit_jax.run.in_python import FinishedRun
from vit_jax.run.plan import make_plan
from vit_jax.run.saved import (
  calibrate_checkpoint,
  evaluate_checkpoint,
  open_saved_run,
)
from vit_jax.run.settings import read
from vit_jax.tasks.scores import FoldScore


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
  """Makes a run whose data are elsewhere; no reader may open them."""

  def refuse(*_):
    raise AssertionError("its data were opened")

  monkeypatch.setattr(saved, "open_source", refuse)
  model = Vit(3, 8, 24, 1, 48, 3)
  params = tiny.random_params(model, (16, 16), 0)

  def make(section="data", described=types.MappingProxyType({}), **changes):
    config = base_config()
    config[section].update(changes)
    options = dict(config=config, mean=(0.5,) * 3, std=(0.5,) * 3)
    folder = tmp_path / "run"
    options |= described
    tiny.save_run(folder, model, params, (16, 16), "abc", **options)
    return str(folder)

  return make


@pytest.mark.slow
def test_a_run_without_data_takes_them_from_the_command_line(elsewhere):
  run = elsewhere()
  with pytest.raises(ValueError, match="run records no data: .* --root=DIR"):
    evaluate_checkpoint(run)
  with pytest.raises(AssertionError, match="its data were opened"):
    evaluate_checkpoint(run, root="photographs")


@pytest.mark.slow
@pytest.mark.parametrize(
  "where, flag",
  [
    ({"dir": "gs://evil/packed"}, "root"),
    ({"dir": "hf://evil/packed"}, "root"),
    ({"name": "cifar10", "data_dir": "gs://evil/packed"}, "data_dir"),
  ],
)
def test_data_that_only_a_checkpoint_names_are_not_asked_for(
  elsewhere, where, flag
):
  run = elsewhere(**where)
  address = [*where.values()][-1]
  said = f"the data of this run is {address}, which only .*, give --{flag}="
  for command in (evaluate_checkpoint, read_run):
    with pytest.raises(ValueError, match=said):
      command(run)
  with pytest.raises(AssertionError, match="its data were opened"):
    evaluate_checkpoint(run, **{flag: address})


def _noise(folder, count):
  return str(write_noise(folder, *"abc", count=count, seed=count))


def test_a_class_that_the_run_does_not_have_is_refused(elsewhere, tmp_path):
  photos = str(_noise(tmp_path / "new", 1))
  (tmp_path / "new" / "c").rename(tmp_path / "new" / "d")
  with pytest.raises(
    ValueError, match="t alone has c; .* split alone has d. Evaluate on "
  ):
    evaluate_checkpoint(elsewhere(), folder=photos, num_workers=0)


def test_a_folder_may_lack_classes_of_the_run(elsewhere, tmp_path, capsys):
  """The labels of the others stay those of the run."""
  photos = _noise(tmp_path / "new", 4)
  shutil.rmtree(tmp_path / "new" / "a")
  run = elsewhere()
  with open_saved_run(run, folder=photos, num_workers=0) as there:
    assert there.source.class_names == ("a", "b", "c")
    labels = there.source.labels(range(len(there.source)))
    assert labels.tolist() == [1] * 4 + [2] * 4
  found = evaluate_checkpoint(run, folder=photos, num_workers=0)
  assert found["eval/examples"] == 8
  assert "1 of 3 classes without images in new: a.\n" in capsys.readouterr().out


@pytest.mark.slow
def test_all_images_of_another_folder_are_evaluated(
  elsewhere, tmp_path, capsys
):
  """Nothing of the run's own data is opened, and nothing is held out."""
  run, photos = elsewhere(), _noise(tmp_path / "new", 4)
  options = {"folder": photos, "num_workers": 0}
  with open_saved_run(run, **options) as there:
    images = np.stack([data.decode_rgb(e["image"]) for e in there.source])
    params = {"params": there.params}
    model = jax.jit(there.loaded.model.apply)
    logits = model(params, jnp.float32(images) / 127.5 - 1)
  right = np.mean(np.argmax(logits, axis=1) == np.repeat(np.arange(3), 4))
  found = evaluate_checkpoint(run, **options)
  assert found["eval/examples"] == 12
  assert found["eval/top1"] == pytest.approx(right)
  assert " on new: loss" in capsys.readouterr().out
  with pytest.raises(ValueError, match="^--test takes .* leave it out, or"):
    evaluate_checkpoint(run, test=True, **options)
  loaded = load_pretrained(run)
  assert loaded.evaluate(photos) == found
  assert loaded.evaluate(photos, step=loaded.step) == found
  pairs = np.repeat(np.arange(3), 4), np.argmax(logits, axis=1)
  expected = np.zeros((3, 3), int)
  np.add.at(expected, pairs, 1)
  np.testing.assert_array_equal(loaded.confusion_matrix(photos), expected)
  with pytest.raises(ValueError, match="loaded with other settings than"):
    load_pretrained(run, image_size=32).evaluate(photos)


@pytest.mark.slow
def test_the_folds_of_a_run_are_shown_wherever_its_images_are_evaluated(
  elsewhere, tmp_path, monkeypatch, capsys
):
  monkeypatch.undo()  # Its data may be opened.
  photos = _noise(tmp_path / "photos", 5)
  run = elsewhere(root=photos)
  folds = FoldScore.of_shares([0.3, 0.4, 0.3, 0.4, 0.3], 12).metrics()
  rows = [{"step": 1, "eval/top1": 0.5} | folds, {"step": 2, "eval/top1": 0.4}]
  lines = "".join(json.dumps(row) + "\n" for row in rows)
  (tmp_path / "run" / "metrics.jsonl").write_text(lines)
  found = evaluate_checkpoint(run, num_workers=0)
  assert folds.items() <= found.items()
  verdict = FinishedRun(run, 1, found).verdict
  assert f"\n{verdict}\n" in capsys.readouterr().out
  assert "by five folds of the 12 training images, and " in verdict
  assert verdict in repr(FinishedRun(run, 1, found))
  facts = read_run(run, num_workers=0)
  assert folds.items() <= facts.scores.items()
  headline = headline_of(["run"], [facts])
  assert headline.startswith("top-1 34% (95 % interval ")
  assert headline.endswith(facts.task.scores.verdict(found).advice)
  others = evaluate_checkpoint(run, folder=photos, num_workers=0)
  assert not folds.keys() & others.keys()
  assert "% interval" in capsys.readouterr().out


@pytest.mark.slow
def test_a_score_says_how_many_of_its_images_were_trained_on(
  elsewhere, tmp_path, monkeypatch, capsys
):
  monkeypatch.undo()  # Its data may be opened.
  photos = _noise(tmp_path / "photos", 5)
  run = elsewhere(root=photos)
  names = [f"{name}/{k}.png" for name in "abc" for k in range(5)]
  rows = "".join(f"{name},{name[0]}\n" for name in names)
  (tmp_path / "photos.csv").write_text(f"file,label\n{rows}")
  table = {"folder": str(tmp_path / "photos.csv"), "root": photos}
  with open_saved_run(run, num_workers=0) as own:
    count = 15 - len(own.source)
  said = f"{count} of these 15 images were trained on: the score says little "
  loaded = load_pretrained(run)
  for score in (
    lambda: evaluate_checkpoint(run, folder=photos, num_workers=0),
    lambda: evaluate_checkpoint(run, **table, num_workers=0),
    lambda: loaded.evaluate(photos),
    lambda: loaded.confusion_matrix(photos),
  ):
    score()
    shown = capsys.readouterr().out
    assert f"\n{said}about new ones. top-1 " in shown
    assert "on 15 evaluated images.\n" in shown and "fewer than" not in shown
  evaluate_checkpoint(run, num_workers=0)
  evaluate_checkpoint(run, folder=_noise(tmp_path / "new", 5), num_workers=0)
  shown = capsys.readouterr().out
  assert "trained on" not in shown and "go by the interval" in shown


def test_a_run_whose_folder_is_gone_asks_for_its_place(elsewhere, tmp_path):
  moved = tmp_path / "photos_moved"
  moved.mkdir()
  run = elsewhere(root=str(tmp_path / "photos"))
  said = "were in .*/photos, which is not a folder here: --root=DIR .root= in "
  said += r"Python. .* held out; did you mean .*/photos_moved\?$"
  for command in (evaluate_checkpoint, read_run):
    with pytest.raises(ValueError, match=said):
      command(run)
  with pytest.raises(AssertionError, match="its data were opened"):
    evaluate_checkpoint(run, root=str(moved))


@pytest.mark.parametrize(
  "options, message",
  [
    ({"data_dir": "tfds"}, "--data_dir=tfds is the folder of data sets of TFD"),
    (
      {"folder": "new", "root": "photos"},
      "--root=photos is the place of the run's own images, and new is evalua",
    ),
    ({"step": "2"}, "step='2' must be a whole number"),
  ],
)
def test_an_option_without_an_effect_is_refused(
  elsewhere, tmp_path, options, message
):
  run = elsewhere(root=str(tmp_path))
  with pytest.raises(ValueError, match=message):
    evaluate_checkpoint(run, **options)


def test_without_a_test_split_the_way_out_is_of_the_command(
  elsewhere, tmp_path, monkeypatch
):
  monkeypatch.setattr(saved, "open_source", data.open_source)
  run = elsewhere(root=_noise(tmp_path / "photos", 4))
  with pytest.raises(ValueError, match="no test folder: .* leave out --test"):
    evaluate_checkpoint(run, test=True)


def test_a_run_whose_table_is_gone_says_how_to_give_another(
  elsewhere, tmp_path
):
  (tmp_path / "photos").mkdir()
  places = dict(root=str(tmp_path / "photos"), labels_file="gone/labels.csv")
  run = elsewhere(**places)
  said = "labels were in gone/labels.csv, .* vit_jax evaluate RUN FILE takes "
  said += r"another file, and --root=DIR .*beside the images\.$"
  for command in (evaluate_checkpoint, read_run):
    with pytest.raises(ValueError, match=said):
      command(run)
  # A file of its name in the folder is the file.
  (tmp_path / "photos" / "labels.csv").touch()
  with pytest.raises(AssertionError, match="its data were opened"):
    evaluate_checkpoint(run)


def test_a_score_on_pictures_unlike_the_digits_says_so(
  elsewhere, tmp_path, capsys
):
  _noise(tmp_path / "photos", 1)
  for path in (tmp_path / "photos").rglob("*.png"):
    Image.new("RGB", (16, 16), "white").save(path)
  run = elsewhere(name="digits")
  evaluate_checkpoint(run, folder=str(tmp_path / "photos"), num_workers=0)
  shown = capsys.readouterr().out
  assert "3 of these 3 pictures have bright borders: invert dark" in shown


def test_images_without_labels_are_answered_by_the_run(elsewhere, tmp_path):
  """The message has no advice to train, which is not what was asked for."""
  run, photos = elsewhere(), tmp_path / "photos"
  _noise(photos, 1)
  folder = str(photos / "a")
  says = f"Without labels there is vit_jax predict {run} {folder}, which gives"
  with pytest.raises(ValueError, match=re.escape(says)) as refused:
    evaluate_checkpoint(run, folder=folder)
  assert "train" not in str(refused.value)
  assert str(refused.value).endswith("may have images of one class alone.")


def test_a_picture_is_not_what_a_run_is_evaluated_on(elsewhere, tmp_path):
  """The message names no flag of another command."""
  (tmp_path / "cat.jpg").touch()
  said = "cat.jpg' is a file, .* is answered by: vit_jax predict RUN PICTURE"
  with pytest.raises(ValueError, match=said) as refused:
    evaluate_checkpoint(elsewhere(), folder=str(tmp_path / "cat.jpg"))
  assert "--config" not in str(refused.value)


@pytest.mark.slow
def test_a_line_says_that_the_folder_of_a_run_holds_other_images(
  elsewhere, tmp_path, monkeypatch, capsys
):
  """A fifth of five images is one, but two of each class are held out."""
  monkeypatch.undo()  # Its data may be opened.
  photos, new = _noise(tmp_path / "photos", 5), _noise(tmp_path / "new", 8)
  run = elsewhere(root=photos, described={"train_examples": 9})
  settings = data.DataSettings(root=new)
  trained, held_out = (
    len(data.open_source(split, settings)) for split in ("train", "eval")
  )
  said = (
    f"{new} has {trained} training images and the run had 9, so it holds other "
    "images than the run's folder did. The score is of the "
    f"{held_out} of new, held out; all images of a folder that is new to the "
    f"run are evaluated by: vit_jax evaluate {run} {new}"
  )
  with pytest.raises(ValueError, match="too few to calibrate on"):
    calibrate_checkpoint(run, root=new, num_workers=0)
  assert said in capsys.readouterr().out.splitlines()
  evaluate_checkpoint(run, root=new, num_workers=0)
  assert said in capsys.readouterr().out.splitlines()
  assert said in read_run(run, root=new, num_workers=0).notes
  for moved in (photos, None):
    evaluate_checkpoint(run, root=moved, num_workers=0)
  evaluate_checkpoint(run, folder=new, num_workers=0)
  assert "so it holds other images" not in capsys.readouterr().out


def test_the_evaluation_split_of_another_folder_is_taken(elsewhere, tmp_path):
  run = elsewhere()
  for split, count in (("train", 1), ("test", 2)):
    _noise(tmp_path / "new" / split, count)
  with open_saved_run(run, folder=str(tmp_path / "new")) as there:
    assert (there.source.name, len(there.source)) == ("new, test", 6)


def test_the_data_set_of_the_run_is_no_other_folder(elsewhere):
  run = elsewhere(name="digits")
  with pytest.raises(
    ValueError, match="digits is the data set of the run, .*o"
  ):
    evaluate_checkpoint(run, folder="digits")


def test_another_folder_needs_a_run_on_class_folders(elsewhere, tmp_path):
  run = elsewhere("autoencoder", rate=0.75)
  with pytest.raises(ValueError, match="task autoencoder: give --root=new, "):
    evaluate_checkpoint(run, folder="new")
  (tmp_path / "new.csv").write_text("file,label\n0.png,a\n")
  with pytest.raises(ValueError, match="file of labels, and .* autoencoder: "):
    evaluate_checkpoint(run, folder=str(tmp_path / "new.csv"))


def test_another_table_is_read_with_the_classes_of_the_run(elsewhere, tmp_path):
  _noise(tmp_path / "new", 1)
  table = tmp_path / "new.csv"
  table.write_text("pic,what\nnew/a/0.png,c\nnew/b/0.png,a\n")
  run = elsewhere()
  with open_saved_run(run, folder=str(table)) as there:
    assert there.source.labels([0, 1]).tolist() == [2, 0]
    assert there.source.class_names == ("a", "b", "c")
  with pytest.raises(
    ValueError, match=r"there is no file 'no.csv'; a relative path"
  ):
    evaluate_checkpoint(run, folder="no.csv")
  with pytest.raises(ValueError, match=r"run's own data: leave it out.$"):
    evaluate_checkpoint(run, folder=str(table), test=True)


@pytest.fixture
def three_splits(config, tmp_path):
  """The configuration of a run of three steps on noise of three classes."""
  for split, count in (("train", 8), ("valid", 3), ("Test", 5)):
    _noise(tmp_path / "noise" / split, count)
  config.data.root = str(tmp_path / "noise")
  config.update(total_steps=3, total_epochs=0.0, log_every_epochs=1.0)
  config.update(eval_every_epochs=0.0, save_every_epochs=0.0)
  config.update(eval_every_steps=1, save_every_steps=1, keep_last=9)
  return config


@pytest.mark.slow
def test_the_best_on_val_is_reported_on_test_once(
  three_splits, tmp_path, capsys
):
  run = str(tmp_path / "run")
  _, evaluated = loop.train(read(three_splits), run)
  assert evaluated["eval/examples"] == 9
  rows = [row for row in runs.rows(tmp_path / "run") if "test/top1" in row]
  every = [row for row in runs.rows(tmp_path / "run") if "eval/top1" in row]
  assert [row["step"] for row in rows] == [3]
  assert (
    rows[0]["test/step"]
    == max((row["eval/top1"], row["step"]) for row in every)[1]
  )
  settings = data.DataSettings(root=three_splits.data.root)
  test = data.open_source("test", settings)
  images = np.stack([data.decode_rgb(e["image"]) for e in test])
  with open_saved_run(run, step=rows[0]["test/step"]) as best:
    params = {"params": best.params}
    answer = jax.jit(best.loaded.model.apply)
    logits = answer(params, jnp.float32(images) / 127.5 - 1)
  right = np.mean(np.argmax(logits, axis=1) == test.labels(range(15)))
  assert rows[0]["test/top1"] == pytest.approx(right)
  assert rows[0]["test/examples"] == 15
  out = capsys.readouterr().out
  assert "noise: train 24, val 9, test 15 images of 3 classes" in out
  assert f"with the best checkpoint (step {rows[0]['test/step']}): loss " in out
  again = evaluate_checkpoint(run, best=True, test=True)
  assert again["eval/top1"] == rows[0]["test/top1"]
  loop.train(read(three_splits), run)  # It is complete.
  assert "Test split" not in capsys.readouterr().out


@pytest.mark.slow
def test_without_checkpoints_the_last_state_is_tested(
  three_splits, tmp_path, capsys
):
  three_splits.update(total_steps=1, save_every_steps=0)
  loop.train(read(three_splits), str(tmp_path / "run"))
  assert "checkpoint (step 1): loss " in capsys.readouterr().out


def test_a_resumed_run_is_evaluated_on_the_split_it_was(three_splits):
  saved = make_plan(read(three_splits)).description(1)
  assert saved["config"]["data"]["eval_split"] is None
  # The default of version 0.1.0.
  saved["config"]["data"]["eval_split"] = "test"
  plan = make_plan(read(three_splits), saved)
  assert (len(plan.splits.eval), plan.splits.test) == (15, None)
  three_splits.data.eval_split = "val"
  assert len(make_plan(read(three_splits), saved).splits.eval) == 9


def _hash(file):
  return hashlib.blake2b(file.encode(), digest_size=8).digest()


@pytest.mark.parametrize("by", ["count", "name", None])
def test_a_resumed_run_holds_out_the_images_that_it_held_out(three_splits, by):
  """Earlier versions went by name, and before they had the key by rank.

  By name, those are held out whose 64 bits of b2sum begin with less than 3333;
  by count, the two lowest of each class.
  """
  root = three_splits.data.root + "/train"
  three_splits.data.root = root
  saved = make_plan(read(three_splits)).description(1)
  config = saved["config"]["data"]
  assert config["held_out_by"] == "count"
  names = [[f"{c}/{k}.png" for k in range(8)] for c in "abc"]
  order = _hash if by else lambda file: zlib.crc32(file.encode())
  expected = {file for files in names for file in sorted(files, key=order)[:2]}
  if by != "count":
    del config["held_out_below"]
    config["held_out_by"] = by
  if by == "name":
    expected = {"a/5.png", "b/7.png", "c/1.png"}
  if by is None:
    del config["held_out_by"]
  resumed = make_plan(read(three_splits), saved)
  source = resumed.splits.eval
  ids = source.ids(range(len(source)))
  assert {name.removeprefix(f"{root}/") for name in ids} == expected
  assert resumed.description(1)["config"]["data"]["held_out_by"] == (
    by or "rank"
  )


def test_a_run_keeps_the_sides_of_its_probes_images_as_they_grow(
  three_splits, tmp_path
):
  """By count, the two lowest of each class, whatever is added later."""
  root = three_splits.data.root + "/train"
  grown = tmp_path / "grown"
  shutil.copytree(root, grown)
  three_splits.fewshot.shots = 1
  three_splits.fewshot.data.root = str(grown)

  def held_out(plan):
    source = plan.evaluation.probe_splits.eval
    return {os.path.relpath(x, grown) for x in source.ids(range(len(source)))}

  begun = make_plan(read(three_splits))
  first = held_out(begun)
  names = [[f"{c}/{k}.png" for k in range(8)] for c in "abc"]
  assert first == {f for files in names for f in sorted(files, key=_hash)[:2]}
  saved = begun.description(1)
  below = saved["config"]["fewshot"]["data"]["held_out_below"]
  added = [f"a/{k}.png" for k in range(8, 60)]
  for name in added:
    shutil.copy(grown / "a" / "0.png", grown / name)
  resumed = make_plan(read(three_splits), saved)
  bound = int(below[0] * 2**64)
  new = {f for f in added if int.from_bytes(_hash(f)[:8], "big") < bound}
  assert held_out(resumed) == first | new
  assert held_out(make_plan(read(three_splits))) != first | new
  assert (
    resumed.description(2)["config"]["fewshot"] == saved["config"]["fewshot"]
  )


@pytest.mark.slow
def test_a_run_is_opened_at_the_size_of_its_positions(config, tmp_path):
  source = str(published.path("tips_vit.npz"))
  start = load_pretrained(source)
  patch = start.model.patch_size
  native = [side * patch for side in start.model.position_grid]
  tuned = finetune.get_config("small")
  tuned.pretrained, tuned.image_size = source, (2 * patch, 2 * patch)
  tuned.data.root, tuned.batch_size = config.data.root, 8
  loop.train(read(tuned), str(tmp_path))
  for size in (native, (3 * patch, 2 * patch)):
    run = load_pretrained(str(tmp_path), image_size=tuple(size))
    assert grid_of(run.model, run.preprocessing.image_size) == tuple(
      side // patch for side in size
    )
    np.testing.assert_array_equal(
      run.params["position"]["E_pos"], start.params["position"]["E_pos"]
    )
