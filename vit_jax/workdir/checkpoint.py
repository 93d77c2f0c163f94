"""Saves a run's checkpoints with Orbax, and opens those of a run.

`workdir/checkpoints/<step>/` holds `params`, `opt_state`, `averaged_params` if
the run averages, `objective_state` if its objective has one, and a
`description` (description.py), so that evaluating the run and going on with it
need nothing else. All arrays that are read are compared with the checksums in
the description. The newest checkpoints and the best one are kept.
"""

import concurrent.futures
import contextlib
import itertools
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from etils import epath

from vit_jax.runtime import hints, hosts
from vit_jax.training.state import TrainState
from vit_jax.workdir import bucket, orbax_files
from vit_jax.workdir.checkpoint_reader import CheckpointReader, KeyOf, items
from vit_jax.workdir.description import checksums
from vit_jax.workdir.orbax_files import CLASSES

_SET_ASIDE = """\
Checkpoints that could not be read, named after their steps. The run
went on from an older one.
"""


class Checkpoints(CheckpointReader):
  """The checkpoints of one run, to be saved and read.

  `save` returns at once, and saving goes on in the background; `close` waits
  for it.

  Args:
    workdir: The run's folder, local or an address such as gs://bucket/run.
    keep_last: How many of the newest checkpoints to keep, beside the best.
    read_only: Whether nothing is written to the folder, to which another
      process may write.
    keys: The metrics that may be the score by which the best checkpoint is
      found; the score is the first of them that an evaluation has.
    key_of: A function from the description of a run that is only read to the
      metric that is its score; by default the metric that the description
      names, or `keys`.
    described: The descriptions that have been read already, by their steps.

  Raises:
    ValueError: if `keep_last` is below 1.
    OSError: if the folder cannot be opened.
  """

  def __init__(
    self,
    workdir: str,
    keep_last: int = 2,
    *,
    read_only: bool = False,
    keys: Sequence[str] = CLASSES,
    key_of: KeyOf | None = None,
    described: Mapping[int, dict[str, Any]] | None = None,
  ):
    if keep_last < 1:
      raise ValueError(f"keep_last={keep_last} must be 1 or more.")
    super().__init__(workdir, read_only=read_only, keys=keys, key_of=key_of)
    self._descriptions |= described or {}
    self._keep_last = keep_last
    self._saving: tuple[int, concurrent.futures.Future[Any]] | None = None
    self._problem: str | None = None  # Why the newest save failed.
    self._failed = False
    self._show = orbax_files.hide_tracebacks()

  @property
  def latest_step(self) -> int | None:
    """The step of the newest checkpoint; None if there is no checkpoint.

    A checkpoint that is still being saved counts as well.
    """
    return self._saving[0] if self._saving else super().latest_step

  def save(
    self,
    state: TrainState,
    step: int,
    description: dict[str, Any],
    metrics: dict[str, Any] | None,
  ) -> str | None:
    """Begins to save the state after `step` steps.

    The checksums are added to the description. `metrics` are those of the
    evaluation after this step, if there was one. A save that fails raises
    nothing. Returns a line on what went wrong, with this save or with the
    previous one, which ran in the background; None if nothing did. Checkpoints
    saved earlier are unharmed.
    """
    trees = items(state)
    description = {**description, "checksums": checksums(trees)}
    problem = self.wait()
    self._problem = None
    score = orbax_files.score_of(metrics or {}, self._keys)
    try:
      self._make_room(trees)
      if any(there >= step for there in self._steps):
        raise ValueError(f"there is one of step {self.latest_step} already")
      finish = orbax_files.begin(self._path_of_step(step), trees, description)
    except Exception as error:  # Orbax raises errors of all kinds.
      return self._note_failure(step, error)
    done = concurrent.futures.Future[Any]()
    self._saving = step, done

    def run() -> None:
      """Completes the checkpoint, and deletes old ones; runs in a thread."""
      try:
        finish(metrics)
        done.set_result(self._delete_old({**self._steps, step: score}))
      except BaseException as error:
        done.set_exception(error)

    # No executor: its threads would keep the process from ending.
    threading.Thread(target=run, daemon=True).start()
    return problem

  def _delete_old(
    self, scores: dict[int, float | None]
  ) -> dict[int, float | None]:
    """Deletes checkpoints that are not kept; returns the scores of the rest."""
    keep = {*sorted(scores)[-self._keep_last :], orbax_files.best(scores)}
    for old in scores.keys() - keep if jax.process_index() == 0 else ():
      orbax_files.delete(self._path_of_step(old))
    return {step: scores[step] for step in scores.keys() & keep}

  def wait(self) -> str | None:
    """Waits until the last save is on disk; returns a line if it failed."""
    if self._saving is None:
      return None
    step, done = self._saving
    try:
      self._steps = done.result()
    except Exception as error:
      return self._note_failure(step, error)
    finally:
      self._saving = None
    return None

  def _note_failure(self, step: int | None, error: Exception) -> str:
    """Notes that a save failed, and returns the line on it."""
    self._failed = True
    why = bucket.reason(error)
    self._problem = f"the checkpoint of step {step} could not be saved ({why})"
    return self._problem

  def _make_room(self, trees: dict[str, Any]) -> None:
    """Deletes partial checkpoints; raises OSError if the next will not fit."""
    folder = self._steps_folder
    if jax.process_index() or bucket.is_address(folder) or not folder.exists():
      return
    with contextlib.suppress(OSError):
      orbax_files.delete_partial(folder)
    # Compression leaves about this much of the arrays.
    size = 0.9 * sum(x.nbytes for x in jax.tree.leaves(trees))
    if self._steps:  # The next checkpoint is about as large as the newest.
      size = sum(bucket.sizes(self._path_of_step(max(self._steps))).values())
    free = shutil.disk_usage(folder).free
    if size > free and jax.process_count() == 1:  # Hosts could disagree.
      raise OSError(
        f"it takes {size / 1e6:.1f} MB, and {free / 1e6:.1f} MB are free"
      )

  def set_aside(self, step: int) -> epath.Path:
    """Moves a checkpoint to `workdir/damaged`; returns its new place."""
    self._descriptions.pop(step, None)
    place = self.folder / "damaged" / str(step)
    if jax.process_index() == 0:
      numbers = itertools.count(2)
      while place.exists():
        place = place.with_name(f"{step}_{next(numbers)}")
      place.parent.mkdir(exist_ok=True)
      # On a store, a folder exists once it holds an object.
      (place.parent / "README.txt").write_text(_SET_ASIDE)
      self._path_of_step(step).rename(place)
    hosts.meet(f"set aside {step}")
    self._steps.pop(step)
    return place

  def close(self) -> None:
    """Waits until everything is on disk; raises OSError if it cannot be."""
    self.wait()
    # After a failed save, other writes of it may still fail, and log that.
    if not self._failed:
      self._show()
    if self._problem:
      newest = self.latest_step
      good = "there is no other" if newest is None else f"step {newest} is good"
      raise OSError(f"{self._problem}; {good}.")


