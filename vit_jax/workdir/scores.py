"""The evaluation kept with each checkpoint, by which the best is found."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from etils import epath
from jax.experimental import multihost_utils

CLASSES = ("eval/top1",)
"""The default score, that of classes."""


def score_of(metrics: Mapping[str, Any], keys: Sequence[str]) -> Any:
  """The first of these metrics that an evaluation has; None if it has none."""
  return next((metrics[key] for key in keys if key in metrics), None)


def read_score(checkpoint: epath.Path, keys: Sequence[str]) -> float | None:
  """The score of a checkpoint; None if the run did not evaluate there.

  Args:
    checkpoint: The checkpoint's folder.
    keys: The metrics that may be the score; none is above 1.

  Raises:
    ValueError: if its file is damaged.
    OSError: if it cannot be read.
  """
  try:
    content = _file(checkpoint).read_bytes()
  except (FileNotFoundError, NotADirectoryError):
    return None
  except IsADirectoryError:
    raise ValueError("their file is a folder") from None
  try:
    metrics = json.loads(content)
  except RecursionError as error:
    raise ValueError(str(error)) from error
  score = score_of(metrics, keys) if isinstance(metrics, dict) else None
  if not isinstance(score, int | float) or not score <= 1:  # Or it is NaN.
    raise ValueError(f"their file holds no {keys[0]}")
  return score


def set_damaged_aside(folder: epath.Path, keys: Sequence[str]) -> list[str]:
  """Renames damaged files of metrics, on which Orbax would fail.

  Args:
    folder: The folder that holds a folder for each checkpoint.
    keys: The metrics that may be the score.

  Returns:
    A line to show for each.
  """
  notes = []
  if jax.process_index() == 0 and folder.exists():
    for checkpoint in folder.iterdir():
      try:
        read_score(checkpoint, keys)
      except ValueError as error:
        path = _file(checkpoint)
        path.rename(path.with_name("damaged"))
        notes.append(note(checkpoint.name, error))
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices("damaged metrics are set aside")
  return notes


def note(step: int | str, error: ValueError) -> str:
  return (
    f"the metrics of checkpoint {step} are damaged ({error}): it cannot be "
    "chosen as the best."
  )


def _file(checkpoint: epath.Path) -> epath.Path:
  """Where Orbax keeps the metrics of a checkpoint."""
  return checkpoint / "metrics" / "metrics"
