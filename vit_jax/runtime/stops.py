"""Ends a run early: because a signal asks for it, or because it hangs.

Spot and preemptible machines, SLURM and Kubernetes send SIGTERM some time
before they take the machine away. Ctrl-C is handled here as well, since the
KeyboardInterrupt that Python would raise gets lost inside JAX's callbacks.
"""

import collections
import contextlib
import faulthandler
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

import jax
from etils import epath
from jax.experimental import multihost_utils

from vit_jax.runtime.restarts import MENDABLE

_SHOW_CURSOR = "\x1b[?25h"  # A progress bar hides the cursor.
TICK = 1.0  # Seconds between two checks.
LEAST_WAIT = 600.0  # A wait of fewer seconds for a step never ends a run.
MOST_ASIDE = 86_400.0  # The most seconds for other work, such as an evaluation.
_STEPS = 100  # Number of recent steps whose median is the usual time.
WRITE_SECONDS = 10.0  # Longest wait for the file of stacks.


class Interrupted(Exception):
  """Raised to end a run that was told to stop."""

  exit_code = 128 + signal.SIGTERM  # As in a shell; 0 is for a complete run.


class StopSignal:
  """Records whether the run has to stop, in agreement with all hosts."""

  def __init__(self):
    self._signal, self._waiting = 0, False

  def reached(self, step: int) -> bool:
    """Whether to stop after this step; all hosts have to call it every step."""
    if jax.process_count() == 1:
      return self._signal > 0
    # JAX's own service passes the signal on, and chooses the step.
    return multihost_utils.reached_preemption_sync_point(step)

  def make_error(self, text: str) -> Interrupted:
    """The error that ends the run, with the exit code of the signal."""
    error = Interrupted(text)
    error.exit_code = 128 + (self._signal or signal.SIGTERM)
    return error

  @contextlib.contextmanager
  def waiting(self) -> Iterator[None]:
    """Inside this context, a signal raises Interrupted at once.

    A signal that came earlier raises it at the start. The context is for work
    that need not be finished, such as an evaluation, or that may never finish,
    such as a read from a file system that hangs.
    """
    if self._signal:
      raise self.make_error("told to stop")
    self._waiting = True
    try:
      yield
    finally:
      self._waiting = False

  @contextlib.contextmanager
  def recording(self) -> Iterator["StopSignal"]:
    """Inside this context, SIGTERM and Ctrl-C are only recorded.

    A second Ctrl-C ends the process at once. After a signal, SIGTERM stays
    ignored: the process is about to end by itself, with the signal's exit code.
    In other threads than the main one, where Python handles signals, this does
    nothing.
    """
    if threading.current_thread() is not threading.main_thread():
      yield self
      return
    # With several hosts, SIGTERM is for JAX's service.
    alone = jax.process_count() == 1
    numbers = (signal.SIGINT, signal.SIGTERM) if alone else (signal.SIGINT,)
    before = {number: signal.signal(number, self._record) for number in numbers}
    try:
      yield self
    finally:
      for number, handler in before.items():
        ending = self._signal and number == signal.SIGTERM
        signal.signal(number, signal.SIG_IGN if ending else handler)

  def _record(self, number: int, _: object) -> None:
    """Handles a signal: records it, and raises Interrupted inside `waiting`.

    A second Ctrl-C ends the process.
    """
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
      raise self.make_error("told to stop")


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


class Watchdog:
  """Ends this process if a step takes many times as long as usual.

  It then writes the stacks of all threads to a file, prints a line, and exits
  with the code after which `--restarts` restarts the run. Time in which the
  process itself was stopped, as by Ctrl-Z, does not count. A hang in compiled
  code that keeps Python's lock is not noticed.

  Args:
    times: A step may take this many times the median of the last 100 steps, but
      at least 10 minutes, and other work a day; 0 never ends the process.
    path: The file for the stacks, local or an address such as
      gs://bucket/run/stacks.txt.
  """

  def __init__(self, times: float, path: epath.Path):
    self._times, self._path = times, path
    self._seconds = collections.deque[float](maxlen=_STEPS)
    self._last: float | None = None  # When the last step was done.
    self._silent, self._paused = 0.0, False
    self._end = threading.Event()

  @contextlib.contextmanager
  def watching(self) -> Iterator["Watchdog"]:
    """Watches the steps inside this context."""
    thread = threading.Thread(target=self._watch, daemon=True)
    if self._times:
      thread.start()
    try:
      yield self
    finally:
      self._end.set()

  def step(self) -> None:
    """Reports that a step is done."""
    now = time.monotonic()
    if self._last is not None:
      self._seconds.append(now - self._last)
    self._last, self._silent = now, 0.0

  @contextlib.contextmanager
  def stepping(self) -> Iterator[None]:
    """The steps of a run are done inside this context.

    Its end resets the usual time of a step, so that the work after it may take
    a day, as the work before the first step may.
    """
    try:
      yield
    finally:
      self._silent = 0.0
      self._seconds.clear()

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Allows a day for the work inside, which is not part of a step."""
    self._silent, self._paused = 0.0, True
    try:
      yield
    finally:
      self._last, self._silent, self._paused = None, 0.0, False

  def _watch(self) -> None:
    """Ends the process once a step takes longer than it may."""
    while not self._end.wait(TICK):
      # Ticks are counted, as the clock goes on while the process is stopped.
      self._silent += TICK
      median = statistics.median([*self._seconds] or [0.0])
      longest = MOST_ASIDE
      if median and not self._paused:
        longest = max(LEAST_WAIT, self._times * median)
      if self._silent > longest:
        self.leave(median)

  def leave(self, median: float) -> None:
    """Writes the stacks, prints a line, and ends the process.

    `median` is the usual time of a step in seconds, or 0.
    """
    written = threading.Event()
    with tempfile.TemporaryFile() as file:
      faulthandler.dump_traceback(file)
      file.seek(0)
      stacks = file.read()

    def write() -> None:
      # Google's libraries raise errors of all kinds.
      with contextlib.suppress(Exception):
        self._path.write_bytes(stacks)
        written.set()

    # A thread writes, since the file system of `path` may be what hangs.
    threading.Thread(target=write, daemon=True).start()
    place = f"in {self._path}"
    if not written.wait(WRITE_SECONDS):
      place = "above"
      os.write(2, stacks)  # sys.stderr may be held by a thread.
    other = f", where one takes {median:.2g} s" if median else ""
    message = (
      f"error: no step for {self._silent:.0f} s{other}: a device, another "
      f"host or a file system hangs. The stacks of all threads are {place}; "
      "the same command resumes the run.\n"
    )
    os.write(2, message.encode())
    os._exit(MENDABLE)
