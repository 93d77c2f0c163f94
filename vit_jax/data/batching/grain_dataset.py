"""The images of a source as a data set of Grain, for programs built on it."""

import sys
from typing import TYPE_CHECKING, Any

from vit_jax.data.batch import Transform, as_transform
from vit_jax.data.batching.batches import UNREADABLE, EvalBatches, TrainBatches
from vit_jax.data.batching.loader import Loader
from vit_jax.data.example import Source
from vit_jax.data.transforming.transforms import EvalTransform, TrainTransform
from vit_jax.runtime import extras

if TYPE_CHECKING:  # Grain is installed by the extra `grain` alone.
  import grain


def as_grain(
  source: Source,
  transform: Transform | TrainTransform | EvalTransform,
  *,
  seed: int | None = 0,
  epochs: int | None = None,
  on_unreadable: str = "stop",
) -> "grain.MapDataset[dict[str, Any]]":
  """Makes a `grain.MapDataset` of the images that `Loader` gives, in its order.

  Element p is bit for bit row p % B of batch p // B of `Loader.train` without
  `repeats`, whatever the batch size B: image and augmentation depend on (seed,
  p) alone. Grain's slices, batches, processes and restored iterators keep that,
  and each epoch has an order of its own. Host i of n takes
  `as_grain(...)[i::n]`. Returns elements with `image` uint8 (H, W, C), `label`
  int32 (or of the source's `label_spec`), and `skipped` bool; without a seed
  also `mask`, as `EvalPasses` has it. Raises ValueError if `seed` or
  `on_unreadable` is out of range, the source is empty, or Grain is not
  installed.

  >>> from vit_jax import data
  >>> digits = data.open_source("train", data.DataSettings(name="digits"))
  >>> transform = data.make_train_transform(16)
  >>> elements = data.as_grain(digits, transform, epochs=2)
  >>> len(elements), elements[0]["image"].shape
  (2876, (16, 16, 3))
  >>> elements.batch(4)[0]["label"].shape
  (4,)

  Args:
    transform: (encoded, rng) -> uint8 (H, W, C); without a seed, encoded alone.
    seed: Seed of the order and the augmentation. None keeps the source's order,
      for evaluation, as `Loader.evaluate` has it.
    epochs: How often each example comes; None never ends.
    on_unreadable: As in `Loader`.
  """
  library = extras.load("grain", "grain")
  loader = Loader(on_unreadable=on_unreadable)
  loader.check(source, 1, seed or 0)
  options: dict[str, Any] = {
    "source": source,
    "transform": as_transform(transform, source, train=seed is not None),
    "batch_size": 1,
    "rows": range(1),
    "skip": on_unreadable == "skip",
  }
  if seed is None:
    batches = EvalBatches(**options)
  else:
    batches = TrainBatches(**options, seed=seed)
  length = sys.maxsize if epochs is None else epochs * len(source)
  return library.MapDataset.source(_Elements(batches, length))


class _Elements:
  """The arrays of one example each, as a sequence for Grain's workers.

  An element is a batch of one example, without the batch's axis.
  """

  def __init__(self, batches: EvalBatches | TrainBatches, length: int):
    self._batches = batches
    self._length = length

  def __len__(self) -> int:
    return self._length

  def __getitem__(self, position: int) -> dict[str, Any]:
    batch = self._batches.compute(int(position))
    return {key: batch[key][0] for key in batch if key != UNREADABLE}
