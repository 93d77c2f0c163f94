"""From a source and a transform to batches, in worker processes where asked.

A batch is a pure function of (seed, its number), see `batches`; `workers` only
decides in which process it is computed and how early. So the number of workers
changes nothing, each host takes its own rows of the same batch, and a run
resumes at batch k by asking for batch k.
"""

from collections.abc import Iterator

from vit_jax.data import batches
from vit_jax.data.batches import Batch
from vit_jax.data.example import Source
from vit_jax.data.settings import ON_UNREADABLE
from vit_jax.data.transforms import EvalTransform, TrainTransform
from vit_jax.data.workers import BatchIterator


class EvalPasses:
  """Iterate over it for one pass over the split; as often as needed.

  The workers start with `start` or the first pass, stay for the next ones, and
  stop at `close` (or at the end of a `with` block). A pass that is left early
  costs a new start. Every host has the same number of batches a pass, its
  length.

  A batch holds `image` uint8 (b, H, W, 3), `label` int32 (b,), `mask` float32
  (b,), 1 for an example and 0 for padding and skipped images, and `skipped`
  bool (b,), true for an unreadable image.
  """

  def __init__(self, passes: batches.EvalBatches, num_workers: int):
    """See `eval_batches`, which checks the arguments."""
    self._batches = passes
    self._num_workers = num_workers
    self._iterator: BatchIterator | None = None
    self._place = 0

  def __len__(self) -> int:
    return self._batches.num_batches

  def __iter__(self) -> Iterator[Batch]:
    if self._place != 0:  # the last pass was left early
      self.close()
    iterator = self.start()
    for place in range(len(self)):
      self._place = place + 1
      batch = next(iterator)
      if self._place == len(self):
        self._place = 0
      yield batch

  def start(self) -> BatchIterator:
    """Starts the workers, without waiting for the first batch."""
    if self._iterator is None:
      shape = _images_shape(self._batches, self._num_workers)
      self._iterator = BatchIterator(self._batches, 0, self._num_workers, shape)
      self._iterator.start()
    return self._iterator

  def close(self) -> None:
    """Stops the workers; another pass would start new ones."""
    if self._iterator is not None:
      self._iterator.close()
    self._iterator, self._place = None, 0

  def __enter__(self) -> "EvalPasses":
    return self

  def __exit__(self, *exception) -> None:
    self.close()


def train_batches(
  source: Source,
  transform: TrainTransform,
  *,
  batch_size: int,
  seed: int,
  first_batch: int = 0,
  process_index: int = 0,
  process_count: int = 1,
  num_workers: int = 0,
  on_unreadable: str = "stop",
) -> BatchIterator:
  """Endless shuffled batches; every example once an epoch, epochs run on.

  Batch k over all hosts depends on (seed, k) alone, augmentation included, and
  a host gets its contiguous rows of it.

  Args:
    source: the examples.
    transform: (encoded, rng) -> uint8 (H, W, 3), of one shape.
    batch_size: over all hosts.
    seed: of the order and the augmentation; from 0 up to 2**63 - 1.
    first_batch: the number of the first batch; a resumed run's next.
    process_index: this host, from 0.
    process_count: the number of hosts.
    num_workers: processes that prepare batches; 0 prepares them in a thread.
    on_unreadable: "stop" raises UnreadableImageError; "skip" takes the next
      readable example of the source instead.

  Returns:
    An iterator, to be closed when done with, of dicts: `image` uint8
    (b, H, W, 3), `label` int32 (b,), `skipped` bool (b,), true for a row
    that was replaced; b = batch_size / process_count.

  Raises:
    ValueError: an argument out of range, before any worker starts.
  """
  check_train_batches(
    source,
    batch_size=batch_size,
    seed=seed,
    process_index=process_index,
    process_count=process_count,
    on_unreadable=on_unreadable,
  )
  _check_workers(num_workers)
  if first_batch < 0:
    raise ValueError(f"first_batch={first_batch}; it has to be 0 or more.")
  rows = _host_rows(batch_size, process_index, process_count)
  skip = on_unreadable == "skip"
  endless = batches.TrainBatches(
    source, transform, batch_size, rows, seed, skip
  )
  iterator = BatchIterator(
    endless, first_batch, num_workers, _images_shape(endless, num_workers)
  )
  iterator.start()  # so that workers come up while the model is compiled
  return iterator


def check_train_batches(
  source: Source,
  *,
  batch_size: int,
  seed: int,
  process_index: int,
  process_count: int,
  on_unreadable: str,
) -> None:
  """Raises ValueError unless `train_batches` takes these; starts nothing."""
  _host_rows(batch_size, process_index, process_count)
  _check_on_unreadable(on_unreadable)
  if not 0 <= seed < 2**63:
    raise ValueError(f"seed={seed}; it has to lie between 0 and 2**63 - 1.")
  if len(source) < batch_size:
    raise ValueError(
      f"batch_size={batch_size} is more than the {len(source)} examples of "
      f"{source.name}; choose at most {len(source)}."
    )


def eval_batches(
  source: Source,
  transform: EvalTransform,
  *,
  batch_size: int,
  process_index: int = 0,
  process_count: int = 1,
  num_workers: int = 0,
  on_unreadable: str = "stop",
) -> EvalPasses:
  """Passes over every example exactly once, in the source's order.

  Args:
    source: the examples.
    transform: encoded -> uint8 (H, W, 3), of one shape.
    batch_size: over all hosts; the last batch is padded to it.
    process_index: this host, from 0.
    process_count: the number of hosts.
    num_workers: processes that prepare batches; 0 prepares them in a thread.
    on_unreadable: "stop" raises UnreadableImageError; "skip" masks it out.

  Returns:
    An object to iterate over again and again; see `EvalPasses`.

  Raises:
    ValueError: an argument out of range, before any worker starts.
  """
  rows = _host_rows(batch_size, process_index, process_count)
  _check_workers(num_workers)
  _check_on_unreadable(on_unreadable)
  if len(source) == 0:
    raise ValueError(f"{source.name} has no examples to evaluate on.")
  skip = on_unreadable == "skip"
  passes = batches.EvalBatches(source, transform, batch_size, rows, skip)
  return EvalPasses(passes, num_workers)


def _host_rows(batch_size: int, index: int, count: int) -> range:
  """The rows of a global batch that belong to host `index`."""
  if count < 1 or not 0 <= index < count:
    raise ValueError(
      f"process_index={index} of process_count={count}; the index has to lie "
      "between 0 and process_count - 1."
    )
  if batch_size < 1 or batch_size % count:
    fits = max(-(-batch_size // count), 1) * count
    raise ValueError(
      f"batch_size={batch_size} does not split over {count} hosts; the next "
      f"size that does is {fits}."
    )
  per_host = batch_size // count
  return range(index * per_host, (index + 1) * per_host)


def _check_workers(num_workers: int) -> None:
  if num_workers < 0:
    raise ValueError(f"num_workers={num_workers}; it has to be 0 or more.")


def _check_on_unreadable(on_unreadable: str) -> None:
  if on_unreadable not in ON_UNREADABLE:
    raise ValueError(
      f"on_unreadable={on_unreadable!r} is unknown; use one of "
      f"{', '.join(ON_UNREADABLE)}."
    )


def _images_shape(sequence, num_workers: int) -> tuple[int, ...]:
  """(b, H, W, 3) of one host's batch; () where it does not matter."""
  return (len(sequence.rows), *sequence.image_shape) if num_workers else ()
