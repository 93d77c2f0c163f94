"""Lets only one run write to a workdir."""

import contextlib
import os
import socket
from collections.abc import Iterator

import filelock
import jax
from etils import epath


@contextlib.contextmanager
def sole_writer(workdir: str) -> Iterator[None]:
  """Locks a local workdir while inside.

  The lock ends with this process, however that ends. There is none on gs://.

  Raises:
    ValueError: if another run has locked it.
  """
  if "://" in workdir or jax.process_index() != 0:
    yield
    return
  folder = epath.Path(workdir).expanduser()
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / "lock"
  lock = filelock.FileLock(os.fspath(path), timeout=0)
  try:
    lock.acquire()
  except filelock.Timeout:
    raise ValueError(
      f"{workdir} belongs to a run that goes on, {_owner(path)}: wait for its "
      "end, or choose another --workdir."
    ) from None
  try:
    path.write_text(f"process {os.getpid()} on {socket.gethostname()}")
    yield
  finally:
    lock.release()


def _owner(path: epath.Path) -> str:
  """The process that holds the lock, as it wrote into the file."""
  try:
    return path.read_text() or "which is starting"
  except (OSError, UnicodeDecodeError):
    return "which is starting"
