"""The arrays of a batch: their names, shapes and types.

A transform says which arrays one example becomes, and a source what its labels
are. All code that allocates, sends or compiles for a batch asks these two.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from vit_jax.data.example import Example, Source, UnreadableImageError

Batch = dict[str, np.ndarray]
"""The arrays of a batch by name; examples lie along the first axis of each."""

LABEL, SKIPPED, MASK = "label", "skipped", "mask"
"""Names of the arrays that the loader adds to those of the transform.

A transform may make the label itself, from the label of the example.
"""

SIZE = "size"
"""Name of the array with the number of an image's patches along each side.

It has the number along the height, then that along the width.

Only batches of images of any size have it.
"""

BANDS = "bands"
"""Name of the array that says which of the run's bands an image has.

Only batches for models that do not need all bands have it.
"""

_ALIGNED = 64  # Bytes; arrays that share memory begin at multiples of it.
# The last number of the random key of a `Mixture`; no other key ends in it.
_MIXED = 2


@dataclasses.dataclass(frozen=True)
class ArraySpec:
  """The shape and type of an array of one example, or of a batch.

  `dtype` may be anything that `np.dtype` takes, and is kept as an `np.dtype`.
  """

  shape: tuple[int, ...]
  dtype: Any = np.uint8

  def __post_init__(self):
    object.__setattr__(self, "shape", tuple(map(int, self.shape)))
    object.__setattr__(self, "dtype", np.dtype(self.dtype))

  @property
  def nbytes(self) -> int:
    """The size of the array in bytes."""
    return math.prod(self.shape) * self.dtype.itemsize

  def zeros(self) -> np.ndarray:
    """An array of zeros."""
    return np.zeros(self.shape, self.dtype)


Spec = Mapping[str, ArraySpec]
"""The arrays of an example or of a batch, by name."""

CLASS = ArraySpec((), np.int32)
"""A label that is the index of a class."""


@runtime_checkable
class Transform(Protocol):
  """From an example to the arrays of one row of a batch.

  It can be pickled, since each worker process gets a copy.
  """

  @property
  def spec(self) -> Spec:
    """The arrays that `row` returns; none is called skipped or mask.

    An array that is called label takes the place of the example's own label, as
    for a mask that is cropped with its image.
    """
    ...

  def row(
    self, example: Example, *rng: np.random.Generator
  ) -> Mapping[str, Any]:
    """The arrays of an example, by name.

    In training, `rng` is one generator, the example's own; in evaluation none.
    Raises UnreadableImageError if the image cannot be decoded.
    """
    ...


@dataclasses.dataclass(frozen=True)
class Mixture:
  """Transforms that make arrays of different shapes; each batch takes one.

  The seed and the batch's number decide which transform that is, so every host
  and a run that is resumed take the same one. A mixture can stand for a
  `Transform` where only its `spec` is asked for.

  Attributes:
    transforms: Transforms whose arrays differ in their shapes.
    shares: The share of the batches that each transform makes; their sum is 1.
  """

  transforms: tuple[Transform, ...]
  shares: tuple[float, ...]

  @property
  def spec(self) -> Spec:
    """For each array, the largest that one of the transforms makes.

    No array of a batch has more bytes. A batch lacks the arrays that its own
    transform does not make.
    """
    arrays: dict[str, ArraySpec] = {}
    for transform in self.transforms:
      for name, array in transform.spec.items():
        arrays[name] = max(
          arrays.get(name, array), array, key=lambda one: one.nbytes
        )
    return arrays

  def row(
    self, example: Example, *rng: np.random.Generator
  ) -> Mapping[str, Any]:
    """Raises NotImplementedError: the result of `of_batch` makes the rows."""
    raise NotImplementedError

  def about(self, source: Source) -> str:
    """A line on the transforms: each with its share, then what they say.

    What a transform says of `source` is the result of its method `about`, if it
    has one.
    """
    text = "; ".join(f"{share:.1%}: {one}" for one, share in by_share(self))
    found = (getattr(one, "about", None) for one in self.transforms)
    lines = dict.fromkeys(about(source) for about in found if about)
    return "; ".join([f"drawn for each batch, {text}", *filter(None, lines)])

  def of_batch(self, seed: int, number: int) -> Transform:
    """The transform that makes the batch of this number."""
    rng = np.random.default_rng((seed, number, _MIXED))
    place = np.searchsorted(np.cumsum(self.shares), rng.random(), side="right")
    return self.transforms[min(int(place), len(self.transforms) - 1)]


def by_share(transform: Transform) -> list[tuple[Transform, float]]:
  """The transforms that make batches, each with its share of the batches."""
  if not isinstance(transform, Mixture):
    return [(transform, 1.0)]
  return [*zip(transform.transforms, transform.shares, strict=True)]


class ImageTransform:
  """A transform whose only array is `image`, uint8 (H, W, C).

  It is called as a function: (image, rng) to pixels in training, and image to
  pixels in evaluation. The image is the bytes of a file; our own transforms
  take a path, a Pillow image or an array, uint8 (H, W, 3), as well.
  """

  @property
  def image_shape(self) -> tuple[int, int, int]:
    """Height, width and channels of every image."""
    raise NotImplementedError

  def __call__(self, image: Any, *rng: np.random.Generator) -> np.ndarray:
    """The pixels of an image, uint8 (H, W, C)."""
    raise NotImplementedError

  @property
  def spec(self) -> Spec:
    """The shape and type of `image`, the only array."""
    return {"image": ArraySpec(self.image_shape)}

  def row(
    self, example: Example, *rng: np.random.Generator
  ) -> Mapping[str, np.ndarray]:
    """One array, `image`: the pixels of an example, by `__call__`."""
    return {"image": self(example["image"], *rng)}


@dataclasses.dataclass(frozen=True)
class _Function(ImageTransform):
  """A user's function from a file to pixels, and the shape of its images."""

  function: Any
  shape: tuple[int, int, int]

  @property
  def image_shape(self) -> tuple[int, int, int]:
    return self.shape

  def __call__(self, image: Any, *rng: np.random.Generator) -> np.ndarray:
    return self.function(image, *rng)


