"""Captions to pack, in a file of labels or in the files of WebDataset."""

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from vit_jax.data.batch import ArraySpec
from vit_jax.data.example import Source
from vit_jax.data.reading import label_file
from vit_jax.data.reading.captions import (
  COLUMNS,
  Captions,
  captions_and_classes,
  is_whole,
)
from vit_jax.data.reading.cells import Encode, Row
from vit_jax.data.reading.label_rows import column_names
from vit_jax.data.reading.labels import SINGLE, Names
from vit_jax.data.reading.tables import fail
from vit_jax.data.settings import DataSettings


def open_rows(settings: DataSettings) -> dict[str, Any]:
  """Opens the splits of a CSV or JSONL file, as `label_file.open_folder` does.

  They have captions if `captions_and_classes` finds a column of captions by its
  name; beside a column of classes, only one called caption or captions counts.
  Raises ValueError as `open_folder` does.
  """
  assert settings.labels_file
  columns = column_names(settings.labels_file)
  captions, classes = captions_and_classes(columns)
  if not captions:
    return label_file.open_folder(settings)
  kind = _CaptionPlaces(chosen=(*captions, *classes))
  opened = label_file.open_folder(settings, kind)
  return {split: CaptionedImages(images) for split, images in opened.items()}


def captions_in(content: bytes, ending: str) -> list[str]:
  """The captions in a .txt file, which has one, or in a .json file.

  A .json file has one caption or a list, under one of the keys `COLUMNS`.
  Raises ValueError if there is no caption, or one is empty or not text. The
  message lacks its first words, the name of the file.
  """
  try:
    value: Any = content.decode("utf-8-sig")
    if ending == "json":
      fields = json.loads(value)
      value = next((fields[key] for key in COLUMNS if fields.get(key)), None)
  except (ValueError, TypeError, AttributeError, RecursionError) as error:
    raise ValueError("is damaged") from error
  if value is None:
    raise ValueError("has no caption")
  texts = value if isinstance(value, list) else [value]
  if not all(isinstance(text, str) for text in texts):
    raise ValueError("has a caption that is not text")
  if not all(map(is_whole, texts)):
    raise ValueError("has a caption with half of a character")
  if not all(text.strip() for text in texts):
    raise ValueError("has an empty caption")
  return [text.strip() for text in texts]


class CaptionedImages(Source):
  """One split of the images of a file of labels that has captions.

  An example has `captions` as well, and its label is its class, or 0 without
  classes.

  Attributes:
    captions: The least and the most captions of an image, over all splits.
  """

  def __init__(self, images: label_file.LabelledImages):
    """`images` were opened with `_CaptionPlaces` as their kind of labels."""
    kind: Any = images.kind
    self.name = images.name
    self.split = images.split
    self.root = images.root
    self.held_out = images.held_out
    self.class_names = images.class_names
    self.captions = min(kind.counts), max(kind.counts)
    self._texts = kind.texts
    self._images = images

  def __len__(self) -> int:
    return len(self._images)

  def warnings(self) -> list[str]:
    """Lines on how the file was read."""
    return [*self._images.notes]

  def __getitem__(self, index: int) -> Any:
    """The example at `index`, with `captions`, a list of texts."""
    example: Any = self._images[index]
    start, stop, label = example["label"].tolist()
    captions = json.loads(self._texts[start:stop])
    return {**example, "label": label, "captions": captions}


@dataclasses.dataclass(frozen=True)
class _CaptionPlaces(Captions):
  """A label has the start and end of captions in a block of text, and a class.

  It is int64 (3,), with class 0 if there are no classes. Worker processes get
  the block, which takes less memory than a list of captions.

  Attributes:
    chosen: The column of captions, and that of classes, if any.
    texts: The captions of each image as JSON, one after the other.
    counts: The numbers of captions that images have.
  """

  most: int = 2**31
  chosen: tuple[str, ...] = ()
  texts: bytearray = dataclasses.field(default_factory=bytearray)
  counts: set[int] = dataclasses.field(default_factory=set)

  def spec(self, count: int) -> ArraySpec:
    del count
    return ArraySpec((3,), np.int64)

  def columns(self, names: Sequence[str]) -> Sequence[str]:
    del names
    return self.chosen

  def join_rows(self, rows: Sequence[Row]) -> list[Row]:
    """One row for each image, with the place of its captions, and its class.

    Raises ValueError if two rows of an image are of different classes, and as
    `Captions.join_rows` does.
    """
    classes: dict[str, Row] = {}
    for row in rows:
      before = classes.setdefault(os.path.normpath(row.file), row)
      if before.values[1:] != row.values[1:]:
        fail(
          row.place,
          f"puts {row.file!r} into another class than {before.place} does: an "
          "image has one",
        )
    texts = [dataclasses.replace(r, values=r.values[:1]) for r in rows]
    placed = []
    for row in super().join_rows(texts):
      self.counts.add(len(row.values))
      start = len(self.texts)
      self.texts.extend(json.dumps(row.values).encode())
      others = classes[os.path.normpath(row.file)].values[1:]
      place = (start, len(self.texts), *others)
      placed.append(dataclasses.replace(row, values=place))
    return placed

  def fit(
    self, columns: Sequence[str], rows: Sequence[Row]
  ) -> tuple[Names, Encode]:
    """As `Labels.fit`; the labels are int64 (N, 3), see the class."""
    names, encode = self._classes(columns[1:], rows)

    def places(rows: Sequence[Row]) -> np.ndarray:
      ends = np.array([row.values[:2] for row in rows], np.int64)
      return np.concatenate([ends.reshape(-1, 2), encode(rows)[:, None]], 1)

    return names, places

  def _classes(
    self, columns: Sequence[str], rows: Sequence[Row]
  ) -> tuple[Names, Encode]:
    """The names of the classes, and a function that encodes the rows' classes.

    The values of a row are the start and the end of its captions, and its
    class, if `columns` has one.
    """
    if not columns:
      return (), lambda rows: np.zeros(len(rows), np.int64)

    def class_alone(rows: Sequence[Row]) -> list[Row]:
      return [dataclasses.replace(r, values=r.values[2:]) for r in rows]

    names, encode = SINGLE.fit(columns, class_alone(rows))
    return names, lambda rows: encode(class_alone(rows))

  def warnings(self, names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    del names, rows
    return []
