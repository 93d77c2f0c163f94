"""Prepares batches ahead of their consumer, in processes or in a thread.

A worker process hands over arrays in memory that it shares with its parent and
uses again, since mapping in new memory takes a tenth of the time of decoding.
The memory has no name, so nothing is left behind however the processes end.
What a worker needs lies in such memory too, and only a few hundred bytes go
through a pipe: a worker that dies while it starts blocks nobody.
"""

import collections
import contextlib
import ctypes
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator
from concurrent import futures
from multiprocessing import resource_tracker, util
from typing import Any

import cloudpickle
import cv2

from vit_jax.data.batch import (
  Batch,
  Spec,
  batches_in_memory,
  part_of,
  size_in_memory,
)
from vit_jax.data.batching.batches import UNREADABLE
from vit_jax.runtime import hints

_CONTEXT = multiprocessing.get_context("spawn")
_SLOTS = 2  # Batches that wait for the consumer while one is being computed.
LONGEST_WAIT = 86_400.0  # Longest wait for a batch, in seconds.
_KILL_WAIT = 10  # Longest wait, in seconds, for a process that was killed.
# Options of glibc's mallopt(3): keep up to 1 GiB of free memory, take blocks of
# up to 32 MiB from the heap, and have one heap for all threads.
_KEEP_MEMORY = ((-1, 2**30), (-3, 2**25), (-8, 1))
_SLOW = "no data came for a day: a file system or a worker hangs."


class BatchIterator(Iterator[Batch], contextlib.AbstractContextManager):
  """Iterates over batches that workers prepare ahead, in order.

  The workers start at once. They stop at `close` or the end of a `with` block,
  when this object is garbage, when the program ends, and by themselves if the
  process that started them is killed. The keys of the dictionary
  `unreadable` are the images skipped so far and what is wrong with them.
  """

  def __init__(
    self,
    batches: Any,
    first: int,
    num_workers: int,
    spec: Spec | None = None,
  ):
    """Starts to prepare batches from number `first` on.

    They are endless: `batches.compute(number, out)` returns one, and writes
    the arrays that `spec` names to `out` if that is given. The arrays of a
    batch may be smaller than `spec` says, and are then parts of those in `out`.
    Each worker process gets a copy of `batches`; with 0 workers a thread
    prepares the batches. Processes send arrays that `spec` does not name
    through a pipe, which is slower. Raises OSError if there is no place for the
    memory that processes share.
    """
    self.unreadable: dict[str, None] = {}
    self._turn = 0
    self._lanes = []
    if not num_workers:
      self._lanes.append(_Thread(batches, first))
      return
    # Unlike pickle, this also sends classes that a notebook defines.
    pickled = cloudpickle.dumps(batches)
    memory = _shared_memory(len(pickled))
    memoryview(memory).cast("B")[:] = pickled
    # Worker i computes every num_workers-th batch, beginning with the i-th.
    for start in range(first, first + num_workers):
      numbers = range(start, sys.maxsize, num_workers)
      self._lanes.append(_Process(memory, numbers, spec or {}))

  def __getattr__(self, name: str) -> Any:
    """Raises AttributeError, with a hint at the name that may be meant."""
    raise hints.attribute_error(self, name, "batches", "batches have")

  def __repr__(self) -> str:
    """How to take the next batch, and how to draw one."""
    return (
      "batches without end: next(batches) is a dictionary of arrays, and "
      "vit_jax.show_batch(batches) draws one"
    )

  def __next__(self) -> Batch:
    """Returns the next batch.

    Raises ValueError if this iterator is closed, ChildProcessError if a worker
    was killed or could not start or no batch came within a day, and otherwise
    what computing the batch raised.
    """
    if not self._lanes:
      raise ValueError("these batches are closed; make new ones.")
    batch = self._lanes[self._turn].next()
    self._turn = (self._turn + 1) % len(self._lanes)
    self.unreadable |= dict.fromkeys(batch.pop(UNREADABLE, ()))
    return batch

  def __len__(self) -> int:
    """Raises TypeError, as training batches have no end."""
    raise TypeError(
      "training batches have no end: an epoch has len(train) // batch_size of "
      "them, where train is the split that open_data gives with them."
    )

  def __bool__(self) -> bool:
    return True

  def close(self) -> None:
    """Stops the workers; may be called twice."""
    while self._lanes:
      self._lanes.pop().close()

  def __exit__(self, *exception) -> None:
    self.close()


class _Thread:
  """Computes batches from number `first` on, in a thread."""

  def __init__(self, batches: Any, first: int):
    self._batches = batches
    self._numbers = itertools.count(first)
    self._pool = futures.ThreadPoolExecutor(max_workers=1)
    self._ahead = collections.deque(self._begin() for _ in range(_SLOTS))
    # The thread is not waited for: it may hang in a read, and the garbage
    # collector may run in this very thread.
    self.close = weakref.finalize(
      self, self._pool.shutdown, wait=False, cancel_futures=True
    )

  def _begin(self) -> futures.Future[Batch]:
    return self._pool.submit(self._batches.compute, next(self._numbers))

  def next(self) -> Batch:
    """Returns the next batch; raises the error that computing it raised.

    Raises ChildProcessError if no batch comes.
    """
    self._ahead.append(self._begin())
    batch = self._ahead.popleft()
    if futures.wait([batch], LONGEST_WAIT).not_done:
      raise ChildProcessError(_SLOW)
    return batch.result()


