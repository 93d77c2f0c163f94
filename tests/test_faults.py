"""Faults that a run survives: it ends as if nothing had happened."""

import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from tests import commands, runs
from vit_jax.data.workers import BatchIterator
from vit_jax.run import loop
from vit_jax.run.plan import make_plan
from vit_jax.run.saved import evaluate_checkpoint
from vit_jax.run.settings import read
from vit_jax.runtime.signals import Interrupted
from vit_jax.workdir.checkpoint import Checkpoints
from vit_jax.workdir.lock import sole_writer
from vit_jax.workdir.metrics import MetricWriter


@pytest.fixture(scope="module")
def whole(data_dir, tmp_path_factory):
  """The folder and the last state of an undisturbed run."""
  folder = tmp_path_factory.mktemp("faults") / "whole"
  state, _ = loop.train(read(runs.config(data_dir)), str(folder))
  return folder, jax.device_get(state)


@pytest.fixture
def copy(whole, tmp_path):
  return shutil.copytree(whole[0], tmp_path / "run")


def _arrays(checkpoint):
  """The largest file of the arrays that are evaluated."""
  files = (p for p in checkpoint.glob("averaged_params/**/*") if p.is_file())
  return max(files, key=lambda path: path.stat().st_size)


def _truncate(checkpoint):
  path = _arrays(checkpoint)
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip(checkpoint):
  """Flips a byte in the middle of the arrays."""
  path = _arrays(checkpoint)
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 0x10
  path.write_bytes(content)


def _drop(checkpoint):
  _arrays(checkpoint).unlink()


def _empty(checkpoint):
  shutil.rmtree(checkpoint)
  checkpoint.mkdir()


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
    for damage in (_empty, _truncate, _drop, _change_description)
  ),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_set_aside(
  data_dir, whole, copy, capsys, damage
):
  damage(copy / "checkpoints" / "12")
  state, _ = loop.train(read(runs.config(data_dir)), str(copy))
  printed = " ".join(capsys.readouterr().out.split())
  assert f"checkpoint 12 of {copy} is damaged" in printed
  assert f"It is now {copy}/damaged/12." in printed
  assert "Resuming from the checkpoint of step 8." in printed
  assert runs.identical(whole[1], jax.device_get(state))
  # The new checkpoint is intact, and the one set aside still exists.
  evaluate_checkpoint(str(copy), step=12)
  assert (copy / "damaged" / "12").is_dir()


def test_where_none_is_good_the_run_does_not_start_over(data_dir, copy):
  for step in (4, 8, 12):
    _flip(copy / "checkpoints" / str(step))
  for _ in range(2):
    with pytest.raises(ValueError, match="checkpoint 12 .* No older one is"):
      loop.train(read(runs.config(data_dir)), str(copy))
  for step in (4, 8, 12):
    _empty(copy / "checkpoints" / str(step))
  for _ in range(2):
    with pytest.raises(ValueError, match="checkpoint 12 of .* is damaged"):
      loop.train(read(runs.config(data_dir)), str(copy))


def test_damage_is_noticed_by_who_only_reads(copy):
  _flip(copy / "checkpoints" / "12")
  with pytest.raises(ValueError, match="checkpoint 12 of .* is damaged"):
    evaluate_checkpoint(str(copy))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_command_says_so_in_a_line_and_nothing_else(copy, damage):
  damage(copy / "checkpoints" / "12")
  found = commands.run("vit_jax.evaluate", "--workdir", str(copy))
  assert found.returncode == 2
  assert found.stdout == ""
  (line,) = found.stderr.splitlines()
  assert line.startswith(f"error: checkpoint 12 of {copy} is damaged")


def test_a_second_run_on_a_workdir_is_refused(data_dir, tmp_path):
  with (
    sole_writer(str(tmp_path)),
    pytest.raises(ValueError, match=f"process {os.getpid()} on .*: wait for"),
  ):
    loop.train(read(runs.config(data_dir)), str(tmp_path))
  assert not (tmp_path / "checkpoints").exists()


@pytest.mark.slow
def test_changes_may_be_allowed(data_dir, copy):
  shutil.rmtree(copy / "checkpoints" / "12")
  config = runs.config(data_dir)
  config.optimizer.peak_lr = 1e-4
  with pytest.raises(ValueError, match="peak_lr was 0.003 and is now 0.0001"):
    loop.train(read(config), str(copy))
  state, _ = loop.train(read(config), str(copy), allow_changes=True)
  assert int(state.step) == 12


