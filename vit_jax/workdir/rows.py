"""Files of JSON rows, one a line, each with its `step`."""

import json
import math
from typing import Any

from etils import epath

from vit_jax.workdir import bucket
from vit_jax.workdir.append_file import AppendFile
from vit_jax.workdir.read_errors import as_os_error


def read_rows(path: epath.Path) -> list[dict[str, Any]]:
  """The rows of a file; invalid lines, such as one cut short, are skipped.

  Raises:
    OSError: if the file cannot be read.
  """
  return parse_rows(read(path))[0]


def read(path: epath.Path) -> bytes:
  """A file's content, empty if there is none; raises OSError if that fails."""
  if not bucket.is_address(path):
    return path.read_bytes() if path.exists() else b""
  with as_os_error():
    return path.read_bytes() if path.exists() else b""


def parse_rows(content: bytes) -> tuple[list[dict[str, Any]], int]:
  """The rows in a file's content, and the number of invalid lines."""
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


def replace(path: epath.Path, content: bytes) -> None:
  """Replaces a file atomically; raises OSError if that fails."""
  if bucket.is_address(path):  # An object appears once it is complete.
    with as_os_error():
      path.write_bytes(content)
    return
  draft = path.with_name(f"{path.name}.part")
  draft.write_bytes(content)
  draft.replace(path)


class RowFile(AppendFile):
  """A file to which a run adds rows.

  Rows beyond `first_step`, which a run that was stopped wrote and this one will
  write again, are dropped, and so are invalid lines.

  Attributes:
    skipped: How many lines were invalid.

  Args:
    first_step: The step from which the run starts.

  Raises:
    OSError: if a file that is there cannot be read or replaced.
  """

  def __init__(self, path: epath.Path, first_step: int):
    super().__init__(path)
    self.skipped = 0
    if content := read(path):
      rows, self.skipped = parse_rows(content)
      kept = b"".join(to_line(r) for r in rows if r["step"] <= first_step)
      if kept != content:
        replace(path, kept)


def _row(line: bytes) -> dict[str, Any] | None:
  """The row that a line holds, or None if the line is invalid."""
  try:
    row = json.loads(line)
  except (ValueError, RecursionError):  # Invalid UTF-8 raises ValueError.
    return None
  step = row.get("step") if isinstance(row, dict) else None
  return row if isinstance(step, int) and not isinstance(step, bool) else None
