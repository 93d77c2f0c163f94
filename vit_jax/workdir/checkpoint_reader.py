"""Reads a run's checkpoints; `checkpoint.Checkpoints` also saves them.

Any failure is reported in one line, which says whether a checkpoint is damaged
or cannot be read just now.
"""

import re
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from etils import epath

from vit_jax.runtime.checks import checked
from vit_jax.runtime.files import NotRegularError, TooLargeError
from vit_jax.runtime.printable import first_of
from vit_jax.training.state import TrainState
from vit_jax.workdir import bucket, orbax_files
from vit_jax.workdir.description import checksums, named_leaves, verify_digest

T = TypeVar("T")
KeyOf = Callable[[dict[str, Any]], str]
"""A function from a run's description to the metric that is its score."""
RETRY_AFTER = (1, 4)  # Seconds between attempts to read.
# Statuses with which TensorStore reports bytes that are gone or do not decode.
_STATUSES = (
  "DATA_LOSS",
  "FAILED_PRECONDITION",
  "INVALID_ARGUMENT",
  "NOT_FOUND",
  "OUT_OF_RANGE",
)
# Orbax and parsers raise these on files that are gone or do not parse.
_GONE = (
  FileNotFoundError,
  IsADirectoryError,
  NotADirectoryError,
  NotRegularError,
  TooLargeError,
)
_UNPARSED = (AttributeError, LookupError, RecursionError, TypeError, ValueError)


class DamagedError(ValueError):
  """A checkpoint with files that are missing, broken or changed."""


class DeletedError(OSError):
  """A checkpoint that its run has deleted since it was chosen."""


class CheckpointReader:
  """The checkpoints of one run, to be chosen from and read.

  `notes` has a line for each thing that was damaged and skipped. Raises OSError
  if the folder cannot be opened.
  """

  def __init__(
    self,
    workdir: str,
    *,
    read_only: bool,
    keys: Sequence[str],
    key_of: KeyOf | None = None,
  ):
    path = epath.Path(workdir).expanduser()
    self.folder = path if bucket.is_address(workdir) else path.resolve()
    self.notes: list[str] = []
    self._read_only, self._keys, self._key_of = read_only, keys, key_of
    self._descriptions: dict[int, dict[str, Any]] = {}  # By step, once read.
    self._steps_folder = folder = self.folder / "checkpoints"
    try:
      with bucket.as_library_error(folder):
        if not read_only:
          orbax_files.prepare(folder)
        # The scores are read only if more checkpoints will be saved.
        self._steps = dict[int, Any].fromkeys(orbax_files.steps(folder))
        self._steps = self._steps if read_only else self._scores()
    except (OSError, bucket.LibraryError) as error:
      why = f"{workdir} cannot be opened: {bucket.reason(error)}"
      raise OSError(why) from error

  @property
  def all_steps(self) -> list[int]:
    """Steps of all checkpoints, oldest first."""
    return sorted(self._steps)

  @property
  def latest_step(self) -> int | None:
    """The newest checkpoint's step; None if there is no checkpoint."""
    return max(self._steps, default=None)

  @property
  def best_step(self) -> int | None:
    """The step with the best score; the newest if no step has a score.

    None if there is no checkpoint. A reader that also saves was given the
    score's key; one that only reads takes it from the newest description.
    """
    scores = self._steps
    if self._read_only:
      newest = self.newest_description()
      if newest is not None:
        _, description = newest
        if self._key_of:
          self._keys = (self._key_of(description),)
        elif "score" in description:
          self._keys = (description["score"],)
      scores = self._scores()
    best = orbax_files.best(scores)
    return self.latest_step if best is None else best

  def _scores(self) -> dict[int, float | None]:
    """The scores of the checkpoints, by step; adds notes on damaged ones."""
    scores: dict[int, float | None] = {}
    for step in self._steps:
      try:
        scores[step] = orbax_files.read_score(
          self._path_of_step(step), self._keys
        )
      except ValueError as error:
        self.notes.append(str(error))
        scores[step] = None
    return scores

  def _path_of_step(self, step: int) -> epath.Path:
    return self._steps_folder / str(step)

  def choose(self, step: int | None = None, best: bool = False) -> int:
    """The step of a checkpoint: the given one, the best or the newest.

    Raises ValueError if there is no checkpoint, or none of this step, or both a
    step and the best are asked for.
    """
    step = checked("step", int | None, step)
    steps = self.all_steps
    if not steps:
      raise ValueError(
        f"{self.folder} holds no finished checkpoint: wait for the first if "
        "the run has not ended, else give its `vit_jax train` command again."
      )
    if step is not None and best:
      raise ValueError("--step and --best each choose a checkpoint: give one.")
    if step is None:
      step = self.best_step if best else self.latest_step
    if step not in steps:
      one = "there is one of step"
      there = one if len(steps) == 1 else "there are those of the steps"
      raise ValueError(
        f"there is no checkpoint of step {step}; {there} "
        f"{', '.join(map(str, steps))}."
      )
    return step

  def describe(self, step: int) -> dict[str, Any]:
    """The description that was saved at `step`; raises as `attempt` does."""

    def read() -> dict[str, Any]:
      description = orbax_files.read_description(self._path_of_step(step))
      verify_digest(description)
      return description

    if step not in self._descriptions:
      self._descriptions[step] = self._read(step, read)
    return self._descriptions[step]

  def newest_description(self) -> tuple[int, dict[str, Any]] | None:
    """Step and description of the newest checkpoint whose description is good.

    It is None if there is no checkpoint. Raises DamagedError if no checkpoint
    has a good description, and OSError if one cannot be read now.
    """
    damaged: list[DamagedError] = []
    for step in reversed(self.all_steps):
      try:
        return step, self.describe(step)
      except DamagedError as error:
        damaged.append(error)
    if damaged:
      raise damaged[0]
    return None

  def restore(self, step: int, shapes: TrainState) -> TrainState:
    """The state at `step`, its arrays laid out as those of `shapes`.

    Raises ValueError if the checkpoint holds other arrays, and otherwise as
    `attempt` does.
    """
    trees = self._restore(step, items(shapes))
    count = jax.device_put(jnp.int32(step), shapes.step.sharding)
    return TrainState(count, **trees)

  def restore_params(self, step: int, shapes: Any, *, averaged: bool) -> Any:
    """The parameters alone at `step`, or their average.

    Raises as `restore` does.
    """
    item = "averaged_params" if averaged else "params"
    return self._restore(step, {item: shapes})[item]

  def _restore(self, step: int, shapes: dict[str, Any]) -> Any:
    """The arrays of the items in `shapes`, by item; raises as `restore` does.

    They are compared with their checksums in the description.
    """
    description = self.describe(step)
    saved = description["checksums"]
    self._check_arrays(step, saved, shapes)

    def read() -> Any:
      """The arrays; raises ValueError for another shape or checksum."""
      # Earlier versions did not note the lengths of the files.
      files = description.get("files", {})
      arrays = orbax_files.read_arrays(self._path_of_step(step), shapes, files)
      needed = dict(named_leaves(shapes))
      for path, array in named_leaves(arrays):
        if array.shape != needed[path].shape:
          raise ValueError(
            f"{path} has the shape {array.shape}, and {needed[path].shape} is "
            "needed"
          )
      for path, number in checksums(arrays).items():
        if saved.get(path) != number:
          raise ValueError(f"the checksum of {path} does not match")
      return arrays

    return self._read(step, read)

  def _check_arrays(self, step: int, saved: Any, shapes: dict) -> None:
    """Raises ValueError if a checkpoint holds other arrays than `shapes`."""
    needed = {path for path, _ in named_leaves(shapes)}
    stored = {p for p in saved if p.partition("/")[0] in shapes}
    if other := sorted(needed ^ stored):
      raise ValueError(
        f"checkpoint {step} of {self.folder} does not fit the configuration: "
        f"only one of them has {first_of(other, 1)}. Give the model, optimizer "
        "and averaging that it was saved with, or another workdir: "
        "--allow_changes does not change which arrays there are."
      )

  def _read(self, step: int, read: Callable[[], Any]) -> Any:
    """The result of `read` for a checkpoint; raises as `attempt` does."""
    name = f"checkpoint {step} of {self.folder}"

    # Deletion begins with the file, or name, that makes it a checkpoint.
    def was_deleted() -> bool:
      return self._read_only and not orbax_files.is_whole(
        self._path_of_step(step)
      )

    return attempt(read, name, was_deleted)


