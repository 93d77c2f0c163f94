"""Lets only one run write to a workdir."""

import contextlib
import json
import os
import pathlib
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import filelock
import jax
from etils import epath

from vit_jax.runtime.files import read_regular
from vit_jax.workdir import bucket

BEAT = 20  # Seconds between two heartbeats of a lock's owner on a store.
_MOST_OWNER = 2**10  # Bytes of a lock.
DEAD = 60  # Seconds without a heartbeat after which the owner counts as dead.


@contextlib.contextmanager
def sole_writer(
  workdir: str, say: Callable[[str], None] = print
) -> Iterator[Callable[[], None]]:
  """A context in which this run alone may write to a workdir.

  The first process locks it for all. Raises ValueError if another run has
  locked it. The lock of a local folder ends with this process, however that
  ends; if nothing else was written there, the folder is left as it was, or
  deleted if it is new. On gs://, the lock is an object that its owner rewrites
  every 20 seconds; another run may take it over after a minute without a
  rewrite. `say` gets a line if the lock of a dead run has to be waited for.
  Yields a function that raises OSError if another run has taken the workdir
  over, which can happen on gs:// to a machine that slept or was cut off.
  """
  if jax.process_index() != 0:
    yield lambda: None
  elif bucket.is_address(workdir):
    with _ObjectLock(workdir, say) as lock:
      yield lock.check
  else:
    with _local_lock(workdir):
      yield lambda: None


@contextlib.contextmanager
def _local_lock(workdir: str) -> Iterator[None]:
  """Locks a local folder while inside; raises as `sole_writer` does."""
  folder = epath.Path(workdir).expanduser()
  made = [p for p in (folder, *folder.parents) if not p.exists()]
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / "lock"
  there = {*folder.iterdir()}
  lock = filelock.FileLock(os.fspath(path), timeout=0)
  try:
    guard = lock.acquire()
  except filelock.Timeout:
    owner = "which is starting"
    with contextlib.suppress(OSError, UnicodeDecodeError):
      owner = read_regular(path, _MOST_OWNER).decode() or owner
    raise _in_use_error(workdir, owner) from None
  with guard:
    path.write_text(_this_process())
    try:
      yield
    finally:
      with contextlib.suppress(OSError):
        if {*folder.iterdir()} - there == {path}:
          path.unlink()
          for empty in made:
            empty.rmdir()


def _in_use_error(workdir: str, owner: str) -> ValueError:
  """The error for a workdir that another run has locked."""
  then = "wait for its end, or choose another workdir."
  return ValueError(
    f"{workdir} belongs to a run that has not ended, {owner}: {then}"
  )


def _this_process() -> str:
  return f"process {os.getpid()} on {socket.gethostname()}"


class _ObjectLock:
  """A lock on an object store: an object that its owner rewrites.

  The object's generation changes with every write.
  """

  def __init__(self, workdir: str, say: Callable[[str], None]):
    self._workdir, self._say = workdir, say
    self._blob = bucket.blob(f"{workdir.rstrip('/')}/lock")
    self._owner = {"owner": _this_process(), "token": secrets.token_hex(8)}
    self._owner |= {"pid": os.getpid(), "system": _system()}
    # The store must still hold this generation when we write.
    self._generation = 0
    self._lost = False
    self._end = threading.Event()
    self._thread = threading.Thread(target=self._beat, daemon=True)

  def __enter__(self) -> "_ObjectLock":
    """Takes the lock, also from an owner that counts as dead.

    Raises ValueError if the owner is alive, and OSError if the store cannot be
    used.
    """
    while not self._write():
      self._generation = self._wait_for_death()
    self._thread.start()
    return self

  def __exit__(self, *_: Any) -> None:
    """Gives up the lock, unless another run has taken it."""
    self._end.set()
    self._thread.join()
    if not self._lost:
      with contextlib.suppress(Exception):  # The lock then expires.
        self._blob.delete(if_generation_match=self._generation)

  def check(self) -> None:
    """Raises OSError if another run has taken the lock."""
    if self._lost:
      raise OSError(
        f"another run has taken {self._workdir} over, as this one was silent "
        f"for more than {DEAD} s: this one ends and writes nothing more."
      )

  def _store_error(self, error: Exception) -> OSError:
    """The error for a store that does not do as it was asked."""
    why = bucket.reason(error)
    return OSError(f"{self._workdir} cannot be locked now: {why}")

  def _write(self) -> bool:
    """Writes the object; returns whether this run then owns the lock.

    Raises OSError if the store cannot be used.
    """
    options = {"retry": bucket.retry(), "if_generation_match": self._generation}
    try:
      self._blob.upload_from_string(json.dumps(self._owner), **options)
      self._generation = self._blob.generation
    except Exception as error:
      if bucket.status(error) != 412:
        raise self._store_error(error) from error
      # The object has another generation (412), perhaps by this very write,
      # which was sent again after it had succeeded.
      now, holder = self._read()
      if holder.get("token") != self._owner["token"]:
        return False
      self._generation = now
    return True

  def _read(self) -> tuple[int, dict[str, Any]]:
    """The generation and the content of the object; (0, {}) without an object.

    Raises OSError if the store cannot be used.
    """
    options = {"retry": bucket.retry()}
    try:
      blob = self._blob.bucket.get_blob(self._blob.name, **options)
      content = blob.download_as_bytes(**options) if blob else b"{}"
    except Exception as error:
      if bucket.status(error) != 404:  # It was deleted between the two.
        raise self._store_error(error) from error
      return 0, {}
    holder = None
    with contextlib.suppress(ValueError, RecursionError):
      holder = json.loads(content)
    generation = blob.generation if blob else 0
    return generation, holder if isinstance(holder, dict) else {}

  def _wait_for_death(self) -> int:
    """Waits until the owner counts as dead, and returns the lock's generation.

    It is 0 if the lock was deleted. Raises ValueError if the owner is alive.
    The clocks of two machines differ, so this machine's clock measures how long
    the object does not change.
    """
    generation, holder = self._read()
    owner = str(holder.get("owner", "which is unknown"))
    if not generation or _is_dead(holder):
      return generation
    self._say(
      f"{self._workdir} is locked by {owner}: it may have been killed, and "
      f"then this run starts in {DEAD} s."
    )
    end = time.monotonic() + DEAD
    while time.monotonic() < end:
      time.sleep(min(BEAT / 4, DEAD / 4))
      now, _ = self._read()
      if not now:
        return now
      if now != generation:
        raise _in_use_error(self._workdir, owner)
    return generation

  def _beat(self) -> None:
    """Rewrites the object until the end, or until another run has the lock."""
    while not self._end.wait(BEAT):
      with contextlib.suppress(Exception):  # The network may come back.
        if self._write():
          continue
        generation, _ = self._read()
        if generation:
          self._lost = True
          return
        self._generation = 0  # Somebody deleted it.


def _is_dead(holder: dict[str, Any]) -> bool:
  """Whether the owner was a process of this very system, and has ended."""
  pid = holder.get("pid")
  if holder.get("system") != _system() or not isinstance(pid, int):
    return False
  try:
    os.kill(pid, 0)
  except (OSError, OverflowError) as error:
    return isinstance(error, ProcessLookupError)
  return False


def _system() -> str:
  """A name of the system, within which a process number means one process."""
  try:
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"
  except OSError:
    return secrets.token_hex(8)  # Different from all others.
