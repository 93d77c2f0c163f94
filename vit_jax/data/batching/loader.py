"""From a source and a transform to this host's batches.

A batch is a pure function of (seed, its number), see `batches`; `workers` only
decides in which process it is computed and how early. So the number of workers
changes nothing, each host takes its own rows of the same batch, and a run
resumes at batch k by asking for batch k.
"""

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional

from vit_jax.data.batch import Batch, Transform, as_transform
from vit_jax.data.batching import batches
from vit_jax.data.batching.workers import BatchIterator
from vit_jax.data.example import Source
from vit_jax.data.settings import ON_UNREADABLE, LoaderSettings
from vit_jax.data.transforming.transforms import EvalTransform, TrainTransform
from vit_jax.runtime import hints
from vit_jax.runtime.checks import NOT_NEGATIVE, checked

# Only runs whose images share rows load the module `packing`.
if TYPE_CHECKING:
  from vit_jax.data.batching.packing import Packing

_SMALL_IMAGE = 64 * 64  # Pixels; for such images processes do not pay off.
_MOST_WORKERS = 16


class EvalPasses(contextlib.AbstractContextManager):
  """Batches of a split, to iterate over as often as needed, a pass each time.

  The workers start with `start` or the first pass, stay for the next passes,
  and stop at `close` or the end of a `with` block; after a pass that was left
  early, the next pass starts new workers. The length is the number of batches
  in a pass, and is equal on all hosts. A batch holds the arrays of the
  transform, such as `image` uint8 (b, H, W, C); `label`, int32 (b,) or what the
  source's labels are; `mask` float32 (b,), 1 for an example and 0 for padding
  and skipped images; and `skipped` bool (b,), true for an unreadable image.
  `unreadable` has the unreadable images of all passes, as
  `BatchIterator.unreadable`.
  """

  def __init__(self, passes: batches.EvalBatches, num_workers: int):
    """See `Loader.evaluate`, which checks the arguments."""
    self._batches = passes
    self._num_workers = num_workers
    self.unreadable: dict[str, None] = {}
    self._iterator: BatchIterator | None = None
    self._midway = False

  def __getattr__(self, name: str) -> Any:
    """Raises AttributeError, with a hint at the name that may be meant."""
    raise hints.attribute_error(self, name, "batches", "batches have")

  def __repr__(self) -> str:
    """How many batches there are, and how to draw one."""
    return (
      f"{len(self):,} batches, once through the split: for batch in batches. "
      "Each is a dictionary of arrays, and vit_jax.show_batch(batch) draws it"
    )

  def __len__(self) -> int:
    return self._batches.num_batches

  def __iter__(self) -> Iterator[Batch]:
    """Yields the batches of one pass.

    Raises as `BatchIterator.__next__` does.
    """
    if self._midway:  # The last pass was left early.
      self.close()
    iterator = self.start()
    self._midway = True
    for _ in range(len(self) - 1):
      yield next(iterator)
    last = next(iterator)
    self._midway = False
    yield last

  def start(self) -> BatchIterator:
    """Starts the workers, without waiting for the first batch."""
    if self._iterator is None:
      self._iterator = _start_workers(
        self._batches, first=0, num_workers=self._num_workers
      )
      self._iterator.unreadable = self.unreadable
    return self._iterator

  def close(self) -> None:
    """Stops the workers; another pass would start new ones."""
    if self._iterator is not None:
      self._iterator.close()
    self._iterator = None
    self._midway = False

  def __exit__(self, *exception) -> None:
    self.close()


