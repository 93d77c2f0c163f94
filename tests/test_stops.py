"""A run in a process of its own that is stopped, killed, or hangs."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from tests import commands, runs
from vit_jax.data.batching.workers import BatchIterator
from vit_jax.run import loop
from vit_jax.run.settings import read
from vit_jax.runtime.stops import Interrupted
from vit_jax.workdir.checkpoint import Checkpoints

COMMAND = [
  *(sys.executable, "-m", "vit_jax.train", "--config=configs/digits.py"),
  *("--config.total_epochs=0", "--config.optimizer.warmup_epochs=0"),
  "--config.log_every_steps=1",
  *("--config.eval_every_epochs=0", "--config.save_every_epochs=0"),
  *("--config.model.num_layers=1", "--config.loader.num_workers=1"),
]


@pytest.fixture
def running(data_dir, tmp_path):
  """A run in a process of its own, which has taken its first step."""
  with subprocess.Popen(
    [
      *COMMAND,
      "--config.total_steps=100000",
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
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
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


@pytest.mark.slow
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
@pytest.mark.parametrize(
  "images", ["of one size", "of any size in shared rows"]
)
def test_a_run_that_was_killed_starts_again_by_itself(
  data_dir, tmp_path, images
):
  """The kernel's out-of-memory killer takes the run, not its supervisor."""
  short = _short(data_dir, tmp_path, steps=400)
  if images != "of one size":
    short += "--config.data.tokens=16", "--config.data.images_per_row=2"
  with commands.start(*COMMAND[1:], *short, "--restarts=2") as process:
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
    "The run was ended by SIGKILL; restart 1 of at most 2 until a new "
    "checkpoint.\n"
  )
  steps = [row["step"] for row in runs.rows(tmp_path / "run")]
  assert steps == list(range(1, 401))


def _short(data_dir, tmp_path, steps):
  return (
    *(f"--config.total_steps={steps}", "--config.save_every_steps=50"),
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
    "from vit_jax.data.batching.workers import BatchIterator\n"
    "from vit_jax.runtime import command, stops\n"
    "stops.TICK, stops.LEAST_WAIT = 0.05, 2\n"
    "read, count = BatchIterator.__next__, []\n"
    "def hang(self):\n"
    "  count.append(1)\n"
    f"  if len(count) == 20 and not pathlib.Path({str(stacks)!r}).exists():\n"
    "    time.sleep(100)\n"
    "  return read(self)\n"
    "BatchIterator.__next__ = hang\n"
    "command.run(train.main, define=train.define_flags)\n"
  )
  done = commands.python(
    *("-c", script, *COMMAND[3:], *_short(data_dir, tmp_path, steps=40)),
    *("--config.hang_factor=10", "--restarts=1"),
  )
  assert done.returncode == 0, done.stderr
  line, restarted = done.stderr.splitlines()
  assert line.startswith("error: no step for ")
  assert restarted.startswith("The run was ended by trouble (exit code 75); re")
  assert "in hang\n" in stacks.read_text()
  assert " stopped or redone" in done.stdout
  steps = [row["step"] for row in runs.rows(tmp_path / "run")]
  assert steps == list(range(1, 41))
