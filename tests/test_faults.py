"""Faults that a run survives: it ends as if nothing had happened."""

import contextlib
import json
import os
import shutil

import jax
import numpy as np
import pytest

from tests import commands, runs, tiny
from tests.workdir.test_rows import room_for
from vit_jax import make_vit
from vit_jax.pretrained.convert import convert
from vit_jax.pretrained.load import load_pretrained
from vit_jax.run import loop
from vit_jax.run.experiments.probe import probe_checkpoint
from vit_jax.run.experiments.replay import verify
from vit_jax.run.experiments.suite import run_suite
from vit_jax.run.plan import make_plan
from vit_jax.run.saved import evaluate_checkpoint
from vit_jax.run.settings import ProbeSettings, read
from vit_jax.run.start import fresh_state
from vit_jax.runtime.display import Display
from vit_jax.runtime.settings import replaced
from vit_jax.workdir.checkpoint import Checkpoints
from vit_jax.workdir.lock import sole_writer
from vit_jax.workdir.records import MetricWriter


def _arrays(checkpoint, name="averaged_params"):
  """The largest file of the arrays that are evaluated."""
  files = (p for p in checkpoint.glob(f"{name}/**/*") if p.is_file())
  return max(files, key=lambda path: path.stat().st_size)


def _truncate(checkpoint):
  path = _arrays(checkpoint)
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip(checkpoint, name="averaged_params"):
  """Flips a byte in the middle of the arrays."""
  path = _arrays(checkpoint, name)
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 0x10
  path.write_bytes(content)


def _drop(checkpoint):
  _arrays(checkpoint).unlink()


def _empty(checkpoint):
  shutil.rmtree(checkpoint)
  checkpoint.mkdir()


def _empty_files(checkpoint):
  """As a power cut leaves files that were not synced."""
  for path in (
    *checkpoint.rglob("*METADATA"),
    checkpoint / "description/metadata",
  ):
    path.write_bytes(b"")


def _change_description(checkpoint):
  """Changes one digit of the description, which is still JSON."""
  path = checkpoint / "description" / "metadata"
  text = path.read_text()
  assert '"peak_lr": 0.003' in text
  path.write_text(text.replace('"peak_lr": 0.003', '"peak_lr": 0.004'))


DAMAGES = [
  _flip,
  *(
    pytest.param(damage, marks=pytest.mark.slow)
    for damage in (_empty, _empty_files, _truncate, _drop, _change_description)
  ),
]


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_set_aside(
  data_dir, whole_run, run_copy, capsys, damage
):
  damage(run_copy / "checkpoints" / "12")
  state, _ = loop.train(read(runs.config(data_dir)), str(run_copy))
  printed = " ".join(capsys.readouterr().out.split())
  assert f"checkpoint 12 of {run_copy} is damaged" in printed
  assert f"It was moved to {run_copy}/damaged/12." in printed
  assert "Resuming from the checkpoint of step 8." in printed
  assert runs.identical(whole_run.state, jax.device_get(state))
  # The new checkpoint is intact, and the one set aside still exists.
  evaluate_checkpoint(str(run_copy), step=12)
  assert (run_copy / "damaged" / "12").is_dir()


@pytest.mark.slow
def test_where_none_is_good_the_run_does_not_start_over(data_dir, run_copy):
  for step in (4, 8, 12):
    _flip(run_copy / "checkpoints" / str(step))
  for _ in range(2):
    with pytest.raises(ValueError, match="checkpoint 12 .* No older one is"):
      loop.train(read(runs.config(data_dir)), str(run_copy))
  for step in (4, 8, 12):
    _empty(run_copy / "checkpoints" / str(step))
  for _ in range(2):
    with pytest.raises(ValueError, match="checkpoint 12 of .* is damaged"):
      loop.train(read(runs.config(data_dir)), str(run_copy))


@pytest.fixture
def saved(data_dir, tmp_path):
  """A folder with checkpoints of random parameters, none of them trained."""
  model = make_vit("Ti/4", 10, **tiny.SIZES)
  return tiny.save_run(
    tmp_path / "saved",
    model,
    tiny.random_params(model, (8, 8), 0),
    (8, 8),
    "0123456789",
    steps=(8, 12),
    config=runs.config(data_dir, ema_decay=0.0),
  )


def test_damage_is_noticed_by_who_only_reads(saved):
  assert evaluate_checkpoint(str(saved))["eval/examples"] == 359
  _flip(saved / "checkpoints" / "12", "params")
  with pytest.raises(ValueError, match="checkpoint 12 of .* is damaged"):
    evaluate_checkpoint(str(saved))


def _deleted_once_described(folder, monkeypatch, step):
  """Lets the run delete a checkpoint once its description has been read."""
  describe = Checkpoints.describe

  def describe_then_delete(self, number):
    found = describe(self, number)
    if number == step:
      shutil.rmtree(folder / "checkpoints" / str(step), ignore_errors=True)
    return found

  monkeypatch.setattr(Checkpoints, "describe", describe_then_delete)


