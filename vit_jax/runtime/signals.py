"""Notices SIGTERM and Ctrl-C, by which a scheduler or a person stops a run.

Spot and preemptible machines, SLURM and Kubernetes send SIGTERM some time
before they take the machine away. Ctrl-C is handled here as well, since the
KeyboardInterrupt that Python would raise gets lost inside JAX's callbacks.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

import jax
from jax.experimental import multihost_utils

_SHOW_CURSOR = "\x1b[?25h"  # A progress bar hides it.


class Interrupted(Exception):
  """Raised after the run was told to stop and has saved its state."""

  exit_code = 128 + signal.SIGTERM  # A shell's code for it; 0 is "complete".


class StopSignal:
  """Records whether the run has to stop, in agreement with all hosts."""

  def __init__(self):
    self._signal = 0
    self._waiting = False

  def reached(self, step: int) -> bool:
    """Whether to stop after this step; all hosts must ask at every step."""
    if jax.process_count() > 1:
      # JAX's own service passes the signal on, and chooses the step.
      return multihost_utils.reached_preemption_sync_point(step)
    return self._signal > 0

  def interrupted(self, text: str) -> Interrupted:
    """The error that ends the run, with the exit code of the signal."""
    error = Interrupted(text)
    error.exit_code = 128 + (self._signal or signal.SIGTERM)
    return error

  @contextlib.contextmanager
  def waiting(self) -> Iterator[None]:
    """Inside this context, a signal raises Interrupted at once.

    It is for work that need not be finished, such as an evaluation, or that
    may never be, such as a read from a file system that hangs.
    """
    if self._signal:
      raise self.interrupted("told to stop")
    self._waiting = True
    try:
      yield
    finally:
      self._waiting = False

  @contextlib.contextmanager
  def awaited(self) -> Iterator["StopSignal"]:
    """Inside this context, SIGTERM and Ctrl-C are only recorded.

    A second Ctrl-C leaves at once. After a signal, SIGTERM stays ignored: the
    process is about to end by itself, with the exit code that says so.

    Python handles signals only in the main thread; in another one, this does
    nothing.
    """
    if threading.current_thread() is not threading.main_thread():
      yield self
      return
    # With several hosts, SIGTERM is for JAX's service.
    numbers = [signal.SIGINT]
    if jax.process_count() == 1:
      numbers.append(signal.SIGTERM)
    before = {number: signal.signal(number, self._record) for number in numbers}
    try:
      yield self
    finally:
      for number, handler in before.items():
        ending = self._signal and number == signal.SIGTERM
        signal.signal(number, signal.SIG_IGN if ending else handler)

  def _record(self, number: int, _: object) -> None:
    again, self._signal = self._signal, number
    if number == signal.SIGINT:
      if again == signal.SIGINT:
        _say("Left at once; nothing was saved after the newest checkpoint.")
        os._exit(128 + number)
      _say("Stopping, once the state is saved; Ctrl-C again leaves at once.")
      if jax.process_count() > 1:
        signal.raise_signal(signal.SIGTERM)  # For JAX's service.
    if self._waiting:
      self._waiting = False
      raise self.interrupted("told to stop")


def leave(code: int) -> NoReturn:
  """Ends the process now, even if a thread hangs in a read.

  With several hosts, JAX has to take leave of the others first.
  """
  sys.stdout.flush()
  sys.stderr.flush()
  if jax.process_count() == 1:
    os._exit(code)
  sys.exit(code)


def _say(text: str) -> None:
  """Prints a line from a signal handler, which may not touch the streams."""
  cursor = _SHOW_CURSOR if sys.stderr.isatty() else ""
  with contextlib.suppress(OSError):
    os.write(2, f"\n{cursor}{text}\n".encode())
