"""Prepares batches ahead of their consumer, in processes or in a thread.

A worker process hands over images in memory that it shares with its parent and
uses again, since mapping in new memory takes a tenth of the time of decoding.
The memory has no name, so nothing is left behind however the processes end.
"""

import collections
import contextlib
import ctypes
import itertools
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import cloudpickle
import cv2
import numpy as np

from vit_jax.data.batching.batches import UNREADABLE, Batch

_SLOTS = 2  # Batches that wait for the consumer while one is being computed.


class BatchIterator(Iterator[Batch], contextlib.AbstractContextManager):
  """Iterates over batches that workers prepare ahead, in order.

  The workers start at once. They stop at `close` or the end of a `with` block,
  when this object is garbage, when the program ends, and by themselves if the
  process that started them is killed.

  Attributes:
    unreadable: The unreadable images that were skipped so far, as the keys of a
      dictionary: their names and what is wrong with them.
  """

  def __init__(
    self,
    batches: Any,
    first: int,
    num_workers: int,
    images_shape: tuple[int, ...] = (),
  ):
    """Starts to prepare batches from number `first` on.

    Args:
      batches: endless batches, indexed by number; each worker gets a copy.
      num_workers: number of processes; 0 prepares batches in a thread instead.
      images_shape: shape of a batch's "image", uint8; needed by processes only.
    """
    self.unreadable: dict[str, None] = {}
    self._turn, self._lanes = 0, []
    self._stop = weakref.finalize(self, _close_all, self._lanes)
    # Worker i computes every num_workers-th batch, beginning with the i-th.
    for start in range(first, first + num_workers):
      numbers = range(start, sys.maxsize, num_workers)
      self._lanes.append(_Process(batches, numbers, images_shape))
    if not num_workers:
      self._lanes.append(_Thread(batches, first))

  def __next__(self) -> Batch:
    """Returns the next batch.

    Raises:
      ValueError: this iterator is closed.
      ChildProcessError: a worker was killed or could not start.
      Exception: computing the batch raised it.
    """
    if not self._stop.alive:
      raise ValueError("these batches are closed; make new ones.")
    batch = self._lanes[self._turn].next()
    self._turn = (self._turn + 1) % len(self._lanes)
    self.unreadable |= dict.fromkeys(batch.pop(UNREADABLE, ()))
    return batch

  def close(self) -> None:
    """Stops the workers; may be called twice."""
    self._stop()

  def __exit__(self, *exception) -> None:
    self.close()


class _Thread:
  """Computes batches from number `first` on, in a thread."""

  def __init__(self, batches: Any, first: int):
    self._batches, self._numbers = batches, itertools.count(first)
    self._pool = ThreadPoolExecutor(max_workers=1)
    self._ahead = collections.deque(self._begin() for _ in range(_SLOTS))

  def _begin(self) -> Future[Batch]:
    return self._pool.submit(self._batches.__getitem__, next(self._numbers))

  def next(self) -> Batch:
    self._ahead.append(self._begin())
    return self._ahead.popleft().result()

  def close(self) -> None:
    # The thread is not waited for: it may hang in a read, and the garbage
    # collector may run in this very thread.
    self._pool.shutdown(wait=False, cancel_futures=True)


class _Process:
  """Computes the batches of some numbers, in a process."""

  def __init__(
    self, batches: Any, numbers: range, images_shape: tuple[int, ...]
  ):
    context = multiprocessing.get_context("spawn")
    size = math.prod(images_shape)
    slots = [context.RawArray(ctypes.c_uint8, size) for _ in range(_SLOTS)]
    self._images = _as_images(slots, images_shape)
    self._connection, theirs = context.Pipe()
    # Unlike pickle, also sends classes that a notebook defines.
    job = (theirs, cloudpickle.dumps(batches), numbers, slots, images_shape)
    self._process = context.Process(target=_serve, args=job, daemon=True)
    self._process.start()
    theirs.close()  # So that only the worker holds its end of the pipe open.
    for slot in range(_SLOTS):
      self._connection.send(slot)

  def next(self) -> Batch:
    try:
      received = self._connection.recv()
      if isinstance(received, BaseException):
        raise received
      slot, batch = received
      batch["image"] = self._images[slot].copy()
      self._connection.send(slot)
    except (EOFError, ConnectionError):
      self._process.join()
      raise ChildProcessError(
        f"a data worker ended with exit code {self._process.exitcode} (below "
        "0: killed by that signal; 9 mostly means that memory ran out); "
        "try fewer workers (loader.num_workers) or smaller batches."
      ) from None
    return batch

  def close(self) -> None:
    self._connection.close()
    self._process.kill()
    self._process.join()


def _close_all(lanes: list[_Process | _Thread]) -> None:
  for lane in lanes:
    lane.close()
  lanes.clear()


def _as_images(slots: Sequence[Any], shape: tuple[int, ...]):
  return [np.frombuffer(slot, np.uint8).reshape(shape) for slot in slots]


def _serve(
  connection: multiprocessing.connection.Connection,
  pickled: bytes,
  numbers: range,
  slots: Sequence[Any],
  images_shape: tuple[int, ...],
) -> None:
  """Runs in a worker: writes images into free slots, and sends the rest."""
  _prepare_worker()
  try:
    batches = cloudpickle.loads(pickled)
    images = _as_images(slots, images_shape)
    for number in numbers:
      batch = dict(batches[number])
      slot = connection.recv()
      images[slot][:] = batch.pop("image")
      connection.send((slot, batch))
  except (EOFError, ConnectionError):
    pass  # The parent has closed its end: it needs no more batches.
  except Exception as error:
    _send_error(connection, error)


def _send_error(connection, error: Exception) -> None:
  error.add_note("In a data worker:\n" + traceback.format_exc())
  try:
    connection.send(error)
  except (EOFError, ConnectionError):
    pass
  except Exception:  # The error cannot be pickled.
    connection.send(RuntimeError(f"{type(error).__name__}: {error}"))


def _prepare_worker() -> None:
  """Sets up a worker process: signals, threads, and its end with the parent.

  Ctrl-C reaches every process of the terminal, and a scheduler's signal may
  reach every process of the job. Workers ignore both, as the parent stops them.
  """
  cv2.setNumThreads(0)
  for stop in (signal.SIGINT, signal.SIGTERM):
    signal.signal(stop, signal.SIG_IGN)
  parent: Any = multiprocessing.parent_process()

  def leave_with_parent():
    parent.join()
    os._exit(1)

  threading.Thread(target=leave_with_parent, daemon=True).start()
