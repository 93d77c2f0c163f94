"""Runs a sequence of batches ahead of its consumer, with Grain."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import cv2
import grain
import numpy as np
from absl import flags
from grain.experimental import DatasetOptions, WithOptionsIterDataset

from vit_jax.data.batches import Batch

BATCHES_PER_WORKER = 4
"""How many exist a worker: being computed, queued, received, handed over."""

_SHARED_MEMORY = "/dev/shm"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LEAST_SHARED = 1 << 16  # bytes; smaller arrays are cheaper through a pipe


class BatchIterator(Iterator[Batch]):
  """Batches in order, prepared ahead; `close` it or leave its `with` block.

  Workers start with the first batch to be asked for, or with `start`. They stop
  at `close`, when this object is collected, when the program ends, and by
  themselves when the process that started them is killed.
  """

  def __init__(
    self,
    batches: Any,
    first: int,
    num_workers: int,
    batch_bytes: int = 0,
  ):
    """Prepares to count up from batch `first`.

    Args:
      batches: endless, and picklable if there are workers.
      first: the number of the first batch.
      num_workers: processes; 0 prepares batches in a thread of this one.
      batch_bytes: the size of a batch, to judge whether all those in flight
        fit into the shared memory; 0 if it does not matter.
    """
    _settle_grain_flags()
    if num_workers:
      in_flight = num_workers * BATCHES_PER_WORKER * batch_bytes
      least_shared = _LEAST_SHARED if _can_share(in_flight) else sys.maxsize
      # Worker i computes every num_workers-th batch, beginning with the i-th.
      # Grain can do this split too, but then stops workers one by one, a second
      # each.
      datasets = [
        _in_worker(batches, slice(first + i, None, num_workers), least_shared)
        for i in range(num_workers)
      ]
    else:
      # An element is a whole batch: Grain's buffer of 500 would fill memory.
      options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
      whole = grain.MapDataset.source(batches)[first:]
      datasets = [whole.to_iter_dataset(options)]
    self._iterators = [iter(dataset) for dataset in datasets]
    self._turn = 0
    self._started = False
    self._stop = weakref.finalize(self, _close_all, self._iterators)

  def start(self) -> None:
    """Starts to prepare batches, without waiting for the first."""
    if not self._started and self._stop.alive:
      self._started = True
      for iterator in self._iterators:
        iterator.get_state()  # makes Grain build what the next line starts
        iterator.start_prefetch()

  def __next__(self) -> Batch:
    if not self._stop.alive:
      raise ValueError("these batches are closed; make new ones.")
    self.start()
    batch = next(self._iterators[self._turn])
    self._turn = (self._turn + 1) % len(self._iterators)
    # Plain arrays: Grain's own class for shared memory is an ndarray subclass.
    return {name: np.asarray(value) for name, value in batch.items()}

  def close(self) -> None:
    """Stops the workers; may be called twice."""
    self._stop()

  def __enter__(self) -> "BatchIterator":
    return self

  def __exit__(self, *exception) -> None:
    self.close()


def _in_worker(
  batches: Any,
  which: slice,
  least_shared: int,
) -> grain.IterDataset:
  # A worker prepares one batch while its queue holds another; no thread needed.
  dataset = grain.MapDataset.source(batches)[which].to_iter_dataset(
    grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
  )
  options = DatasetOptions(min_shm_size=least_shared)
  return WithOptionsIterDataset(dataset, options).mp_prefetch(
    grain.MultiprocessingOptions(num_workers=1, per_worker_buffer_size=1),
    worker_init_fn=_start_worker,
  )


def _close_all(iterators: list[grain.DatasetIterator]) -> None:
  """Closes all at once: each waits for its worker to finish a batch."""
  threads = [threading.Thread(target=it.close) for it in iterators]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  iterators.clear()


def _can_share(num_bytes: int) -> bool:
  """Whether shared memory has room; containers often have 64 MB of it."""
  if not os.path.isdir(_SHARED_MEMORY):
    return True
  status = os.statvfs(_SHARED_MEMORY)
  return num_bytes <= status.f_bavail * status.f_frsize // 2


def _settle_grain_flags() -> None:
  """Lets Grain read its flags in programs that parse none (0.2.18 fails).

  And keeps its advice on traceback filtering out of our error messages.
  """
  grain.config.update("py_traceback_filtering", "off")
  for name in (
    "grain_py_traceback_filtering",
    "grain_enable_multiprocess_worker_profiling",
  ):
    if name in flags.FLAGS:
      flags.FLAGS[name].present = True


def _start_worker(index: int, count: int) -> None:
  """Runs first in each worker: no threads in OpenCV, no outliving.

  Ctrl-C reaches every process of the terminal; the parent alone acts on it.
  """
  del index, count
  _keep_freed_memory()
  cv2.setNumThreads(0)
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  parent: Any = multiprocessing.parent_process()

  def leave_with_parent():
    parent.join()
    os._exit(1)

  threading.Thread(target=leave_with_parent, daemon=True).start()


def _keep_freed_memory() -> None:
  """Reuses the memory of the last image for the next one, where glibc can.

  By default it goes back to the system after each batch and has to be mapped
  in again page by page, 7 % of the time that a photograph takes.
  """
  mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
  if mallopt is not None:
    mallopt(_M_MMAP_THRESHOLD, 1 << 25)
    mallopt(_M_TRIM_THRESHOLD, 1 << 28)
