"""The evaluation kept with each checkpoint, by which the best is found."""

import json
from collections.abc import Mapping
from typing import Any

import jax
from etils import epath
from jax.experimental import multihost_utils

BEST_METRIC = "eval/top1"
SCORES = (BEST_METRIC, "eval/colours_right", "eval/map", "eval/r2")
"""A run's evaluations have the one of their task; none is above 1."""


def score_of(metrics: Mapping[str, Any]) -> Any:
  """The metric of an evaluation by which the best is found; None without."""
  return next((metrics[key] for key in SCORES if key in metrics), None)


def read_score(checkpoint: epath.Path) -> float | None:
  """`BEST_METRIC` of a checkpoint; None if the run did not evaluate there.

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
  score = score_of(metrics) if isinstance(metrics, dict) else None
  if not isinstance(score, int | float) or not score <= 1:  # Or it is NaN.
    raise ValueError(f"their file holds no {BEST_METRIC}")
  return score


def set_damaged_aside(folder: epath.Path) -> list[str]:
  """Renames damaged files of metrics, on which Orbax would fail.

  Args:
    folder: The folder that holds a folder for each checkpoint.

  Returns:
    A line to show for each.
  """
  notes = []
  if jax.process_index() == 0 and folder.exists():
    for checkpoint in folder.iterdir():
      try:
        read_score(checkpoint)
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
