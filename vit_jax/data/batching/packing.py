"""Several images share a row of a batch (NaViT, arXiv:2307.06304).

A batch of B images has R = B / m rows of N patches each, whatever the sizes of
its images: m share a row on average, and twice as many at most. It is still a
function of the seed and its number alone, and has the images that it would
have with a row for each: every image once an epoch.

Rows are filled in windows of a few rows, each from its own share of the images:
the largest image comes first, and each goes to the first row that has room for
it. Where the images of a window do not fit, none is left out: the larger ones
are shown with fewer patches, as many as fit.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.data.batch import (
  SIZE,
  ArraySpec,
  Batch,
  Spec,
  allocate,
  batched,
  label_spec,
  put,
  row_spec,
)
from vit_jax.data.batching.batches import (
  UNREADABLE,
  KeyedRandom,
  TrainBatches,
  read,
)
from vit_jax.data.example import Example, UnreadableImageError
from vit_jax.data.transforming.sizes import AnySize, Shape

_WINDOW = 8  # Rows that are filled together.
_LIMITS = 1  # Tells the draws of limits from others of the same seed.
_UNKNOWN = 1, 1  # The shape of a file without a header: it will be replaced.


class Padding(NamedTuple):
  """Shares of what is padding, and of what does not fit.

  Attributes:
    share: The padding's share of the patches in rows that images share.
    alone: The same if each image had a row of its own.
    crowded: The share of windows whose images do not fit, and are shown with
      fewer patches.
  """

  share: float
  alone: float
  crowded: float


@dataclasses.dataclass(frozen=True)
class Packing:
  """How the images of a batch share its rows.

  Attributes:
    images: m, the images of a row on average.
    tokens: N, the patches of a row: at least as many as an image may have.
    least: The most patches of an image are drawn between this and those that
      the image may have; None draws nothing.
  """

  images: int
  tokens: int
  least: int | None = None

  def __str__(self) -> str:
    """How long a row is, and how many images share it."""
    return f"{self.tokens} patches that {self.images} images share on average"

  @property
  def most(self) -> int:
    """M, the most images of a row."""
    return 2 * self.images

  def rows(self, batch_size: int) -> int:
    """R, the rows of a batch of so many images."""
    return batch_size // self.images

  def spec(self, row: Spec) -> dict[str, ArraySpec]:
    """The arrays of a row of several images, from those of a row of one."""
    patches = row["image"]
    arrays = {
      name: ArraySpec((self.most, *one.shape), one.dtype)
      for name, one in row.items()
    }
    arrays["image"] = ArraySpec((self.tokens, *patches.shape[1:]))
    arrays[SIZE] = ArraySpec((self.most, 2), row[SIZE].dtype)
    return arrays

  def fit(
    self,
    shapes: Sequence[Shape],
    size: AnySize,
    rows: int,
    rng: np.random.Generator,
  ) -> tuple[np.ndarray, np.ndarray]:
    """The patches of each image, at most, and the row that it goes to.

    There are m images for each of the rows. If they do not fit, none has more
    patches than the most with which they do: N / m at least, since then any
    row that lacks room has m images.
    """
    limits = np.full(len(shapes), size.tokens)
    if self.least is not None:
      limits = rng.integers(self.least, size.tokens, len(shapes), endpoint=True)
    least, most = self.tokens // self.images, size.tokens
    found = self._try(shapes, size, limits, most, rows)
    if found is not None:
      return found
    while most - least > 1:
      middle = (least + most) // 2
      tried = self._try(shapes, size, limits, middle, rows)
      least, most = (least, middle) if tried is None else (middle, most)
      found = found if tried is None else tried
    found = found or self._try(shapes, size, limits, least, rows)
    assert found is not None
    return found

  def _try(
    self,
    shapes: Sequence[Shape],
    size: AnySize,
    limits: np.ndarray,
    most: int,
    rows: int,
  ) -> tuple[np.ndarray, np.ndarray] | None:
    """The result of `fit` with at most `most` patches an image; None for none.

    `limits` has the most patches that each image may have.
    """
    each = zip(shapes, np.minimum(limits, most).tolist(), strict=True)
    sizes = (
      math.prod(dataclasses.replace(size, tokens=limit).grid(shape))
      for shape, limit in each
    )
    counts = np.fromiter(sizes, int, len(shapes))
    row = first_fit(counts, rows, self.tokens, self.most)
    return None if row is None else (counts, row)

  def padding(
    self, size: AnySize, shapes: Sequence[Shape], rows: int, seed: int
  ) -> Padding:
    """The padding of a batch's rows, if images of these shapes are shown whole.

    The last window is filled up from the first.
    """
    if not shapes:
      return Padding(0, 0, 0)
    rows = min(rows, _WINDOW)
    count = rows * self.images
    windows = -(-len(shapes) // count)
    filled, wanted, crowded = 0, 0, 0
    free = dataclasses.replace(self, tokens=self.images * size.tokens)
    for number in range(windows):
      places = range(number * count, (number + 1) * count)
      some = [shapes[place % len(shapes)] for place in places]
      rng = np.random.default_rng((seed, number, _LIMITS))
      fitted = int(self.fit(some, size, rows, rng)[0].sum())
      rng = np.random.default_rng((seed, number, _LIMITS))
      whole = int(free.fit(some, size, rows, rng)[0].sum())
      filled, wanted = filled + fitted, wanted + whole
      crowded += fitted < whole
    return Padding(
      share=1 - filled / (windows * rows * self.tokens),
      alone=1 - wanted / (windows * count * size.tokens),
      crowded=crowded / windows,
    )


def first_fit(
  counts: np.ndarray, rows: int, tokens: int, most: int
) -> np.ndarray | None:
  """The row of each image, or None if they do not fit.

  The largest image comes first, and each goes to the first row that has room
  for its patches and holds fewer than `most` images.

  >>> import numpy as np
  >>> from vit_jax.data.batching.packing import first_fit
  >>> first_fit(np.array([3, 5, 2, 6]), rows=2, tokens=8, most=4).tolist()
  [1, 1, 0, 0]
  """
  room, places = np.full(rows, tokens), np.full(rows, most)
  chosen = np.zeros(len(counts), int)
  for image in np.argsort(-counts, kind="stable"):
    fits = (room >= counts[image]) & (places > 0)
    row = int(np.argmax(fits))
    if not fits[row]:
      return None
    room[row] -= counts[image]
    places[row] -= 1
    chosen[image] = row
  return chosen


@dataclasses.dataclass(frozen=True)
class PackedBatches(TrainBatches):
  """Endless shuffled batches of rows that hold several images each.

  `batch_size` counts images, and `rows` are this host's rows, of R. The
  transform is an `IntoPatches`. A window that lies on two hosts is read by
  both, so that the batch is the same for any number of them.
  """

  packing: Packing = dataclasses.field(kw_only=True)

  @property
  def spec(self) -> dict[str, ArraySpec]:
    """The arrays of this host's rows of a batch."""
    row = row_spec(self.transform, label_spec(self.source))
    return batched(self.packing.spec(row), len(self.rows))

  def compute(self, k: int, out: Batch | None = None) -> Batch:
    batch = allocate(self.spec) if out is None else out
    for name in batch.keys() - {"image"}:
      batch[name][:] = 0
    filled = np.zeros(len(self.rows), int)
    images = np.zeros(len(self.rows), int)
    unreadable: list[str] = []
    for row, arrays in self._rows(k, unreadable):
      patches = arrays.pop("image")
      count = int(arrays[SIZE].prod())
      place = {name: batch[name][row] for name in arrays}
      batch["image"][row, filled[row] : filled[row] + count] = patches[:count]
      put(place, images[row], {**arrays, SIZE: arrays[SIZE][0]})
      filled[row] += count
      images[row] += 1
    for row, count in enumerate(filled):
      batch["image"][row, count:] = 0
    return {**batch, UNREADABLE: np.array(unreadable, object)}

  def _rows(
    self, k: int, unreadable: list[str]
  ) -> Iterator[tuple[int, dict[str, Any]]]:
    """The images of this host's rows of batch k, with their rows."""
    m, total = self.packing.images, self.packing.rows(self.batch_size)
    random = KeyedRandom(self.seed)
    for start in range(
      self.rows.start // _WINDOW * _WINDOW, self.rows.stop, _WINDOW
    ):
      window = range(start, min(start + _WINDOW, total))
      first = k * self.batch_size
      positions = range(first + window.start * m, first + window.stop * m)
      indices = self._indices(k, positions)
      # All of a window, as the encoded files.
      examples = [*read(self.source, indices)]
      shapes = [
        self._shape(example, random.at(position))
        for example, position in zip(examples, positions, strict=True)
      ]
      transform: Any = self.transform
      rng = np.random.default_rng((self.seed, k, start, _LIMITS))
      counts, rows = self.packing.fit(shapes, transform.size, len(window), rng)
      for place, row in enumerate((start + rows).tolist()):
        if row not in self.rows:
          continue
        fitted = dataclasses.replace(
          self, transform=transform.within(int(counts[place]))
        )
        again = functools.partial(random.at, positions[place])
        arrays = fitted._arrays_of(
          examples[place], indices[place], again, unreadable
        )
        yield row - self.rows.start, arrays

  def _shape(
    self, example: Example | UnreadableImageError, rng: np.random.Generator
  ) -> Shape:
    transform: Any = self.transform
    if isinstance(example, UnreadableImageError):
      return _UNKNOWN
    try:
      return transform.shape(example, rng)
    except UnreadableImageError:
      return _UNKNOWN