@pytest.mark.slow
def test_what_is_not_finite_stops_the_run(data_dir, tmp_path):
  config = runs.config(data_dir, max_skipped_steps=3, total_steps=40)
  config.optimizer.update(peak_lr=1e30, warmup_steps=0)
  with pytest.raises(
    FloatingPointError, match="steps in a row, up to"
  ) as caught:
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
  data_dir, whole, tmp_path, capsys, caplog, monkeypatch
):
  save = Checkpoints.save
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)

  def save_on_a_full_disk(self, state, step, *args):
    if step == 8:
      resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
      problem = save(self, state, step, *args) or self.wait()
      resource.setrlimit(resource.RLIMIT_FSIZE, limits)
      return problem
    return save(self, state, step, *args)

  monkeypatch.setattr(Checkpoints, "save", save_on_a_full_disk)
  state, _ = loop.train(read(runs.config(data_dir)), str(tmp_path))
  printed = " ".join(capsys.readouterr().out.split())
  assert "step 8: the checkpoint of step 8 could not be saved (" in printed
  assert "; the run goes on." in printed
  assert "Traceback" not in caplog.text
  assert runs.identical(whole[1], jax.device_get(state))
  found = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
  assert found == ["12", "4"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_last_checkpoint_that_was_not_saved_is_an_error(
  data_dir, tmp_path, monkeypatch
):
  save = Checkpoints.save
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)

  def save_on_a_full_disk(self, state, step, *args):
    if step == 12:
      self.wait()
      resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    return save(self, state, step, *args)

  monkeypatch.setattr(Checkpoints, "save", save_on_a_full_disk)
  try:
    with pytest.raises(OSError, match="of step 12 could .*; step 8 is good"):
      loop.train(read(runs.config(data_dir)), str(tmp_path))
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_a_run_goes_on_where_its_folder_vanished(
  data_dir, whole, tmp_path, monkeypatch
):
  save = Checkpoints.save

  def vanish(self, state, step, *args):
    if step == 8:
      self.wait()
      shutil.rmtree(tmp_path)
    return save(self, state, step, *args)

  monkeypatch.setattr(Checkpoints, "save", vanish)
  state, _ = loop.train(read(runs.config(data_dir)), str(tmp_path))
  assert runs.identical(whole[1], jax.device_get(state))
  evaluate_checkpoint(str(tmp_path), step=12)


