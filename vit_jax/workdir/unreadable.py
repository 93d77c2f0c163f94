"""Keeps the names of the unreadable images that a run skipped."""

from collections.abc import Iterable

import jax
from etils import epath

from vit_jax.workdir import rows

_SHOWN = 3


def keep_unreadable(folder: epath.Path, found: Iterable[str]) -> str | None:
  """Adds images to WORKDIR/unreadable.txt, one a line with its reason.

  Another host's file has the host's number in its name.

  Args:
    found: Lines such as "photos/cat/1.jpg: the file is empty."

  Returns:
    How many there are and the first names, in a line; None if there is none.

  Raises:
    OSError: if the file cannot be written.
  """
  lines = dict.fromkeys(found)
  if not lines:
    return None
  host = f"_{jax.process_index()}" if jax.process_index() else ""
  path = folder / f"unreadable{host}.txt"
  before = rows.read(path).decode(errors="replace")
  lines = dict.fromkeys(before.splitlines()) | lines
  rows.replace(path, "".join(f"{line}\n" for line in lines).encode())
  first = " ".join(list(lines)[:_SHOWN])
  more = "" if len(lines) <= _SHOWN else " ..."
  images = "image" if len(lines) == 1 else "images"
  return f"{len(lines):,} unreadable {images}, listed in {path}: {first}{more}"
