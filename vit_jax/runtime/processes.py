"""Worker processes that end with their parent, and that never hold it up.

What they work on lies in shared memory without a name, and only a few hundred
bytes go through a pipe: one that dies while it starts blocks nobody.
"""

import contextlib
import ctypes
import multiprocessing.connection
import os
import signal
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker, util
from typing import Any

import cloudpickle

CONTEXT = multiprocessing.get_context("spawn")
_ENDS = 10  # Longest wait, in seconds, for a process that was killed.
SLOW = "no data came for {:.0f} s: a file system or a worker hangs."


def shared(content: Any) -> Any:
  """What a `Worker` gets; pickled once, also if a notebook defines it."""
  pickled = cloudpickle.dumps(content)
  memory = CONTEXT.RawArray(ctypes.c_char, len(pickled))
  memoryview(memory).cast("B")[:] = pickled
  return memory


class Worker:
  """A process that runs `serve(connection, content, *arguments)`.

  It ends at `close`, with this object, and by itself if this process is gone.
  Ctrl-C reaches every process of a terminal, and a scheduler's signal may reach
  every process of a job: from its first moment, the worker ignores both.

  Args:
    memory: The content, as `shared` makes it.
    advice: The end of the message about a worker that died.
  """

  def __init__(
    self, serve: Callable[..., None], memory: Any, *arguments: Any, advice: str
  ):
    self._memory, self._advice = memory, advice  # It may not be read yet.
    self._connection, theirs = CONTEXT.Pipe()
    given = (theirs, serve, memory, *arguments)
    self._process = CONTEXT.Process(target=_main, args=given, daemon=True)
    # In a thread, no signal's handler can interrupt it halfway.
    with theirs, ThreadPoolExecutor(1) as thread:
      thread.submit(self._start).result()

  def _start(self) -> None:
    resource_tracker.ensure_running()  # Or `start` does, which unblocks both.
    # The new process inherits what this thread blocks.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    self._process.start()
    # At exit, it is called before multiprocessing waits for its processes.
    self.close = util.Finalize(self, _end, [self._process], exitpriority=1)

  def fileno(self) -> int:
    """For `multiprocessing.connection.wait`."""
    return self._connection.fileno()

  def send(self, item: Any) -> None:
    """Sends a few bytes; if the worker has died, `recv` will say why."""
    with contextlib.suppress(ConnectionError):
      self._connection.send(item)

  def recv(self, seconds: float) -> Any:
    """What the worker sends; raises what `serve` raised.

    Raises ChildProcessError if the worker died, or if it takes too long.
    """
    try:
      if not self._connection.poll(seconds):
        raise ChildProcessError(SLOW.format(seconds))
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


def _end(process: Any) -> None:
  process.kill()
  process.join(_ENDS)  # It may hang in a read, and end only after that.


def _main(
  connection: Any, serve: Callable[..., None], memory: Any, *arguments: Any
) -> None:
  """Runs in a worker."""
  threading.Thread(target=_leave_with_parent, daemon=True).start()
  try:
    content = cloudpickle.loads(memoryview(memory).cast("B"))
    serve(connection, content, *arguments)
  except Exception as error:
    _send_error(connection, error)


def _leave_with_parent() -> None:
  parent: Any = multiprocessing.parent_process()
  parent.join()
  os._exit(1)


def _send_error(connection: Any, error: Exception) -> None:
  error.add_note("In a data worker:\n" + traceback.format_exc())
  try:
    connection.send(error)
  except (EOFError, ConnectionError):
    pass  # The parent has closed its end: it needs no more.
  except Exception:  # The error cannot be pickled.
    connection.send(RuntimeError(f"{type(error).__name__}: {error}"))
