"""Whole runs on the digits: what they write, and that they resume exactly."""

import csv
import json
import re
import shutil

import flax.linen as nn
import jax
import numpy as np
import pytest
from PIL import Image

from configs import image_folder
from tests import runs
from vit_jax import load_pretrained
from vit_jax.models import scan
from vit_jax.models.vit import EncoderBlock
from vit_jax.run import loop, steps
from vit_jax.run.probe import probe_checkpoint
from vit_jax.run.saved import evaluate_checkpoint
from vit_jax.run.settings import ProbeSettings, read
from vit_jax.runtime.settings import replaced
from vit_jax.runtime.signals import Interrupted, Notice
from vit_jax.workdir.checkpoint import Checkpoints


@pytest.fixture(scope="module")
def four_steps(data_dir, tmp_path_factory):
  """A run of four steps: its configuration, and its folder to copy."""
  config = runs.config(data_dir, total_steps=4, eval_every_steps=4)
  folder = tmp_path_factory.mktemp("training") / "four_steps"
  loop.train(read(config), str(folder))
  return config, folder


@pytest.fixture
def short_run(four_steps, tmp_path):
  """A configuration and its run of four steps, both of which may be changed."""
  config, folder = four_steps
  copy = shutil.copytree(folder, tmp_path / "run")
  return config.copy_and_resolve_references(), copy


class Killed(Exception):
  pass


def _stop_after(monkeypatch, step):
  """Ends the run by an exception once `step` has been saved."""
  save = Checkpoints.save

  def save_then_die(self, state, number, *args):
    save(self, state, number, *args)
    if number == step:
      raise Killed

  monkeypatch.setattr(Checkpoints, "save", save_then_die)


def test_a_resumed_run_ends_bit_identical(data_dir, tmp_path, monkeypatch):
  """Augmentation, dropout, Mixup, accumulation and averaging are all on."""
  config = runs.config(data_dir)
  whole, evaluated = loop.train(read(config), str(tmp_path / "whole"))
  with monkeypatch.context() as patch, pytest.raises(Killed):
    _stop_after(patch, 8)
    loop.train(read(config), str(tmp_path / "stopped"))
  resumed, again = loop.train(read(config), str(tmp_path / "stopped"))

  assert int(resumed.step) == 12
  assert runs.identical(jax.device_get(whole), jax.device_get(resumed))
  assert evaluated == again
  untimed = [
    [
      {k: v for k, v in row.items() if not re.search("per_second|time", k)}
      for row in runs.rows(tmp_path / name)
      if row["step"] in (6, 12) and "eval/loss" in row
    ]
    for name in ("whole", "stopped")
  ]
  assert untimed[0] == untimed[1]
  steps = [row["step"] for row in runs.rows(tmp_path / "stopped")]
  assert steps == sorted(steps)


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, 8])
def test_an_evaluation_that_a_stop_prevented_is_made_up_for(
  data_dir, tmp_path, monkeypatch, step
):
  """The run of 8 steps is told to stop after a step, before its evaluation."""
  config = runs.config(data_dir, total_steps=8, eval_every_steps=4)
  _, whole = loop.train(read(config), str(tmp_path / "whole"))
  with monkeypatch.context() as patch, pytest.raises(Interrupted):
    patch.setattr(Notice, "reached", lambda notice, now: now == step)
    loop.train(read(config), str(tmp_path / "stopped"))
  _, evaluated = loop.train(read(config), str(tmp_path / "stopped"))
  assert evaluated == whole
  evaluations = [
    [
      (row["step"], row["eval/loss"], row["eval/top1"])
      for row in runs.rows(tmp_path / name)
      if "eval/loss" in row
    ]
    for name in ("whole", "stopped")
  ]
  assert evaluations[0] == evaluations[1]
  assert [row[0] for row in evaluations[0]] == [4, 8]


@pytest.mark.slow
def test_a_run_goes_on_with_scanned_blocks(data_dir, tmp_path, monkeypatch):
  """The new checkpoints are scanned, but every reader sees them unrolled."""
  config = runs.config(data_dir)
  # With scanned blocks, dropout draws other random numbers.
  config.model.update(num_layers=2, dropout_rate=0.0)
  whole, _ = loop.train(read(config), str(tmp_path / "whole"))
  with monkeypatch.context() as patch, pytest.raises(Killed):
    _stop_after(patch, 8)
    loop.train(read(config), str(tmp_path / "stopped"))
  config.model.update(scan=True, remat="dots")
  resumed, _ = loop.train(read(config), str(tmp_path / "stopped"))
  assert "blocks" in resumed.params
  found = scan.unstack(jax.device_get(resumed.averaged_params))
  for a, b in zip(
    jax.tree.leaves(jax.device_get(whole.averaged_params)),
    jax.tree.leaves({key: found[key] for key in whole.params}),
    strict=True,
  ):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
  model, params = load_pretrained(str(tmp_path / "stopped"))
  assert not model.scan
  assert runs.identical(params, {key: found[key] for key in params})


