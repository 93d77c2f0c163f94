"""Notices SIGTERM, by which a person or a scheduler stops a run.

Spot and preemptible machines, SLURM and Kubernetes send it some time before
they take the machine away.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator

import jax
from jax.experimental import multihost_utils

EXIT_CODE = 128 + signal.SIGTERM  # A shell's code for it; 0 means "complete".


class Interrupted(Exception):
  """Raised after the run was told to stop and has saved its state."""


class Notice:
  """Records whether the run has to stop, in agreement with all hosts."""

  def __init__(self):
    self._given = False

  def reached(self, step: int) -> bool:
    """Whether to stop after this step; all hosts must ask at every step."""
    if jax.process_count() > 1:
      # JAX's own service passes the notice on, and chooses the step.
      return multihost_utils.reached_preemption_sync_point(step)
    return self._given

  @contextlib.contextmanager
  def awaited(self) -> Iterator["Notice"]:
    """Inside this context, SIGTERM only gives the notice.

    Python handles signals only in the main thread; in another thread this does
    nothing.
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
