"""Where downloads stay, and who writes there.

That is `$VIT_JAX_CACHE` or else `~/.cache/vit_jax` (`$XDG_CACHE_HOME/vit_jax`),
each address in a folder of its own; delete that to fetch it anew. Processes
that want the same file wait for the first (an empty `.lock` stays, which blocks
nobody).
"""

import contextlib
import hashlib
import os
import pathlib
import shutil
from collections.abc import Iterator

import filelock

from vit_jax.pretrained import progress


def cache_folder() -> pathlib.Path:
  """Where downloads are kept."""
  if folder := os.environ.get("VIT_JAX_CACHE"):
    return pathlib.Path(folder).expanduser()
  base = os.environ.get("XDG_CACHE_HOME", "")
  if not os.path.isabs(base):  # The standard says to ignore any other.
    base = os.path.expanduser("~/.cache")
  return pathlib.Path(base, "vit_jax")


def place(url: str, name: str) -> pathlib.Path:
  """The path in the cache that belongs to `url` and to no other."""
  key = hashlib.sha256(url.encode()).hexdigest()[:16]
  return cache_folder() / key / name


def drop(path: pathlib.Path) -> bool:
  """Removes a download, so that it is fetched anew; of a folder, the whole.

  Returns:
    Whether the path was in the cache, where alone anything is removed.
  """
  folder = cache_folder()
  inner = path.relative_to(folder).parts if path.is_relative_to(folder) else ()
  if len(inner) < 2:
    return False
  target = folder.joinpath(*inner[:2])  # Of one address, as `place` has it.
  if target.is_dir():
    shutil.rmtree(target, ignore_errors=True)
  else:
    target.unlink(missing_ok=True)
  return not target.exists()


@contextlib.contextmanager
def only_one(target: pathlib.Path) -> Iterator[None]:
  """Lets one process at a time make `target`.

  The system itself frees the lock of a process that is killed.
  """
  lock = filelock.FileLock(target.with_name(f"{target.name}.lock"))
  with writing(target):
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
      lock.acquire(timeout=0)
    except filelock.Timeout:
      progress.say(f"waiting for another process that downloads {target.name}")
      lock.acquire()
  try:
    yield
  finally:
    lock.release()


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
  """Puts the system's errors about `path` into words."""
  try:
    yield
  except OSError as error:
    if error.errno is None:  # It is in words already.
      raise
    raise OSError(
      f"cannot write {str(path)!r}: {error.strerror}; make room, or set "
      "VIT_JAX_CACHE to a folder that has room and can be written."
    ) from error