def test_a_run_writes_what_it_promises(data_dir, tmp_path, capsys):
  config = runs.config(data_dir, eval_per_class=True, profile_steps=50)
  state, evaluated = loop.train(read(config), str(tmp_path))
  assert list(
    tmp_path.glob("profile/**/*.xplane.pb")
  )  # The trace covers steps 10 to 12.
  rows = runs.rows(tmp_path)
  assert [row["step"] for row in rows] == [3, 6, 6, 9, 12, 12]
  training_rows = [row for row in rows if "train/loss" in row]
  for row in training_rows:
    assert np.isfinite(row["train/loss"])
    assert row["train/skipped_images"] == 0
    assert row["train/images_per_second"] > 0
  # The last row is for step 11, counted from 0; one step was warm-up.
  rate = 3e-3 * (1 + np.cos(np.pi * 10 / 11)) / 2
  config_rate = training_rows[-1]["train/learning_rate"]
  assert config_rate == pytest.approx(rate, rel=1e-5)
  assert rows[-1]["eval/examples"] == 359
  assert len(rows[-1]["eval/top1_by_class"]) == 10
  mean = np.mean(list(rows[-1]["eval/top1_by_class"].values()))
  assert mean == pytest.approx(rows[-1]["eval/top1"], abs=0.02)
  assert list((tmp_path / "tensorboard").glob("events*"))

  out = capsys.readouterr().out
  for text in ("8 x cpu", "1,438 training examples", "parameters", "GFLOP"):
    assert text in out
  assert f"python -m vit_jax.evaluate {tmp_path}" in out

  logged = (tmp_path / "log.txt").read_text().splitlines()
  assert [line[21:] for line in logged] == out.splitlines()
  assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", logged[0])
  assert "compiling ..." in out and "step       1/12  loss " in out

  again = evaluate_checkpoint(
    str(tmp_path), per_class=True, out=str(tmp_path / "out.csv")
  )
  del evaluated["eval/top1_not_averaged"]
  assert again == evaluated
  out = capsys.readouterr().out
  assert "step 12 on digits" in out
  assert "\nclass  examples  precision  recall" in out
  assert re.search(r"\nlabel . answer( +\d){10}\n", out)
  with open(tmp_path / "out.csv", newline="") as file:
    written = [*csv.DictReader(file)]
  assert len(written) == 359
  right = np.mean([row["label"] == row["answer"] for row in written])
  assert right == pytest.approx(evaluated["eval/top1"])
  loss = [float(row["loss"]) for row in written]
  assert loss == sorted(loss, reverse=True)
  assert np.mean(loss) == pytest.approx(evaluated["eval/loss"], rel=1e-4)
  del state


