"""Measures a run: its metrics, speed and time, and whether it diverged.

Under "time", a row of `metrics.jsonl` has the seconds that the run has spent on
each kind of work since it was last started.
"""

import collections
import contextlib
import datetime
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from vit_jax.runtime.display import Split

# Kinds of work, and the words for them that users read.
KINDS = {
  "steps": "in steps",
  "data": "waiting for data",
  "evaluating": "evaluating",
  "saving": "saving",
  "restoring": "restoring",
  "starting": "starting and compiling",
  "lost": "stopped or redone",
}
RECENT = 10  # Steps at the end of a run that tell whether it diverged.
DIVERGED = 3  # Exit code of a run that has reached its end, but diverged.
_FAR = 10.0  # A run diverged if its loss is this many times that at the start.
_LEAST = 1.0  # A smaller loss at the start, as of a trained head, counts as 1.
ADVICE = (
  "Try a smaller learning rate (--lr, or lr= in Python), more warm-up, or "
  "optimizer.clip_norm."
)
# Metrics of a step besides its loss, its scores and the gradient's norm.
_COUNTS = ("learning_rate", "skipped_images", "skipped_steps")


class Meter:
  """Averages the training metrics, and measures images per second.

  Metrics stay on the device until they are read. `add` waits until at most two
  steps are under way, so that the host does not run far ahead of the device.
  `skipped` has (step, metrics) of the most recent consecutive steps that were
  not applied because they were not finite; it is empty if the last was applied.
  `most` is the largest number of steps between two reads; 0 if there is no
  read.
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
      self.wait(0)
      self._start = time.perf_counter()
    else:
      self._timed_steps += 1
      self.wait(2)

  def wait(self, most: int) -> None:
    """Waits until at most this many steps are under way."""
    while len(self._running) > most:
      step, metrics = self._running.popleft()
      if int(metrics["skipped_steps"]):
        self.skipped.append((step, metrics))
      else:
        self.skipped.clear()

  @property
  def has_unread(self) -> bool:
    """Whether a step was added since the last read."""
    return bool(self._window)

  def read(self) -> dict[str, float]:
    """The metrics since the last read, by their keys.

    Loss, gradient norm and scores are means over the steps that were applied,
    or over all if none was; the learning rate is the last step's, and skipped
    images and steps are counted. At least one step must be unread.
    """
    self.wait(0)
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
    """Leaves the time inside the context out of images per second."""
    self.wait(0)
    start = time.perf_counter()
    yield
    # Time before the first step, or before the last read, is not measured.
    if self._start is not None:
      self._pauses += time.perf_counter() - max(start, self._start)


class Stopwatch:
  """Measures the time since this start of a run, by kind of work.

  Time that is counted for no other kind counts as steps.
  """

  def __init__(self):
    self._begin = time.perf_counter()
    self._seconds = dict.fromkeys(KINDS.keys() - {"steps", "lost"}, 0.0)

  @contextlib.contextmanager
  def on(self, kind: str) -> Iterator[None]:
    """Counts the time inside the context for this kind of work."""
    begin = time.perf_counter()
    try:
      yield
    finally:
      self._seconds[kind] += time.perf_counter() - begin

  def set_up(self) -> None:
    """Counts the time so far as start-up, except what other kinds have."""
    self._seconds["starting"] += self._rest()

  def row(self) -> dict[str, dict[str, float]]:
    """Seconds spent so far on each kind of work, for `metrics.jsonl`."""
    spent = self._seconds | {"steps": self._rest()}
    return {"time": {kind: round(value, 3) for kind, value in spent.items()}}

  def _rest(self) -> float:
    """Seconds that no kind of work was counted for."""
    return time.perf_counter() - self._begin - sum(self._seconds.values())


def time_spent(
  rows: Sequence[Mapping[str, Any]],
  starts: Sequence[Mapping[str, Any]],
  now: Mapping[str, Any] | None = None,
) -> dict[str, float] | None:
  """Seconds that a run has spent on each of `KINDS`, from its first start on.

  Time between the last row of one start and the next start counts as lost,
  whether the run was stopped or failed. If another command began the run anew
  before it had saved anything, that is its first start. A last start that took
  no step, as when a run is complete, does not count, even if it wrote a row.
  The result is None if a version that did not measure began the run.

  Args:
    rows: The rows of `metrics.jsonl`.
    starts: The rows of `starts.jsonl`.
    now: `Stopwatch.row` of the start that is running, if any.
  """
  last_row = max((row["step"] for row in rows), default=math.inf)
  while starts and starts[-1]["step"] >= last_row:
    starts = starts[:-1]
    now = None
  starts = _starts_of_run(starts)
  start_times = [at for at in map(_start_time, starts) if at is not None]
  trained = [row for row in rows if Split.TRAIN.key("loss") in row]
  measured = start_times and len(start_times) == len(starts)
  if not measured or not all(map(_seconds_of, trained)):
    return None
  last: dict[int, dict[str, float]] = {}  # By number of the start.
  for row in filter(_seconds_of, rows):
    before = [i for i, s in enumerate(starts) if s["step"] < row["step"]]
    if not before:
      continue
    seconds = _seconds_of(row)
    earlier = last.get(before[-1], {})
    # A later start may have written a row of the step that it began after. That
    # row is left out, as it has fewer seconds in steps.
    if seconds.get("steps", 0.0) >= earlier.get("steps", 0.0):
      last[before[-1]] = seconds
  newest = len(starts) - 1
  if now is not None:
    last[newest] = _seconds_of(now)
  spent = {k: sum(row.get(k, 0.0) for row in last.values()) for k in KINDS}
  # Starts are recorded to a second.
  whole = start_times[-1] - start_times[0] + sum(last.get(newest, {}).values())
  spent["lost"] = max(0.0, whole - sum(spent.values())) if newest else 0.0
  return spent


def _starts_of_run(
  starts: Sequence[Mapping[str, Any]],
) -> Sequence[Mapping[str, Any]]:
  """The starts since the run was last begun anew by another command, or all."""
  for i in reversed(range(1, len(starts))):
    commands = [start.get("command") for start in starts[i - 1 : i + 1]]
    if starts[i]["step"] == 0 and commands[0] != commands[1]:
      return starts[i:]
  return starts


def shares(spent: Mapping[str, float]) -> list[tuple[str, float]]:
  """The name and the share of each kind of work that took 0.05% or more."""
  whole = sum(spent.values()) or 1.0
  every = [(KINDS[kind], value / whole) for kind, value in spent.items()]
  return [(what, share) for what, share in every if share >= 0.0005]


def _seconds_of(row: Mapping[str, Any]) -> dict[str, float]:
  """The seconds of each kind of work in a row; {} if it has none."""
  seconds = row.get("time")
  seconds = seconds if isinstance(seconds, dict) else {}
  return {k: v for k, v in seconds.items() if isinstance(v, int | float)}


def _start_time(start: Mapping[str, Any]) -> float | None:
  """The time of a start in seconds since 1970; None if it has no valid one."""
  try:
    return datetime.datetime.fromisoformat(start["time"]).timestamp()
  except (KeyError, TypeError, ValueError):
    return None


class DivergedError(FloatingPointError):
  """Raised by a run that has diverged, after it has ended and is saved."""

  exit_code = DIVERGED


def why_diverged(
  losses: Sequence[float], skipped: Sequence[bool], first: float | None
) -> str | None:
  """How a run diverged, judged by its last steps; None if it did not.

  It diverged if more than half of the updates of these steps were not applied,
  or if the median loss of the other steps is more than ten times the loss at
  the start. A run whose loss rises for a while and falls again has not
  diverged. A loss below 1 at the start counts as 1.

  Args:
    losses: The loss of each of the last steps.
    skipped: For each of these steps, whether its update was not finite, and was
      therefore not applied.
    first: The loss at the start; None if it is not known.
  """
  count = sum(skipped)
  if 2 * count > len(skipped):
    return (
      f"{count} of its last {len(skipped)} updates were not finite, and were "
      "not applied"
    )
  applied = [x for x, out in zip(losses, skipped, strict=True) if not out]
  if not applied or first is None or not math.isfinite(first):
    return None
  last = statistics.median(applied)
  if last <= _FAR * max(first, _LEAST):
    return None
  return f"its loss began at {first:.4g} and ended at {last:.4g}"
