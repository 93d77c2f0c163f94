"""Checkpoints that describe themselves, with Orbax.

`workdir/checkpoints/<step>/` holds `params`, `averaged_params` where there are
any, `opt_state`, and a `description` (see there), so that nothing else is
needed to evaluate or to go on. What is read is compared with the checksums in
it.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint import checkpoint_managers as policies

from vit_jax.training.state import TrainState
from vit_jax.workdir import orbax_messages
from vit_jax.workdir.checksum import checksums
from vit_jax.workdir.description import check_seal, sealed

BEST_METRIC = "eval/top1"
_PARTIAL = "*.orbax-checkpoint-tmp"  # What Orbax has not finished.


class DamagedError(ValueError):
  """A checkpoint that cannot be read, or is not as it was saved."""


class Checkpoints:
  """The checkpoints of one run: saves them, keeps some, gives them back.

  Saving returns at once and goes on in the background; `close` waits for it.

  Args:
    workdir: Folder of the run, local or such as gs://bucket/run.
    keep_last: Newest checkpoints kept, besides the one best in `BEST_METRIC`.
    read_only: Whether only to read.
  """

  def __init__(
    self, workdir: str, keep_last: int = 2, *, read_only: bool = False
  ):
    if keep_last < 1:
      raise ValueError(f"keep_last={keep_last} must be 1 or more.")
    path = epath.Path(workdir).expanduser()
    self.folder = path if "://" in str(workdir) else path.resolve()

    def score(metrics: dict[str, Any]) -> float:
      return metrics[BEST_METRIC]

    best = policies.BestN(
      get_metric_fn=score, n=1, keep_checkpoints_without_metrics=False
    )
    options = ocp.CheckpointManagerOptions(
      preservation_policy=policies.AnyPreservationPolicy(
        [policies.LatestN(keep_last), best]
      ),
      best_fn=score,  # Without it Orbax keeps no metrics on disk.
      best_mode="max",
      save_interval_steps=int(not read_only),
      create=not read_only,
      read_only=read_only,
      cleanup_tmp_directories=not read_only,
    )
    self._saving: int | None = None
    if not read_only:
      orbax_messages.hide_tracebacks()
    # Orbax warns of every folder that it is to leave as it is.
    with (
      orbax_messages.only_errors() if read_only else contextlib.nullcontext()
    ):
      self._manager = ocp.CheckpointManager(
        self.folder / "checkpoints", options=options
      )

  @property
  def all_steps(self) -> list[int]:
    """Steps of all checkpoints, oldest first."""
    return sorted(self._manager.all_steps())

  @property
  def latest_step(self) -> int | None:
    """The newest checkpoint's step, None where there is none."""
    return self._manager.latest_step()

  @property
  def best_step(self) -> int | None:
    """The step best in `BEST_METRIC`; the newest where none was evaluated."""
    return self._manager.best_step() or self.latest_step

  def save(
    self,
    state: TrainState,
    step: int,
    description: dict[str, Any],
    metrics: dict[str, Any] | None,
  ) -> str | None:
    """Saves the state after `step` steps, with its evaluation if it had one.

    Returns:
      What went wrong, in a line: with this one, or with the one before, which
      went on in the background. The others are as they were.
    """
    items = _items(state)
    description = sealed({**description, "checksums": checksums(items)})
    args: dict[str, Any] = {"description": ocp.args.JsonSave(description)}
    for name, tree in items.items():
      args[name] = ocp.args.StandardSave(tree)
    problem = self.wait()
    self._remove_partial()
    try:
      self._manager.save(step, args=ocp.args.Composite(**args), metrics=metrics)
      self._saving = step
    except Exception as error:  # Orbax raises errors of all kinds.
      problem = _not_saved(step, error)
    return problem

  def wait(self) -> str | None:
    """Until what is being saved is on disk; returns what went wrong."""
    step, self._saving = self._saving, None
    try:
      self._manager.wait_until_finished()
    except Exception as error:
      return _not_saved(step, error)
    return None

  def _remove_partial(self) -> None:
    """What failed would take the room that the next one needs."""
    if jax.process_index() == 0:
      with contextlib.suppress(OSError):
        for partial in (self.folder / "checkpoints").glob(_PARTIAL):
          partial.rmtree()

  def restore(self, step: int, shapes: TrainState) -> TrainState:
    """The state at `step`, its arrays laid out as those of `shapes`.

    Raises:
      DamagedError: if it cannot be read, or is not what was saved.
    """
    found = self._restore(step, _items(shapes))
    count = jax.device_put(jnp.int32(step), shapes.step.sharding)
    return TrainState(
      count, found["params"], found["opt_state"], found.get("averaged_params")
    )

  def restore_params(self, step: int, shapes: Any, *, averaged: bool) -> Any:
    """Only the parameters at `step`, or their Polyak average.

    Raises:
      DamagedError: if they cannot be read, or are not what was saved.
    """
    item = "averaged_params" if averaged else "params"
    return self._restore(step, {item: shapes})[item]

  def _restore(self, step: int, shapes: dict[str, Any]) -> Any:
    """The arrays of some items, compared with their checksums."""
    args = {
      name: ocp.args.StandardRestore(tree) for name, tree in shapes.items()
    }
    saved = self.describe(step)["checksums"]
    with self._reading(step):
      found = self._manager.restore(step, args=ocp.args.Composite(**args))
      for path, number in checksums({k: found[k] for k in shapes}).items():
        if saved.get(path) != number:
          raise ValueError(f"the checksum of {path} does not match")
    return found

  def choose(self, step: int | None = None, best: bool = False) -> int:
    """The step of a checkpoint that is there: given, best or newest.

    Raises:
      ValueError: if there is none, or not that one.
    """
    known = self.all_steps
    if not known:
      raise ValueError(f"{self.folder} holds no finished checkpoint.")
    if step is not None and best:
      raise ValueError("--step and --best each choose a checkpoint: give one.")
    if step is None:
      step = self.best_step if best else self.latest_step
    if step not in known:
      raise ValueError(
        f"there is no checkpoint of step {step}; there is one of step "
        f"{', '.join(map(str, known))}."
      )
    return step

  def describe(self, step: int) -> dict[str, Any]:
    """The description that was saved at `step`.

    Raises:
      DamagedError: if it cannot be read, or is not what was saved.
    """
    args = ocp.args.Composite(description=ocp.args.JsonRestore())
    with self._reading(step):
      found = self._manager.restore(step, args=args)["description"]
      check_seal(found)
    return found

  def set_aside(self, step: int) -> epath.Path:
    """Moves a damaged checkpoint out of the way; returns where it is now."""
    place = self.folder / "damaged" / str(step)
    if jax.process_index() == 0:
      taken = 1
      while place.exists():
        taken += 1
        place = self.folder / "damaged" / f"{step}_{taken}"
      place.parent.mkdir(exist_ok=True)
      (self.folder / "checkpoints" / str(step)).rename(place)
    if jax.process_count() > 1:
      multihost_utils.sync_global_devices(f"set aside {step}")
    self._manager.reload()
    return place

  @contextlib.contextmanager
  def _reading(self, step: int) -> Iterator[None]:
    """Puts into one line what Orbax says of a checkpoint it cannot read."""
    try:
      with orbax_messages.without_late_reads():
        yield
    except (MemoryError, jax.errors.JaxRuntimeError):
      raise
    except Exception as error:  # Orbax raises that itself, besides all others.
      raise DamagedError(
        f"checkpoint {step} of {self.folder} is damaged, or of another version "
        f"({_first(error)}): choose another step, or delete its folder."
      ) from error

  def close(self) -> None:
    """Waits until all that was saved is on disk.

    Raises:
      OSError: if the last could not be saved.
    """
    problem = self.wait()
    self._manager.close()
    if problem:
      newest = self.latest_step
      others = (
        "there is no other" if newest is None else f"step {newest} is good"
      )
      raise OSError(f"{problem}; {others}.")