def _convert(run, folder):
  """Converts to what the checkpoint of step 8 is converted to."""
  convert(run, str(folder / "newest"), "big_vision")
  convert(run, str(folder / "of_8"), "big_vision", step=8)
  one, other = (
    load_pretrained(str(folder / name)).params for name in ("newest", "of_8")
  )
  assert runs.identical(one, other)


def _fewshot(run, _):
  changes = {"data.name": "digits", "loader.num_workers": 0}
  settings = replaced(ProbeSettings(), changes)
  probe_checkpoint(run, settings, shots=1, display=Display())


READERS = {
  "evaluate": (12, lambda run, _: evaluate_checkpoint(run)),
  "convert": (12, _convert),
  "fewshot": (12, _fewshot),
  "suite": (12, lambda run, _: run_suite(run, ["few_shot/digits"])),
  # It begins at the newest checkpoint that digests follow.
  "verify": (8, lambda run, _: verify(run)),
}


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_whose_checkpoint_is_deleted_takes_the_next(
  run_copy, tmp_path, monkeypatch, capsys, reader
):
  step, read_it = READERS[reader]
  _deleted_once_described(run_copy, monkeypatch, step)
  read_it(str(run_copy), tmp_path)
  printed = " ".join(capsys.readouterr().out.split())
  gone = f"checkpoint {step} of {run_copy} was deleted while it was read, as"
  assert printed.count(f"{gone} its run goes on.") == 1
  taken = {"evaluate": "step 8 on", "verify": "Replayed steps 5 to 12"}
  assert taken.get(reader, "") in printed


@pytest.mark.slow
@pytest.mark.parametrize(
  "changes",
  [
    {"pretrained": "RUN", "model.variant": None},
    {"pretrained": "RUN", "model.variant": None, "lora.rank": 2},
    {"distill.teacher": "RUN"},
  ],
)
def test_a_run_whose_start_or_teacher_is_deleted_takes_the_next(
  data_dir, run_copy, monkeypatch, capsys, changes
):
  def begun(run):
    """The plan and the state of step 0 of a run that uses this one."""
    config = runs.config(data_dir)
    for key in ("hidden_size", "mlp_size", "num_heads", "patch_size"):
      if "pretrained" in changes and key in config.model:
        config.model[key] = None
    flat = {k: run if v == "RUN" else v for k, v in changes.items()}
    plan = make_plan(replaced(read(config), flat))
    plan.evaluation.stream.close()
    return plan, jax.device_get(fresh_state(plan))

  older = run_copy.parent / "older"
  shutil.copytree(run_copy, older)
  shutil.rmtree(older / "checkpoints" / "12")
  expected, state = begun(str(older))
  _deleted_once_described(run_copy, monkeypatch, 12)
  plan, taken = begun(str(run_copy))
  gone = f"checkpoint 12 of {run_copy} was deleted while it was read, as"
  assert capsys.readouterr().err.count(gone) == 1
  assert runs.identical(taken, state)
  frozen = (jax.device_get(p.extras.frozen_params) for p in (plan, expected))
  assert runs.identical(*frozen)
  for record in plan.extras.sources.values():
    assert record["step"] == 8


def test_one_that_was_asked_for_by_its_step_is_said_to_be_gone(
  saved, monkeypatch
):
  _deleted_once_described(saved, monkeypatch, 12)
  said = "12 of .* was deleted while .*: there is no checkpoint of step 12; "
  with pytest.raises(ValueError, match=f"{said}there is one of step 8[.]"):
    evaluate_checkpoint(str(saved), step=12)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_command_says_so_in_a_line_and_nothing_else(run_copy, damage):
  damage(run_copy / "checkpoints" / "12")
  line = commands.refused("vit_jax.evaluate", "--workdir", str(run_copy))
  assert line.startswith(f"error: checkpoint 12 of {run_copy} is damaged")


def test_a_second_run_on_a_workdir_is_refused(data_dir, tmp_path):
  with (
    sole_writer(str(tmp_path)),
    pytest.raises(ValueError, match=f"process {os.getpid()} on .*: wait for"),
  ):
    loop.train(read(runs.config(data_dir)), str(tmp_path))
  assert not (tmp_path / "checkpoints").exists()


@pytest.mark.slow
def test_changes_may_be_allowed(data_dir, run_copy):
  shutil.rmtree(run_copy / "checkpoints" / "12")
  config = runs.config(data_dir)
  config.optimizer.peak_lr = 1e-4
  with pytest.raises(ValueError, match="peak_lr was 0.003 and is now 0.0001"):
    loop.train(read(config), str(run_copy))
  state, _ = loop.train(read(config), str(run_copy), allow_changes=True)
  assert int(state.step) == 12