def is_run(path: str) -> bool:
  """Whether a folder, local or on gs://, is the workdir of a run."""
  if bucket.is_address(path) and not path.startswith("gs://"):
    return False
  try:
    return (epath.Path(path).expanduser() / "checkpoints").is_dir()
  except ImportError:  # Without gcsfs, only files over https can be read.
    return False


def open_run(workdir: str, key_of: KeyOf | None = None) -> Checkpoints:
  """Opens a run's checkpoints, to be read only; `key_of` as for `Checkpoints`.

  Raises ValueError if the folder holds none, and OSError if it cannot be read.
  """
  bucket.check(workdir, writes=False)
  if not is_run(workdir):
    needed = "holds no checkpoints: give the workdir of a training run"
    hint = "" if os.path.exists(workdir) else hints.hint_for_path(workdir)
    if run := hints.find_run(workdir):
      hint = f"did you mean {run}?"
    raise ValueError(f"{workdir} {needed}{f'; {hint}' if hint else '.'}")
  return Checkpoints(workdir, read_only=True, key_of=key_of)


def latest_described(workdir: str) -> dict[int, dict[str, Any]]:
  """A folder's newest good description, by its step; {} without checkpoints."""
  if not is_run(workdir):
    return {}
  with contextlib.closing(open_run(workdir)) as checkpoints:
    newest = checkpoints.newest_description()
  return dict([newest] if newest else [])


def latest_description(workdir: str) -> dict[str, Any] | None:
  """A folder's newest good description; None if it has no checkpoint."""
  return next(iter(latest_described(workdir).values()), None)


def begun_config(workdir: str) -> dict[str, Any] | None:
  """The configuration that the run in a folder began with.

  It is None if there is no run, or if it cannot be read: opening the run says
  why.
  """
  with contextlib.suppress(ValueError, OSError):
    if (description := latest_description(workdir)) is not None:
      return description["config"]
  return None
