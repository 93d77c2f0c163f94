"""Shows a batch in a notebook: of arrays, of an iterator, or of a folder."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from PIL import Image

from vit_jax.data.batch import LABEL, MASK, Batch, label_spec
from vit_jax.data.batching.loader import Loader
from vit_jax.data.batching.opened import OpenData, OpenedSplit
from vit_jax.data.example import Source
from vit_jax.data.reading.labels import Labels
from vit_jax.data.reading.letters import without_tokens
from vit_jax.data.reading.places import settings_of
from vit_jax.data.reading.sources import open_source
from vit_jax.data.settings import DataSettings as Data
from vit_jax.data.settings import TrainTransformSettings
from vit_jax.data.transforming.transforms import make_train_transform
from vit_jax.data.transforming.with_masks import with_label
from vit_jax.inspection.batch_sheet import batch_sheet
from vit_jax.inspection.found_data import open_found, recognised
from vit_jax.runtime import hints
from vit_jax.runtime.checks import COUNT, checked
from vit_jax.runtime.settings import from_dict
from vit_jax.runtime.shown import path_of_run
from vit_jax.tasks.settings import DataSettings
from vit_jax.workdir.checkpoint import latest_description

_IMAGE = "image"
_SIZE = 224, 224  # The size of the images of a folder.
_NEEDED = (
  "give a batch with an array 'image', (B, H, W, C), images alone, the batches "
  "or the pair that vit_jax.open_data returns, or the path of a folder, of a "
  "file of labels or of a run."
)


@hints.accepts(
  "vit_jax.show_batch(folder)",
  same={
    **dict.fromkeys(("n", "num", "max_images", "num_images"), "count"),
    **dict.fromkeys(("classes", "names"), "class_names"),
  },
  keys="DataSettings",
)
def show_batch(
  batch: Any, class_names: Any = (), *, count: int = 16
) -> Image.Image:
  """Draws the images of a batch and their labels, for a notebook to show::

    train, batches = vit_jax.open_data("train", photos, (64, 64), 32)
    vit_jax.show_batch(next(batches), train)

  Above an image stands its class, its labels, its numbers or its caption. A
  mask lies on its image in colours, class 0 in black, and the classes of most
  pixels stand above.

  Args:
    batch: A dictionary with `image`, (B, H, W, C), and perhaps `label`; images
      alone; batches, of which the next one is drawn, and a loop over them goes
      on after it; what `vit_jax.open_data` or `vit_jax.load_dataset` returns;
      or a folder, a file of labels, "digits", `DataSettings` or a run, whose
      training images are drawn as a run would change them. Images are uint8;
      floats are drawn from their lowest value in black to their highest in
      white.
    class_names: The names of the classes, or the source that has them; or,
      after an array of images, their labels.
    count: The most images that are drawn.

  Returns:
    A Pillow image: `.save("batch.png")`.

  Raises:
    ValueError: if there are no images in the batch, the folder is no data set,
      or `count` is below 1.
  """
  checked("count", int, count, COUNT)
  if hasattr(batch, "origin"):  # A result of `load_pretrained` has no data.
    path_of_run(batch)
  if hasattr(batch, "shape") and hasattr(class_names, "shape"):
    batch, class_names = {_IMAGE: batch, LABEL: class_names}, ()
  if isinstance(batch, OpenData | OpenedSplit):
    batch, class_names = batch.batches, batch.source
  if isinstance(batch, str | os.PathLike | Data):
    batch, class_names = _batch_of_folder(batch, count)
  elif _is_source(batch):  # `show_batch(*vit_jax.open_data(...))`.
    batch, class_names = class_names, batch
  elif isinstance(batch, tuple) and len(batch) == 2:
    first, second = batch
    if _is_source(first):
      batch, class_names = second, first
    else:
      batch = {_IMAGE: first, LABEL: second}
  names: Any = class_names
  kind: Labels | None = None
  if _is_source(class_names):
    names = names.class_names
    kind = getattr(class_names, "kind", None)
  images, labels = _rows(_arrays(batch), count)
  return batch_sheet(images, labels, tuple(names), kind).image


def _is_source(value: Any) -> bool:
  """Whether a value is a `Source`."""
  return hasattr(value, "class_names") and hasattr(value, "__getitem__")


def _batch_of_folder(
  place: str | os.PathLike[str] | Data, count: int
) -> tuple[Batch, Source]:
  """A batch of training images, and the split that they are from.

  `place` is the workdir of a run, a folder of images, a file of labels, packed
  data, "digits", or the settings of data. Raises ValueError as `open_splits`
  and `open_source` do.
  """
  path = "" if isinstance(place, Data) else os.path.expanduser(os.fspath(place))
  settings = place if isinstance(place, Data) else None
  if path and (described := latest_description(path)):
    data = described["config"]["data"]
    settings = from_dict(DataSettings, data, saved=True)
  elif path:
    found = settings_of(path)
    if not found.root:  # It is packed data, or the digits.
      settings = DataSettings(name=found.name, dir=found.dir)
  if settings is not None:
    kind = settings.label_kind
    train = open_source("train", settings, kind and without_tokens(kind))
  else:
    data, kind, _ = recognised(path, DataSettings())
    train = open_found(path, data, kind).train
  images = make_train_transform(_SIZE, TrainTransformSettings())
  transform = with_label(images, label_spec(train), len(train.class_names))
  loader = Loader(on_unreadable="skip")
  rows = min(count, len(train))
  with loader.train(train, transform, batch_size=rows, seed=0) as batches:
    return next(batches), train


def _arrays(batch: Any) -> Mapping[str, Any]:
  """The arrays of a batch, of images alone, or of the next batch of several.

  Raises ValueError for anything else.
  """
  if isinstance(batch, Mapping):
    if _IMAGE not in batch:
      keys = ", ".join(map(str, batch)) or "nothing"
      raise ValueError(f"the batch has {keys}, and no 'image': {_NEEDED}")
    return batch
  if hasattr(batch, "shape") or isinstance(batch, list):
    return {_IMAGE: batch}
  if isinstance(batch, Iterable):
    return _arrays(next(iter(batch), {}))
  raise ValueError(f"this is of type {type(batch).__name__}: {_NEEDED}")


def _rows(
  arrays: Mapping[str, Any], count: int
) -> tuple[np.ndarray, np.ndarray | None]:
  """The first images, uint8 (B, H, W, C), and their labels, if there are any.

  Rows of padding are left out. Raises ValueError if the arrays are no images,
  or the number of labels differs.
  """
  images = np.asarray(arrays[_IMAGE])
  if images.ndim == 3:
    images = images[None]
  if images.ndim != 4 or not images.size or images.dtype == object:
    raise ValueError(f"images of shape {images.shape}: {_NEEDED}")
  label = arrays.get(LABEL)
  labels = None if label is None else np.atleast_1d(np.asarray(label))
  if labels is not None and len(labels) != len(images):
    raise ValueError(
      f"{len(images)} images have {len(labels)} labels: give one for each."
    )
  chosen = np.arange(len(images))
  if np.shape(arrays.get(MASK)) == chosen.shape:
    chosen = np.flatnonzero(np.asarray(arrays[MASK]))
  chosen = chosen[:count]
  if not len(chosen):
    raise ValueError("every row of the batch is padding: there is no image.")
  return _levels(images[chosen]), None if labels is None else labels[chosen]


def _levels(images: np.ndarray) -> np.ndarray:
  """Images as uint8; other values from black, the lowest, to white."""
  if images.dtype == np.uint8:
    return images
  values = images.astype(np.float32)
  low = np.nanmin(values)
  high = np.nanmax(values)
  share = (values - low) / max(high - low, np.finfo(np.float32).tiny)
  return (255 * np.nan_to_num(share) + 0.5).astype(np.uint8)
