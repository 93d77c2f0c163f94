"""Opens, fills and closes the files that a run writes beside its checkpoints.

If one of them cannot be written, a line says so, and the run goes on.
"""

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from vit_jax.data.batching.batches import batch_ids
from vit_jax.data.batching.workers import BatchIterator
from vit_jax.run.plan import Plan
from vit_jax.runtime import hosts
from vit_jax.runtime.display import Display
from vit_jax.runtime.meter import ADVICE, Meter, Stopwatch, time_spent
from vit_jax.runtime.settings import to_dict
from vit_jax.runtime.stops import Interrupted
from vit_jax.training import sharding
from vit_jax.training.state import TrainState
from vit_jax.workdir import description as descriptions
from vit_jax.workdir.checkpoint import Checkpoints
from vit_jax.workdir.checkpoint_reader import items
from vit_jax.workdir.records import (
  MetricWriter,
  WandbLog,
  keep_unreadable,
  read_metrics,
  read_starts,
  record_start,
)
from vit_jax.workdir.rows import AppendFile

DIGESTED = {"loss", "gradient_norm"}  # Metrics that a digest holds.
_GOES_ON = "; the run goes on"
_REPORTED = ("loss", "gradient_norm", "learning_rate")


@dataclasses.dataclass(frozen=True)
class Outputs:
  """The display, the files and the self-measurements of a run.

  `spent` measures where the time goes; `meter` collects the metrics of the
  steps between two log lines.
  """

  display: Display
  checkpoints: Checkpoints
  writer: MetricWriter
  spent: Stopwatch
  meter: Meter

  def write(self, step: int, row: dict[str, Any]) -> None:
    """Writes a row of metrics, with the seconds spent on each kind of work.

    The run does not stop for a failure.
    """
    with optional_write(self.display, f"step {step:,}: the metrics", _GOES_ON):
      self.writer.write(step, row | self.spent.row())

  def write_images(self, step: int, images: Mapping[str, Any]) -> None:
    """Writes pictures by their names; the run does not stop for a failure."""
    with optional_write(self.display, f"step {step:,}: the pictures", _GOES_ON):
      self.writer.write_images(step, images)

  def list_unreadable(self, plan: Plan, batches: BatchIterator) -> None:
    """Prints at the end which images were skipped, and saves their names."""
    with optional_write(self.display, "the list of unreadable images"):
      if images := batches.unreadable | plan.evaluation.stream.unreadable:
        self.display.note(keep_unreadable(self.checkpoints.folder, images))

  def time_spent(self) -> dict[str, float] | None:
    """The seconds that the run spent on each kind of work.

    The result is None if the run's files cannot be read, or if a version that
    did not measure began the run.
    """
    folder = self.checkpoints.folder
    with contextlib.suppress(OSError):
      rows = read_metrics(folder).rows
      starts = read_starts(folder).rows
      return time_spent(rows, starts, self.spent.row())

  def close(self, kind: Any, *_: Any) -> None:
    """Closes the metrics; a failure does not change the run's result.

    `kind` is the class of the exception that ends the run; None without one.
    """
    with optional_write(self.display, "the last metrics"):
      self.writer.close(failed=kind is not None)


def say_interrupted(display: Display, kind: Any, error: Any, _: Any) -> None:
  """Prints the last line of a run that was told to stop, after it is saved."""
  if kind is Interrupted:
    display.note(f"{error}; the same command resumes the run.")


def open_outputs(
  plan: Plan,
  checkpoints: Checkpoints,
  display: Display,
  spent: Stopwatch,
  first: int,
) -> Outputs:
  """Records that the run starts after step `first`, and opens its metrics."""
  folder, wandb_log = checkpoints.folder, None
  with optional_write(display, "starts.jsonl"):
    record_start(folder, first)
  if (project := plan.settings.wandb_project) and jax.process_index() == 0:
    with optional_write(display, "Weights & Biases", _GOES_ON):
      wandb_log = WandbLog(folder, project, to_dict(plan.settings))
      display.header([("wandb", wandb_log.place)])
  writer = MetricWriter(folder, first, wandb_log)
  for note in writer.notes:
    display.note(note)
  meter = Meter(plan.settings.batch_size, plan.lengths.log_every)
  return Outputs(display, checkpoints, writer, spent, meter)


@contextlib.contextmanager
def optional_write(
  display: Display, what: str, then: str = ""
) -> Iterator[None]:
  """Reports a failed write in a line; the run does not stop for it.

  `what` begins the line, and `then` ends it.
  """
  try:
    yield
  except OSError as error:
    display.note(f"{what} could not be written ({error}){then}.")


@contextlib.contextmanager
def log_file(
  checkpoints: Checkpoints, display: Display
) -> Iterator[Callable[[str], None]]:
  """Yields a function that adds lines to `log.txt`."""
  file = AppendFile(checkpoints.folder / "log.txt")

  def write(text: str) -> None:
    """Adds the lines of a text, each behind the date and the time."""
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    lines = (f"{now}  {line}\n" for line in text.splitlines())
    file.append("".join(lines).encode())

  try:
    yield write
  finally:
    with optional_write(display, "log.txt"):
      file.flush()


def jit_digest(plan: Plan) -> Callable:
  """A function from a state, the batch that led to it and the step's metrics.

  It returns the state and the step's digest: two runs with equal digests
  computed the same steps. Give the returned state to the next train step: its
  `step` comes out of the checksums' program, so the train step runs after it.
  """
  seed = np.int64(plan.settings.seed)
  whole = sharding.replicated_sharding(plan.mesh)
  summed = hosts.compile_together(
    jax.jit(descriptions.digest_of, out_shardings=whole)
  )
  if plan.mesh.size == 1 and jax.default_backend() == "cpu":
    summed = _digest_on_host  # A program takes a second or more to compile.

  def digest(state: TrainState, batch: Any, metrics: dict[str, Any]) -> Any:
    """The state, whose `step` waits for the checksums, and the digest."""
    step, sums = summed(items(state), batch, state.step)
    norms = {k: metrics[k] for k in metrics.keys() & DIGESTED}
    return dataclasses.replace(state, step=step), {
      **sums,
      **norms,
      "seed": seed,
    }

  return digest


def _digest_on_host(trees: Any, batch: Any, step: Any) -> tuple[Any, Any]:
  """Returns `step`, and the digest of the trees and the batch by NumPy."""
  return step, descriptions.digest(trees, batch, descriptions.checksum_on_host)


def report_skipped(plan: Plan, outputs: Outputs) -> str:
  """Writes the non-finite steps to a file, and returns the error message."""
  rows = [
    {
      "step": step,
      **{key: str(metrics[key]) for key in _REPORTED},
      "images": batch_ids(
        plan.shown, plan.settings.batch_size, plan.settings.seed, step - 1
      ),
    }
    for step, metrics in outputs.meter.skipped
  ]
  path = outputs.checkpoints.folder / "not_finite.json"
  if jax.process_index() == 0:
    with optional_write(outputs.display, str(path)):
      path.write_text(json.dumps(rows, indent=1))
  last = rows[-1]
  return (
    f"the loss or its gradient was not finite in {len(rows)} steps in a row, "
    f"up to step {last['step']:,}, at a learning rate of "
    f"{last['learning_rate']}. None of these updates was applied, and the "
    f"state before them is saved; {path} names their images. {ADVICE}"
  )
