"""Writes and reads the files of a checkpoint with Orbax, and silences its logs.

Orbax's own manager cannot force files onto the disk before they get their name,
so this module manages the folder of a run's checkpoints. Every checkpoint there
is complete: it is written under another name first; or, on an object store,
where nothing can be renamed, it counts once its last object is there.
"""

import contextlib
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
from absl import logging as absl_logging
from etils import epath

from vit_jax.runtime import hosts
from vit_jax.runtime.display import Split
from vit_jax.runtime.files import (
  NotRegularError,
  TooLargeError,
  commit,
  open_regular,
  read_regular,
  sync,
)
from vit_jax.runtime.restarts import step_of
from vit_jax.workdir import bucket
from vit_jax.workdir.description import with_digest

if TYPE_CHECKING:
  from orbax.checkpoint import v1

CLASSES = (Split.EVAL.key("top1"),)
"""The key of the default score, that of classes."""
_DRAFT = ".orbax-checkpoint-tmp"  # Ends the name of an incomplete checkpoint.
_DESCRIPTION = "description/metadata"  # Written last.
_METRICS = "metrics/metrics"
_MOST_TEXT = 2**25  # Bytes of a description, metrics or Orbax's own notes.
_COMMITTED = "commit_success.txt"  # The last file that Orbax writes.


def load_library() -> None:
  """Imports Orbax, which a run does while its step is compiled.

  The functions below import it where they use it, as that takes long.
  """
  from orbax.checkpoint import v1 as v1


def prepare(folder: epath.Path) -> None:
  """Makes the folder of a run's checkpoints, and deletes partial ones there."""
  if jax.process_index() == 0:
    folder.mkdir(parents=True, exist_ok=True)
    delete_partial(folder)
  hosts.meet("partial checkpoints are deleted")


def delete_partial(folder: epath.Path) -> None:
  """Deletes the partial checkpoints of a killed run or a failed save."""
  for path in (folder / name for name in bucket.names(folder)):
    partial = path.name.endswith(_DRAFT)
    if bucket.is_address(path):
      partial = step_of(path.name) is not None and not is_whole(path)
    if partial:
      path.rmtree()


def steps(folder: epath.Path) -> list[int]:
  """The steps of the whole checkpoints in a folder, oldest first."""
  names = bucket.names(folder) if folder.exists() else []
  numbered = ((step_of(name), name) for name in names)
  return sorted(
    step
    for step, name in numbered
    if step is not None and is_whole(folder / name)
  )


def is_whole(checkpoint: epath.Path) -> bool:
  """Whether a folder with a step's name is a complete checkpoint."""
  if not bucket.is_address(checkpoint):
    return checkpoint.is_dir()
  last = (checkpoint / name for name in (_COMMITTED, _DESCRIPTION))
  return all(map(bucket.exists, last))


def begin(
  checkpoint: epath.Path, trees: Mapping[str, Any], description: dict[str, Any]
) -> Callable[[Any], None]:
  """Copies arrays to the host, and begins to write them to a folder.

  Returns a function that is to be called in the background, with the metrics or
  None. The function waits until all processes have written everything, and
  completes the checkpoint. It and `begin` raise any error of Orbax, and the
  function raises OSError if the first process could not write.
  """
  draft = checkpoint
  if not bucket.is_address(checkpoint):
    draft = checkpoint.with_name(f"{checkpoint.name}{_DRAFT}")
  from orbax.checkpoint import v1

  with _options():
    written = v1.save_checkpointables_async(
      draft, {**trees, "description": description}, overwrite=True
    )

  def finish(metrics: Any) -> None:
    """Completes the checkpoint, with the metrics or None.

    Raises OSError if the first process could not write it.
    """
    try:
      written.result()
      if jax.process_index() == 0:
        _complete(draft, checkpoint, description, metrics)
    finally:
      hosts.meet(f"{checkpoint.name} is complete")
    if not is_whole(checkpoint):
      raise OSError("the first process could not write it")

  return finish


def _options() -> "v1.Context":
  """The context in which Orbax writes."""
  from orbax.checkpoint import v1

  context = v1.Context()
  registry = v1.handlers.local_registry()
  registry.add(v1.handlers.JsonHandler, checkpointable_name="description")
  context.checkpointables.registry = registry
  # Orbax writes to the folder that is given; only this module renames it.
  context.atomicity.mode = v1.options.AtomicityMode.COMMIT_FILE
  # A folder that cannot be made is an error at once.
  context.asynchronous.create_directories_asynchronously = False
  saving = context.array.saving
  saving.use_zarr3 = False  # As in the checkpoints of earlier versions.
  # This store is for types of arrays that checkpoints here do not have. If a
  # save fails, writing it fails too, with complaints of a closed event loop.
  saving.array_metadata_store = None
  # Every device that holds a copy of an array saves a part of it, for which
  # Orbax compiles a program for each shape. For a part of less than a MiB, such
  # as a bias's, that takes longer than it saves: one device saves it whole.
  saving.min_slice_bytes_for_replica_parallel = 2**20
  return context


