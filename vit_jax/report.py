"""Reports on runs: one HTML file of what they learned, and how.

python -m vit_jax.report WORKDIR... [--out=report.html] [--step=N | --best]
  [--root=DIR] [--data_dir=DIR]

The file needs no network. It shows curves, the configuration and the command
that repeats the run; and of the checkpoint, evaluated anew, accuracy by class,
confusion, calibration, telling examples with their attention rollout, and what
the embeddings have learned. Several runs are compared. By default it goes to
report.html in the workdir; of several, or of an address such as gs://bucket/run,
in the current folder.
"""

import os
from typing import Any

from absl import flags

from vit_jax import command, extras
from vit_jax.atomic_file import local_file, replacing
from vit_jax.data.image_files import printable_path


def main(arguments: list[str]) -> int:
  return report_files(arguments, out=flags.FLAGS.out, **command.choice())


def report_files(
  workdirs: list[str], *, out: str | None = None, **options: Any
) -> int:
  """Writes a report on some runs; returns the exit code.

  Args:
    workdirs: Of the runs.
    out: The file to write; by default as the module says.
    **options: As of `evaluation.opened`; only of a single run.

  Raises:
    ValueError: if a folder holds no run, or what draws figures is missing.
  """
  if len(workdirs) > 1 and options:
    given = " and ".join(f"--{name}" for name in options)
    raise ValueError(f"{given} would be of every run: report on one at a time.")
  alone = len(workdirs) == 1 and "://" not in workdirs[0]
  folder = workdirs[0] if alone else ""
  path = local_file(os.path.join(folder, "report.html") if out is None else out)
  page = extras.load("vit_jax.report_page", "figures").page
  # Here, because data workers import this module, and need no models.
  from vit_jax.report_run import read_run

  runs = [read_run(workdir, **options) for workdir in workdirs]
  for run in runs:
    if run.problem:
      print(f"{run.workdir}: not evaluated: {run.problem}", flush=True)
  with replacing(path) as file:
    file.write(page(runs).encode())
  print(printable_path(str(path)), flush=True)
  return 0


if __name__ == "__main__":
  flags.DEFINE_string("out", None, "The file to write; report.html by default.")
  command.define_choice()
  command.run(main, takes="WORKDIR [WORKDIR...]")
