"""A run that hangs ends; one that is slow, pauses or was stopped does not."""

import os
import signal
import time

import pytest

from tests import commands
from vit_jax.runtime import watchdog
from vit_jax.runtime.restarts import MENDABLE
from vit_jax.runtime.watchdog import Watchdog


@pytest.fixture
def ended(monkeypatch):
  """The usual times at which a watchdog would have ended this process."""
  calls = []
  monkeypatch.setattr(watchdog, "_TICK", 0.01)
  monkeypatch.setattr(watchdog, "_LEAST", 0.1)
  monkeypatch.setattr(Watchdog, "_leave", lambda _, usual: calls.append(usual))
  return calls


def _steps(dog):
  for _ in range(3):
    dog.step()


def test_a_step_that_never_comes_is_noticed(ended, tmp_path):
  with Watchdog(100, tmp_path / "stacks.txt").watching() as dog:
    _steps(dog)
    time.sleep(0.5)
  assert ended and ended[0] < 0.01


@pytest.mark.parametrize("times", [0, 1e9])
def test_a_slow_step_is_waited_for(ended, tmp_path, times):
  with Watchdog(times, tmp_path / "stacks.txt").watching() as dog:
    dog.step()
    time.sleep(0.02)
    dog.step()
    time.sleep(0.3)
  assert not ended


def test_first_steps_and_other_work_take_as_long_as_they_do(ended, tmp_path):
  with Watchdog(1, tmp_path / "stacks.txt").watching() as dog:
    time.sleep(0.3)  # Compiles.
    _steps(dog)
    with dog.paused():
      time.sleep(0.3)
    dog.step()
    assert max(dog._seconds) < 0.1
  time.sleep(0.3)  # It has ended.
  assert not ended


SCRIPT = """
import pathlib, sys, time
from tests import commands
from vit_jax.runtime import watchdog
watchdog._TICK, watchdog._LEAST, watchdog._WRITE_SECONDS = 0.05, 0.5, 0.5
def hangs():
  print(1, flush=True)
  time.sleep(60)
path = pathlib.Path(sys.argv[1])
with watchdog.Watchdog(2, path).watching() as dog:
  dog.step()
  dog.step()
  hangs()
"""


@pytest.mark.parametrize(
  "writable", [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_stacks_line_and_exit_code_of_a_run_that_hangs(tmp_path, writable):
  path = tmp_path / ("stacks.txt" if writable else "missing/stacks.txt")
  with commands.start("-c", SCRIPT, str(path)) as process:
    assert process.stdout is not None and process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    time.sleep(1)
    process.send_signal(signal.SIGCONT)
    assert not os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG)
    _, errors = process.communicate(timeout=30)
  assert process.returncode == MENDABLE
  line = errors.splitlines()[-1]
  assert line.startswith("error: no step for 1 s, where one takes")
  place = f"in {path}" if writable else "above"
  assert line.endswith(f"are {place}; the same command resumes the run.")
  assert "in hangs" in (path.read_text() if writable else errors)
