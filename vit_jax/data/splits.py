"""The splits of a run's data, and batches of them for this host."""

import dataclasses
import os
from typing import Any

from vit_jax.data.example import Source
from vit_jax.data.pipeline import (
  EvalPasses,
  check_train_batches,
  eval_batches,
  train_batches,
)
from vit_jax.data.settings import LoaderSettings
from vit_jax.data.transforms import EvalTransform, TrainTransform
from vit_jax.data.workers import BatchIterator

_SMALL_IMAGE = 64 * 64  # Pixels; below, starting processes costs more.
_MOST_WORKERS = 16


@dataclasses.dataclass(frozen=True)
class Loader:
  """Opens this host's part of batches.

  Attributes:
    num_workers: Decoding processes; 0 decodes in a thread.
    on_unreadable: One of `settings.ON_UNREADABLE`.
    process_index: Number of this host, from 0.
    process_count: Number of hosts.
  """

  num_workers: int = 0
  on_unreadable: str = "stop"
  process_index: int = 0
  process_count: int = 1

  def check(self, source: Source, batch_size: int, seed: int) -> None:
    """Raises ValueError unless `train` takes these; starts nothing."""
    check_train_batches(
      source, batch_size=batch_size, seed=seed, **self._options()
    )

  def train(
    self,
    source: Source,
    transform: TrainTransform,
    *,
    batch_size: int,
    seed: int,
    first_batch: int,
  ) -> BatchIterator:
    """Endless training batches, from a number on; see `train_batches`."""
    return train_batches(
      source,
      transform,
      batch_size=batch_size,
      seed=seed,
      first_batch=first_batch,
      num_workers=self.num_workers,
      **self._options(),
    )

  def evaluate(
    self, source: Source, transform: EvalTransform, batch_size: int
  ) -> EvalPasses:
    """Batches of a split in order, over and over; see `eval_batches`.

    At most as many processes decode as there are batches; a process for a
    single batch would be slower than a thread.
    """
    batches = -(-len(source) // batch_size)
    workers = min(self.num_workers, batches)
    return eval_batches(
      source,
      transform,
      batch_size=batch_size,
      num_workers=workers if batches > 1 else 0,
      **self._options(),
    )

  def _options(self) -> dict[str, Any]:
    return dict(
      on_unreadable=self.on_unreadable,
      process_index=self.process_index,
      process_count=self.process_count,
    )


def make_loader(
  settings: LoaderSettings,
  *,
  photographs: bool,
  image_size: tuple[int, int],
  process_index: int,
  process_count: int,
) -> Loader:
  """The loader of some settings.

  Where these leave it open, one process a core decodes, but none does for tiny
  images.

  Args:
    settings: The section `loader` of a configuration.
    photographs: Whether the images lie in folders: they take work to decode
      however small they end up.
    image_size: Height and width that images are resized to.
    process_index: Number of this host.
    process_count: Number of hosts.
  """
  workers = settings.num_workers
  if workers == -1:
    height, width = image_size
    tiny = not photographs and height * width <= _SMALL_IMAGE
    workers = 0 if tiny else min(_MOST_WORKERS, _num_cores())
  return Loader(workers, settings.on_unreadable, process_index, process_count)


def check_same_classes(
  names: tuple[str, ...], of: str, others: tuple[str, ...], of_others: str
) -> None:
  """Raises ValueError, saying whose the lists are, unless they are equal."""
  if names != others:
    only = ", ".join(sorted(set(names) ^ set(others))[:5])
    raise ValueError(
      f"{of} has {len(names)} classes and {of_others} {len(others)}, and they "
      "must be the same, in the same order; in one of them only: "
      f"{only or 'none'}."
    )


def _num_cores() -> int:
  """Cores this process may use, which can be fewer than the machine has."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
