"""Opens a split and its batches, for a training loop of your own."""

import os
from typing import Any, Literal

from vit_jax.data.batch import ImageTransform, Transform, label_spec
from vit_jax.data.batching.loader import EvalPasses, make_loader
from vit_jax.data.batching.workers import BatchIterator
from vit_jax.data.example import ImageSpec, Source, Window, sides
from vit_jax.data.reading.labels import SINGLE
from vit_jax.data.reading.letters import without_tokens
from vit_jax.data.reading.places import settings_of
from vit_jax.data.reading.sources import open_source
from vit_jax.data.settings import (
  DataSettings,
  EvalTransformSettings,
  LoaderSettings,
  TrainTransformSettings,
)
from vit_jax.data.transforming.transforms import (
  make_eval_transform,
  make_train_transform,
)
from vit_jax.data.transforming.with_masks import with_label
from vit_jax.runtime import hints
from vit_jax.runtime.printable import quoted, say_once
from vit_jax.runtime.settings import to_dict

Split = Literal["train", "eval", "test"]
Data = DataSettings | str | os.PathLike[str]


_SIDE, _BATCH = 224, 32  # The images and batches that `open_data` assumes.
_SPLITS: dict[str, Split] = {
  **{name: name for name in ("train", "eval", "test")},
  **dict.fromkeys(("training",), "train"),
  **dict.fromkeys(("val", "valid", "validation"), "eval"),
}


@hints.accepts(
  'vit_jax.open_data("train", "my_photos", (224, 224), 32), where "eval" and '
  '"test" are the other splits',
  same={
    **dict.fromkeys(("size", "img_size", "target_size"), "image_size"),
    **dict.fromkeys(("bs", "batch"), "batch_size"),
    **dict.fromkeys(("folder", "root", "path", "dataset"), "data"),
    "subset": "split",
  },
  keys="DataSettings",
  first_by_name=True,
)
def open_data(
  split: Split | Data = "",
  data: Data | Split = "",
  image_size: int | tuple[int, int] | None = None,
  batch_size: int | None = None,
  *,
  transform: TrainTransformSettings | EvalTransformSettings | None = None,
  window: Window | None = None,
  channels: int = 3,
  loader: LoaderSettings = LoaderSettings(num_workers=0),
  seed: int = 0,
  first_batch: int = 0,
  process_index: int = 0,
  process_count: int = 1,
) -> tuple[Source, BatchIterator | EvalPasses]:
  """Opens a split and its batches, for a training loop of your own.

  Batch k of "train" depends on the seed and k alone, so a loop that stopped
  before batch k goes on with `first_batch=k`. "eval" can be iterated over as
  often as needed, and every pass has each example once. Close the batches when
  you are done with them.

  >>> import vit_jax
  >>> digits = vit_jax.DataSettings(name="digits")
  >>> source, batches = vit_jax.open_data("train", digits, (16, 16), 8)
  >>> with batches:
  ...   batch = next(batches)
  >>> len(source), batch["image"].shape, batch["label"].shape
  (1438, (8, 16, 16, 3), (8,))

  Args:
    split: "train", "eval" ("val" and "validation" are the same), or "test", as
      for `open_source`. The data may stand before the split. By default it is
      "train"; a line says what is assumed, for the sizes too.
    data: A folder of class folders, "digits", or the settings of other data,
      such as `DataSettings(name="cifar10")`.
    image_size: Height and width of the images, or one side of square ones, by
      default 224.
    batch_size: Examples of a batch, over all hosts, by default 32.
    transform: Crop and augmentation, `TrainTransformSettings` for "train" and
      `EvalTransformSettings` for the other splits; None takes the defaults of
      that class.
    window: See `ImageSpec`; by default the whole range of values.
    channels: See `ImageSpec`.
    loader: How the images are read; by default by a thread. Processes are
      faster on photographs, and a script that asks for them must keep its work
      under `if __name__ == "__main__":`, since each process imports the script.
    seed: Seed of the order and the augmentation of "train".
    first_batch: Number of the first batch of "train".
    process_index: Number of this host, `jax.process_index()`.
    process_count: Number of hosts, `jax.process_count()`.

  Returns:
    The split, with its `class_names` and its length, and its batches:
    dictionaries of `image`, uint8 (b, H, W, C), `label`, int32 (b,), and what
    `training.step.make_train_step` or
    `tasks.classification.evaluation.make_measure` may take besides. With
    another `data.task`, `label` has several labels or numbers, float32 (b, K);
    or a picture, cut and mirrored as its image: a mask, int32 (b, H, W), or a
    number for each pixel, float32 (b, H, W); or the first 128 letters of the
    first caption as code points, int32 (b, 1, 128), filled up with -1.
    `vit_jax.show_batch` shows a batch.

  Raises:
    ValueError: if an argument is out of range, or as `open_source` does.
  """
  chosen_split, settings = _split_and_data(split, data)
  assumed = []
  if chosen_split is None:
    chosen_split = "train"
    assumed.append('the split "train"')
  if image_size is None:
    image_size = _SIDE
    assumed.append(f"image_size={_SIDE}")
  if batch_size is None:
    batch_size = _BATCH
    assumed.append(f"batch_size={_BATCH}")
  if assumed:
    say_once(
      f"vit_jax.open_data takes what was not given: {', '.join(assumed)}."
    )
  if isinstance(image_size, int):
    image_size = image_size, image_size
  source = _source(chosen_split, settings)
  image_spec = ImageSpec(channels, window)
  image_loader = make_loader(
    loader,
    photographs=settings.photographs,
    image_size=image_size,
    process_index=process_index,
    process_count=process_count,
  )
  is_train = chosen_split == "train"
  kind = TrainTransformSettings if is_train else EvalTransformSettings
  chosen = transform or kind()
  if not isinstance(chosen, kind):
    raise ValueError(
      f'transform of the split "{chosen_split}" must be {kind.__name__}.'
    )
  if isinstance(chosen, EvalTransformSettings):
    images = make_eval_transform(image_size, chosen, image_spec)
    passes = image_loader.evaluate(
      source, _with_label(images, source), batch_size
    )
    return source, passes
  images = make_train_transform(image_size, chosen, image_spec)
  batches = image_loader.train(
    source,
    _with_label(images, source),
    batch_size=batch_size,
    seed=seed,
    first_batch=first_batch,
    repeats=chosen.repeats,
  )
  return source, batches


