"""Several images share a row of a batch (NaViT, arXiv:2307.06304).

A batch of B images has R = B / m rows of N patches each, whatever the sizes of
its images: m of them share a row on average, and 2 m at most. The batch is
still a function of the seed and its number alone, and has the same images as if
each had a row of its own; an epoch has every image once.

The rows of a batch are filled in windows of a few rows, each with images of its
own: the largest image comes first, and each goes to the first row that has room
for it. If the images of a window do not fit, none of them is left out: the
larger images are shown with fewer patches, as many as fit.
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
  batch_spec,
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
# The last number of the random key of limits; no other key ends in it.
_LIMITS = 1
_UNKNOWN = 1, 1  # In place of the shape of an unreadable file.


class Padding(NamedTuple):
  """How much of the rows is padding, and how often images do not fit.

  Attributes:
    share: The padding's share of the patches in rows that images share.
    alone: The padding's share if each image had a row of its own.
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
    least: Each image's limit of patches is drawn at random, from this number up
      to the most that an image may have; None gives every image the most.
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
    """R, the rows of a batch of `batch_size` images."""
    return batch_size // self.images

  def spec(self, row: Spec) -> dict[str, ArraySpec]:
    """The arrays of a row of several images.

    `row` has those of a row with one image.
    """
    patches = row["image"]
    arrays = {
      name: ArraySpec((self.most, *array.shape), array.dtype)
      for name, array in row.items()
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
    """The number of patches of each image, and the row that it goes to.

    Both are arrays (n,), for n = m * `rows` images. `size` tells the patches of
    an image by its shape, and with `least`, `rng` draws the most patches that
    each image may get, from `least` to `size.tokens`. If the images do not fit,
    bisection finds the largest limit with which they do, and no image gets more
    patches than that. With a limit of N / m all fit, since a row has room for
    another image until it has m of them.
    """
    limits = np.full(len(shapes), size.tokens)
    if self.least is not None:
      limits = rng.integers(self.least, size.tokens, len(shapes), endpoint=True)
    try_fit = functools.partial(
      self._try_fit, shapes=shapes, size=size, limits=limits, rows=rows
    )
    least = self.tokens // self.images
    most = size.tokens
    fitted = try_fit(most)
    if fitted is not None:
      return fitted
    while most - least > 1:
      middle = (least + most) // 2
      attempt = try_fit(middle)
      if attempt is None:
        most = middle
      else:
        least, fitted = middle, attempt
    if fitted is None:
      fitted = try_fit(least)
    assert fitted is not None
    return fitted

  def _try_fit(
    self,
    most: int,
    shapes: Sequence[Shape],
    size: AnySize,
    limits: np.ndarray,
    rows: int,
  ) -> tuple[np.ndarray, np.ndarray] | None:
    """The result of `fit` with at most `most` patches an image.

    It is None if the images do not fit. `limits` has the most patches that each
    image may have.
    """
    counts = np.zeros(len(shapes), int)
    for n, limit in enumerate(np.minimum(limits, most).tolist()):
      limited = dataclasses.replace(size, tokens=limit)
      counts[n] = math.prod(limited.grid(shapes[n]))
    row = first_fit(counts, rows=rows, tokens=self.tokens, most=self.most)
    return None if row is None else (counts, row)

  def padding(
    self, size: AnySize, shapes: Sequence[Shape], rows: int, seed: int
  ) -> Padding:
    """The padding of a batch's rows, if images of these shapes are not cropped.

    If the images do not fill the last window, the first images fill it up.
    """
    if not shapes:
      return Padding(0, 0, 0)
    rows = min(rows, _WINDOW)
    count = rows * self.images
    windows = -(-len(shapes) // count)
    filled, full, crowded = 0, 0, 0
    # Rows so long that no image is shown with fewer patches.
    roomy = dataclasses.replace(self, tokens=self.images * size.tokens)
    for number in range(windows):
      places = range(number * count, (number + 1) * count)
      some = [shapes[place % len(shapes)] for place in places]
      key = (seed, number, _LIMITS)
      counts, _ = self.fit(some, size, rows, np.random.default_rng(key))
      whole_counts, _ = roomy.fit(some, size, rows, np.random.default_rng(key))
      fitted = int(counts.sum())
      whole = int(whole_counts.sum())
      filled += fitted
      full += whole
      crowded += fitted < whole
    return Padding(
      share=1 - filled / (windows * rows * self.tokens),
      alone=1 - full / (windows * count * size.tokens),
      crowded=crowded / windows,
    )


def first_fit(
  counts: np.ndarray, rows: int, tokens: int, most: int
) -> np.ndarray | None:
  """The number of the row of each image, (n,), or None if they do not fit.

  `counts`, (n,), has the patches of each image. The largest image comes first,
  and each goes to the first of `rows` rows of `tokens` patches that has room
  for its patches and holds fewer than `most` images.

  >>> import numpy as np
  >>> from vit_jax.data.batching.packing import first_fit
  >>> first_fit(np.array([3, 5, 2, 6]), rows=2, tokens=8, most=4).tolist()
  [1, 1, 0, 0]
  """
  room = np.full(rows, tokens)
  places = np.full(rows, most)
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

  `batch_size` counts images, and `rows` are this host's rows, out of R. The
  transform is an `IntoPatches`, or a `WithTexts` of one. A window that lies on
  two hosts is read by both, so that the batch is the same for any number of
  hosts.
  """

  packing: Packing = dataclasses.field(kw_only=True)

  @property
  def spec(self) -> dict[str, ArraySpec]:
    """The arrays of this host's rows of a batch."""
    row = row_spec(self.transform, label_spec(self.source))
    return batch_spec(self.packing.spec(row), len(self.rows))

  def compute(self, k: int, out: Batch | None = None) -> Batch:
    """This host's rows of batch k, by array; see `spec`. Padding is 0.

    Raises as `TrainBatches.compute` does.
    """
    batch = allocate(self.spec) if out is None else out
    for name in batch.keys() - {"image"}:
      batch[name][:] = 0
    filled = np.zeros(len(self.rows), int)
    images = np.zeros(len(self.rows), int)
    unreadable: list[str] = []
    for row, arrays in self._images_by_row(k, unreadable):
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

  def _images_by_row(
    self, k: int, unreadable: list[str]
  ) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields, for each image of batch k on this host, its row and its arrays.

    The row is counted from this host's first row. A line on each image that
    could not be read is added to `unreadable`.
    """
    m = self.packing.images
    total = self.packing.rows(self.batch_size)
    random = KeyedRandom(self.seed)
    first_window = self.rows.start // _WINDOW * _WINDOW
    for start in range(first_window, self.rows.stop, _WINDOW):
      window = range(start, min(start + _WINDOW, total))
      first = k * self.batch_size
      positions = range(first + window.start * m, first + window.stop * m)
      indices = self._indices(k, positions)
      # The encoded files of a whole window are in memory at once.
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
          self, transform=transform.with_tokens(int(counts[place]))
        )
        # The generator is reset to the state in which the shape was drawn.
        rng_of_image = functools.partial(random.at, positions[place])
        arrays = fitted._arrays_of(
          examples[place], indices[place], rng_of_image, unreadable
        )
        yield row - self.rows.start, arrays

  def _shape(
    self, example: Example | UnreadableImageError, rng: np.random.Generator
  ) -> Shape:
    """The size in pixels of what is cut into patches, by the header alone.

    It is (height, width), and `_UNKNOWN` for an unreadable image.
    """
    transform: Any = self.transform
    if isinstance(example, UnreadableImageError):
      return _UNKNOWN
    try:
      return transform.shape(example, rng)
    except UnreadableImageError:
      return _UNKNOWN
