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
import sys
import weakref
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import cv2
import numpy as np

from vit_jax.data.batching.batches import UNREADABLE, Batch
from vit_jax.runtime.processes import CONTEXT, SLOW, Worker, shared

_SLOTS = 2  # Batches that wait for the consumer while one is being computed.
_LONGEST_WAIT = 3600.0  # Seconds for a batch.
_ADVICE = "try fewer workers (loader.num_workers) or smaller batches."


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
    if not num_workers:
      self._lanes.append(_Thread(batches, first))
      return
    content = shared(batches)
    # Worker i computes every num_workers-th batch, beginning with the i-th.
    for start in range(first, first + num_workers):
      numbers = range(start, sys.maxsize, num_workers)
      self._lanes.append(_Process(content, numbers, images_shape))

  def __next__(self) -> Batch:
    """Returns the next batch.

    Raises:
      ValueError: this iterator is closed.
      ChildProcessError: a worker was killed or could not start, or no batch
        came within an hour.
      Exception: computing the batch raised it.
    """
    if not self._lanes:
      raise ValueError("these batches are closed; make new ones.")
    batch = self._lanes[self._turn].next()
    self._turn = (self._turn + 1) % len(self._lanes)
    self.unreadable |= dict.fromkeys(batch.pop(UNREADABLE, ()))
    return batch

  def close(self) -> None:
    """Stops the workers; may be called twice."""
    while self._lanes:
      self._lanes.pop().close()

  def __exit__(self, *exception) -> None:
    self.close()


class _Thread:
  """Computes batches from number `first` on, in a thread."""

  def __init__(self, batches: Any, first: int):
    self._batches, self._numbers = batches, itertools.count(first)
    self._pool = futures.ThreadPoolExecutor(max_workers=1)
    self._ahead = collections.deque(self._begin() for _ in range(_SLOTS))
    # The thread is not waited for: it may hang in a read, and the garbage
    # collector may run in this very thread.
    self.close = weakref.finalize(
      self, self._pool.shutdown, wait=False, cancel_futures=True
    )

  def _begin(self) -> futures.Future[Batch]:
    return self._pool.submit(self._batches.__getitem__, next(self._numbers))

  def next(self) -> Batch:
    self._ahead.append(self._begin())
    batch = self._ahead.popleft()
    if futures.wait([batch], _LONGEST_WAIT).not_done:
      raise ChildProcessError(SLOW.format(_LONGEST_WAIT))
    return batch.result()


class _Process:
  """Computes the batches of some numbers, in a process."""

  def __init__(self, content: Any, numbers: range, shape: tuple[int, ...]):
    slots = CONTEXT.RawArray(ctypes.c_uint8, _SLOTS * math.prod(shape))
    self._images = np.frombuffer(slots, np.uint8).reshape(_SLOTS, *shape)
    given = (numbers, slots, shape)
    self._worker = Worker(_serve, content, *given, advice=_ADVICE)
    self.close = self._worker.close
    for slot in range(_SLOTS):
      self._worker.send(slot)

  def next(self) -> Batch:
    slot, batch = self._worker.recv(_LONGEST_WAIT)
    batch["image"] = self._images[slot].copy()
    self._worker.send(slot)
    return batch


def _serve(
  connection: Any, batches: Any, numbers: range, slots: Any, shape: tuple
) -> None:
  """Runs in a worker: writes images into free slots, and sends the rest."""
  cv2.setNumThreads(0)
  images = np.frombuffer(slots, np.uint8).reshape(_SLOTS, *shape)
  for number in numbers:
    batch = dict(batches[number])
    slot = connection.recv()
    images[slot] = batch.pop("image")
    connection.send((slot, batch))