def as_transform(transform: Any, source: Source, *, train: bool) -> Transform:
  """Returns a `Transform` as it is, and makes one of a plain function.

  A function from encoded bytes (and, in training, a generator) to pixels does
  not tell their shape, so it is called with one image after another until it
  can read one. Raises UnreadableImageError if it can read none of them.
  """
  if isinstance(transform, Transform):
    return transform
  rng = (np.random.default_rng(0),) if train else ()
  for index in range(len(source)):
    try:
      image = transform(source[index]["image"], *rng)
    except UnreadableImageError:
      continue
    return _Function(transform, np.shape(image))
  raise UnreadableImageError(
    f"none of the {len(source)} images of {source.name} is readable."
  )


def label_spec(source: Source) -> ArraySpec:
  """The shape and type of a source's labels; by default a class's index."""
  return getattr(source, "label_spec", CLASS)


def row_spec(transform: Transform, label: ArraySpec) -> dict[str, ArraySpec]:
  """The arrays of a row of a training batch.

  `label` is the shape and type of the source's labels, which the transform's
  own label replaces, if it makes one. Raises ValueError if the transform has an
  array of a name that the loader uses.
  """
  spec = dict(transform.spec)
  label = spec.pop(LABEL, label)
  if taken := sorted({SKIPPED, MASK} & {*spec}):
    raise ValueError(
      f"the transform has an array called {taken[0]!r}, and the loader already "
      "has one of that name: rename it."
    )
  return {**spec, LABEL: label, SKIPPED: ArraySpec((), bool)}


def batch_spec(spec: Spec, rows: int) -> dict[str, ArraySpec]:
  """The arrays of a batch of `rows` examples."""
  return {
    name: ArraySpec((rows, *array.shape), array.dtype)
    for name, array in spec.items()
  }


def allocate(spec: Spec) -> Batch:
  """A new batch of zeros."""
  return {name: array.zeros() for name, array in spec.items()}


def size_in_memory(spec: Spec) -> int:
  """The bytes that one batch takes in the buffer of `batches_in_memory`."""
  return sum(_aligned_size(array.nbytes) for array in spec.values())


def batches_in_memory(memory: Any, spec: Spec, count: int) -> list[Batch]:
  """`count` batches whose arrays are views of one buffer of bytes.

  The buffer `memory` has `count` times `size_in_memory` bytes or more.
  """
  size = size_in_memory(spec)
  return [
    dict(_arrays(memory, spec, start=number * size)) for number in range(count)
  ]


def _arrays(
  memory: Any, spec: Spec, start: int
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields the names and the arrays of the batch that begins at `start`."""
  for name, array in spec.items():
    count = math.prod(array.shape)
    flat = np.frombuffer(memory, array.dtype, count=count, offset=start)
    yield name, flat.reshape(array.shape)
    start += _aligned_size(array.nbytes)


def part_of(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
  """The first values of an array, arranged in a shape.

  The result shares the memory of `array`, which must be contiguous and have at
  least the number of values that the shape needs.
  """
  return array.reshape(-1)[: math.prod(shape)].reshape(shape)


def _aligned_size(size: int) -> int:
  """`size` rounded up to a multiple of `_ALIGNED`."""
  return -(-size // _ALIGNED) * _ALIGNED


def put(batch: Batch, row: int, values: Mapping[str, Any]) -> None:
  """Writes the arrays of an example into a row of a batch.

  The batch must have an array of each of their names. Raises ValueError if an
  array has another shape than a row of the batch's array.
  """
  for name, value in values.items():
    _check_shape(name, np.shape(value), batch)
    batch[name][row] = value


def check_names(values: Mapping[str, Any], expected: Sequence[str]) -> None:
  """Raises ValueError unless an example has exactly the expected arrays."""
  if values.keys() != {*expected}:
    raise ValueError(
      f"the transform returned {', '.join(sorted(values)) or 'nothing'}, and "
      f"its spec has {', '.join(sorted(expected))}."
    )


def _check_shape(name: str, shape: tuple[int, ...], batch: Batch) -> None:
  """Raises ValueError unless `shape` is that of a row of the batch's array."""
  expected = batch[name].shape[1:]
  if shape != expected:
    raise ValueError(
      f"an example's {name} has the shape {shape}, and its spec says "
      f"{expected}."
    )