def test_the_checkpoint_describes_itself(short_run):
  config, workdir = short_run
  checkpoints = Checkpoints(str(workdir), read_only=True)
  description = checkpoints.describe(4)
  checkpoints.close()
  config.normalization.update(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
  assert description["config"] == json.loads(json.dumps(config.to_dict()))
  assert description["model"]["hidden_size"] == config.model.hidden_size
  assert description["class_names"] == [str(d) for d in range(10)]
  assert description["data_iterator"] == {"seed": 0, "next_batch": 4}
  assert description["train_examples"] == 1438


@pytest.mark.slow
def test_few_shots_are_part_of_the_evaluation(data_dir, tmp_path):
  """The run logs the same accuracy as the command measures."""
  config = runs.config(data_dir, total_steps=4, eval_every_steps=4)
  config.fewshot.update(shots=2, seeds=2)
  loop.train(read(config), str(tmp_path))
  row = [row for row in runs.rows(tmp_path) if "fewshot/top1" in row][-1]
  where = {"data.name": "digits", "data.data_dir": str(data_dir)}
  probed = replaced(ProbeSettings(), where)
  outcome = probe_checkpoint(str(tmp_path), probed, shots=2, seeds=2)
  assert row["step"] == 4
  assert row["fewshot/top1"] == pytest.approx(outcome.top1, abs=1e-6)
  assert row["fewshot/top1_by_seed"] == {
    str(draw.seed): pytest.approx(draw.top1) for draw in outcome.draws
  }


@pytest.mark.slow
def test_the_newest_and_the_best_are_kept(data_dir, tmp_path, monkeypatch):
  scores = iter([0.1, 0.9, 0.2, 0.3, 0.4])

  def evaluate(self, step, state):
    del self, step, state
    return {
      "eval/loss": 1.0,
      "eval/top1": next(scores),
      "eval/top5": 1.0,
      "eval/examples": 359,
      "eval/skipped_images": 0,
    }

  monkeypatch.setattr(steps.Steps, "_metrics", evaluate)
  config = runs.config(
    data_dir, total_steps=5, eval_every_steps=1, save_every_steps=1, keep_last=2
  )
  loop.train(read(config), str(tmp_path))
  checkpoints = Checkpoints(str(tmp_path), read_only=True)
  assert checkpoints.all_steps == [2, 4, 5]
  assert checkpoints.best_step == 2
  assert checkpoints.latest_step == 5
  checkpoints.close()


@pytest.mark.parametrize(
  "scores, patience, expected",
  [
    ([0.1, 0.9, 0.2], 2, False),
    ([0.1, 0.9, 0.2, 0.9], 2, True),
    ([0.1, 0.9, 0.2, 0.91], 2, False),
    ([0.5, 0.5], 1, True),
    ([0.5], 1, False),
    ([0.5, 0.1, 0.1], 0, False),
  ],
)
def test_scores_stall_without_a_better_one(scores, patience, expected):
  assert steps.stalled(scores, patience) is expected


@pytest.mark.slow
def test_a_run_stops_early_and_stays_stopped(
  data_dir, tmp_path, monkeypatch, capsys
):
  scores = iter([0.1, 0.9, 0.2, 0.3])

  def evaluate(self, step, state):
    del self, step, state
    return {
      "eval/loss": 1.0,
      "eval/top1": next(scores),
      "eval/examples": 359,
      "eval/skipped_images": 0,
    }

  monkeypatch.setattr(steps.Steps, "_metrics", evaluate)
  config = runs.config(data_dir, eval_every_steps=1, save_every_steps=0)
  config.early_stop_evaluations = 2
  for _ in range(2):  # The second one takes no step, and evaluates nothing.
    state, _ = loop.train(read(config), str(tmp_path))
    assert int(state.step) == 4
    assert "Stopped early at step 4: 2 eval" in capsys.readouterr().out
  checkpoints = Checkpoints(str(tmp_path), read_only=True)
  assert checkpoints.all_steps == [4]
  checkpoints.close()


def test_another_configuration_is_refused(short_run):
  config, workdir = short_run
  config.model.dropout_rate = 0.2
  config.log_every_steps = 1  # This does not change what is learned.
  message = (
    f"^{workdir} holds a run with another configuration or other data: "
    "model.dropout_rate was 0.1 and is now 0.2[.] Resume"
  )
  with pytest.raises(ValueError, match=message):
    loop.train(read(config), str(workdir))


@pytest.mark.parametrize(
  "changes, message",
  [
    (dict(total_steps=0), "the run has no length: set total_steps"),
    (dict(batch_size=60), "batch_size=60 does not split over 8 devices x 2"),
    (dict(eval_batch_size=-9), "eval_batch_size=-9 must not be negative"),
    (dict(image_size=(9, 8)), "images of 9 x 8 do not split into patches of 4"),
    (dict(ema_decay=1.0), "ema_decay=1.0 must be in"),
    (
      dict(model=dict(num_classes=3)),
      "has 10 classes and model.num_classes is 3",
    ),
    (dict(model=dict(dtype="half")), "model.dtype='half' is unknown"),
    (dict(accumulation_steps=0), "accumulation_steps=0 must be 1 or more"),
    (dict(seed=-1), "seed=-1; it has to lie between 0"),
    (dict(batch_size=1600), "batch_size=1600 is more than the 1438 examples"),
    (dict(train_transform=dict(crop="no")), "crop='no' is unknown"),
    (dict(data=dict(name="")), "names no data: give --config.data.root=FOLDER"),
    (
      dict(mesh=dict(fsdp=8), model=dict(hidden_size=20)),
      "of shape .* does not",
    ),
    (dict(data=dict(eval_split="validation")), "validation"),
  ],
)
def test_what_does_not_fit_is_refused_first(
  data_dir, tmp_path, changes, message
):
  with pytest.raises(ValueError, match=message):
    loop.train(read(runs.config(data_dir, **changes)), str(tmp_path / "run"))
  assert not (tmp_path / "run").exists()


@pytest.fixture
def damaged_folder(tmp_path):
  """Makes two classes of plain colour, with a truncated file in each split."""
  rng = np.random.default_rng(0)
  for split, count in (("train", 12), ("test", 5)):
    for label, name in enumerate(("dark", "light")):
      folder = tmp_path / "photos" / split / name
      folder.mkdir(parents=True)
      for k in range(count):
        level = 160 * label + rng.integers(0, 60)
        image = Image.new("RGB", (20, 16), (int(level),) * 3)
        image.save(folder / f"{k}.jpg")
    cut = tmp_path / "photos" / split / "dark" / "0.jpg"
    cut.write_bytes(cut.read_bytes()[:300])
  return tmp_path / "photos"


def _folder_config(root, **changes):
  config = image_folder.get_config()
  config.update(
    total_epochs=0.0, total_steps=9, batch_size=8, image_size=(16, 16)
  )
  config.update(log_every_epochs=0.0, log_every_steps=3)
  config.optimizer.warmup_epochs = 0.0
  config.model.num_layers = 1
  config.data.root = str(root)
  config.loader.update(num_workers=1, **changes)
  return config


def test_an_unreadable_image_stops_the_run_by_name(damaged_folder, tmp_path):
  config = _folder_config(damaged_folder)
  with pytest.raises(ValueError, match="(?i)dark/0.jpg: truncated"):
    loop.train(read(config), str(tmp_path / "run"))


@pytest.mark.slow
def test_unreadable_images_are_skipped_and_counted(damaged_folder, tmp_path):
  config = _folder_config(damaged_folder, on_unreadable="skip")
  _, evaluated = loop.train(read(config), str(tmp_path / "run"))
  assert evaluated["eval/examples"] == 9
  assert evaluated["eval/skipped_images"] == 1
  rows = [row for row in runs.rows(tmp_path / "run") if "train/loss" in row]
  # Nine batches of 8 are three epochs of 24: it came up three times.
  assert sum(row["train/skipped_images"] for row in rows) == 3


@pytest.mark.slow
def test_data_that_changed_is_refused(damaged_folder, tmp_path):
  config = _folder_config(damaged_folder, on_unreadable="skip")
  loop.train(read(config), str(tmp_path / "run"))
  (damaged_folder / "train" / "dark" / "0.jpg").unlink()
  message = "train_examples was 24 and is now 23"
  with pytest.raises(ValueError, match=message):
    loop.train(read(config), str(tmp_path / "run"))


def test_a_complete_run_says_so(short_run, capsys):
  config, workdir = short_run
  loop.train(read(config), str(workdir))
  assert "The run is complete: 4 steps are done." in capsys.readouterr().out


@pytest.mark.slow
def test_without_checkpoints_none_is_offered(data_dir, tmp_path, capsys):
  config = runs.config(data_dir, total_steps=2, save_every_steps=0)
  config.log_every_steps = 0
  loop.train(read(config), str(tmp_path))
  assert "vit_jax.evaluate" not in capsys.readouterr().out


def test_a_folder_without_checkpoints_cannot_be_evaluated(tmp_path):
  with pytest.raises(ValueError, match="holds no checkpoints: give the wo"):
    evaluate_checkpoint(str(tmp_path))


def test_a_step_without_checkpoint_cannot_be_evaluated(short_run):
  _, workdir = short_run
  with pytest.raises(ValueError, match="no checkpoint of step 3; .* of step 4"):
    evaluate_checkpoint(str(workdir), step=3)


@pytest.mark.parametrize(
  "step, every, last, expected",
  [(4, 2, 9, True), (5, 2, 9, False), (9, 2, 9, True), (9, 0, 9, False)],
)
def test_due(step, every, last, expected):
  assert steps.due(step, every, last) is expected


class Halved(EncoderBlock):
  """The paper's layer, of which half is taken."""

  @nn.compact
  def __call__(self, z, R=None, *, train=False):
    return super().__call__(z, R, train=train) / 2


@pytest.mark.slow
def test_a_block_of_ones_own_trains_resumes_and_has_to_be_given(
  data_dir, tmp_path
):
  config = runs.config(data_dir, total_steps=1, eval_every_steps=1)
  config.model.block = f"{__name__}:Halved"
  loop.train(read(config), str(tmp_path))
  state, _ = loop.train(read(config), str(tmp_path))
  assert int(state.step) == 1
  for open_it in (load_pretrained, evaluate_checkpoint):
    with pytest.raises(
      ValueError, match="Halved, a class of your own: open it"
    ):
      open_it(str(tmp_path))
  model, _ = load_pretrained(str(tmp_path), block=Halved)
  assert model.block is Halved
