"""Opens the splits of a data set with the reader that they need."""

import contextlib
import dataclasses
import importlib
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any, Literal, cast

import cv2
import numpy as np

from vit_jax.data.batch import CLASS, label_spec
from vit_jax.data.example import (
  Example,
  ImageSpec,
  Source,
  UnreadableImageError,
  evenly_spread,
  refuse_text,
)
from vit_jax.data.reading.labels import SINGLE, Labels
from vit_jax.data.settings import DataSettings
from vit_jax.runtime import extras
from vit_jax.runtime.printable import composed, first_of, printable, quoted

_SIZES = {"train": 1438, "test": 359}  # Examples in the splits of `Digits`.
_LOOKED_AT = 8  # Images that are looked at for their bands and values.
_SHOWN = 5  # Names that a message on two sources shows.
_PART = re.compile(r"(\w+)(?:\[(?:(-?\d+)(%?))?:(?:(-?\d+)(%?))?\])?")


@dataclasses.dataclass(frozen=True)
class Splits:
  """The splits of a run.

  Attributes:
    test: The split to report on once, at the end; None if there is none. Only
      folders and files of labels may have it.
    found: A line with the numbers of images, and the files that are ignored.
    warnings: Warnings about what may be a mistake, a line each; see also
      `warnings_for`.
  """

  train: Source
  eval: Source
  test: Source | None
  found: str
  warnings: list[str]

  def warnings_for(self, spec: ImageSpec) -> list[str]:
    """The warnings, and those on how `spec` fits the training images.

    Images of 16 bits may be dark unless a window is set; the other lines are
    those of `channel_warnings`.
    """
    images = looked_at(self.train)
    dark = exposure_warnings(images, spec) if spec.window is None else []
    return [*self.warnings, *dark, *channel_warnings(images, spec)]


def looked_at(source: Source) -> list[bytes]:
  """A few files, evenly spread over a source, for the warnings below.

  Those that cannot be read are left out.
  """
  files = []
  for index in evenly_spread(_LOOKED_AT, len(source)):
    with contextlib.suppress(UnreadableImageError):
      files.append(source[index]["image"])
  return files


def exposure_warnings(images: Sequence[bytes], spec: ImageSpec) -> list[str]:
  """A line if 16-bit images use less than an eighth of their range.

  `images` are some of the files, and all bands count that a run of `spec`
  takes.
  """
  from vit_jax.data.decoding.pillow import brightest

  wide = []
  for encoded in images:
    with contextlib.suppress(UnreadableImageError):
      value = brightest(encoded, spec)
      if value is not None:
        wide.append(value)
  if not wide or max(wide) >= 2**16 / 8:
    return []
  white = 2 ** max(1, int(max(wide)).bit_length()) - 1
  line = (
    f"{len(wide)} of {len(images)} images looked at have 16 bits and reach "
    f"{max(wide):,.0f} of 65,535, which is nearly black; set "
    f"--config.normalization.window='(0,{white})'."
  )
  return [line]


def window_changes(images: Sequence[bytes], spec: ImageSpec) -> bool:
  """Whether the window of `spec` changes any of some files.

  It changes those of more than 8 bits alone.
  """
  from vit_jax.data.decoding.decode import decode_image

  plain = dataclasses.replace(spec, window=None)
  for encoded in images:
    try:
      if (decode_image(encoded, spec) != decode_image(encoded, plain)).any():
        return True
    except UnreadableImageError:
      return True  # Floats need a window, and a damaged file shows nothing.
  return False


def channel_warnings(images: Sequence[bytes], spec: ImageSpec) -> list[str]:
  """A line if some files have fewer or more bands than channels show.

  Opaque images get an alpha of 255 as the last of 2 or 4 channels, and 1 or 3
  channels leave out the bands of a TIFF file beyond its colours and alpha.
  """
  from vit_jax.data.decoding.pillow import gets_alpha, leaves_out_bands

  if spec.channels > 4:
    return []
  opaque = more = 0
  for encoded in images:
    with contextlib.suppress(UnreadableImageError):
      opaque += gets_alpha(encoded, spec)
      more += leaves_out_bands(encoded, spec)
  seen = f"{opaque or more} of {len(images)} images looked at have"
  line = ""
  if opaque:
    line = (
      f"{seen} no alpha, which is the last of {spec.channels} channels and 255 "
      "for them: leave them out if the channels are other bands."
    )
  elif more:
    line = (
      f"{seen} further bands or pages that are not marked as alpha: "
      f"channels={spec.channels} leaves them out, or takes one for alpha if "
      "the file has no marks. A run with channels set to the number of bands "
      "reads all."
    )
  return [line] if line else []


def open_splits(settings: DataSettings, labels: Labels | None = None) -> Splits:
  """Opens the splits of a run.

  Raises ValueError if the settings name no data, or the data are not there.
  `labels` is the kind of labels that the run's task learns; by default
  `settings.label_kind`.
  """
  kind = labels or settings.label_kind or SINGLE
  if settings.root or kind.reader:
    return _open_folder(settings, kind)
  train = open_source("train", settings, labels)
  examples = f"{len(train):,} training examples"
  names = kind.counted(len(train.class_names))
  warnings: Any = getattr(train, "warnings", list)
  return Splits(
    train=train,
    eval=open_source("eval", settings, labels),
    test=None,
    found=f"{train.name}, {examples}, {names}",
    warnings=warnings(),
  )


