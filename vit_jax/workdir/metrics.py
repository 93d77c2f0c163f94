"""What a run measures, and where it is written."""

import collections
import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from etils import epath
from jaxtyping import UInt8
from tensorboardX import SummaryWriter

from vit_jax.workdir.wandb_log import WandbLog


class Meter:
  """Means of the training metrics, and images a second, between two reads.

  Metrics stay on the device until they are read. `add` waits until the step
  before last is done: the host is then never more than two steps ahead.

  Attributes:
    skipped: (step, metrics) of the latest steps done that were not applied,
      since they were not finite: all in a row, none if the latest was applied.

  Args:
    batch_size: Examples a step.
    most: Steps between two reads, at most; 0 if it is never read.
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
    """Takes in the metrics of one step."""
    self._window.append(metrics)
    self._running.append((step, metrics))
    if self._start is None:
      self._wait(0)
      self._start = time.perf_counter()
      return
    self._timed_steps += 1
    self._wait(2)

  def _wait(self, most: int) -> None:
    """Until no more than so many steps are under way."""
    while len(self._running) > most:
      step, metrics = self._running.popleft()
      if int(metrics["skipped_steps"]):
        self.skipped.append((step, metrics))
      else:
        self.skipped.clear()

  def read(self) -> dict[str, float]:
    """`train/...` since the last read; the learning rate is the last one.

    Loss and gradient norm are means over the steps that were applied.
    """
    self._wait(0)
    window = jax.device_get(list(self._window))
    applied = [m for m in window if not m["skipped_steps"]] or window
    row: dict[str, float] = {
      "train/loss": float(np.mean([m["loss"] for m in applied])),
      "train/gradient_norm": float(
        np.mean([m["gradient_norm"] for m in applied])
      ),
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
    """Leaves the time spent inside out of images a second."""
    self._wait(0)
    start = time.perf_counter()
    yield
    self._pauses += time.perf_counter() - start


class MetricWriter:
  """Appends to `workdir/metrics.jsonl` and to TensorBoard files beside it.

  One JSON object a line, with `step` and keys such as `train/loss`. Only the
  first process writes.

  Args:
    workdir: Folder of the run, local or such as gs://bucket/run.
    first_step: Step that the run starts from. Rows beyond it, which a run that
      was stopped wrote and this one writes again, are dropped.
    wandb_log: That gets the same, and is closed with this.
  """

  def __init__(
    self,
    workdir: epath.Path,
    first_step: int = 0,
    wandb_log: WandbLog | None = None,
  ):
    self._active = jax.process_index() == 0
    self._wandb = wandb_log
    if not self._active:
      return
    self._path = workdir / "metrics.jsonl"
    workdir.mkdir(parents=True, exist_ok=True)
    self._rows = ""
    if self._path.exists():
      kept = [r for r in read_rows(self._path) if r["step"] <= first_step]
      self._rows = "".join(map(_line, kept))
      draft = workdir / "metrics.jsonl.part"
      draft.write_text(self._rows)
      draft.replace(self._path)
    self._tensorboard = SummaryWriter(
      os.fspath(workdir / "tensorboard"), purge_step=first_step + 1
    )

  def write(self, step: int, values: dict[str, Any]) -> None:
    """Writes a row; nested dictionaries go to the file alone."""
    if not self._active:
      return
    self._append(_line({"step": step, **values}))
    numbers = {k: v for k, v in values.items() if isinstance(v, int | float)}
    for key, value in numbers.items():
      self._tensorboard.add_scalar(key, value, step)
    if self._wandb is not None:
      self._wandb.write(step, numbers)

  def write_images(
    self, step: int, images: Mapping[str, UInt8[np.ndarray, "H W 3"]]
  ) -> None:
    """Writes pictures, which the file does not get."""
    if not self._active:
      return
    for key, image in images.items():
      self._tensorboard.add_image(key, image, step, dataformats="HWC")
    if self._wandb is not None:
      self._wandb.write_images(step, images)

  def _append(self, line: str) -> None:
    if "://" not in str(self._path):
      with self._path.open("a") as file:
        file.write(line)
      return
    self._rows += line  # Object stores cannot append.
    self._path.write_text(self._rows)

  def close(self, failed: bool = False) -> None:
    """Writes out what is still buffered, of a run that failed or has not.

    Raises:
      OSError: if it could not.
    """
    if self._active:
      self._tensorboard.close()
    if self._wandb is not None:
      self._wandb.close(failed)


class Tracer:
  """Writes a trace of some steps, to be read by XProf or TensorBoard.

  Args:
    folder: For the trace.
    begin: First step traced.
    steps: Steps to trace; 0 traces none.
    last: Of the run, whose end ends the trace.
  """

  def __init__(self, folder: str, begin: int, steps: int, last: int):
    self._folder, self._begin = folder, begin
    self._end = min(begin + steps - 1, last) if steps else 0

  def before(self, step: int) -> None:
    """Starts the trace if it is to start with this step."""
    if step == self._begin <= self._end:
      jax.profiler.start_trace(self._folder)

  def after(self, step: int, metrics: Any) -> None:
    """Ends the trace if this step, which gave the metrics, was the last."""
    if self._begin <= step == self._end:
      jax.block_until_ready(metrics)
      jax.profiler.stop_trace()


def read_rows(path: epath.Path) -> list[dict[str, Any]]:
  """The rows of a `metrics.jsonl`, without a last line that was cut short."""
  rows = []
  for line in path.read_text().splitlines():
    try:
      rows.append(json.loads(line))
    except json.JSONDecodeError:
      break
  return rows


def _line(row: dict[str, Any]) -> str:
  """A row as JSON, which has no NaN and no infinity: they become null."""
  finite = {
    key: None if isinstance(v, float) and not math.isfinite(v) else v
    for key, v in row.items()
  }
  return json.dumps(finite) + "\n"
