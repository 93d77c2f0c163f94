"""Measures a run, and writes its metrics."""

import collections
import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from etils import epath
from jaxtyping import UInt8

from vit_jax.workdir.event_file import EventFile
from vit_jax.workdir.rows import RowFile, read_rows, to_line
from vit_jax.workdir.wandb_log import WandbLog

__all__ = ["Meter", "MetricWriter", "read_rows"]

_ROWS = "metrics.jsonl"


# What a step measures besides its loss, its score and the gradient's norm.
_COUNTS = ("learning_rate", "skipped_images", "skipped_steps")


class Meter:
  """Averages the training metrics, and measures images per second.

  Metrics stay on the device until they are read. `add` waits until the step
  before last is done, so that the host is never more than two steps ahead.

  Attributes:
    skipped: (step, metrics) of the most recent consecutive steps that were not
      applied because they were not finite; empty if the last was applied.

  Args:
    batch_size: The number of examples in a step.
    most: The most steps between two reads; 0 if it is never read.
  """

  def __init__(self, batch_size: int, most: int):
    self.skipped: list[tuple[int, dict[str, jax.Array]]] = []
    self._batch_size = batch_size
    self._window: collections.deque[dict[str, jax.Array]]
    self._window = collections.deque(maxlen=max(most, 3))
    self._running: collections.deque[tuple[int, dict[str, jax.Array]]]
    self._running = collections.deque()
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
      return
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
    """The metrics since the last read, as `train/...`.

    Loss, gradient norm and score are means over the steps that were
    applied; the learning rate is the last step's.
    """
    self._wait(0)
    window = jax.device_get(list(self._window))
    applied = [m for m in window if not m["skipped_steps"]] or window
    scores = window[0].keys() - {"loss", "gradient_norm", *_COUNTS}
    row: dict[str, float] = {
      **{
        f"train/{name}": float(np.mean([m[name] for m in applied]))
        for name in ("loss", *sorted(scores), "gradient_norm")
      },
      "train/learning_rate": float(window[-1]["learning_rate"]),
      "train/skipped_images": sum(int(m["skipped_images"]) for m in window),
      "train/skipped_steps": sum(int(m["skipped_steps"]) for m in window),
    }
    now = time.perf_counter()
    if self._timed_steps and self._start is not None:
      seconds = now - self._start - self._pauses
      images = self._timed_steps * self._batch_size
      row["train/images_per_second"] = images / seconds
    self._window.clear()
    self._timed_steps = 0
    self._start, self._pauses = now, 0.0
    return row

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Keeps the time spent inside from counting in images per second."""
    self._wait(0)
    start = time.perf_counter()
    yield
    self._pauses += time.perf_counter() - start


class MetricWriter:
  """Writes metrics to `metrics.jsonl`, TensorBoard and Weights & Biases.

  `workdir/metrics.jsonl` has a JSON object a line, with `step` and keys such as
  `train/loss`. Only the first process writes.

  If one of the three cannot be written, the others still are. An OSError tells
  the caller once, and again only if it fails after a success.

  Attributes:
    notes: A line for each thing that was broken in files of earlier starts.

  Args:
    first_step: The step from which the run starts. Rows beyond it, which a run
      that was stopped wrote and this one will write again, are dropped.
    wandb_log: Receives the same metrics, and is closed with this writer.

  Raises:
    OSError: if the `metrics.jsonl` of an earlier start cannot be replaced.
  """

  def __init__(
    self,
    workdir: epath.Path,
    first_step: int = 0,
    wandb_log: WandbLog | None = None,
  ):
    self.notes: list[str] = []
    self._failing: set[str] = set()
    self._rows: RowFile | None = None
    self._boards: dict[str, EventFile | WandbLog] = {}
    if jax.process_index():
      return
    workdir.mkdir(parents=True, exist_ok=True)
    self._rows = RowFile(workdir / _ROWS, first_step)
    if lines := self._rows.skipped:
      self.notes.append(f"{_ROWS} held {lines} broken lines, dropped now.")
    self._boards["TensorBoard"] = EventFile(workdir / "tensorboard", first_step)
    if wandb_log is not None:
      self._boards["Weights & Biases"] = wandb_log

  def write(self, step: int, values: dict[str, Any]) -> None:
    """Writes a row; nested dictionaries go to `metrics.jsonl` alone.

    Raises:
      OSError: if it cannot be written somewhere.
    """
    if self._rows is None:
      return
    row = {"step": step, **values}
    numbers = {k: v for k, v in values.items() if isinstance(v, int | float)}
    writes: dict[str, Callable[[], None]]
    writes = {_ROWS: functools.partial(self._rows.append, to_line(row))}
    for name, board in self._boards.items():
      writes[name] = functools.partial(board.write, step, numbers)
    self._attempt(writes)

  def write_images(
    self, step: int, images: Mapping[str, UInt8[np.ndarray, "H W 3"]]
  ) -> None:
    """Writes pictures, which `metrics.jsonl` does not get.

    Raises:
      OSError: if they cannot be written somewhere.
    """
    self._attempt(
      {
        name: functools.partial(board.write_images, step, images)
        for name, board in self._boards.items()
      }
    )

  def close(self, failed: bool = False) -> None:
    """Writes the data that still waits.

    Args:
      failed: Whether the run ends by an error, which Weights & Biases shows.

    Raises:
      OSError: if something cannot be written.
    """
    if self._rows is None:
      return
    closes: dict[str, Callable[[], None]] = {_ROWS: self._rows.flush}
    for name, board in self._boards.items():
      closes[name] = (
        board.flush
        if isinstance(board, EventFile)
        else functools.partial(board.close, failed)
      )
    self._attempt(closes)

  def _attempt(self, writes: Mapping[str, Callable[[], None]]) -> None:
    """Calls all; raises one OSError for those that have begun to fail."""
    said = []
    for name, write in writes.items():
      try:
        write()
      except OSError as error:
        if name not in self._failing:
          said.append(f"{name}: {error}")
        self._failing.add(name)
      else:
        self._failing.discard(name)
    if said:
      raise OSError("; ".join(said))