def _complete(
  draft: epath.Path, checkpoint: epath.Path, description: Any, metrics: Any
) -> None:
  """Adds the metrics and the description, and then renames the draft.

  The lengths of all other files are added to the description.
  """
  if metrics:
    (draft / _METRICS).parent.mkdir(exist_ok=True)
    (draft / _METRICS).write_text(json.dumps(metrics))
  (draft / "description" / "data.json").unlink()  # Orbax's own file of it.
  description = {**description, "files": bucket.sizes(draft)}
  (draft / _DESCRIPTION).write_text(json.dumps(with_digest(description)))
  if draft != checkpoint:
    run = checkpoint.parent.parent
    sync(*run.glob("*.jsonl"), run, run.parent)
    commit(draft, checkpoint)


def delete(checkpoint: epath.Path) -> None:
  """Deletes a checkpoint; if that fails midway, the rest is no checkpoint."""
  with contextlib.suppress(Exception):  # The next save deletes the rest.
    if bucket.is_address(checkpoint):
      (checkpoint / _COMMITTED).unlink()
    else:
      draft = checkpoint.with_name(f"{checkpoint.name}{_DRAFT}")
      checkpoint = checkpoint.rename(draft)
    checkpoint.rmtree()


def read_description(checkpoint: epath.Path) -> Any:
  """The description as it was written.

  Raises OSError if its file cannot be read, `bucket.LibraryError` for an error
  of a store, and ValueError if it is no JSON.
  """
  with bucket.as_library_error(checkpoint):
    content = read_regular(checkpoint / _DESCRIPTION, _MOST_TEXT)
  try:
    return json.loads(content)
  except RecursionError as error:
    raise ValueError(f"{_DESCRIPTION} is nested too deeply") from error


def read_arrays(
  checkpoint: epath.Path, shapes: dict[str, Any], files: Any
) -> Any:
  """Reads some trees of arrays, each laid out as its leaf in `shapes`.

  `files` are the lengths in the description, which tell whether a file is cut
  or missing. Otherwise, each of Orbax's reads that are under way when one fails
  would print a traceback. Raises ValueError or OSError for such files, and
  `bucket.LibraryError` for any other error of Orbax or a store. MemoryError,
  JaxRuntimeError and the exception of a signal are raised as they are.
  """
  _check_files(checkpoint)
  with bucket.as_library_error(checkpoint):
    there = bucket.sizes(checkpoint) if files else {}
  for name, length in files.items():
    if name.partition("/")[0] in shapes and there.get(name) != length:
      now = f"{there[name]:,} bytes" if name in there else "nothing"
      raise ValueError(f"{name} had {length:,} bytes, and now there is {now}")
  from orbax.checkpoint import v1

  try:
    return v1.load_checkpointables(checkpoint, shapes)
  except Exception as error:  # Orbax wraps even the exception of a signal.
    cause = bucket.cause(error)
    if isinstance(cause, (MemoryError, jax.errors.JaxRuntimeError)):
      raise cause from None
    if not isinstance(cause, Exception):
      raise cause from None
    raise bucket.LibraryError(bucket.reason(cause)) from cause


def _check_files(checkpoint: epath.Path) -> None:
  """Raises OSError unless a folder holds only folders and regular files.

  TensorStore would wait for a FIFO for ever. Files that Orbax itself reads
  whole have names that begin with "_", and may not exceed `_MOST_TEXT` bytes.
  """
  if bucket.is_address(checkpoint):
    return
  for path in pathlib.Path(checkpoint).rglob("*"):
    if path.is_symlink() or not path.is_dir():
      is_read_whole = path.name.startswith("_")
      open_regular(path, _MOST_TEXT if is_read_whole else None).close()


def read_score(checkpoint: epath.Path, keys: Sequence[str]) -> float | None:
  """The score of a checkpoint; None if the run did not evaluate there.

  `keys` are the metrics that may be the score; none is above 1. Raises
  ValueError if its file is damaged, so that it cannot be chosen as the best,
  and OSError if it cannot be read.
  """
  why = f"their file holds no {keys[0]}"
  try:
    metrics = json.loads(read_regular(checkpoint / _METRICS, _MOST_TEXT))
    score = score_of(metrics, keys) if isinstance(metrics, dict) else None
    if score is not None:
      return score
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (NotRegularError, TooLargeError) as error:
    why = f"their file is {error.strerror}"
  except (ValueError, RecursionError) as error:
    why = str(error)
  raise ValueError(
    f"the metrics of checkpoint {checkpoint.name} are damaged ({why}): it "
    "cannot be chosen as the best."
  )


def score_of(metrics: Mapping[str, Any], keys: Sequence[str]) -> float | None:
  """The first of these metrics that an evaluation has.

  It is None if the evaluation has none of them, or if the first is no number or
  is above 1, as no score is.
  """
  score = next((metrics[key] for key in keys if key in metrics), None)
  return score if isinstance(score, int | float) and score <= 1 else None


def best(scores: Mapping[int, float | None]) -> int | None:
  """The step with the best score, the last of equals; None without scores."""
  rated = [(score, step) for step, score in scores.items() if score is not None]
  if not rated:
    return None
  _, step = max(rated)
  return step


def hide_tracebacks() -> Callable[[], None]:
  """Hides Orbax's logs of failures, on which a line is printed instead.

  Returns a function that shows them again.
  """
  logger = absl_logging.get_absl_logger()

  # A new function for each call, so that only this filter is removed.
  def keeps(record: Any) -> bool:
    return not (record.exc_info and "orbax" in record.pathname)

  logger.addFilter(keeps)
  return lambda: logger.removeFilter(keeps)
