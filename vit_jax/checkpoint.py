"""Checkpoints that describe themselves, with Orbax.

`workdir/checkpoints/<step>/` holds `params`, `averaged_params` where there are
any, `opt_state`, and `description`: a JSON object with the configuration, the
class names and the position of the data iterator, so that nothing else is
needed to evaluate or to go on.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from absl import logging as absl_logging
from etils import epath
from orbax.checkpoint import checkpoint_managers as policies

from vit_jax.train_step import TrainState

BEST_METRIC = "eval/top1"
# What a description says of the data besides its configuration.
_DATA_KEYS = ("class_names", "train_examples")
# What no reader of a description does without.
_NEEDED_KEYS = ("config", "model", "class_names")
# Keys that may differ when a run goes on: none changes what is learned.
_FREE_KEYS = (
  "log_every",
  "eval_every",
  "save_every",
  "keep_last",
  "eval_batch_size",
  "eval_per_class",
  "profile_steps",
  "eval_transform.",
  "fewshot.",
  "model.scan",
  "model.remat",
  "loader.",
  "mesh.",
  "data.data_dir",
  "data.root",
  "data.eval_split",
)


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
    # Orbax warns of every folder that it is to leave as it is.
    with _only_errors() if read_only else contextlib.nullcontext():
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
  ) -> None:
    """Saves the state after `step` steps, with its evaluation if it had one."""
    items = {
      "params": ocp.args.StandardSave(state.params),
      "opt_state": ocp.args.StandardSave(state.opt_state),
      "description": ocp.args.JsonSave(description),
    }
    if state.averaged_params is not None:
      items["averaged_params"] = ocp.args.StandardSave(state.averaged_params)
    args = ocp.args.Composite(**items)
    self._manager.save(step, args=args, metrics=metrics)

  def restore(self, step: int, shapes: TrainState) -> TrainState:
    """The state at `step`, its arrays laid out as those of `shapes`.

    Raises:
      ValueError: if it cannot be read.
    """
    items = {
      "params": ocp.args.StandardRestore(shapes.params),
      "opt_state": ocp.args.StandardRestore(shapes.opt_state),
    }
    if shapes.averaged_params is not None:
      restore_average = ocp.args.StandardRestore(shapes.averaged_params)
      items["averaged_params"] = restore_average
    with self._reading(step):
      found = self._manager.restore(step, args=ocp.args.Composite(**items))
    count = jax.device_put(jnp.int32(step), shapes.step.sharding)
    return TrainState(
      count, found["params"], found["opt_state"], found.get("averaged_params")
    )

  def restore_params(self, step: int, shapes: Any, *, averaged: bool) -> Any:
    """Only the parameters at `step`, or their Polyak average.

    Raises:
      ValueError: if they cannot be read.
    """
    item = "averaged_params" if averaged else "params"
    args = ocp.args.Composite(**{item: ocp.args.StandardRestore(shapes)})
    with self._reading(step):
      return self._manager.restore(step, args=args)[item]

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
      ValueError: if it cannot be read, or lacks what every reader needs.
    """
    args = ocp.args.Composite(description=ocp.args.JsonRestore())
    with self._reading(step):
      found = self._manager.restore(step, args=args)["description"]
      if not isinstance(found, dict):
        raise TypeError("its description is no JSON object")
    missing = [key for key in _NEEDED_KEYS if key not in found]
    if missing:
      raise ValueError(
        f"checkpoint {step} of {self.folder} does not tell its "
        f"{', '.join(missing)}: it is of an older version, or damaged; choose "
        "another step, or train anew."
      )
    return found

  @contextlib.contextmanager
  def _reading(self, step: int) -> Iterator[None]:
    """Puts into one line what Orbax says of a checkpoint it cannot read."""
    try:
      with _without_late_reads():
        yield
    except (LookupError, TypeError, ValueError, OSError) as error:
      lines = str(error).strip("'").splitlines() or [type(error).__name__]
      raise ValueError(
        f"checkpoint {step} of {self.folder} is damaged ({lines[0][:200]}): "
        "choose another step, or delete its folder."
      ) from error

  def close(self) -> None:
    """Waits until all that was saved is on disk."""
    self._manager.close()


@contextlib.contextmanager
def _only_errors() -> Iterator[None]:
  """Keeps Orbax's warnings back."""
  verbosity = absl_logging.get_verbosity()
  absl_logging.set_verbosity(absl_logging.ERROR)
  try:
    yield
  finally:
    absl_logging.set_verbosity(verbosity)


@contextlib.contextmanager
def _without_late_reads() -> Iterator[None]:
  """Keeps back what reads under way print when another one has failed.

  Orbax closes its event loop at the first failure. Each read that ends later
  prints a traceback about that, or about its own error, which nobody takes.
  They may outlast this context, so after a failure both stay hidden.
  """
  shown = sys.unraisablehook

  def hook(unraisable: Any) -> None:
    if str(unraisable.exc_value) != "Event loop is closed":
      shown(unraisable)

  sys.unraisablehook = hook
  try:
    yield
  except Exception:
    logging.getLogger("asyncio").addFilter(_is_retrieved)
    raise
  sys.unraisablehook = shown


def _is_retrieved(record: logging.LogRecord) -> bool:
  return "exception was never retrieved" not in record.getMessage()


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
  """What the newest checkpoint of a run says of itself; None without one."""
  if not is_run(workdir):
    return None
  with contextlib.closing(open_run(workdir)) as checkpoints:
    step = checkpoints.latest_step
    return None if step is None else checkpoints.describe(step)


def check_same_run(
  saved: dict[str, Any], now: dict[str, Any], workdir: str
) -> None:
  """Raises ValueError if a run cannot go on from a checkpoint.

  Args:
    saved: Description of the checkpoint.
    now: Description of the run that wants to continue.
    workdir: For the message.
  """
  there, here = (
    dict(_leaves({**d["config"], **{key: d[key] for key in _DATA_KEYS}}))
    for d in (saved, now)
  )
  changed = [
    f"{key} was {there.get(key)!r} and is now {here.get(key)!r}"
    for key in sorted(there.keys() | here.keys())
    if there.get(key) != here.get(key) and not key.startswith(_FREE_KEYS)
  ]
  if changed:
    raise ValueError(
      f"{workdir} holds a run of another configuration or other data: "
      f"{'; '.join(changed)}. Go on with the old, or choose another --workdir."
    )


def _leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple]:
  """(dotted key, value as JSON would give it back) of nested dictionaries."""
  for key, value in tree.items():
    if isinstance(value, dict):
      yield from _leaves(value, f"{prefix}{key}.")
    else:
      yield prefix + key, list(value) if isinstance(value, tuple) else value
