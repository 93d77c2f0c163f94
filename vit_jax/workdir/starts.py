"""When, on what and by which command a run was started, for its report.

A line of JSON for each start, in WORKDIR/starts.jsonl.
"""

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import sys
from typing import Any

import jax
from etils import epath

from vit_jax.workdir.metrics import read_rows

_PACKAGES = ("vit_jax", "jax", "flax", "optax", "orbax-checkpoint", "numpy")


def record_start(folder: epath.Path, step: int) -> None:
  """Adds this start of a run to its folder; only the first process writes.

  Args:
    folder: The workdir.
    step: That it goes on from; 0 of a fresh run.

  Raises:
    OSError: if it cannot be written.
  """
  if jax.process_index():
    return
  path = folder / "starts.jsonl"
  row = {"step": step, **_here()}
  before = path.read_text() if path.exists() else ""
  draft = folder / "starts.jsonl.part"
  draft.write_text(before + json.dumps(row) + "\n")
  draft.replace(path)


def read_starts(folder: epath.Path) -> list[dict[str, Any]]:
  """Every start of a run, oldest first; none where they were not recorded."""
  path = folder / "starts.jsonl"
  return read_rows(path) if path.exists() else []


def _here() -> dict[str, Any]:
  """This process, its machine and its packages."""
  now = datetime.datetime.now(datetime.UTC)
  return {
    "time": now.isoformat(timespec="seconds"),
    "command": _command(sys.orig_argv),
    "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
    "hosts": jax.process_count(),
    "cores": os.cpu_count(),
    "system": f"{platform.system()} {platform.machine()}",
    "python": platform.python_version(),
    "packages": {name: _version(name) for name in _PACKAGES},
  }


def _command(argv: list[str]) -> str | None:
  """The command line as it was typed; None of a run started from Python."""
  if "-m" not in argv[1:]:
    return None
  typed = argv[argv.index("-m") :]
  if typed[1:2] != ["vit_jax.train"]:
    return None
  return shlex.join(["python", *typed])


def _version(package: str) -> str | None:
  """None of a package that runs from its source, not installed."""
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None