def _open_folder(settings: DataSettings, labels: Labels) -> Splits:
  """Opens the splits of a folder or of a file of labels, which is read once.

  Raises ValueError as the reader's `open_folder` does.
  """
  reader = _folder_reader(settings, labels)
  opened = reader.open_folder(settings, labels)
  if opened["eval"].split == "test":  # The same split is not reported on twice.
    del opened["test"]
  train = opened["train"]
  return Splits(
    train=train,
    eval=opened["eval"],
    test=opened.get("test"),
    found=reader.summary([*opened.values()]),
    warnings=train.warnings(),
  )


def open_source(
  split: Literal["train", "eval", "test"],
  settings: DataSettings,
  labels: Labels | None = None,
) -> Source:
  """Opens a split of a folder of images, of `Digits` or of a TFDS data set.

  Raises ValueError if the settings name no data, the data are not there, or
  their reader is not installed. `split` is "train", "eval" or "test". A folder
  or a file of labels without a test split raises ValueError for "test"; for all
  other data, "test" opens the same split as "eval". A folder, `root`, takes
  precedence over a `name`. `labels` is the kind of labels, as for
  `open_splits`.

  >>> from vit_jax import data
  >>> digits = data.open_source("train", data.DataSettings(name="digits"))
  >>> len(digits), digits.class_names[:3]
  (1438, ('0', '1', '2'))
  >>> sorted(digits[0])
  ['id', 'image', 'label']
  """
  if split not in ("train", "eval", "test"):
    raise ValueError(
      f'split={split!r} is unknown; use "train", "eval" or "test".'
    )
  if not isinstance(settings, DataSettings):
    raise ValueError(
      f"data={quoted(settings)} is no DataSettings: give "
      'vit_jax.DataSettings(root="my_photos"), or name="digits".'
    )
  kind = labels or settings.label_kind or SINGLE
  if settings.root or kind.reader:
    return _folder_reader(settings, kind).open_split(settings, split, kind)
  part = settings.train_split if split == "train" else settings.eval_split
  if settings.name == "digits" and not settings.dir:
    return Digits(part or "test")
  return _open_tfds(settings, part, kind)


def open_whole(
  settings: DataSettings, labels: Labels, names: tuple[str, ...] = ()
) -> Source:
  """Opens all images of a folder without splits, or else its evaluation split.

  It is for a folder that is new to a run. `names` are those of the run's
  classes, which need not all have a folder in it. Raises ValueError as
  `open_source` does.
  """
  reader = _folder_reader(settings, labels)
  return reader.open_whole(settings, names)


def labelled_files(
  settings: DataSettings, labels: Labels, split: str | None = None
) -> tuple[tuple[str, ...], np.ndarray, tuple[str, ...]]:
  """The image files of a folder or of a file of labels, and their labels.

  Returns the paths, sorted; the labels of this kind, as places among the names,
  (N,), or as a file of labels has them, (N, K); and the names. Without a
  `split`, all splits are taken. Raises ValueError as `open_source` does, or if
  the labels are not those of whole images.
  """
  # Imported here, as a run on TFDS's data does without the module.
  from vit_jax.data.reading.image_files import ImageFiles

  parts: list[Any]
  if split is not None:
    parts = [open_source(cast("Any", split), settings, labels)]
  else:
    opened = _open_folder(settings, labels)
    splits = (opened.train, opened.eval, opened.test)
    parts = [source for source in splits if source]
  if not all(isinstance(part, ImageFiles) for part in parts):
    raise ValueError(
      f"{settings.root} has no labels for an image as a whole: give class "
      "folders or a file of labels."
    )
  files = [path for part in parts for path in part.files()]
  y = np.concatenate([part.labels(range(len(part))) for part in parts])
  order = sorted(range(len(files)), key=files.__getitem__)
  return tuple(files[i] for i in order), y[order], parts[0].class_names


def _open_tfds(
  settings: DataSettings, part: str | None, kind: Labels
) -> Source:
  """Opens a split, or a part of one, that TFDS or `pack` has prepared.

  Raises ValueError as `open_source` does, or if such data have no labels of the
  kind.
  """
  if not settings.dir and not settings.name:
    raise ValueError(
      "data.root (a folder of class folders), data.dir (packed images) or "
      "data.name (a TFDS data set) is missing, as in --config.data.root=DIR."
    )
  if not kind.records:
    raise ValueError(
      f"data.labels_file is missing: {kind.plural} are read from a CSV or "
      f"JSONL file, and not from {settings.dir or settings.name}."
    )
  name, label = settings.name, settings.tfds_label
  try:
    reader = extras.load("vit_jax.data.reading.tfds.source", "tfds")
    if settings.dir:
      return reader.open_prepared(settings.dir, part, label, kind)
    builder = reader.find_builder(name, settings.data_dir)
  except ValueError as error:
    if settings.dir or not name or not os.path.isdir(name):
      raise
    raise ValueError(
      f"{error} If the folder {quoted(name)} is meant, it is data.root: "
      f"DataSettings(root={quoted(name)}), or --config.data.root={name}."
    ) from error
  return reader.TfdsSource(builder, part or "test", label, kind)


