"""Averages the training metrics between two reads, and measures speed."""

import collections
import contextlib
import time
from collections.abc import Iterator

import jax
import numpy as np

from vit_jax.runtime.metric_keys import Split

# Metrics of a step that are neither its loss, a score nor the gradient's norm.
_COUNTS = ("learning_rate", "skipped_images", "skipped_steps")


class Meter:
  """Averages the training metrics, and measures images per second.

  Metrics stay on the device until they are read. `add` waits until the step
  before last is done, so that the host is never more than two steps ahead.
  `skipped` has (step, metrics) of the most recent consecutive steps that were
  not applied because they were not finite; it is empty if the last was applied.
  `most` is the most steps between two reads; 0 if it is never read.
  """

  def __init__(self, batch_size: int, most: int):
    self.skipped: list[tuple[int, dict[str, jax.Array]]] = []
    self._batch_size = batch_size
    self._window = collections.deque[dict[str, jax.Array]](maxlen=max(most, 3))
    self._running = collections.deque[tuple[int, dict[str, jax.Array]]]()
    self._timed_steps = 0
    self._start: float | None = None  # None until the first step has compiled.
    self._pauses = 0.0

  def add(self, step: int, metrics: dict[str, jax.Array]) -> None:
    """Adds the metrics of one step."""
    self._window.append(metrics)
    self._running.append((step, metrics))
    if self._start is None:
      self._wait(0)
      self._start = time.perf_counter()
    else:
      self._timed_steps += 1
      self._wait(2)

  def _wait(self, most: int) -> None:
    """Waits until at most this many steps are under way."""
    while len(self._running) > most:
      step, metrics = self._running.popleft()
      if int(metrics["skipped_steps"]):
        self.skipped.append((step, metrics))
      else:
        self.skipped.clear()

  def read(self) -> dict[str, float]:
    """The metrics since the last read, by their keys.

    Loss, gradient norm and scores are means over the steps that were applied;
    the learning rate is the last step's.
    """
    self._wait(0)
    window = jax.device_get([*self._window])
    applied = [m for m in window if not m["skipped_steps"]] or window
    scores = window[0].keys() - {"loss", "gradient_norm", *_COUNTS}
    row = {
      name: float(np.mean([m[name] for m in applied]))
      for name in ("loss", *sorted(scores), "gradient_norm")
    }
    row["learning_rate"] = float(window[-1]["learning_rate"])
    for name in ("skipped_images", "skipped_steps"):
      row[name] = sum(int(m[name]) for m in window)
    now = time.perf_counter()
    if self._timed_steps and self._start is not None:
      seconds = now - self._start - self._pauses
      images = self._timed_steps * self._batch_size
      row["images_per_second"] = images / seconds
    self._window.clear()
    self._timed_steps, self._start, self._pauses = 0, now, 0.0
    return Split.TRAIN.keyed(row)

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Keeps the time spent inside from counting in images per second."""
    self._wait(0)
    start = time.perf_counter()
    yield
    self._pauses += time.perf_counter() - start