def describe_data(
  train: Source,
  data: DataSettings,
  image_size: tuple[int, int],
  transform: EvalTransformSettings = EvalTransformSettings(),
) -> dict[str, Any]:
  """The configuration to store with a checkpoint, for a loop of your own.

  With it, `evaluate` and `predict` hold out the images that `open_data` held
  out for "eval", and prepare them alike. `train` is the split that `open_data`
  opened as "train"; `data` and `image_size` are those that it was given, and
  `transform` is the one that it was given for "eval".
  """
  return {
    "image_size": image_size,
    "data": to_dict(data) | sides(train),
    "eval_transform": to_dict(transform),
  }


def _split_and_data(*given: Any) -> tuple[Split | None, DataSettings]:
  """The split, None if there is none, and the data, which come in any order.

  Raises ValueError if there are no data, or the split is unknown.
  """
  first, second = (None if isinstance(x, str) and not x else x for x in given)
  if first is None or (_is_split(second) and not _is_split(first)):
    first, second = second, first
  if second is None and not _is_split(first):
    first, second = second, first  # The data alone.
  if second is None:
    raise ValueError(
      "data is missing: give a folder of images after the split, as in "
      'vit_jax.open_data("train", "my_photos"), or "digits".'
    )
  if first is not None and not _is_split(first):
    raise ValueError(
      f'split={quoted(first)} is unknown; use "train", "eval" or "test".'
    )
  if isinstance(second, str | os.PathLike):
    second = settings_of(second)
  return None if first is None else _SPLITS[first], second


def _is_split(value: Any) -> bool:
  return isinstance(value, str) and value in _SPLITS


def _source(split: Split, data: DataSettings) -> Source:
  """Opens the split; captions are read as letters, without a tokenizer."""
  kind = getattr(data, "label_kind", None) or SINGLE
  return open_source(split, data, without_tokens(kind))


def _with_label(images: ImageTransform, source: Source) -> Transform:
  """The transform of images, which takes masks along if labels are masks."""
  return with_label(images, label_spec(source), len(source.class_names))
