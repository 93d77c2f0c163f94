"""Batch k as a pure function of k.

Each class is a sequence of batches, or rather of one host's rows of each batch.
Any process can compute any batch, in any order, from the batch's number alone.
"""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vit_jax.data.batching.shuffle import example_indices
from vit_jax.data.example import Example, Source, UnreadableImageError
from vit_jax.data.transforming.transforms import EvalTransform, TrainTransform

Batch = dict[str, np.ndarray]

MAX_REPLACEMENTS = 16
"""With "skip", how many of the next examples may stand in for a bad one."""

UNREADABLE = "unreadable"
"""Key of the names of unreadable images and their reasons, as `BatchIterator`
collects them; consumers do not see it."""

_CHUNK = 256  # Examples held in memory as encoded files at a time.


@dataclasses.dataclass(frozen=True)
class TrainBatches:
  """Endless shuffled batches; each epoch has every example once.

  The image at row r of batch k has the global position p = k * batch_size + r,
  and p decides everything about it: the epoch p // n of n examples, the example
  (entry p % n of the epoch's order), and the key (seed, p) of the random
  numbers that augment it.

  With `repeats`, batch k has m = ceil(batch_size / repeats) examples, those of
  the positions k * m on, and row r shows the one at r % m. Copies of an example
  are far apart, since Mixup mixes neighbours.
  """

  source: Source
  transform: TrainTransform
  batch_size: int
  rows: range
  seed: int
  skip: bool
  repeats: int = 1

  def __len__(self) -> int:
    return sys.maxsize // self.batch_size

  def __getitem__(self, k: int) -> Batch:
    first = k * self.batch_size
    positions = range(first + self.rows.start, first + self.rows.stop)
    indices = self._indices(k, positions)
    images: Any = None  # Allocated once the first image shows the shape.
    labels = _no_labels(self.source, len(self.rows))
    skipped = np.zeros(len(self.rows), bool)
    random = _KeyedRandom(self.seed)
    unreadable: list[str] = []
    for row, example in enumerate(_read(self.source, indices)):
      image, label, missed = self._augment(
        example, indices[row], random, positions[row]
      )
      if images is None:
        images = np.empty((len(self.rows), *image.shape), np.uint8)
      images[row], labels[row], skipped[row] = image, label, bool(missed)
      unreadable += missed
    return {
      "image": images,
      "label": labels,
      "skipped": skipped,
      UNREADABLE: np.array(unreadable, object),
    }

  def _indices(self, k: int, positions: range) -> list[int]:
    if self.repeats == 1:
      return example_indices(positions, len(self.source), self.seed)
    m = -(-self.batch_size // self.repeats)
    shown = example_indices(
      range(k * m, (k + 1) * m), len(self.source), self.seed
    )
    return [shown[row % m] for row in self.rows]

  @property
  def image_shape(self) -> tuple[int, ...]:
    """Shape (H, W, 3) of a transformed image, found by transforming one."""
    return _image_shape(self.source, self.transform, np.random.default_rng(0))

  def _augment(
    self,
    example: Example | UnreadableImageError,
    index: int,
    random: "_KeyedRandom",
    position: int,
  ) -> tuple[np.ndarray, Any, list[str]]:
    """Returns an image, its label, and the errors of those it replaces."""
    missed: list[str] = []
    while len(missed) <= MAX_REPLACEMENTS:
      if missed:
        index = (index + 1) % len(self.source)
        example = _read_one(self.source, index)
      try:
        if isinstance(example, UnreadableImageError):
          raise example
        image = _apply(self.transform, example, random.at(position))
        return image, example["label"], missed
      except UnreadableImageError as error:
        if not self.skip:
          raise _with_advice(error) from None
        missed.append(str(error))
    raise UnreadableImageError(
      f"{len(missed)} unreadable images in a row, the last: {missed[-1]}"
    )


@dataclasses.dataclass(frozen=True)
class EvalBatches:
  """The batches of one pass in the source's order, over and over."""

  source: Source
  transform: EvalTransform
  batch_size: int
  rows: range
  skip: bool

  def __len__(self) -> int:
    return sys.maxsize // self.batch_size

  @property
  def num_batches(self) -> int:
    """The number of batches in a pass, the same on every host."""
    return -(-len(self.source) // self.batch_size)

  def __getitem__(self, k: int) -> Batch:
    first = k % self.num_batches * self.batch_size
    stop = min(first + self.rows.stop, len(self.source))
    indices = range(first + self.rows.start, stop)
    batch: dict[str, Any] = {
      "image": None,
      "label": _no_labels(self.source, len(self.rows)),
      "mask": np.zeros(len(self.rows), np.float32),
      "skipped": np.zeros(len(self.rows), bool),
    }
    unreadable: list[str] = []
    for row, example in enumerate(_read(self.source, indices)):
      image = self._readable(example, unreadable)
      if image is None or isinstance(example, UnreadableImageError):
        batch["skipped"][row] = True
        continue
      if batch["image"] is None:
        batch["image"] = np.zeros((len(self.rows), *image.shape), np.uint8)
      batch["image"][row] = image
      batch["label"][row], batch["mask"][row] = example["label"], 1
    if batch["image"] is None:  # Every row is padding or unreadable.
      batch["image"] = np.zeros((len(self.rows), *self.image_shape), np.uint8)
    batch[UNREADABLE] = np.array(unreadable, object)
    return batch

  def _readable(
    self, example: Example | UnreadableImageError, unreadable: list[str]
  ) -> np.ndarray | None:
    """The image; None if it is unreadable, and adds why to `unreadable`."""
    try:
      if isinstance(example, UnreadableImageError):
        raise example
      return _apply(self.transform, example)
    except UnreadableImageError as error:
      if not self.skip:
        raise _with_advice(error) from None
      unreadable.append(str(error))
      return None

  @property
  def image_shape(self) -> tuple[int, ...]:
    """Shape (H, W, 3) of a transformed image, found by transforming one."""
    return _image_shape(self.source, self.transform)


def batch_ids(
  source: Source, batch_size: int, seed: int, number: int
) -> list[str]:
  """Returns the `id` of each example in a training batch, over all hosts.

  An example that cannot be read has no id, so its index is given. In a run with
  "skip", the batch held another image in its place.
  """
  positions = range(number * batch_size, (number + 1) * batch_size)
  indices = example_indices(positions, len(source), seed)
  return [
    f"example {index}"
    if isinstance(example, UnreadableImageError)
    else example["id"]
    for index, example in zip(indices, _read(source, indices), strict=True)
  ]


class _KeyedRandom:
  """Generators keyed by (seed, position).

  Gives what `Generator(Philox(key=[seed, position]))` gives, but resets one
  generator instead of making a new one for each image, which would take 15 us,
  as long as decoding a small image.
  """

  def __init__(self, seed: int):
    self._philox = np.random.Philox(key=np.array([seed, 0], np.uint64))
    self._generator = np.random.Generator(self._philox)
    self._start = self._philox.state

  def at(self, position: int) -> np.random.Generator:
    """Returns the shared generator, reset to the start of this key's stream."""
    self._start["state"]["key"][1] = position
    self._philox.state = self._start
    return self._generator


def _no_labels(source: Source, rows: int) -> np.ndarray:
  """Zeros for the labels of a batch: int32 (B,), or float32 (B, K)."""
  shape = getattr(source, "label_shape", ())
  return np.zeros((rows, *shape), np.float32 if shape else np.int32)


def _read(
  source: Source, indices: Sequence[int]
) -> Iterator[Example | UnreadableImageError]:
  """Yields examples; in place of an unreadable one, the error it raised."""
  for start in range(0, len(indices), _CHUNK):
    chunk = indices[start : start + _CHUNK]
    try:
      yield from source.read(chunk)
    except UnreadableImageError:
      yield from (_read_one(source, index) for index in chunk)


def _read_one(source: Source, index: int) -> Example | UnreadableImageError:
  try:
    return source[index]
  except UnreadableImageError as error:
    return error


def _with_advice(error: UnreadableImageError) -> UnreadableImageError:
  return UnreadableImageError(
    f"{error} --config.loader.on_unreadable=skip passes over such images."
  )


def _apply(transform, example: Example, *rng) -> np.ndarray:
  try:
    return transform(example["image"], *rng)
  except UnreadableImageError as error:
    raise UnreadableImageError(f"{example['id']}: {error}") from error


def _image_shape(source: Source, transform, *rng) -> tuple[int, ...]:
  """Transforms the first readable image to see which shape comes out."""
  for index in range(len(source)):
    try:
      return transform(source[index]["image"], *rng).shape
    except UnreadableImageError:
      continue
  raise UnreadableImageError(
    f"none of the {len(source)} images of {source.name} is readable."
  )