@pytest.mark.slow
def test_a_run_goes_on_where_metrics_cannot_be_written(
  data_dir, whole, tmp_path, capsys, monkeypatch
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
  assert runs.identical(whole[1], jax.device_get(state))


@pytest.mark.slow
def test_neither_tensorboard_nor_the_profiler_stops_a_run(
  data_dir, whole, tmp_path, capsys, monkeypatch
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
  assert runs.identical(whole[1], jax.device_get(state))
  rows = [row["step"] for row in runs.rows(tmp_path) if "train/loss" in row]
  assert rows == list(range(1, 13))


COMMAND = [
  *(sys.executable, "-m", "vit_jax.train", "--config=configs/digits.py"),
  *("--config.total_epochs=0", "--config.total_steps=100000"),
  *("--config.optimizer.warmup_epochs=0", "--config.log_every_steps=1"),
  *("--config.eval_every_epochs=0", "--config.save_every_epochs=0"),
  *("--config.model.num_layers=1", "--config.loader.num_workers=1"),
]


@pytest.fixture
def running(data_dir, tmp_path):
  """A run in a process of its own, which has taken its first step."""
  with subprocess.Popen(
    [
      *COMMAND,
      f"--config.data.data_dir={data_dir}",
      f"--workdir={tmp_path / 'run'}",
    ],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    start_new_session=True,
  ) as process:
    try:
      for line in process.stdout:
        if line.startswith("step"):
          break
      yield process
    finally:
      if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_full_disk_ends_no_run_and_a_run_ends_with_it(running, tmp_path):
  """Once there is room again, nothing has been lost."""
  limits = resource.prlimit(running.pid, resource.RLIMIT_FSIZE)
  resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
  complaints, steps = [], 0
  for line in running.stdout:
    complaints += [line] if "could not be written" in line else []
    steps += line.startswith("step ") and "loss" in line and bool(complaints)
    if steps == 50:
      break
  (complaint,) = complaints
  assert "the metrics could not be written (metrics.jsonl: " in complaint
  assert "; TensorBoard: " in complaint
  resource.prlimit(running.pid, resource.RLIMIT_FSIZE, limits)
  os.killpg(running.pid, signal.SIGTERM)
  printed, errors = running.communicate(timeout=60)
  assert running.returncode == 143, errors
  assert errors == ""
  assert "could not" not in printed
  steps = [row["step"] for row in runs.rows(tmp_path / "run")]
  assert steps == list(range(1, len(steps) + 1))
  assert [
    step for step, tag, _ in runs.events(tmp_path / "run") if "loss" in tag
  ] == steps


@pytest.mark.parametrize(
  "number",
  [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)],
)
def test_a_read_that_hangs_delays_no_stop(
  data_dir, tmp_path, monkeypatch, capfd, number
):
  """The last complete step is saved, and is resumed from."""
  config = runs.config(data_dir, eval_every_steps=0, save_every_steps=0)
  original = BatchIterator.__next__

  def stuck(self):
    stuck.count += 1
    if stuck.count == 5:  # Two batches wait on the device.
      os.kill(os.getpid(), number)
      time.sleep(60)
    return original(self)

  stuck.count = 0
  start = time.perf_counter()
  with monkeypatch.context() as patch:
    patch.setattr(BatchIterator, "__next__", stuck)
    with pytest.raises(Interrupted, match="step 2 is saved") as stopped:
      loop.train(read(config), str(tmp_path))
  assert time.perf_counter() - start < 55
  assert stopped.value.exit_code == 128 + number
  assert Checkpoints(str(tmp_path), read_only=True).all_steps == [2]
  again = capfd.readouterr().err.count("Ctrl-C again leaves at once")
  assert again == (number == signal.SIGINT)


def test_sigterm_saves_the_step_under_way(running, tmp_path):
  start = time.perf_counter()
  os.killpg(running.pid, signal.SIGTERM)  # Workers and all, as SLURM does.
  for printed in running.stdout:
    if "is saved" in printed:
      break
  while running.poll() is None:  # A scheduler may ask twice.
    running.send_signal(signal.SIGTERM)
  errors = running.stderr.read()
  assert time.perf_counter() - start < 60
  assert running.returncode == 143, errors
  assert errors == ""
  last = printed.splitlines()[-1]
  assert last.endswith(" is saved; the same command resumes the run.")
  step = int(last.split("step ")[1].split()[0].replace(",", ""))
  checkpoints = Checkpoints(str(tmp_path / "run"), read_only=True)
  assert checkpoints.all_steps == [step]
  checkpoints.close()


@pytest.mark.slow
def test_a_run_that_was_killed_starts_again_by_itself(data_dir, tmp_path):
  """The kernel's out-of-memory killer takes the run, not its supervisor."""
  with subprocess.Popen(
    [*COMMAND, *_short(data_dir, tmp_path), "--restarts=2"],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  ) as process:
    killed = False
    for line in process.stdout:
      if re.match(r"step +\d*[1-9]\d\d/", line) and not killed:
        (run,) = _children(process.pid)
        os.kill(run, signal.SIGKILL)
        killed = True
    errors = process.stderr.read()
    assert process.wait(60) == 0
  assert killed
  assert errors == (
    "The run was ended by SIGKILL; restart 1 of 2 without a new checkpoint.\n"
  )
  steps = [row["step"] for row in runs.rows(tmp_path / "run")]
  assert steps == list(range(1, 401))


def _short(data_dir, tmp_path):
  return (
    *("--config.total_steps=400", "--config.save_every_steps=50"),
    f"--config.data.data_dir={data_dir}",
    f"--workdir={tmp_path / 'run'}",
  )


def _children(pid):
  """The processes that a process has started itself."""
  path = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
  return [int(child) for child in path.read_text().split()]


@pytest.mark.slow
def test_a_run_that_hangs_is_started_again(data_dir, tmp_path):
  """A batch never comes, but only at the first start."""
  stacks = tmp_path / "run" / "stacks_0.txt"
  script = (
    "import pathlib, time\n"
    "from vit_jax import train\n"
    "from vit_jax.data.workers import BatchIterator\n"
    "from vit_jax.runtime import command, watchdog\n"
    "watchdog._TICK, watchdog._LEAST = 0.05, 2\n"
    "read, count = BatchIterator.__next__, []\n"
    "def hang(self):\n"
    "  count.append(1)\n"
    f"  if len(count) == 20 and not pathlib.Path({str(stacks)!r}).exists():\n"
    "    time.sleep(100)\n"
    "  return read(self)\n"
    "BatchIterator.__next__ = hang\n"
    "command.run(train.main, define=train.define_flags)\n"
  )
  done = subprocess.run(
    [
      *(sys.executable, "-c", script, *COMMAND[3:]),
      *(*_short(data_dir, tmp_path), "--config.total_steps=40"),
      *("--config.hang_factor=10", "--restarts=1"),
    ],
    capture_output=True,
    text=True,
    timeout=200,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  line, restarted = done.stderr.splitlines()
  assert line.startswith("error: no step for ")
  assert restarted.startswith("The run was ended by trouble (exit code 75); re")
  assert "in hang\n" in stacks.read_text()
  assert " lost to restarts" in done.stdout
  steps = [row["step"] for row in runs.rows(tmp_path / "run")]
  assert steps == list(range(1, 41))
