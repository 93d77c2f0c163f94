"""Records each start of a run, and the images that it could not read.

WORKDIR/starts.jsonl has a line of JSON for each start: when it was, the command
line, the machine and the versions of the packages.
"""

import datetime
import importlib.metadata
import os
import platform
import shlex
import sys
from collections.abc import Iterable
from typing import Any

import jax
from etils import epath

from vit_jax.workdir.rows import (
  Row,
  Rows,
  is_count,
  is_text,
  read,
  read_rows,
  replace,
  to_line,
)

STARTS = "starts.jsonl"
_PACKAGES = ("vit_jax", "jax", "flax", "optax", "orbax-checkpoint", "numpy")
_TEXTS = ("time", "devices", "system", "python")  # In a row of starts.jsonl.
_SHOWN = 3  # Names of unreadable images in a message.


def record_start(folder: epath.Path, step: int) -> None:
  """Adds a start from this step to the workdir; only the first process writes.

  Raises OSError if it cannot be written.
  """
  if jax.process_index():
    return
  path = folder / STARTS
  before = read(path)
  if before and not before.endswith(b"\n"):  # The disk was full.
    before += b"\n"
  replace(path, before + to_line({"step": step, **here()}))


def read_starts(folder: epath.Path) -> Rows:
  """All recorded starts of a run, oldest first, as `here` describes them."""
  return read_rows(folder / STARTS, _is_start)


def _is_start(row: Row) -> bool:
  """Whether a row has all that `here` gives, each of its type."""
  if not {"command", "hosts", "cores", "packages", *_TEXTS} <= row.keys():
    return False
  packages = row["packages"]
  if not isinstance(packages, dict):
    return False
  optional = row["command"], *packages.values()
  texts = [*(row[key] for key in _TEXTS), *packages]
  texts += [text for text in optional if text is not None]
  counts = row["hosts"], 0 if row["cores"] is None else row["cores"]
  return (
    all(map(is_text, texts))
    and all(map(is_count, counts))
    and _is_time(row["time"])
  )


def _is_time(text: str) -> bool:
  """Whether a text is a time with its zone, as `here` writes it."""
  try:
    return datetime.datetime.fromisoformat(text).tzinfo is not None
  except ValueError:
    return False


def keep_unreadable(folder: epath.Path, found: Iterable[str]) -> str:
  """Adds images to WORKDIR/unreadable.txt, one a line with its reason.

  A line is such as "photos/cat/1.jpg: the file is empty." Another host's file
  has the host's number in its name. Raises OSError if it cannot be written.
  Returns how many there are and the first names, in a line.
  """
  host = f"_{jax.process_index()}" if jax.process_index() else ""
  path = folder / f"unreadable{host}.txt"
  before = read(path).decode(errors="replace")
  lines = dict.fromkeys([*before.splitlines(), *found])
  replace(path, "".join(f"{line}\n" for line in lines).encode())
  first = " ".join(list(lines)[:_SHOWN])
  more = "" if len(lines) <= _SHOWN else " ..."
  images = "image" if len(lines) == 1 else "images"
  return f"{len(lines):,} unreadable {images}, listed in {path}: {first}{more}"


def here() -> dict[str, Any]:
  """Describes this process, its machine and its packages."""
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
  """The command line as it was typed; None if the run began in Python."""
  if "-m" in argv[1:]:
    typed = ["python", *argv[argv.index("-m") :]]
  else:  # It may be the script `vit_jax`, which pip installs.
    typed = [*map(os.path.basename, argv[1:2]), *argv[2:]]
  named = " ".join(typed).removeprefix("python -m ") + " "
  is_train = named.startswith(("vit_jax.train ", "vit_jax train "))
  return shlex.join(typed) if is_train else None


def _version(package: str) -> str | None:
  """A package's version; None if it runs from its source, not installed."""
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None
