"""Ends a run that makes no more steps, because a device or a peer hangs."""

import collections
import contextlib
import faulthandler
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator

from etils import epath

from vit_jax.runtime.restarts import MENDABLE

_TICK = 1.0  # Seconds between two checks.
_LEAST = 600.0  # A shorter wait for a step, in seconds, never ends a run.
_STEPS = 100  # Number of recent steps whose median is the usual time.
_WRITE_SECONDS = 10.0  # Longest wait for the file of stacks.


class Watchdog:
  """Ends this process if a step takes many times as long as usual.

  It then writes the stacks of all threads to a file, prints a line, and leaves
  with the exit code that `--restarts` restarts. Time in which the process was
  stopped itself, as by Ctrl-Z, does not count. A hang in compiled code that
  keeps Python's lock is not noticed.

  Args:
    times: How many times the median of the last 100 steps a step may take, and
      at least 10 minutes; 0 never ends the process.
    path: The file for the stacks, local or such as gs://bucket/run/stacks.txt.
  """

  def __init__(self, times: float, path: epath.Path):
    self._times, self._path = times, path
    self._seconds = collections.deque[float](maxlen=_STEPS)
    self._last: float | None = None  # When the last step was done.
    self._silent = 0.0
    self._paused = False
    self._end = threading.Event()

  @contextlib.contextmanager
  def watching(self) -> Iterator["Watchdog"]:
    """Watches while inside."""
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
  def paused(self) -> Iterator[None]:
    """Does not watch while inside, and does not count it as part of a step."""
    self._paused = True
    try:
      yield
    finally:
      self._last, self._silent = None, 0.0
      self._paused = False

  def _watch(self) -> None:
    while not self._end.wait(_TICK):
      # Ticks are counted, as the clock goes on while the process is stopped.
      self._silent = 0.0 if self._paused else self._silent + _TICK
      if self._seconds:
        usual = statistics.median([*self._seconds])
        if self._silent > max(_LEAST, self._times * usual):
          self._leave(usual)

  def _leave(self, usual: float) -> None:
    stacks, written = _stacks(), threading.Event()

    def write() -> None:
      # Google's libraries raise errors of all kinds.
      with contextlib.suppress(Exception):
        self._path.write_bytes(stacks)
        written.set()

    # Its file system may be what hangs.
    threading.Thread(target=write, daemon=True).start()
    if written.wait(_WRITE_SECONDS):
      place = f"in {self._path}"
    else:
      place = "above"
      os.write(2, stacks)  # sys.stderr may be held by a thread.
    message = (
      f"error: no step for {self._silent:.0f} s, where one takes {usual:.2g} "
      "s: a device, another host or a file system hangs. The stacks of all "
      f"threads are {place}; the same command resumes the run.\n"
    )
    os.write(2, message.encode())
    os._exit(MENDABLE)


def _stacks() -> bytes:
  """The Python stacks of all threads."""
  with tempfile.TemporaryFile() as file:
    faulthandler.dump_traceback(file)
    file.seek(0)
    return file.read()
