"""Finds the captions in the records of TFDS data sets."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from vit_jax.data.example import UnreadableImageError
from vit_jax.data.reading.captions import COLUMNS, Captions, no_captions
from vit_jax.data.reading.cells import Row
from vit_jax.data.reading.tfds.labels import IDS, Labels, Record

Keys = tuple[str, ...]
"""The keys that lead to a value in a record; a key may have a slash in it."""


def open_labels(info: Any, kind: Captions, name: str | None) -> Labels:
  """Finds the captions of a data set; `info` is its `tfds.core.DatasetInfo`.

  `name` is that of a feature of texts, or the path to it, such as
  "captions/text". Without it, the feature that is named like one of `COLUMNS`
  is taken, or the only one. Raises ValueError if the data set has no image or
  no such feature, or has several and none is named.
  """
  texts = {
    "/".join(keys): (keys, shape)
    for key, feature in info.features.items()
    if key not in IDS and not isinstance(feature, tfds.features.Dataset)
    for keys, shape in _text_features((key,), feature.np_dtype, feature.shape)
  }
  path = _choose_path(info.full_name, [*texts], name)
  keys, shape = texts[path]
  (most,) = shape or (1,)
  lines = []
  if name is None and path not in COLUMNS:
    others = ", ".join(other for other in texts if other != path)
    others = f"; data.tfds_label chooses another of {others}" if others else ""
    lines.append(f"the captions of {info.full_name} are its {path}{others}.")
  return Labels(
    class_names=kind.names,
    label=functools.partial(_label, kind, keys),
    image=_image_feature(info),
    spec=kind.spec(1),
    most=min(most or kind.most, kind.most),
    lines=lines,
    look=functools.partial(_caption_lines, kind, keys),
  )


def _text_features(
  keys: Keys, dtype: Any, shape: Any
) -> Iterator[tuple[Keys, tuple[int | None, ...]]]:
  """Yields the keys and the shape of each text in a feature: (), or (count,).

  A count that differs from record to record is None.
  """
  if isinstance(dtype, Mapping):
    for key in dtype:
      yield from _text_features((*keys, key), dtype[key], shape[key])
  elif dtype == np.object_ and len(shape) < 2:
    yield keys, shape


def _choose_path(data_set: str, paths: list[str], name: str | None) -> str:
  """Chooses the path of the captions among the paths of all texts.

  Raises ValueError if there is no such path, or several and no `name`.
  """
  if name in paths:
    return name
  listed = ", ".join(paths)
  if name is not None:
    raise ValueError(
      f"data.tfds_label={name!r}: {data_set} has no such texts; it has "
      f"{listed or 'none'}."
    )
  if not paths:
    raise ValueError(no_captions(data_set))
  groups = [[p for p in paths if name in p.split("/")] for name in COLUMNS]
  candidates = next(filter(None, groups), paths)
  if len(candidates) > 1:
    raise ValueError(
      f"data.tfds_label is missing: {data_set} has several texts, {listed}; "
      "set it to that of the captions."
    )
  return candidates[0]


def _image_feature(info: Any) -> str:
  """The key of the images: the first supervised one, or the only one.

  Raises ValueError if there are several, or none.
  """
  images = [
    key
    for key, feature in info.features.items()
    if isinstance(feature, tfds.features.Image)
  ]
  first = (info.supervised_keys or ("image",))[0]
  if first in images:
    return first
  if len(images) != 1:
    raise ValueError(
      f"{info.full_name} has {len(images)} features of images, and pairs need "
      "one: choose another data set."
    )
  return images[0]


def _label(kind: Captions, keys: Keys, record: Record) -> Any:
  """The label of a record; raises UnreadableImageError as `_captions` does."""
  return kind.of_record(_captions(keys, record))


def _captions(keys: Keys, record: Record) -> list[str]:
  """The captions of a record; raises UnreadableImageError if one is missing."""
  value: Any = record
  for key in keys:
    value = value[key]
  stored = [value] if isinstance(value, bytes | str) else [*value]
  texts = [
    t if isinstance(t, str) else t.decode(errors="replace") for t in stored
  ]
  if not texts or not all(text.strip() for text in texts):
    what = "an empty caption" if texts else "no caption"
    raise UnreadableImageError(f"it has {what} in {'/'.join(keys)}.")
  return texts


def _caption_lines(
  kind: Captions, keys: Keys, records: Iterable[Record]
) -> list[str]:
  """Lines on captions that are missing, left out or cut."""
  rows = []
  missing = 0
  for number, record in enumerate(records):
    try:
      texts = _captions(keys, record)
      rows.append(Row(place="", file=str(number), split=None, values=texts))
    except UnreadableImageError:
      missing += 1
  lines = kind.warnings(kind.names, rows)
  if missing:
    lines.append(
      f"{missing:,} have no caption, or an empty one: "
      "--config.loader.on_unreadable=skip passes over such images."
    )
  return lines
