"""Opens Orbax's manager of a run's checkpoints, and keeps it quiet.

With each checkpoint it keeps an evaluation, by which the best is found.
"""

import asyncio
import contextlib
import functools
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging as absl_logging
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint import checkpoint_managers as policies
from orbax.checkpoint import type_handlers
from orbax.checkpoint.path import atomicity

from vit_jax.runtime import atomic_file
from vit_jax.workdir import bucket

CLASSES = ("eval/top1",)
"""The default score, that of classes."""
_METRICS = "metrics/metrics"  # Orbax's file, in the folder of a checkpoint.


def open_manager(
  folder: epath.Path, keep_last: int, read_only: bool, keys: Sequence[str]
) -> ocp.CheckpointManager:
  """The manager of a folder of checkpoints; arguments as for `Checkpoints`."""
  # Orbax warns of every folder that it is not to write to.
  quiet = _only_errors() if read_only else contextlib.nullcontext()
  options = _options(keep_last, read_only, keys)
  if not bucket.is_address(folder):  # An object is safe once it is there.
    options.temporary_path_class = _Draft
  with quiet:
    return ocp.CheckpointManager(
      folder, options=options, handler_registry=_handlers()
    )


def _options(
  keep_last: int, read_only: bool, keys: Sequence[str]
) -> ocp.CheckpointManagerOptions:
  """Has Orbax keep the newest checkpoints and the best one."""
  score = functools.partial(_score_of, keys=keys)
  best = policies.BestN(
    get_metric_fn=score, n=1, keep_checkpoints_without_metrics=False
  )
  kept = [policies.LatestN(keep_last), best]
  return ocp.CheckpointManagerOptions(
    preservation_policy=policies.AnyPreservationPolicy(kept),
    best_fn=score,  # Without it Orbax keeps no metrics on disk.
    best_mode="max",
    # Otherwise a folder that cannot be made leaves threads waiting for it, and
    # those keep the process from ending for minutes.
    async_options=ocp.options.AsyncOptions(
      create_directories_asynchronously=False
    ),
    save_interval_steps=int(not read_only),
    create=not read_only,
    read_only=read_only,
    # Readers do without the metrics, as damaged ones would stop Orbax.
    lightweight_initialize=read_only,
    cleanup_tmp_directories=not read_only,
  )


class _Draft(atomicity.AtomicRenameTemporaryPath):
  """Gives a checkpoint its name once it and the run's rows are on the disk."""

  async def finalize(self) -> None:
    # In the background; Orbax deletes older checkpoints after this.
    final = self.get_final()
    if not final.name.isdecimal():  # One of the folders in a checkpoint.
      return await super().finalize()
    whole = self._final_path = final.with_name(f"whole.{self.get().name}")
    await super().finalize()
    self._final_path = final
    run = final.parent.parent
    rows = run.glob("*.jsonl")
    await asyncio.to_thread(atomic_file.sync, *rows, run, run.parent)
    await asyncio.to_thread(atomic_file.commit, whole, final)


class _ReadsTogether(type_handlers.TypeHandler):
  """Waits, after a read has failed, for the others that it was begun with.

  Orbax reads all arrays at once and closes its event loop when the first read
  fails. Each of the others would then print a traceback about the closed loop
  below our one line, and go on reading files that we are about to move.
  """

  async def deserialize(self, infos: Any, args: Any = None) -> Any:
    before = asyncio.all_tasks()
    try:
      return await super().deserialize(infos, args)
    finally:
      while reads := asyncio.all_tasks() - before:
        await asyncio.gather(*reads, return_exceptions=True)


class _ArrayHandler(_ReadsTogether, type_handlers.ArrayHandler):
  """Saves arrays, and reads them onto devices.

  Every device that holds a copy of an array saves a part of it, for which Orbax
  compiles a program for each shape. For a part of less than a MiB, such as a
  bias's, that takes longer than it saves: one device saves the array whole.
  """

  def __init__(self):
    super().__init__(min_slice_bytes_for_replica_parallel=2**20)


class _NumpyHandler(_ReadsTogether, type_handlers.NumpyHandler):
  """Reads arrays into the host's memory."""