def _items(state: TrainState) -> dict[str, Any]:
  """What is saved of a state, or of its shapes; the step is the folder's."""
  items = {"params": state.params, "opt_state": state.opt_state}
  if state.averaged_params is not None:
    items["averaged_params"] = state.averaged_params
  return items


def _not_saved(step: int | None, error: Exception) -> str:
  return f"the checkpoint of step {step} could not be saved ({_first(error)})"


def _first(error: Exception) -> str:
  """The first line of what an error says, its middle left out if it is long."""
  lines = str(error).strip("'").splitlines() or [type(error).__name__]
  line = lines[0]
  return line if len(line) <= 200 else f"{line[:60]} ... {line[-135:]}"


def is_run(path: str) -> bool:
  """Whether a folder, here or on gs://, is the workdir of a run."""
  if "://" in path and not path.startswith("gs://"):
    return False
  try:
    return (epath.Path(path).expanduser() / "checkpoints").is_dir()
  except ImportError:  # Without gcsfs there are only files, over https.
    return False


def open_run(workdir: str) -> Checkpoints:
  """The checkpoints of a run, only to be read.

  Raises:
    ValueError: if the folder holds none.
  """
  if not is_run(workdir):
    needs = "; gs:// needs gcsfs" if workdir.startswith("gs://") else ""
    raise ValueError(
      f"{workdir} holds no checkpoints: give the workdir of a training run"
      f"{needs}."
    )
  return Checkpoints(workdir, read_only=True)


def latest_description(workdir: str) -> dict[str, Any] | None:
  """What the newest good checkpoint of a run says of itself; None without any.

  Raises:
    DamagedError: if there are some, and none is good.
  """
  if not is_run(workdir):
    return None
  damaged: DamagedError | None = None
  with contextlib.closing(open_run(workdir)) as checkpoints:
    for step in reversed(checkpoints.all_steps):
      try:
        return checkpoints.describe(step)
      except DamagedError as error:
        damaged = damaged or error
  if damaged:
    raise damaged
  return None
