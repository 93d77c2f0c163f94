"""A split and its batches, as `open_data` and `load_dataset` return them."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from vit_jax.data.batch import Batch
from vit_jax.data.batching.loader import EvalPasses
from vit_jax.data.batching.workers import BatchIterator
from vit_jax.data.example import Source
from vit_jax.runtime import hints
from vit_jax.runtime.aliases import aliases
from vit_jax.runtime.printable import counted

SPLITS = {
  **{name: name for name in ("train", "eval", "test")},
  **hints.ours_by_other_names(
    {"train": "training", "eval": "val valid validation"}
  ),
}
"""The names by which splits are asked for -> those of `open_source`."""


class OpenData(NamedTuple):
  """A split and its batches: `split, batches = vit_jax.open_data(...)`.

  `class_names` are those of the split, and `show_batch()` draws the next batch
  as `vit_jax.show_batch` does.
  """

  source: Source
  batches: BatchIterator | EvalPasses

  @property
  def class_names(self) -> tuple[str, ...]:
    """The names of the classes."""
    return self.source.class_names

  def show_batch(self, **options: Any) -> Any:
    """Draws the next batch, with the keywords of `vit_jax.show_batch`."""
    return aliases("opened")["show"].resolve(self)(**options)

  if not TYPE_CHECKING:  # A type checker knows the names above alone.

    def __getitem__(self, index: int) -> Any:
      """The split (0) or the batches (1); raises TypeError for a text."""
      if isinstance(index, str):
        raise TypeError(
          f"open_data returns a pair, which has no {index!r}: split, batches = "
          'vit_jax.open_data("train", folder) takes it apart, and "eval" and '
          '"test" in the place of "train" open the other splits; or data = '
          'vit_jax.load_dataset(folder) has data["eval"] and '
          'next(data)["image"].'
        )
      return tuple.__getitem__(self, index)

    def __getattr__(self, name: str) -> Any:
      """An attribute by the name that another library has for it.

      Raises AttributeError for other names, with a hint at what may be meant.
      """
      return _answer(self, name, "the pair of open_data has")


class OpenedSplit(contextlib.AbstractContextManager):
  """A split to iterate over: `for batch in vit_jax.load_dataset("my_photos")`.

  A loop has the batches of one epoch: of "train" the next `len(data)` of a
  stream without end, and of the other splits each example once. The last batch
  of these splits may have fewer rows, whereas `open_data` fills it up with rows
  that its `mask` leaves out; unreadable images are left out as well.
  `next(data)` is the next batch, and `data["eval"]`, `data["test"]` and
  `data["train"]` are splits of the same data, opened once; without test images,
  "test" is "eval", and a line says so. `class_names` are those of the split,
  and `data.show_batch()` draws a batch.

  Attributes:
    split: "train", "eval" or "test".
    source: The split, with its length in examples.
    batches: Its batches, as `open_data` returns them.
    batch_size: Rows of a batch.
    again: Opens the same data with other arguments of `load_dataset`.
  """

  def __init__(
    self,
    split: str,
    opened: OpenData,
    batch_size: int,
    again: Callable[..., "OpenedSplit"],
  ):
    self.split = split
    self.source, self.batches = opened
    self.batch_size = batch_size
    self.again = again
    self._splits: dict[str, OpenedSplit] = {split: self}
    self._epoch: Iterator[Batch] | None = None

  def __len__(self) -> int:
    """The number of batches in an epoch."""
    if isinstance(self.batches, EvalPasses):
      return len(self.batches)
    return max(1, len(self.source) // self.batch_size)

  def __iter__(self) -> Iterator[Batch]:
    """Yields the batches of one epoch; raises as `BatchIterator` does."""
    for batch in itertools.islice(self.batches, len(self)):
      counts = batch.get("mask")
      if counts is None:
        yield batch
      else:
        yield {name: array[counts > 0] for name, array in batch.items()}

  def __next__(self) -> Batch:
    """The next batch; raises StopIteration after each epoch."""
    if self._epoch is None:
      self._epoch = iter(self)
    try:
      return next(self._epoch)
    except StopIteration:
      self._epoch = None
      raise

  def __getitem__(self, name: str) -> "OpenedSplit":
    """Another split; raises TypeError for anything but the name of one."""
    if name not in SPLITS:
      raise TypeError(
        f'data[{name!r}]: "train", "eval" and "test" open the splits; '
        'next(data)["image"] and next(data)["label"] are arrays of a batch, '
        "and data.source[0] is the file of an example."
      )
    split = SPLITS[name]
    if split not in self._splits:
      is_like_this = (split == "train") == (self.split == "train")
      # Training and evaluation have transforms of different types.
      other = {} if is_like_this else {"transform": None}
      self._splits[split] = self.again(split=split, **other)
    return self._splits[split]

  @property
  def class_names(self) -> tuple[str, ...]:
    """The names of the classes."""
    return self.source.class_names

  def show_batch(self, **options: Any) -> Any:
    """Draws the next batch, with the keywords of `vit_jax.show_batch`."""
    return aliases("opened")["show"].resolve(self)(**options)

  def __repr__(self) -> str:
    """The split, its batches and how to use them."""
    batches = counted(len(self), "batch", "batches")
    return (
      f"{self.source!r}; {batches} of {self.batch_size} in an epoch: for batch "
      'in data, next(data)["image"], data.show_batch(), data["eval"]'
    )

  if not TYPE_CHECKING:  # A type checker knows the names above alone.

    def __getattr__(self, name: str) -> Any:
      """An attribute by the name that another library has for it.

      Raises AttributeError for other names, with a hint at what may be meant.
      """
      return _answer(self, name, "an opened split has")

  def close(self) -> None:
    """Stops the workers of this split and those that were opened from it."""
    for opened in self._splits.values():
      opened.batches.close()

  def __exit__(self, *exception) -> None:
    self.close()


def _answer(opened: OpenData | OpenedSplit, name: str, who: str) -> Any:
  """The value of an alias of the name; the object has no such name itself.

  Raises AttributeError for a name that is no alias; `who` is the message's
  subject and verb, such as "an opened split has".
  """
  if alias := aliases("opened").get(name):
    return alias.resolve(opened)
  raise hints.attribute_error(opened, name, "opened", who)
