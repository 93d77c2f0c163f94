"""The temperatures of a run's checkpoints: WORKDIR/calibration.jsonl.

Each line has the checkpoint's step, the digest of its description, and the
fitted values. A checkpoint that was written anew has another digest, so it does
not take the temperatures of the one before.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from etils import epath

from vit_jax.workdir.rows import Row, parse_rows, read, replace, to_line

FILE = "calibration.jsonl"
_KEPT = ("temperature", "threshold")
_MOST = 1e3  # The highest temperature that is valid; its inverse is the lowest.


def record(
  workdir: str, step: int, description: Mapping[str, Any], **values: Any
) -> str:
  """Keeps a checkpoint's calibration, in place of an earlier one.

  Returns the path of the file. Raises OSError if it cannot be written.
  """
  path = epath.Path(workdir) / FILE
  digest = description["digest"]
  before = parse_rows(read(path), _is_valid).rows
  others = [row for row in before if row["digest"] != digest]
  rows = [*others, {"step": step, "digest": digest, **values}]
  replace(path, b"".join(map(to_line, rows)))
  return str(path)


class Found(NamedTuple):
  """The calibration of a checkpoint, and lines on it.

  Attributes:
    fitted: The fitted values by their keys; empty without a calibration.
    notes: Lines on the calibration, and on broken lines of the file.
  """

  fitted: dict[str, Any]
  notes: tuple[str, ...]


def find(workdir: str, description: Mapping[str, Any]) -> Found:
  """Finds the calibration of a checkpoint; leaves out broken lines of the file.

  Raises OSError if the file cannot be read.
  """
  rows = parse_rows(read(epath.Path(workdir) / FILE), _is_valid)
  left_out = rows.note(f"{workdir}: {FILE}")
  for row in rows.rows:
    if row["digest"] == description.get("digest"):
      fitted = {key: row[key] for key in _KEPT if key in row}
      return Found(fitted, (*left_out, _note(workdir, fitted)))
  return Found({}, tuple(left_out))


def _note(workdir: str, fitted: Mapping[str, Any]) -> str:
  """A line that says how a checkpoint is calibrated."""
  T = fitted["temperature"]
  shown = f"{T[0]:.4g}" if len(T) == 1 else f"{min(T):.4g} to {max(T):.4g}"
  return f"{workdir} is calibrated: logits are divided by {shown} ({FILE})"


def check_count(workdir: str, fitted: Mapping[str, Any], takes: int) -> None:
  """Raises ValueError for another number of temperatures than a task takes.

  A checkpoint that is not calibrated, without temperatures, fits every task.
  """
  count = len(fitted.get("temperature", ()))
  if count in (0, takes):
    return
  raise ValueError(
    f"{workdir}: {FILE} has {count:,} temperatures, and the run's task takes "
    f"{takes or 'none'}: remove that file, and evaluate --calibrate writes it "
    "again."
  )


def _is_valid(row: Row) -> bool:
  """Whether a row has a digest, temperatures, and a valid threshold if any."""
  temperature = row.get("temperature")
  return (
    isinstance(row.get("digest"), str)
    and isinstance(temperature, list)
    and len(temperature) > 0
    and all(_is_between(T, 1 / _MOST, _MOST) for T in temperature)
    and _is_between(row.get("threshold", 0.5), 0, 1)
  )


def _is_between(value: Any, low: float, high: float) -> bool:
  """Whether a JSON value is a number from `low` to `high`."""
  is_number = isinstance(value, float | int) and not isinstance(value, bool)
  return is_number and low <= value <= high
