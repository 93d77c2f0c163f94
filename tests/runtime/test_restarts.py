"""A process that crashes is started again, unless that cannot help."""

import os
import secrets
import signal
import sys
import time

import pytest

from tests import commands
from vit_jax.runtime import restarts
from vit_jax.runtime.restarts import newest_step, supervise
from vit_jax.workdir import bucket


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch):
  monkeypatch.setattr(restarts, "WAIT", 0)


def _command(tmp_path, *ends):
  """A command that ends each time as the next of `ends` says, then well."""
  starts = tmp_path / "starts"
  script = (
    "import os, pathlib, sys\n"
    f"path = pathlib.Path({str(starts)!r})\n"
    "count = len(path.read_text()) if path.exists() else 0\n"
    "path.write_text('x' * (count + 1))\n"
    f"end = [*{ends!r}, 0][count]\n"
    "sys.exit(end) if end >= 0 else os.kill(os.getpid(), -end)\n"
  )
  return [sys.executable, "-S", "-c", script], lambda: len(starts.read_text())


@pytest.mark.parametrize("end", [-signal.SIGKILL, -signal.SIGABRT, 75])
def test_a_crash_is_mended(tmp_path, capfd, end):
  command, starts = _command(tmp_path, end, end)
  assert supervise(2, lambda: None, command) == 0
  assert starts() == 3
  errors = capfd.readouterr().err
  assert errors.count("; restart 1 of at most 2 until a new checkpoint.") == 1
  assert errors.count("; restart 2 of at most 2 until a new checkpoint.") == 1


@pytest.mark.parametrize("end", [1, 2, 130, 143, -signal.SIGTERM])
def test_what_a_restart_cannot_mend_is_not_tried_again(tmp_path, end):
  command, starts = _command(tmp_path, end)
  assert supervise(5, lambda: None, command) == (end if end > 0 else 143)
  assert starts() == 1


def test_restarts_without_a_new_checkpoint_are_counted(tmp_path, capfd):
  command, starts = _command(tmp_path, *[-9] * 9)
  steps = iter([None, None, 100, 100, 200, 200, 200, 200])
  assert supervise(2, lambda: next(steps), command) == 137
  assert starts() == 6
  last = capfd.readouterr().err.splitlines()[-1]
  assert last == (
    "The run was ended by SIGKILL; 2 restarts brought no new checkpoint: "
    "giving up."
  )


@pytest.mark.parametrize("given", [["--restarts=3"], ["--restarts", "3"]])
def test_the_command_that_is_restarted_restarts_nothing(monkeypatch, given):
  words = ["-m", "vit_jax.train", "a", *given, "--workdir=--restarts", "-q"]
  started = []
  monkeypatch.setattr(sys, "orig_argv", ["python", *words])
  monkeypatch.setattr(restarts, "_run", lambda c: started.append(c) or 0)
  assert supervise(3, lambda: None) == 0
  left = ["-m", "vit_jax.train", "a", "--workdir=--restarts", "-q"]
  assert started == [[sys.executable, *left]]


def test_sigterm_reaches_the_run(tmp_path):
  script = (
    "from vit_jax.runtime.restarts import supervise\n"
    "import sys\n"
    "child = 'import signal, sys, time; '\\\n"
    "  'signal.signal(15, lambda *_: sys.exit(143)); '\\\n"
    "  'print(1, flush=True); time.sleep(60)'\n"
    "sys.exit(supervise(3, lambda: None, [sys.executable, '-c', child]))\n"
  )
  with commands.start("-c", script) as process:
    assert process.stdout.readline()
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(30) == 143


def test_the_newest_step_is_found_without_jax(tmp_path):
  run = tmp_path / "run"
  assert newest_step(str(run)) is None
  for name in ("9", "10", "12.orbax-checkpoint-tmp", "x"):
    (run / "checkpoints" / name).mkdir(parents=True)
  assert newest_step(str(run)) == 10


def test_the_newest_step_in_a_bucket_is_never_an_old_one(store):
  run = f"gs://bucket/{secrets.token_hex(4)}"
  assert newest_step(run) is None
  for step in (9, 10):
    bucket.blob(f"{run}/checkpoints/{step}/a").upload_from_string("")
    assert newest_step(run) == step
