"""SIGTERM and Ctrl-C are noticed, never lost, and obeyed while waiting."""

import gc
import os
import signal
import time

import pytest

from tests import commands
from vit_jax.runtime.signals import Interrupted, StopSignal


@pytest.fixture(autouse=True)
def handlers():
  numbers = (signal.SIGINT, signal.SIGTERM)
  before = {number: signal.getsignal(number) for number in numbers}
  yield before
  for number, handler in before.items():
    signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_recorded(number, capfd):
  with StopSignal().awaited() as stop:
    assert not stop.reached(1)
    os.kill(os.getpid(), number)
    assert stop.reached(2)
    assert stop.interrupted("x").exit_code == 128 + number
  said = "Ctrl-C again" in capfd.readouterr().err
  assert said == (number == signal.SIGINT)


def test_it_is_not_lost_in_a_callback_that_swallows_errors():
  """JAX has such a callback; a KeyboardInterrupt inside it is printed only."""

  def interrupted(phase, _):
    if phase == "start":
      os.kill(os.getpid(), signal.SIGINT)

  with StopSignal().awaited() as stop:
    gc.callbacks.append(interrupted)
    try:
      gc.collect()
    finally:
      gc.callbacks.remove(interrupted)
    assert stop.reached(1)


def test_waiting_is_given_up(capfd):
  with StopSignal().awaited() as stop:
    start = time.perf_counter()
    with pytest.raises(Interrupted), stop.waiting():
      os.kill(os.getpid(), signal.SIGTERM)
      time.sleep(30)
    assert time.perf_counter() - start < 10
    with pytest.raises(Interrupted), stop.waiting():  # It is still told.
      raise AssertionError


def test_without_a_signal_the_handlers_are_as_before(handlers):
  with StopSignal().awaited():
    pass
  assert handlers == {number: signal.getsignal(number) for number in handlers}


def test_after_a_signal_sigterm_is_ignored(handlers):
  with StopSignal().awaited():
    os.kill(os.getpid(), signal.SIGTERM)
  assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
  assert signal.getsignal(signal.SIGINT) is handlers[signal.SIGINT]


def test_a_second_ctrl_c_leaves_at_once():
  code = (
    "import os, signal, time\n"
    "from vit_jax.runtime.signals import StopSignal\n"
    "with StopSignal().awaited():\n"
    "  os.kill(os.getpid(), signal.SIGINT)\n"
    "  os.kill(os.getpid(), signal.SIGINT)\n"
    "  time.sleep(60)\n"
  )
  done = commands.python("-c", code)
  assert done.returncode == 130
  first, second = done.stderr.split("\n\n")
  assert "Ctrl-C again leaves at once" in first
  assert "Left at once" in second