def items(state: TrainState) -> dict[str, Any]:
  """The trees of a state that are saved, by name; its step names the folder."""
  names = ("params", "opt_state", "averaged_params", "objective_state")
  trees = {name: getattr(state, name) for name in names}
  return {name: tree for name, tree in trees.items() if tree is not None}


def attempt(
  read: Callable[[], T], name: str, was_deleted: Callable[[], bool]
) -> T:
  """Calls `read`, and says in one line why a checkpoint cannot be read.

  `read` may raise OSError, ValueError for the content of files, or
  `bucket.LibraryError` for an error of Orbax or a store. Any other error is a
  fault of our own, and is raised as it is.

  After trouble that may pass, such as a lost network, it tries again, but not
  on several hosts, which would fall out of step. Raises DamagedError if the
  checkpoint `name` is damaged, DeletedError if it `was_deleted`, and OSError if
  it cannot be read for another reason.
  """
  waits = iter(RETRY_AFTER)
  while True:
    try:
      return read()
    except (OSError, ValueError, bucket.LibraryError) as error:
      why = bucket.reason(error)
      if is_damage(error) and was_deleted():
        gone = f"{name} was deleted while it was read, as its run goes on."
        raise DeletedError(gone) from error
      if is_damage(error):
        raise DamagedError(
          f"{name} is damaged, or of another version ({why}): choose another "
          "step, or move its folder away."
        ) from error
      # Asking for the count starts JAX, and hosts have to join before that.
      seconds = next(waits, None) if jax.process_count() == 1 else None
      if seconds is None:
        raise OSError(
          f"{name} cannot be read now ({why}); it may be good: try again."
        ) from error
    time.sleep(seconds)


def again_if_deleted(call: Callable[[], T], tell: Callable[[str], None]) -> T:
  """Returns `call()`, which is called again if its checkpoint was deleted.

  All code that reads a run calls this, as the run may still train and delete
  checkpoints. `call` chooses a checkpoint, opens it and reads what is needed,
  so another call takes the next newest or best one. `tell` is called with a
  line on each deleted checkpoint. Raises ValueError if the next call finds no
  checkpoint, as where `call` asks for one step alone, and DeletedError on
  several hosts, which would read different checkpoints.
  """
  gone = ""
  while True:
    try:
      return call()
    except DeletedError as error:
      if jax.process_count() > 1:
        raise
      gone = str(error)
      tell(gone)
    except ValueError as error:
      if gone:
        raise ValueError(f"{gone[:-1]}: {error}") from error
      raise


def is_damage(error: BaseException) -> bool:
  """Whether files are missing or wrong, rather than out of reach just now."""
  root = bucket.cause(error)
  # TensorStore raises ValueError for everything, a lost network included.
  status = re.match(r"([A-Z]+(?:_[A-Z]+)*): ", str(root))
  if isinstance(root, ValueError) and status:
    return status[1] in _STATUSES
  return isinstance(root, (*_GONE, *_UNPARSED))