@pytest.mark.slow
def test_what_is_not_finite_stops_the_run(data_dir, tmp_path):
  config = runs.config(data_dir, max_skipped_steps=3, total_steps=40)
  config.optimizer.update(peak_lr=1e30, warmup_steps=0)
  with pytest.raises(FloatingPointError, match="steps in a row") as caught:
    loop.train(read(config), str(tmp_path))
  (report,) = tmp_path.glob("*.json")
  assert str(report) in str(caught.value)
  rows = json.loads(report.read_text())
  steps = [row["step"] for row in rows]
  assert steps == list(range(steps[0], steps[0] + len(steps)))
  assert 3 <= len(steps) <= 5  # Two steps may be under way.
  assert all(len(row["images"]) == config.batch_size for row in rows)
  assert all(float(row["learning_rate"]) > 1e29 for row in rows)
  plan = make_plan(read(config))
  batches = plan.open_batches(steps[0] - 1)
  labels = next(batches)["label"]
  batches.close()
  source = {e["id"]: e["label"] for e in plan.source.read(range(1438))}
  assert [source[name] for name in rows[0]["images"]] == labels.tolist()
  # The last finite state was saved.
  checkpoints = Checkpoints(str(tmp_path), read_only=True)
  state = checkpoints.restore(checkpoints.latest_step, plan.shapes)
  checkpoints.close()
  for leaf in jax.tree.leaves(state):
    assert np.isfinite(leaf).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Threads that could not write.
def test_a_full_disk_costs_no_more_than_its_checkpoint(
  data_dir, whole_run, tmp_path, capsys, caplog, monkeypatch
):
  save = Checkpoints.save

  def save_on_a_full_disk(self, state, step, *args):
    if step == 8:
      with room_for(1000):
        return save(self, state, step, *args) or self.wait()
    return save(self, state, step, *args)

  monkeypatch.setattr(Checkpoints, "save", save_on_a_full_disk)
  state, _ = loop.train(read(runs.config(data_dir)), str(tmp_path))
  printed = " ".join(capsys.readouterr().out.split())
  assert "step 8: the checkpoint of step 8 could not be saved (" in printed
  assert "; the run goes on." in printed
  assert "Traceback" not in caplog.text
  assert runs.identical(whole_run.state, jax.device_get(state))
  found = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
  assert found == ["12", "4"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_last_checkpoint_that_was_not_saved_is_an_error(
  data_dir, tmp_path, monkeypatch
):
  save = Checkpoints.save

  def save_on_a_full_disk(self, state, step, *args):
    if step == 12:
      self.wait()
      disk.enter_context(room_for(1000))
    return save(self, state, step, *args)

  monkeypatch.setattr(Checkpoints, "save", save_on_a_full_disk)
  message = "of step 12 could .*; step 8 is good"
  with contextlib.ExitStack() as disk, pytest.raises(OSError, match=message):
    loop.train(read(runs.config(data_dir)), str(tmp_path))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_a_run_goes_on_where_its_folder_vanished(
  data_dir, whole_run, tmp_path, monkeypatch
):
  save = Checkpoints.save

  def vanish(self, state, step, *args):
    if step == 8:
      self.wait()
      shutil.rmtree(tmp_path)
    return save(self, state, step, *args)

  monkeypatch.setattr(Checkpoints, "save", vanish)
  state, _ = loop.train(read(runs.config(data_dir)), str(tmp_path))
  assert runs.identical(whole_run.state, jax.device_get(state))
  evaluate_checkpoint(str(tmp_path), step=12)


@pytest.mark.slow
def test_a_run_goes_on_where_metrics_cannot_be_written(
  data_dir, whole_run, tmp_path, capsys, monkeypatch
):
  write = MetricWriter.write

  def write_to_a_folder(self, step, values):
    if step == 6 and "train/loss" in values:
      (tmp_path / "metrics.jsonl").unlink()
      (tmp_path / "metrics.jsonl").mkdir()
    write(self, step, values)

  closed = []

  def no_network(self, failed):
    closed.append(failed)
    raise OSError("connection lost")

  monkeypatch.setattr(MetricWriter, "write", write_to_a_folder)
  monkeypatch.setattr(MetricWriter, "close", no_network)
  state, _ = loop.train(read(runs.config(data_dir)), str(tmp_path))
  printed = " ".join(capsys.readouterr().out.split())
  assert "step 6: the metrics could not be written (" in printed
  assert "last metrics could not be written (connection lost)" in printed
  assert closed == [False]
  assert runs.identical(whole_run.state, jax.device_get(state))


@pytest.mark.slow
def test_neither_tensorboard_nor_the_profiler_stops_a_run(
  data_dir, whole_run, tmp_path, capsys, monkeypatch
):
  (tmp_path / "tensorboard").touch()  # Where its folder has to be.
  stop_trace = jax.profiler.stop_trace

  def stop_without_room():
    stop_trace()
    raise RuntimeError("no space left for the trace")

  monkeypatch.setattr(jax.profiler, "stop_trace", stop_without_room)
  config = runs.config(data_dir, profile_steps=1, log_every_steps=1)
  state, _ = loop.train(read(config), str(tmp_path))
  printed = " ".join(capsys.readouterr().out.split())
  assert printed.count("could not be written") == 2
  assert "step 1: the metrics could not be written (TensorBoard: " in printed
  assert "the profile could not be written (no space left for the" in printed
  assert runs.identical(whole_run.state, jax.device_get(state))
  assert list(tmp_path.glob("profile/**/*.xplane.pb"))
  rows = [row["step"] for row in runs.rows(tmp_path) if "train/loss" in row]
  assert rows == list(range(1, 13))
