"""Opens a split and its batches, for a training loop of your own."""

import contextlib
import dataclasses
import os
from typing import Any, Literal, cast

from vit_jax.data.batch import ImageTransform, Transform, label_spec
from vit_jax.data.batching.loader import make_loader
from vit_jax.data.batching.opened import SPLITS, OpenData, OpenedSplit
from vit_jax.data.decoding.decode import image_size as decoded_size
from vit_jax.data.example import (
  ImageSpec,
  NoTestSplitError,
  Source,
  UnreadableImageError,
  Window,
  evenly_spread,
  sides,
)
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
from vit_jax.runtime.checks import COUNT, checked
from vit_jax.runtime.printable import quoted, say_once
from vit_jax.runtime.settings import to_dict

Split = Literal["train", "eval", "test"]
Data = DataSettings | str | os.PathLike[str]


_SIDE, _BATCH = 224, 32  # The sizes that `open_data` assumes.
_SMALL = 64  # Longest side of images that keep their size by default.
_LOOKED_AT = 8  # Images whose size is looked at.
_SAME_NAMES = hints.ours_by_other_names(
  {
    "image_size": "size img_size target_size",
    "batch_size": "bs batch",
    "data": "folder root path dataset",
    "split": "subset",
  }
)


@hints.accepts(
  'vit_jax.open_data("train", "my_photos", (224, 224), 32), where "eval" and '
  '"test" are the other splits',
  same=_SAME_NAMES,
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
) -> OpenData:
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
    image_size: Height and width of the images, or one side of square ones. By
      default it is 224, or that of the files if they are at most 64 pixels high
      and wide and the first ones looked at have the same size.
    batch_size: Examples of a batch, over all hosts, by default 32, or all if
      there are fewer.
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
    The pair (split, batches), an `OpenData`: the split, with its `class_names`
    and its length, and its batches, dictionaries of `image`, uint8
    (b, H, W, C), `label`, int32 (b,), and what `training.step.make_train_step`
    or `tasks.classification.evaluation.make_measure` may take besides. With
    another `data.task`, `label` has several labels or numbers, float32 (b, K);
    or a picture, cut and mirrored as its image: a mask, int32 (b, H, W), or a
    number for each pixel, float32 (b, H, W); or the first 128 letters of the
    first caption as code points, int32 (b, 1, 128), filled up with -1. Batches
    of "eval" and "test" have `mask`, float32 (b,): 1 for an example, and 0 for
    a row that fills up the last batch. `vit_jax.show_batch` shows a batch.

  Raises:
    ValueError: if an argument is out of range, or as `open_source` does.
  """
  asked = data if isinstance(data, _Asked) else _asked(split, data)
  image_size, batch_size = asked.sizes(image_size, batch_size)
  source = asked.source
  image_spec = ImageSpec(channels, window)
  image_loader = make_loader(
    loader,
    photographs=asked.settings.photographs,
    image_size=image_size,
    process_index=process_index,
    process_count=process_count,
  )
  is_train = asked.split == "train"
  kind = TrainTransformSettings if is_train else EvalTransformSettings
  chosen = transform or kind()
  if not isinstance(chosen, kind):
    raise ValueError(
      f'transform of the split "{asked.split}" must be {kind.__name__}.'
    )
  if isinstance(chosen, EvalTransformSettings):
    images = make_eval_transform(image_size, chosen, image_spec)
    passes = image_loader.evaluate(
      source, _with_label(images, source), batch_size
    )
    return OpenData(source, passes)
  images = make_train_transform(image_size, chosen, image_spec)
  batches = image_loader.train(
    source,
    _with_label(images, source),
    batch_size=batch_size,
    seed=seed,
    first_batch=first_batch,
    repeats=chosen.repeats,
  )
  return OpenData(source, batches)


@hints.accepts(
  'vit_jax.load_dataset("my_photos", batch_size=16)',
  same=_SAME_NAMES,
  keys="DataSettings",
  first_by_name=True,
)
def load_dataset(
  split: Split | Data | OpenedSplit = "",
  data: Data | Split | OpenedSplit = "",
  image_size: int | tuple[int, int] | None = None,
  batch_size: int | None = None,
  **options: Any,
) -> OpenedSplit:
  """Opens a split as an object to iterate over, as other libraries do.

  >>> import vit_jax
  >>> data = vit_jax.load_dataset("digits", image_size=8, batch_size=32)
  >>> next(data)["image"].shape, len(data), len(data["eval"].source)
  ((32, 8, 8, 3), 44, 359)
  >>> data.close()

  Arguments and errors are those of `open_data`. If there are no test images,
  "test" is "eval", and a line says so. `data` may be an opened split, which is
  opened anew with the other arguments.
  """
  for opened, other in ((split, data), (data, split)):
    if isinstance(opened, OpenedSplit):
      sizes = {"image_size": image_size, "batch_size": batch_size}
      asked = {"split": other, **sizes}
      changes = {name: value for name, value in asked.items() if value}
      return opened.again(**changes, **options)
  given: Any = split, data
  asked = _asked(*given, otherwise="eval")
  sizes = asked.sizes(image_size, batch_size)
  known: Any = {"image_size": sizes[0], "batch_size": sizes[1], **options}
  # A line has said what was assumed.
  known["data"] = dataclasses.replace(asked, is_assumed=False)
  opened = open_data(**known)
  known |= {"split": asked.split, "data": asked.settings}
  return OpenedSplit(
    asked.split,
    opened,
    batch_size=sizes[1],
    again=lambda **changes: load_dataset(**{**known, **changes}),
  )


@dataclasses.dataclass(frozen=True)
class _Asked:
  """The split of some data that is asked for, opened.

  Attributes:
    is_assumed: Whether the split was not given.
  """

  split: Split
  settings: DataSettings
  source: Source
  is_assumed: bool

  def sizes(
    self, image_size: int | tuple[int, int] | None, batch_size: int | None
  ) -> tuple[tuple[int, int], int]:
    """The images' (height, width) and the batch size.

    A line names what was not given, and what is taken for it.
    """
    source = self.source
    assumed = [f'the split "{self.split}"'] if self.is_assumed else []
    if image_size is None:
      own = _own_size(source)
      height, width = image_size = own or (_SIDE, _SIDE)
      text = f"image_size={height if height == width else image_size}"
      assumed.append(f"{text}, that of its files" if own else text)
    if batch_size is None:
      batch_size = max(1, min(_BATCH, len(source)))
      assumed.append(f"batch_size={batch_size}")
    checked("batch_size", int, batch_size, COUNT)
    if assumed:
      say_once(
        f"vit_jax.open_data takes what was not given for {source.name}: "
        f"{'; '.join(assumed)}. Keywords of these names set others."
      )
    if isinstance(image_size, int):
      image_size = image_size, image_size
    return image_size, batch_size


def _asked(
  split: Split | Data, data: Split | Data, otherwise: Split | None = None
) -> _Asked:
  """Opens the split of some data that is asked for, by default "train".

  The split `otherwise` takes the place of missing test images, which a line
  says; None raises NoTestSplitError for them.
  """
  chosen, settings = _split_and_data(split, data)
  name: Split = chosen or "train"
  try:
    source = _source(name, settings)
  except NoTestSplitError as error:
    if otherwise is None:
      raise
    lacks = str(error).partition(":")[0]
    say_once(f'{lacks}: "{otherwise}", the images for evaluation, is opened.')
    name = otherwise
    source = _source(name, settings)
  return _Asked(name, settings, source, is_assumed=chosen is None)


def _own_size(source: Source) -> tuple[int, int] | None:
  """Height and width of the files, if they are small and all the same.

  A few files stand for all.
  """
  if not len(source):
    return None
  sizes: set[tuple[int, int]] = set()
  for index in evenly_spread(_LOOKED_AT, len(source)):
    with contextlib.suppress(UnreadableImageError):
      sizes.add(decoded_size(source[index]["image"]))
  if len(sizes) != 1:
    return None
  (size,) = sizes
  return size if max(size) <= _SMALL else None


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
    first, second = second, first  # Only the data were given.
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
  return None if first is None else cast("Split", SPLITS[first]), second


def _is_split(value: Any) -> bool:
  return isinstance(value, str) and value in SPLITS


def _source(split: Split, data: DataSettings) -> Source:
  """Opens the split; captions are read as letters, without a tokenizer."""
  kind = getattr(data, "label_kind", None) or SINGLE
  return open_source(split, data, without_tokens(kind))


def _with_label(images: ImageTransform, source: Source) -> Transform:
  """The transform of images, which takes masks along if labels are masks."""
  return with_label(images, label_spec(source), len(source.class_names))
