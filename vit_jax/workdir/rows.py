"""Files of JSON rows, one a line, each with the `step` that it is of."""

import json
import math
from typing import Any

from etils import epath

from vit_jax.workdir.append_file import AppendFile, Uploads


def read_rows(path: epath.Path) -> list[dict[str, Any]]:
  """The rows of a file; a line that is none, such as one cut short, is skipped.

  Raises:
    OSError: if the file cannot be read.
  """
  return parse_rows(path.read_bytes())[0]


def parse_rows(content: bytes) -> tuple[list[dict[str, Any]], int]:
  """The rows in a file's content, and the number of lines that are no rows."""
  lines = [line for line in content.split(b"\n") if line.strip()]
  rows = [row for line in lines if (row := _row(line)) is not None]
  return rows, len(lines) - len(rows)


def to_line(row: dict[str, Any]) -> bytes:
  """A row as JSON, which has no NaN and no infinity: they become null."""
  finite = {
    key: None if isinstance(v, float) and not math.isfinite(v) else v
    for key, v in row.items()
  }
  return json.dumps(finite).encode() + b"\n"


class RowFile:
  """A file to which a run adds rows.

  Rows beyond `first_step`, which a run that was stopped wrote and this one will
  write again, are dropped, and so are lines that are no rows.

  Attributes:
    skipped: How many lines were no rows.

  Args:
    path: The file, local or such as gs://bucket/run/metrics.jsonl.
    first_step: The step from which the run starts.

  Raises:
    OSError: if a file that is there cannot be read or replaced.
  """

  def __init__(self, path: epath.Path, first_step: int):
    self._path = path
    # Object stores cannot append: there the whole file is written anew.
    self._local = AppendFile(path) if "://" not in str(path) else None
    self._uploads = Uploads()
    self._content = b""
    self.skipped = 0
    if path.exists():
      rows, self.skipped = parse_rows(path.read_bytes())
      kept = b"".join(to_line(r) for r in rows if r["step"] <= first_step)
      draft = path.with_name(f"{path.name}.part")
      draft.write_bytes(kept)
      draft.replace(path)
      self._content = kept

  def append(self, row: dict[str, Any]) -> None:
    """Adds a row.

    Raises:
      OSError: if it cannot be written; it is then written with the next.
    """
    line = to_line(row)
    if self._local is not None:
      self._local.append(line)
      return
    self._content += line
    self._uploads.write(self._path, self._content)

  def close(self) -> None:
    """Writes the rows that still wait; raises OSError if that cannot be."""
    if self._local is not None:
      self._local.flush()
    elif self._uploads.failing:
      self._uploads.write(self._path, self._content, last=True)


def _row(line: bytes) -> dict[str, Any] | None:
  """The row that a line holds, or None if it holds none."""
  try:
    row = json.loads(line)
  except (ValueError, RecursionError):  # UTF-8 that is none is a ValueError.
    return None
  step = row.get("step") if isinstance(row, dict) else None
  return row if isinstance(step, int) and not isinstance(step, bool) else None
