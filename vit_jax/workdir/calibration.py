"""The temperatures of a run's checkpoints: WORKDIR/calibration.jsonl.

Each line has the checkpoint's step, the digest of its description, and what was
fitted. A checkpoint that was written anew has another digest, so that it does
not take the temperatures of the one before.
"""

from collections.abc import Mapping
from typing import Any

from etils import epath

from vit_jax.workdir.rows import Row, parse_rows, read, replace, to_line

FILE = "calibration.jsonl"
_KEPT = ("temperature", "threshold")


def record(
  workdir: str, step: int, description: Mapping[str, Any], **values: Any
) -> str:
  """Keeps a checkpoint's calibration, in place of an earlier one.

  Returns the path of the file. Raises OSError if it cannot be written.
  """
  path = epath.Path(workdir) / FILE
  digest = description["digest"]
  others = [
    row
    for row in parse_rows(read(path), _is_valid).rows
    if row["digest"] != digest
  ]
  rows = [*others, {"step": step, "digest": digest, **values}]
  replace(path, b"".join(map(to_line, rows)))
  return str(path)


def find(workdir: str, description: Mapping[str, Any]) -> dict[str, Any]:
  """The calibration of a checkpoint; empty if it has none.

  Raises OSError if the file cannot be read.
  """
  for row in parse_rows(read(epath.Path(workdir) / FILE), _is_valid).rows:
    if row["digest"] == description.get("digest"):
      return {key: row[key] for key in _KEPT if key in row}
  return {}


def notes(workdir: str, fitted: Mapping[str, Any]) -> tuple[str, ...]:
  """A line that says how a checkpoint is calibrated; none if it is not."""
  if not fitted:
    return ()
  T = fitted["temperature"]
  shown = f"{T[0]:.4g}" if len(T) == 1 else f"{min(T):.4g} to {max(T):.4g}"
  return (f"{workdir} is calibrated: logits are divided by {shown} ({FILE})",)


def _is_valid(row: Row) -> bool:
  temperature = row.get("temperature")
  return (
    isinstance(row.get("digest"), str)
    and isinstance(temperature, list)
    and len(temperature) > 0
    and all(isinstance(T, float | int) and 0 < T < 1e6 for T in temperature)
    and isinstance(row.get("threshold", 0.5), float | int)
  )
