"""The types that every data set reader shares."""

from collections.abc import Sequence
from typing import Any, Protocol, TypedDict


class Example(TypedDict):
  """One labelled image file."""

  image: bytes
  """The encoded file, as stored."""
  label: Any
  """Index into the source's `class_names`; or float32 (K,) of 0 and 1, one for
  each name, or as many numbers."""
  id: str
  """Names the example in messages; unique within its source."""


class Source(Protocol):
  """Random access to the examples of one split of a data set.

  A source can be pickled, since each worker process gets a copy, and can be
  read from several threads at once. It may also have a method
  `labels(indices)` that returns the labels of some examples as an array, if
  that costs less than reading them, and an attribute `label_shape` if labels
  are arrays.
  """

  name: str
  class_names: tuple[str, ...]

  def __len__(self) -> int:
    """Returns the number of examples."""
    ...

  def __getitem__(self, index: int) -> Example:
    """Returns the example at `index`, 0 <= index < len."""
    ...

  def read(self, indices: Sequence[int]) -> list[Example]:
    """Returns several examples; some sources are faster than one by one."""
    return [self[index] for index in indices]


class UnreadableImageError(ValueError):
  """Raised for an image that cannot be decoded; says which one and why."""