def _handlers() -> ocp.handlers.CheckpointHandlerRegistry:
  """Orbax's handlers for what we save, and ours for `restore_args`."""
  arrays = type_handlers.create_type_handler_registry(
    (jax.Array, _ArrayHandler()), (np.ndarray, _NumpyHandler())
  )
  trees = ocp.PyTreeCheckpointHandler(type_handler_registry=arrays)
  registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
  for args in (ocp.args.PyTreeSave, ocp.args.PyTreeRestore):
    registry.add(None, args, trees)
  for args in (ocp.args.JsonSave, ocp.args.JsonRestore):
    registry.add(None, args, ocp.JsonCheckpointHandler())
  return registry


def restore_args(shapes: Any) -> ocp.args.PyTreeRestore:
  """Asks for a tree of arrays, each laid out as its leaf in `shapes`."""
  leaves = ocp.checkpoint_utils.construct_restore_args(shapes)
  return ocp.args.PyTreeRestore(shapes, restore_args=leaves)


def read_score(checkpoint: epath.Path, keys: Sequence[str]) -> float | None:
  """The score of a checkpoint; None if the run did not evaluate there.

  `keys` are the metrics that may be the score; none is above 1. Raises
  ValueError if its file is damaged, so that it cannot be chosen as the best,
  and OSError if it cannot be read.
  """
  metrics, why = {}, f"their file holds no {keys[0]}"
  try:
    metrics = json.loads((checkpoint / _METRICS).read_bytes())
  except (FileNotFoundError, NotADirectoryError):
    return None
  except IsADirectoryError:
    why = "their file is a folder"
  except (ValueError, RecursionError) as error:
    why = str(error)
  score = _score_of(metrics, keys) if isinstance(metrics, dict) else None
  if not isinstance(score, int | float) or not score <= 1:  # Or it is NaN.
    raise ValueError(
      f"the metrics of checkpoint {checkpoint.name} are damaged ({why}): it "
      "cannot be chosen as the best."
    )
  return score


def _score_of(metrics: Mapping[str, Any], keys: Sequence[str]) -> Any:
  """The first of these metrics that an evaluation has; None if it has none."""
  return next((metrics[key] for key in keys if key in metrics), None)


def set_damaged_aside(folder: epath.Path, keys: Sequence[str]) -> list[str]:
  """Renames damaged metrics, which Orbax fails on; returns a line for each."""
  notes = []
  if jax.process_index() == 0 and folder.exists():
    notes = [n for p in folder.glob("*[0-9]") if (n := _mend(p, keys))]
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices("damaged metrics are set aside")
  return notes


def _mend(checkpoint: epath.Path, keys: Sequence[str]) -> str | None:
  try:
    read_score(checkpoint, keys)
  except ValueError as error:
    path = checkpoint / _METRICS
    path.rename(path.with_name("damaged"))
    return str(error)
  return None


class QuietSaves:
  """Hides what Orbax prints of failed saves, which `save` returns as a line.

  It also warns of each save without an evaluation, which is as it should be.

  A save runs in threads and event loops of Orbax, so nothing can be waited for
  as in `_ReadsTogether`. Orbax logs a traceback, and asyncio logs one for
  each write that fails later. A write that ends after its loop can only say so
  to the interpreter's hook: with a full disk that made 370 lines.

  They are hidden until `end` is called. This is not a context manager: one that
  is never left ends when it is garbage-collected.
  """

  def __init__(self):
    self._shown = sys.unraisablehook
    self._filters = [
      # Functions of this object, as others may hide the same.
      (absl_logging.get_absl_logger(), lambda record: _is_wanted(record)),
      (logging.getLogger("asyncio"), lambda record: _is_wanted(record)),
    ]
    for logger, keeps in self._filters:
      logger.addFilter(keeps)
    sys.unraisablehook = self._hook

  def _hook(self, unraisable: Any) -> None:
    if str(unraisable.exc_value) != "Event loop is closed":
      self._shown(unraisable)

  def end(self) -> None:
    """Shows everything again."""
    sys.unraisablehook = self._shown
    for logger, keeps in self._filters:
      logger.removeFilter(keeps)


def _is_wanted(record: logging.LogRecord) -> bool:
  message = record.getMessage()
  hidden = ("exception was never retrieved", "did not provide metrics")
  if any(text in message for text in hidden):
    return False
  return not (record.exc_info and "orbax" in record.pathname)


@contextlib.contextmanager
def _only_errors() -> Iterator[None]:
  """Hides Orbax's warnings."""
  verbosity = absl_logging.get_verbosity()
  absl_logging.set_verbosity(absl_logging.ERROR)
  try:
    yield
  finally:
    absl_logging.set_verbosity(verbosity)
