"""Notices that the run is to stop: SIGTERM, from a person or a scheduler.

Spot and preemptible machines, SLURM and Kubernetes send it some time before
they take the machine.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator

import jax
from jax.experimental import multihost_utils

EXIT_CODE = 128 + signal.SIGTERM  # As shells say it; 0 would mean "complete".


class Interrupted(Exception):
  """The run was told to stop, and has saved its state."""


class Notice:
  """Whether the run is to stop, the same on all its hosts."""

  def __init__(self):
    self._given = False

  def reached(self, step: int) -> bool:
    """Whether to stop after this step, which all hosts must ask about."""
    if jax.process_count() > 1:
      # JAX's own service passes the notice on, and agrees on a step.
      return multihost_utils.reached_preemption_sync_point(step)
    return self._given

  @contextlib.contextmanager
  def awaited(self) -> Iterator["Notice"]:
    """While inside, SIGTERM gives the notice and does no more.

    In a thread other than the first, Python takes no signals, and nor do we.
    """
    first = threading.current_thread() is threading.main_thread()
    if jax.process_count() > 1 or not first:
      yield self
      return
    before = signal.signal(signal.SIGTERM, self._give)
    try:
      yield self
    finally:
      signal.signal(signal.SIGTERM, before)

  def _give(self, *_) -> None:
    self._given = True