def _folder_reader(settings: DataSettings, labels: Labels) -> Any:
  """The module that reads a folder: by a file of labels, or by class folders.

  A kind of labels may name a reader of its own.
  """
  if labels.reader:
    return importlib.import_module(f"vit_jax.data.reading.{labels.reader}")
  if settings.labels_file:
    from vit_jax.data.reading import label_file as reader
  else:
    from vit_jax.data.reading import image_folder as reader
  return reader


def check_classes(source: Source, what: str) -> None:
  """Raises ValueError, naming `what`, unless each label is a single class."""
  if label_spec(source) != CLASS:
    raise ValueError(
      f"{what} takes one class for each image, and {source.name} is read with "
      "another data.task: leave data.task out."
    )


def check_same_classes(
  names: tuple[str, ...],
  of: str,
  others: tuple[str, ...],
  of_others: str,
  why: str = "",
  labels: Labels = SINGLE,
) -> None:
  """Raises ValueError if the class names of two sources differ.

  The message begins with the names of the sources, `of` for the first and
  `of_others` for the second, calls the names as `labels` do, and ends in `why`.
  """
  ours = [composed(name) for name in names]
  theirs = [composed(name) for name in others]
  if ours != theirs:
    sides = (of, {*ours} - {*theirs}), (of_others, {*theirs} - {*ours})
    only = [
      f"{side} alone has {first_of(sorted(map(printable, more)), _SHOWN)}"
      for side, more in sides
      if more
    ]
    raise ValueError(
      f"{of} has {labels.counted(len(names))} and {of_others} "
      f"{len(others):,}, and they must be the same, in the same order; "
      f"{'; '.join(only) or 'only their order differs'}.{why}"
    )


class Digits(Source):
  """1,797 handwritten digits of 8 x 8 pixels that come with the package.

  They are those of scikit-learn's `load_digits`; `digits.md` beside this file
  names their source. The splits are "train" (1,438 examples) and "test" (359),
  which share the examples of each class 4 : 1.
  """

  name = "digits/1.0.0"
  class_names = tuple("0123456789")

  def __init__(self, split: str):
    """Opens a split, a part such as "train[:90%]", or a sum of parts by "+".

    Raises ValueError if there is no such split, or it is empty.
    """
    with np.load(pathlib.Path(__file__).with_name("digits.npz")) as table:
      images, labels, order = (table[k] for k in ("images", "labels", "order"))
    order = dict(zip(_SIZES, np.split(order, [_SIZES["train"]]), strict=True))
    indices = order[split] if split in order else self._parts(split, order)
    self._split = split
    self._labels = labels[indices].astype(np.int32)
    grey = np.round(images[indices] * (255 / 16)).astype(np.uint8)
    self._files = [cv2.imencode(".png", image)[1].tobytes() for image in grey]

  def _parts(self, split: str, order: dict[str, np.ndarray]) -> np.ndarray:
    """The indices of a sum of parts; raises ValueError as `__init__` does.

    `order` has the indices of each split, in its order.
    """
    parts = [_part(p, order) for p in re.split(r"\s*\+\s*", split)]
    if not all(map(len, parts)):
      raise ValueError(
        f"data.train_split and data.eval_split take {', '.join(_SIZES)} of "
        f'{self.name}, and parts of them such as "train[:90%]"; {split!r} is '
        "not one of them, or is empty."
      )
    return np.concatenate(parts)

  def __len__(self) -> int:
    return len(self._files)

  def __getitem__(self, index: int) -> Example:
    refuse_text(index)
    return {
      "image": self._files[index],
      "label": int(self._labels[index]),
      "id": f"{self.name}/{self._split}#{index}",
    }

  def labels(self, indices: Sequence[int]) -> np.ndarray:
    """Returns the labels of these examples, int32."""
    return self._labels[np.asarray(indices, np.int64)]


def _part(text: str, order: dict[str, np.ndarray]) -> np.ndarray:
  """The indices of a split or a part, as "train[:90%]" or "train[100:]".

  An invalid text gives an empty array. `order` has the indices of each split.
  """
  match = _PART.fullmatch(text)
  if match is None or match[1] not in order:
    return np.empty(0, np.uint16)
  whole = order[match[1]]
  start = _bound(match[2], match[3], len(whole))
  stop = _bound(match[4], match[5], len(whole))
  if max(abs(start or 0), abs(stop or 0)) > len(whole):
    return whole[:0]
  return whole[start:stop]


def _bound(number: str | None, percent: str | None, size: int) -> int | None:
  """The index that a bound of a part stands for; None if it is left out."""
  if number is None:
    return None
  return round(int(number) * size / 100) if percent else int(number)
