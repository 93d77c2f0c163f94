"""Batch k as a pure function of k.

Each class computes batches, or rather one host's rows of each batch.
Any process can compute any batch, in any order, from the batch's number alone.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from vit_jax.data.batch import (
  LABEL,
  MASK,
  SKIPPED,
  ArraySpec,
  Batch,
  Mixture,
  Transform,
  allocate,
  batch_spec,
  check_names,
  label_spec,
  part_of,
  put,
  row_spec,
)
from vit_jax.data.example import Example, Source, UnreadableImageError

_Read = Example | UnreadableImageError

MAX_REPLACEMENTS = 16
"""How many of the next examples are tried in place of an unreadable one."""

UNREADABLE = "unreadable"
"""Key of the lines on a batch's unreadable images.

`BatchIterator` takes it out of the batch, and collects the lines.
"""

MAX_LISTED = 1 << 21  # Examples; the list of their order then takes 8 MB.
_CHUNK = 256  # Encoded files that are held in memory at a time.


@dataclasses.dataclass(frozen=True)
class _Batches:
  """Batches of transformed examples; `rows` are this host's rows of each.

  `compute(k)` is batch k, in the arrays `out` if they are given, and under
  `UNREADABLE` a line on each image that could not be read. With `skip`,
  unreadable images are passed over; otherwise they raise an error.
  """

  source: Source
  transform: Transform
  batch_size: int
  rows: range
  skip: bool

  @property
  def spec(self) -> dict[str, ArraySpec]:
    """The `ArraySpec` of each array of this host's rows of a batch.

    If batches differ in their shapes, each array has the largest of its shapes,
    as in `Mixture.spec`.
    """
    row = row_spec(self.transform, label_spec(self.source))
    return batch_spec(row, len(self.rows))

  @functools.cached_property
  def _names(self) -> list[str]:
    """The names of the arrays that the transform makes of an example."""
    return [*self.transform.spec]

  def _try_transform(
    self, example: _Read, unreadable: list[str], *rng: np.random.Generator
  ) -> dict[str, Any] | None:
    """The arrays of an example, or None if it is unreadable.

    The reason is then added to `unreadable`. Raises UnreadableImageError unless
    such images are skipped, and ValueError if the transform returns other
    arrays than its spec names.
    """
    if not isinstance(example, UnreadableImageError):
      try:
        # The `row` of an `ImageTransform` calls the transform as a function.
        row = self.transform.row(example, *rng)
        check_names(row, self._names)
        return {LABEL: example["label"], **row}
      except UnreadableImageError as error:
        example = UnreadableImageError(f"{example['id']}: {error}")
    if not self.skip:
      raise UnreadableImageError(
        f"{example} --config.loader.on_unreadable=skip passes over such images."
      )
    unreadable.append(str(example))
    return None


@dataclasses.dataclass(frozen=True)
class TrainBatches(_Batches):
  """Endless shuffled batches; each epoch has every example once.

  The image at row r of batch k has the global position p = k * batch_size + r,
  and p decides everything about it: the epoch p // n of n examples, the example
  (entry p % n of the epoch's order), and the key (seed, p) of the random
  numbers that augment it. With `repeats`, batch k has m = ceil(batch_size /
  repeats) examples, those from position k * m on, and row r shows the one of
  position k * m + r % m. Copies of an example are far apart, since Mixup mixes
  neighbours. If `transform` is a `Mixture`, (seed, k) decides which of its
  transforms makes batch k.
  """

  seed: int
  repeats: int = 1

  def compute(self, k: int, out: Batch | None = None) -> Batch:
    """This host's rows of batch k, by array; see `spec`.

    An example is drawn, read, and made into the arrays of a row by the
    transform's `row`, with random numbers of its own. Raises
    UnreadableImageError for images that are not skipped, and ValueError for
    arrays that do not fit `spec`.
    """
    if isinstance(self.transform, Mixture):
      chosen = self.transform.of_batch(self.seed, k)
      batches = dataclasses.replace(self, transform=chosen)
      if out is not None:
        spec = batches.spec
        out = {name: part_of(out[name], spec[name].shape) for name in spec}
      return batches.compute(k, out)
    first = k * self.batch_size
    positions = range(first + self.rows.start, first + self.rows.stop)
    indices = self._indices(k, positions)
    batch = allocate(self.spec) if out is None else out
    random = KeyedRandom(self.seed)
    unreadable: list[str] = []
    for row, example in enumerate(read(self.source, indices)):
      make_rng = functools.partial(random.at, positions[row])
      arrays = self._arrays_of(example, indices[row], make_rng, unreadable)
      put(batch, row, arrays)
    return {**batch, UNREADABLE: np.array(unreadable, object)}

  def _arrays_of(
    self,
    example: _Read,
    index: int,
    make_rng: Callable[[], np.random.Generator],
    unreadable: list[str],
  ) -> dict[str, Any]:
    """The arrays of an example, or of the next one that is readable.

    `example` is the one at `index`, or the error that reading it raised.
    `make_rng` returns a generator at the start of this row's stream. A line on
    each example that could not be read is added to `unreadable`. Raises
    UnreadableImageError unless such examples are skipped, or after too many.
    """
    missed: list[str] = []
    arrays = self._try_transform(example, missed, make_rng())
    if arrays is None:
      arrays = self._replacement(index, make_rng, missed)
    unreadable += missed
    return {**arrays, SKIPPED: bool(missed)}

  def _indices(self, k: int, positions: range) -> list[int]:
    """The index of the example at each of these positions of batch k."""
    n = len(self.source)
    m = -(-self.batch_size // self.repeats)
    if self.repeats == 1:
      return example_indices(positions, n, self.seed)
    shown = example_indices(range(k * m, (k + 1) * m), n, self.seed)
    return [shown[p % self.batch_size % m] for p in positions]

  def _replacement(
    self,
    index: int,
    make_rng: Callable[[], np.random.Generator],
    missed: list[str],
  ) -> dict[str, Any]:
    """The arrays of the first readable example after `index`.

    `missed` has the line on the example at `index`; a line on each unreadable
    one after it is added. Raises UnreadableImageError after more than
    `MAX_REPLACEMENTS` bad ones.
    """
    arrays = None
    while arrays is None:
      if len(missed) > MAX_REPLACEMENTS:
        raise UnreadableImageError(
          f"{len(missed)} unreadable images in a row, the last: {missed[-1]}"
        )
      index = (index + 1) % len(self.source)
      example = _read_one(self.source, index)
      arrays = self._try_transform(example, missed, make_rng())
    return arrays


@dataclasses.dataclass(frozen=True)
class EvalBatches(_Batches):
  """Batches in the source's order, one pass over the source after another."""

  @property
  def num_batches(self) -> int:
    """The number of batches in a pass, the same on every host."""
    return -(-len(self.source) // self.batch_size)

  @property
  def spec(self) -> dict[str, ArraySpec]:
    """The `ArraySpec` of each array of this host's rows of a batch."""
    return {**super().spec, MASK: ArraySpec((len(self.rows),), np.float32)}

  def compute(self, k: int, out: Batch | None = None) -> Batch:
    """This host's rows of batch k, by array; see `spec`.

    Rows beyond the source's end and those of unreadable images are 0, and so is
    their mask; only `skipped` is true for an unreadable image. Raises as
    `TrainBatches.compute` does.
    """
    first = k % self.num_batches * self.batch_size
    stop = min(first + self.rows.stop, len(self.source))
    indices = range(first + self.rows.start, stop)
    batch = allocate(self.spec) if out is None else out
    batch[MASK][:] = 0
    batch[SKIPPED][:] = False
    unreadable: list[str] = []
    for row, example in enumerate(read(self.source, indices)):
      arrays = self._try_transform(example, unreadable)
      if arrays is None:
        batch[SKIPPED][row] = True
      else:
        put(batch, row, {**arrays, MASK: 1})
    for name in (LABEL, *self._names):
      batch[name][batch[MASK] == 0] = 0
    return {**batch, UNREADABLE: np.array(unreadable, object)}


def batch_ids(
  source: Source, batch_size: int, seed: int, number: int
) -> list[str]:
  """Returns the `id` of each example in a training batch, over all hosts.

  It is for a run whose batches show an example once, without `repeats`. For a
  file that cannot be read, which has no id, the list has the example's index.
  In a run with on_unreadable="skip", the batch held another image in its place.

  >>> from vit_jax import data
  >>> digits = data.open_source("test", data.DataSettings(name="digits"))
  >>> data.batch_ids(digits, batch_size=2, seed=0, number=5)
  ['digits/1.0.0/test#...', 'digits/1.0.0/test#...']
  """
  positions = range(number * batch_size, (number + 1) * batch_size)
  indices = example_indices(positions, len(source), seed)
  ids = [f"example {index}" for index in indices]
  for row, example in enumerate(read(source, indices)):
    if not isinstance(example, UnreadableImageError):
      ids[row] = example["id"]
  return ids


def example_indices(
  positions: range, num_examples: int, seed: int
) -> list[int]:
  """The index of the example at each global position of a run.

  Position p lies in epoch p // num_examples, at place p % num_examples of that
  epoch's order, which the seed and the epoch select. The positions are
  consecutive, and may run on into later epochs.
  """
  indices = []
  while positions:
    epoch, start = divmod(positions.start, num_examples)
    stop = min(start + len(positions), num_examples)
    indices += _part_of_order(range(start, stop), num_examples, seed, epoch)
    positions = positions[stop - start :]
  return indices


def _part_of_order(
  places: range, num_examples: int, seed: int, epoch: int
) -> list[int]:
  """The indices of the examples at some places of an epoch's order."""
  if num_examples <= MAX_LISTED:
    order = _order(num_examples, seed, epoch)
    return order[places.start : places.stop].tolist()
  # The module is imported only here, as few data sets are so large.
  from vit_jax.data.batching.shuffle import shuffle_indices

  # The seed is mixed with the epoch so that seed 0's second epoch is not seed
  # 1's first.
  mixed = np.random.SeedSequence((seed, epoch)).generate_state(1)
  indices = np.arange(places.start, places.stop, dtype=np.uint64)
  return shuffle_indices(indices, num_examples - 1, int(mixed[0])).tolist()


@functools.lru_cache(maxsize=2)  # A batch may end one epoch and begin another.
def _order(num_examples: int, seed: int, epoch: int) -> np.ndarray:
  """The shuffled indices of all examples in an epoch."""
  order = np.arange(num_examples, dtype=np.int32)
  np.random.default_rng((seed, epoch)).shuffle(order)
  return order


class KeyedRandom:
  """Generators keyed by (seed, position).

  They equal `Generator(Philox(key=[seed, position]))`, but a single generator
  is reset for each image: making a new generator takes as long as decoding a
  small image.
  """

  def __init__(self, seed: int):
    self._philox = np.random.Philox(key=np.array([seed, 0], np.uint64))
    self._generator = np.random.Generator(self._philox)
    self._start = self._philox.state

  def at(self, position: int) -> np.random.Generator:
    """Returns the shared generator, at the start of the position's stream."""
    self._start["state"]["key"][1] = position
    self._philox.state = self._start
    return self._generator


def read(
  source: Source, indices: Sequence[int], chunk: int = _CHUNK
) -> Iterator[_Read]:
  """Yields examples; in place of an unreadable one, the error it raised.

  `Source.read` reads at most `chunk` examples at a time. It calls the source's
  `__getitem__` for each index, unless the source has a faster way.
  """
  for start in range(0, len(indices), chunk):
    some = indices[start : start + chunk]
    try:
      yield from source.read(some)
    except UnreadableImageError:
      yield from (_read_one(source, index) for index in some)


def _read_one(source: Source, index: int) -> _Read:
  """Returns an example, or the error that reading it raised."""
  try:
    return source[index]
  except UnreadableImageError as error:
    return error