@dataclasses.dataclass(frozen=True)
class Loader:
  """Makes batches of examples, and gives this host its rows of each.

  Raises ValueError if an attribute is out of range.

  A loader trains on endless batches, and evaluates in passes:

  >>> from vit_jax import data
  >>> settings = data.DataSettings(name="digits")
  >>> loader = data.Loader()
  >>> train = data.open_source("train", settings)
  >>> transform = data.make_train_transform(16)
  >>> with loader.train(train, transform, batch_size=4, seed=0) as batches:
  ...   batch = next(batches)
  >>> {name: array.shape for name, array in batch.items()}
  {'image': (4, 16, 16, 3), 'label': (4,), 'skipped': (4,)}
  >>> test = data.open_source("test", settings)
  >>> transform = data.make_eval_transform(16)
  >>> with loader.evaluate(test, transform, batch_size=100) as batches:
  ...   [int(batch["mask"].sum()) for batch in batches]
  [100, 100, 100, 59]

  Attributes:
    num_workers: Processes that prepare batches; 0 prepares them in a thread.
    on_unreadable: "stop" raises UnreadableImageError at an unreadable image;
      "skip" replaces it by the next readable example in training, and masks it
      out in evaluation.
    process_index: The number of this host.
    process_count: The number of hosts.
  """

  num_workers: int = 0
  on_unreadable: str = "stop"
  process_index: int = 0
  process_count: int = 1

  def __post_init__(self):
    index = self.process_index
    count = self.process_count
    if not 0 <= index < count:
      raise ValueError(
        f"process_index={index} of process_count={count}; the index has to lie "
        "between 0 and process_count - 1."
      )
    checked("num_workers", int, self.num_workers, NOT_NEGATIVE)
    checked("on_unreadable", str, self.on_unreadable, choices=ON_UNREADABLE)

  def check(self, source: Source, batch_size: int, seed: int) -> None:
    """Raises ValueError unless `train` takes these values; starts nothing."""
    self._rows(batch_size)
    if not 0 <= seed < 2**63:
      raise ValueError(f"seed={seed}; it has to lie between 0 and 2**63 - 1.")
    if len(source) < batch_size:
      raise ValueError(
        f"batch_size={batch_size} is more than the {len(source)} examples of "
        f"{source.name}; set batch_size to {len(source)} or less."
      )

  def train(
    self,
    source: Source,
    transform: Transform | TrainTransform,
    *,
    batch_size: int,
    seed: int,
    first_batch: int = 0,
    repeats: int = 1,
    packing: Optional["Packing"] = None,
  ) -> BatchIterator:
    """Starts endless shuffled batches, with every example once in each epoch.

    Batch k over all hosts depends on (seed, k) alone, augmentation included,
    and a host gets its contiguous rows of it. Returns an iterator, to be closed
    when done with, of dicts: the arrays of the transform, such as `image` uint8
    (b, H, W, 3); `label`, int32 (b,) or what the source's labels are; `skipped`
    bool (b,), true for a row that was replaced; b = batch_size / process_count.
    Raises ValueError for an argument out of range, before any worker starts.

    Args:
      transform: A `data.batch.Transform`, or a function (encoded, rng) -> uint8
        (H, W, 3), which is called with an image to learn the one shape that it
        returns.
      batch_size: Examples over all hosts.
      seed: Seed of the order and the augmentation; from 0 up to 2**63 - 1.
      first_batch: The number of the first batch; a run that is resumed after
        step n begins with batch n.
      repeats: Times that a batch shows an example, augmented anew each time.
      packing: How the images share rows, for a transform that is an
        `IntoPatches` or a `WithTexts` of one; b is then the rows on this host.
        None gives each image a row.
    """
    self.check(source, batch_size, seed)
    checked("first_batch", int, first_batch, NOT_NEGATIVE)
    kind, rows = batches.TrainBatches, batch_size
    if packing is not None:
      from vit_jax.data.batching.packing import PackedBatches

      rows = packing.rows(batch_size)
      kind = functools.partial(PackedBatches, packing=packing)
    endless = kind(
      source=source,
      transform=as_transform(transform, source, train=True),
      batch_size=batch_size,
      rows=self._rows(rows),
      skip=self._skip,
      seed=seed,
      repeats=repeats,
    )
    # The workers start up while the model is compiled.
    return _start_workers(
      endless, first=first_batch, num_workers=self.num_workers
    )

  def evaluate(
    self, source: Source, transform: Transform | EvalTransform, batch_size: int
  ) -> EvalPasses:
    """Passes over every example exactly once, in the source's order.

    At most as many processes decode as there are batches; a single batch is
    prepared by a thread, which is faster. Raises ValueError for an argument out
    of range, before any worker starts. `transform` is a `data.batch.Transform`,
    or a function from encoded bytes to uint8 (H, W, 3), of one shape.
    `batch_size` counts examples over all hosts; the last batch is padded to it.
    """
    rows = self._rows(batch_size)
    if len(source) == 0:
      raise ValueError(
        f"{source.name} has no examples to evaluate on: choose another split."
      )
    passes = batches.EvalBatches(
      source=source,
      transform=as_transform(transform, source, train=False),
      batch_size=batch_size,
      rows=rows,
      skip=self._skip,
    )
    workers = min(self.num_workers, passes.num_batches)
    return EvalPasses(passes, workers if passes.num_batches > 1 else 0)

  @property
  def _skip(self) -> bool:
    return self.on_unreadable == "skip"

  def _rows(self, batch_size: int) -> range:
    """The rows of a global batch that belong to this host.

    Raises ValueError if the batch does not split over the hosts.
    """
    count = self.process_count
    if batch_size < 1 or batch_size % count:
      fits = max(-(-batch_size // count), 1) * count
      raise ValueError(
        f"batch_size={batch_size} does not split over {count} hosts; the next "
        f"size that does is {fits}."
      )
    per_host = batch_size // count
    first = self.process_index * per_host
    return range(first, first + per_host)


def make_loader(
  settings: LoaderSettings,
  *,
  photographs: bool,
  image_size: tuple[int, int],
  process_index: int = 0,
  process_count: int = 1,
) -> Loader:
  """Makes the loader that settings ask for.

  If they leave the number of workers open, one process per core decodes, 16 at
  most, or a thread if `image_size` is tiny. With `photographs` there are
  processes even then, since the files may be much larger.
  """
  workers = settings.num_workers
  if workers == -1:
    workers = workers_for(photographs, image_size)
  return Loader(
    num_workers=workers,
    on_unreadable=settings.on_unreadable,
    process_index=process_index,
    process_count=process_count,
  )


def workers_for(photographs: bool, image_size: tuple[int, int]) -> int:
  """The number of processes if the settings leave it open; 0 is a thread."""
  tiny = not photographs and math.prod(image_size) <= _SMALL_IMAGE
  return 0 if tiny else min(_MOST_WORKERS, num_cores())


def _start_workers(
  computed: batches.TrainBatches | batches.EvalBatches,
  first: int,
  num_workers: int,
) -> BatchIterator:
  """Starts to prepare the batches from number `first` on, and returns them."""
  return BatchIterator(computed, first, num_workers, computed.spec)


def num_cores() -> int:
  """Cores this process may use, which can be fewer than the machine has."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
