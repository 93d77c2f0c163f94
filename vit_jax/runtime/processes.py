"""Worker processes that end with their parent, and that never hold it up.

A new process gets a few hundred bytes through its pipe; what it works on lies
in memory that it shares with its parent. So a process that dies while it starts
blocks nobody. The memory has no name: nothing is left behind, however the
processes end.
"""

import contextlib
import ctypes
import multiprocessing
import multiprocessing.connection
import multiprocessing.util
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker
from typing import Any

import cloudpickle

CONTEXT = multiprocessing.get_context("spawn")
_ENDS = 10  # Longest wait, in seconds, for a process that was killed.


class Job:
  """What worker processes work on, pickled once for all of them.

  Unlike pickle, this also takes classes that a notebook defines.
  """

  def __init__(self, content: Any):
    pickled = cloudpickle.dumps(content)
    self._memory = CONTEXT.RawArray(ctypes.c_char, len(pickled))
    memoryview(self._memory).cast("B")[:] = pickled

  def read(self) -> Any:
    """What the job was made of; each call makes a copy."""
    return cloudpickle.loads(memoryview(self._memory).cast("B"))


class Worker:
  """A process that runs `serve(connection, content of the job, *arguments)`.

  It ends at `close`, with this object, and by itself if this process is gone.
  Ctrl-C reaches every process of a terminal, and a scheduler's signal may reach
  every process of a job: from its first moment, the worker ignores both.

  Args:
    advice: What to do about a worker that was killed, to end a message with.
  """

  def __init__(
    self, serve: Callable[..., None], job: Job, *arguments: Any, advice: str
  ):
    self._job, self._advice = job, advice  # The worker may not have read it.
    self._connection, theirs = CONTEXT.Pipe()
    of_worker = (theirs, serve, job, arguments)
    self._process = CONTEXT.Process(target=_main, args=of_worker, daemon=True)
    # In a thread, no signal's handler can interrupt it halfway.
    with theirs, ThreadPoolExecutor(1) as thread:
      thread.submit(self._start).result()

  def _start(self) -> None:
    resource_tracker.ensure_running()  # Otherwise `start` does, and unblocks.
    signal.pthread_sigmask(
      signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM)
    )  # The new process inherits it.
    self._process.start()
    # At exit, multiprocessing calls it before it waits for its processes.
    self.close = multiprocessing.util.Finalize(
      self, _end, (self._process, self._connection), exitpriority=1
    )

  def send(self, item: Any) -> None:
    """Sends a few bytes; if the worker has died, `recv` will say why."""
    with contextlib.suppress(ConnectionError):
      self._connection.send(item)

  def recv(self, seconds: float | None = None) -> Any:
    """Returns what the worker sends.

    Raises:
      ChildProcessError: the worker has died, or nothing came in time.
      Exception: `serve` raised it.
    """
    try:
      if seconds is not None and not self._connection.poll(seconds):
        raise slow(seconds)
      received = self._connection.recv()
    except (EOFError, ConnectionError):
      self._process.join(_ENDS)
      raise ChildProcessError(
        f"a data worker ended with exit code {self._process.exitcode} (below "
        "0: killed by that signal; 9 mostly means that memory ran out); "
        f"{self._advice}"
      ) from None
    if isinstance(received, BaseException):
      raise received
    return received

  def fileno(self) -> int:
    """For `multiprocessing.connection.wait`, which says who has answered."""
    return self._connection.fileno()


def slow(seconds: float) -> ChildProcessError:
  """The error of a worker or a thread that does not answer."""
  return ChildProcessError(
    f"no data came for {seconds:.0f} s: a file system or a worker hangs."
  )


def _end(
  process: Any, connection: multiprocessing.connection.Connection
) -> None:
  connection.close()
  process.kill()
  process.join(_ENDS)  # One that hangs in a read only ends after that.


def _main(
  connection: multiprocessing.connection.Connection,
  serve: Callable[..., None],
  job: Job,
  arguments: Iterable[Any],
) -> None:
  """Runs in a worker."""
  parent: Any = multiprocessing.parent_process()

  def leave_with_parent():
    parent.join()
    os._exit(1)

  threading.Thread(target=leave_with_parent, daemon=True).start()
  try:
    serve(connection, job.read(), *arguments)
  except Exception as error:
    _send_error(connection, error)


def _send_error(
  connection: multiprocessing.connection.Connection, error: Exception
) -> None:
  error.add_note("In a data worker:\n" + traceback.format_exc())
  try:
    connection.send(error)
  except (EOFError, ConnectionError):
    pass  # The parent has closed its end: it needs no more.
  except Exception:  # The error cannot be pickled.
    connection.send(RuntimeError(f"{type(error).__name__}: {error}"))
