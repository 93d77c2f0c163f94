"""Signals are noticed, never lost, and obeyed; a run that hangs ends."""

import gc
import os
import signal
import time

import jax
import pytest

from tests import commands
from vit_jax.runtime import stops
from vit_jax.runtime.restarts import MENDABLE
from vit_jax.runtime.stops import Interrupted, StopSignal, Watchdog

pytestmark = pytest.mark.usefixtures("handlers")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_recorded(number, capfd):
  with StopSignal().recording() as stop:
    assert not stop.reached(1)
    os.kill(os.getpid(), number)
    assert stop.reached(2)
    assert stop.make_error("x").exit_code == 128 + number
  said = "Ctrl-C again" in capfd.readouterr().err
  assert said == (number == signal.SIGINT)


def test_it_is_not_lost_in_a_callback_that_swallows_errors():
  """JAX has such a callback; a KeyboardInterrupt inside it is printed only."""

  def interrupted(phase, _):
    if phase == "start":
      os.kill(os.getpid(), signal.SIGINT)

  with StopSignal().recording() as stop:
    gc.callbacks.append(interrupted)
    try:
      gc.collect(0)
    finally:
      gc.callbacks.remove(interrupted)
    assert stop.reached(1)


def test_waiting_is_given_up(capfd):
  with StopSignal().recording() as stop:
    start = time.perf_counter()
    with pytest.raises(Interrupted), stop.waiting():
      os.kill(os.getpid(), signal.SIGTERM)
      time.sleep(30)
    assert time.perf_counter() - start < 10
    with pytest.raises(Interrupted), stop.waiting():  # It is still told.
      raise AssertionError


def test_without_a_signal_the_handlers_are_as_before(handlers):
  with StopSignal().recording():
    pass
  assert handlers == {number: signal.getsignal(number) for number in handlers}


def test_after_a_signal_sigterm_is_ignored(handlers):
  with StopSignal().recording():
    os.kill(os.getpid(), signal.SIGTERM)
  assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
  assert signal.getsignal(signal.SIGINT) is handlers[signal.SIGINT]


def test_a_second_ctrl_c_leaves_at_once():
  code = (
    "import os, signal, time\n"
    "from vit_jax.runtime.stops import StopSignal\n"
    "with StopSignal().recording():\n"
    "  os.kill(os.getpid(), signal.SIGINT)\n"
    "  os.kill(os.getpid(), signal.SIGINT)\n"
    "  time.sleep(60)\n"
  )
  done = commands.python("-c", code)
  assert done.returncode == 130
  first, second = done.stderr.split("\n\n")
  assert "Ctrl-C again leaves at once" in first
  assert "Left at once" in second


def test_a_host_of_several_takes_leave(monkeypatch):
  """JAX does so at the exit of Python, which `os._exit` would skip."""
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  with pytest.raises(SystemExit) as info:
    stops.leave(143)
  assert info.value.code == 143


class Noting(Watchdog):
  """Notes the usual time of a step where a watchdog ends this process."""

  def __init__(self, times, path):
    super().__init__(times, path)
    self.ended = []

  def leave(self, median):
    self.ended.append(median)


@pytest.fixture
def dog_of(monkeypatch, tmp_path):
  """Makes a watchdog that checks often."""
  monkeypatch.setattr(stops, "TICK", 0.01)
  monkeypatch.setattr(stops, "LEAST_WAIT", 0.1)
  return lambda times: Noting(times, tmp_path / "stacks.txt")


def _steps(dog):
  for _ in range(3):
    dog.step()


def test_a_step_that_never_comes_is_noticed(dog_of):
  with dog_of(100).watching() as dog:
    _steps(dog)
    time.sleep(0.5)
  assert dog.ended and dog.ended[0] < 0.01


@pytest.mark.parametrize("times", [0, 1e9])
def test_a_slow_step_is_waited_for(dog_of, times):
  with dog_of(times).watching() as dog:
    dog.step()
    time.sleep(0.02)
    dog.step()
    time.sleep(0.3)
  assert not dog.ended


@pytest.mark.parametrize("when", ["before", "aside", "after"])
def test_a_day_is_enough_for_anything(dog_of, monkeypatch, when):
  monkeypatch.setattr(stops, "LEAST_WAIT", 60)
  monkeypatch.setattr(stops, "MOST_ASIDE", 0.1)
  with dog_of(1).watching() as dog:
    if when != "before":
      with dog.stepping():
        _steps(dog)
        if when == "aside":
          with dog.paused():
            time.sleep(0.5)
        assert bool(dog.ended) == (when == "aside")
    if when != "aside":
      time.sleep(0.5)
  assert dog.ended


def test_first_steps_and_other_work_take_as_long_as_they_do(dog_of):
  with dog_of(1).watching() as dog:
    time.sleep(0.3)  # Compiles.
    _steps(dog)
    for _ in range(4):  # Most steps, if they counted.
      with dog.paused():
        time.sleep(0.1)
      dog.step()
    assert not dog.ended
    time.sleep(0.5)
  assert dog.ended[0] < 0.05
  count = len(dog.ended)
  time.sleep(0.3)  # It has ended.
  assert len(dog.ended) == count


SCRIPT = """
import pathlib, sys, time
from tests import commands
from vit_jax.runtime import stops
stops.TICK, stops.LEAST_WAIT, stops.WRITE_SECONDS = 0.05, 0.5, 0.5
def hangs():
  print(1, flush=True)
  time.sleep(60)
path = pathlib.Path(sys.argv[1])
with stops.Watchdog(2, path).watching() as dog:
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