class _Process:
  """Computes the batches of some numbers, in a process.

  Ctrl-C reaches every process of a terminal, and a scheduler's signal may reach
  every process of a job: from its first moment, the worker ignores both.
  """

  def __init__(self, memory: Any, numbers: range, spec: Spec):
    """Starts the process, which computes the batches of these `numbers`.

    `memory` has the pickled object that computes them.
    """
    count = _SLOTS + 1  # The last slot is for the batch that is being computed.
    size = max(1, size_in_memory(spec))
    slots = _shared_memory(count * size)
    self._slots = batches_in_memory(slots, spec, count)
    self._memory = memory  # Kept, as the worker may not have read it yet.
    self._connection, theirs = _CONTEXT.Pipe()
    arguments = (theirs, memory, numbers, slots, spec)
    self._process = _CONTEXT.Process(target=_main, args=arguments, daemon=True)
    # Python runs signal handlers in the main thread only, so none can interrupt
    # `_start` halfway.
    with theirs, futures.ThreadPoolExecutor(1) as thread:
      thread.submit(self._start).result()
    for slot in range(count):
      self._send(slot)

  def _start(self) -> None:
    """Starts the process, in which both signals are blocked; sets `close`."""
    # Otherwise `start` would start the tracker, and then unblock both signals.
    resource_tracker.ensure_running()
    # The new process inherits what this thread blocks.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    self._process.start()
    # At exit, `close` is called before multiprocessing waits for its processes.
    self.close = util.Finalize(
      self, _stop_process, [self._process], exitpriority=1
    )

  def _send(self, slot: int) -> None:
    # If the process has died, `next` will say why.
    with contextlib.suppress(ConnectionError):
      self._connection.send(slot)

  def next(self) -> Batch:
    """Returns the next batch; raises the error that computing it raised.

    Raises ChildProcessError if the process has ended, or no batch comes.
    """
    try:
      if not self._connection.poll(LONGEST_WAIT):
        raise ChildProcessError(_SLOW)
      received = self._connection.recv()
    except (EOFError, ConnectionError):
      self._process.join(_KILL_WAIT)
      raise ChildProcessError(
        f"a data worker ended with exit code {self._process.exitcode} (below "
        "0: killed by that signal; 9 mostly means that memory ran out); try "
        "fewer workers (loader.num_workers, --workers) or smaller batches."
      ) from None
    if isinstance(received, BaseException):
      raise received
    slot, shapes, other_arrays = received
    places = self._slots[slot]
    arrays = {k: part_of(places[k], shapes[k]).copy() for k in shapes}
    self._send(slot)
    return {**arrays, **other_arrays}


def _shared_memory(size: int) -> Any:
  """Memory of `size` bytes that processes share.

  Raises OSError if there is no place for it.
  """
  try:
    return _CONTEXT.RawArray(ctypes.c_ubyte, size)
  except OSError as error:
    place = f"{error.filename} " if error.filename else ""
    raise OSError(
      f"data workers share memory in /dev/shm or else in TMPDIR, and {place}"
      f"cannot be used ({error.strerror or error}): make it writable, or do "
      "without workers (--config.loader.num_workers=0, or --workers=1)."
    ) from error


def _stop_process(process: Any) -> None:
  process.kill()
  # The process may hang in a read, and end only after that.
  process.join(_KILL_WAIT)


def _main(
  connection: Any, memory: Any, numbers: range, slots: Any, spec: Spec
) -> None:
  """Runs in a worker process: computes batches into free slots.

  For each batch, sends its slot, the shapes of the arrays in the slot, and the
  arrays that `spec` does not name. If a batch fails, sends the error, and ends.
  """
  keep_memory()
  threading.Thread(target=_leave_with_parent, daemon=True).start()
  cv2.setNumThreads(0)
  places = batches_in_memory(slots, spec, _SLOTS + 1)
  try:
    batches = cloudpickle.loads(memoryview(memory))
    for number in numbers:
      slot = connection.recv()
      batch = batches.compute(number, places[slot])
      other_names = batch.keys() - spec.keys()
      other_arrays = {name: batch[name] for name in other_names}
      shapes = {name: batch[name].shape for name in spec if name in batch}
      connection.send((slot, shapes, other_arrays))
  except Exception as error:
    _send_error(connection, error)


def keep_memory() -> None:
  """Has this process keep freed memory, and use it again for other images.

  Otherwise new memory would be mapped in for each image, which takes time. Only
  glibc has such a setting; on other systems nothing happens.
  """
  library = ctypes.CDLL(None)
  if hasattr(library, "mallopt"):
    for option, value in _KEEP_MEMORY:
      library.mallopt(option, value)


def _send_error(connection: Any, error: Exception) -> None:
  """Sends an error with its traceback, or in words if it cannot be pickled."""
  error.add_note("In a data worker:\n" + traceback.format_exc())
  try:
    connection.send(error)
  except (EOFError, ConnectionError):
    pass  # The parent has closed its end: it needs no more batches.
  except Exception:  # The error cannot be pickled.
    connection.send(RuntimeError(f"{type(error).__name__}: {error}"))


def _leave_with_parent() -> None:
  """Ends this process as soon as its parent has ended."""
  parent: Any = multiprocessing.parent_process()
  parent.join()
  os._exit(1)
