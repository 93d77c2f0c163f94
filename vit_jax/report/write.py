"""Writes the report on some runs as one HTML file."""

import os
import sys
from typing import Any

from vit_jax.runtime import extras
from vit_jax.runtime.display import Display
from vit_jax.runtime.files import output_file, replacing
from vit_jax.runtime.printable import printable_path, say


def report_files(
  workdirs: list[str],
  *,
  out: str | os.PathLike[str] | None = None,
  **options: Any,
) -> int:
  """Writes a report, as `write_report` does; returns the exit code, 0."""
  write_report(workdirs, out=out, **options)
  return 0


def write_report(
  workdirs: list[str],
  *,
  out: str | os.PathLike[str] | None = None,
  num_workers: int | None = None,
  **options: Any,
) -> str:
  """Writes a report on some runs; returns the file's path.

  Raises ValueError if a folder holds no run, several runs are given options, or
  matplotlib or Jinja is missing.

  Args:
    out: The file to write; by default report.html in the workdir of a single
      local run, and in the current folder otherwise.
    num_workers: As in `run.saved.open_saved_run`.
    **options: Further options of `open_saved_run`, for a single run only.
  """
  if len(workdirs) > 1 and options:
    names = " and ".join(f"--{key}={value}" for key, value in options.items())
    raise ValueError(f"{names} needs a single run: report on one at a time.")
  alone = len(workdirs) == 1 and "://" not in workdirs[0]
  folder = workdirs[0] if alone else ""
  name = os.path.join(folder, "report.html") if out is None else out
  path, _ = output_file(name, {"HTML": (".html", ".htm")})
  page = extras.load("vit_jax.report.page", "figures").page
  # Imported here as it is slow, and a missing library is reported before.
  from vit_jax.report.measure import read_run

  track = Display().track
  runs = [
    read_run(workdir, track, num_workers=num_workers, **options)
    for workdir in workdirs
  ]
  for run in runs:
    for line in run.notes:
      say(f"{run.workdir}: {line}", sys.stdout)
    if run.problem:
      say(f"{run.workdir}: not evaluated: {run.problem}", sys.stdout)
  with replacing(path) as file:
    file.write(page(runs).encode())
  say(printable_path(str(path)), sys.stdout, whole=True)
  return str(path)
