"""The test sets of models with ImageNet's classes, from TFDS or from folders.

`imagenet_classes.csv` has a row for each class in the usual order: its WordNet
id, whether ImageNet-A and ImageNet-R have it (the lists in `eval.py` of
github.com/hendrycks/natural-adv-examples and imagenet-r), and its ObjectNet
folder (`folder_to_imagenet_1k.json` and `imagenet_id_to_objectnet_id.json` of
github.com/abarbu/objectnet-template-tensorflow, which agree).
"""

import csv
import dataclasses
import io
import json
import os
import pathlib
import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from vit_jax.data.decoding.decode import image_size
from vit_jax.data.example import Example, Source, Subset, UnreadableImageError
from vit_jax.data.reading.folders import images_below, subfolders
from vit_jax.data.reading.image_files import ImageFiles
from vit_jax.data.reading.sources import open_source
from vit_jax.data.settings import DataSettings
from vit_jax.runtime import extras
from vit_jax.runtime.files import read_regular


def _read_table(table: str) -> list[dict[str, str]]:
  """The rows of a CSV file beside this one."""
  path = pathlib.Path(__file__).with_name(table)
  return list(csv.DictReader(path.read_text().splitlines()))


# Corruption -> the share of images with this corruption that AlexNet gets
# wrong, as github.com/hendrycks/robustness gives it. The corruption error is
# divided by it (arXiv:1903.12261).
ALEXNET_ERRORS = {
  row["corruption"]: float(row["error"])
  for row in _read_table("alexnet_errors.csv")
}
CLASSES = _read_table("imagenet_classes.csv")
WORDNET_IDS = tuple(row["wordnet_id"] for row in CLASSES)
SEVERITIES = (1, 2, 3, 4, 5)
_BORDER = 2  # Pixels of ObjectNet's red border.


@dataclasses.dataclass(frozen=True)
class TestSet:
  """A test set, and the answers that count as correct."""

  source: Source  # The images; a label is an index into `correct`.
  # For each label, the model's classes that count as correct.
  correct: Sequence[frozenset[int]]
  # The classes that the model chooses from; None for all.
  candidates: tuple[int, ...] | None = None
  missing_note: str = ""  # Says that the folder lacks classes, if it does.


class AbsentError(ValueError):
  """Raised for a set that is neither in the folder nor prepared by TFDS."""


def open_set(name: str, root: str | None, data_dir: str | None) -> TestSet:
  """Opens one of `SETS`, or a corruption such as "c/fog/3".

  The sets' own folders in `root` take precedence over TFDS's in `data_dir`.
  Raises AbsentError if the set is not there, and ValueError if it has classes
  that it should not have.
  """
  if name.startswith("c/"):
    _, corruption, severity = name.split("/")
    folder = os.path.join("imagenet-c", corruption, severity)
    tfds = f"imagenet2012_corrupted/{corruption}_{severity}"
    return _open_class_folders(
      folder, tfds, "validation", only=None, root=root, data_dir=data_dir
    )
  return SETS[name](root, data_dir)


def _open_class_folders(
  folder: str,
  tfds: str,
  split: str,
  only: str | None,
  root: str | None,
  data_dir: str | None,
) -> TestSet:
  """Opens a set of class folders named by WordNet ids or by numbers.

  `only` is the column of `CLASSES` that says which classes the set has; None
  for all. Raises ValueError for a folder of another name, and AbsentError if
  there is no such set.
  """
  source = _open_images(root, folder) or _open_prepared(tfds, split, data_dir)
  ids = {name: k for k, name in enumerate(WORDNET_IDS)}
  ids |= {str(k): k for k in range(len(ids))}
  if odd := [name for name in source.class_names if name not in ids]:
    raise ValueError(
      f"{source.name} has the class {odd[0]!r}: its folders must be WordNet "
      "ids of ImageNet's classes, or numbers from 0 to 999."
    )
  candidates = None
  if only:
    candidates = tuple(k for k, row in enumerate(CLASSES) if row[only] == "1")
  correct = [frozenset([ids[name]]) for name in source.class_names]
  whole = len(candidates or WORDNET_IDS)
  return TestSet(source, correct, candidates, _missing_note(source, whole))


def _missing_note(source: Source, whole: int) -> str:
  """A note if a source has fewer classes than the `whole` set; else ""."""
  count = len(source.class_names)
  return f"only {count} of {whole} classes are there" if count < whole else ""


def _open_objectnet(root: str | None, data_dir: str | None) -> TestSet:
  """ObjectNet's 113 classes that ImageNet has, without the red border.

  As in the authors' code, the model chooses from all of ImageNet's classes, and
  each class that the object stands for is a correct answer. Raises AbsentError
  if there is no folder of ObjectNet.
  """
  right: dict[str, set[int]] = {}
  for k, row in enumerate(CLASSES):
    if row["objectnet"]:
      right.setdefault(row["objectnet"], set()).add(k)
  folder = os.path.join("objectnet-1.0", "images")
  source = _open_images(root, folder, only=right, change=without_border)
  if source is None:
    raise AbsentError(f"no folder {folder} in --root, and TFDS has none")
  correct = [frozenset(right[name]) for name in source.class_names]
  return TestSet(
    source, correct, missing_note=_missing_note(source, len(right))
  )


def _open_real(root: str | None, data_dir: str | None) -> TestSet:
  """ImageNet-ReaL (arXiv:2006.07159); images without a label are left out.

  A folder has `real.json`, the authors' list of the labels of each validation
  image, and the images below `val`, under ImageNet's own names. Raises
  AbsentError if there is no such folder and no such data set of TFDS, and
  ValueError for an image of another name.
  """
  path = os.path.join(root or "", "real.json")
  if root and os.path.exists(path):
    images = _open_images(root, "val", flat=True)
    if images is None:
      raise AbsentError("real.json has no folder val beside it")
    real = json.loads(read_regular(path))
    names = images.ids(range(len(images)))
    sets = [frozenset(real[_number(name) - 1]) for name in names]
    source: Source = images
  else:
    source = _open_prepared(
      "imagenet2012_real", "validation", data_dir, label="original_label"
    )
    sets = [frozenset(map(int, x)) for x in source.column("real_label")]  # pyright: ignore[reportAttributeAccessIssue]
  labelled = [index for index, labels in enumerate(sets) if labels]
  correct = [sets[index] for index in labelled]
  return TestSet(_NumberedExamples(source, labelled), correct)


def _number(name: str) -> int:
  """The number in the name of one of ImageNet's validation images, from 1 on.

  Raises ValueError if the name has none.
  """
  match = re.search(r"ILSVRC2012_val_0*(\d+)", os.path.basename(name))
  if match is None:
    raise ValueError(
      f"{name} is not named like ILSVRC2012_val_00000001.JPEG, by which "
      "real.json's labels are found."
    )
  return int(match[1])


def without_border(encoded: bytes) -> bytes:
  """An image file without its outermost two pixels, as a PNG file.

  Raises UnreadableImageError if it cannot be decoded.
  """
  try:
    image_size(encoded)  # Raises UnreadableImageError for a too large image.
    image = Image.open(io.BytesIO(encoded)).convert("RGB")
  except UnreadableImageError:
    raise
  except Exception as error:
    raise UnreadableImageError(f"{type(error).__name__}.") from error
  width, height = image.size
  box = (_BORDER, _BORDER, width - _BORDER, height - _BORDER)
  file = io.BytesIO()
  image.crop(box).save(file, "PNG", compress_level=0)
  return file.getvalue()


class _Files(ImageFiles):
  """The images of class folders, changed in some way as they are read."""

  def __init__(
    self,
    folder: str,
    only: Collection[str] | None = None,
    change: Callable[[bytes], bytes] | None = None,
    flat: bool = False,
  ):
    """Lists the images of class folders, all of them or those in `only`.

    With `flat`, all images below the folder are of one class. `change` turns
    the bytes of a file into those of the example. Raises ValueError if there
    are no such images.
    """
    base = os.fsencode(folder)
    names = [n for n in subfolders(base) if not only or os.fsdecode(n) in only]
    files = []
    labels = []
    for label, name in enumerate([b""] if flat else names):
      for path in images_below(os.path.join(base, name)):
        files.append(os.path.join(name, path))
        labels.append(label)
    if not files:
      raise ValueError(f"{folder} holds no images of the classes asked for.")
    self.name = self.root = folder
    self.class_names = tuple(map(os.fsdecode, names))
    self._change = change
    self._set_files(base, files, np.array(labels, np.int32))

  def __getitem__(self, index: int) -> Example:
    """The example at `index`, with its bytes changed by `change`.

    Raises UnreadableImageError if the image cannot be read or changed.
    """
    example = super().__getitem__(index)
    if self._change is not None:
      try:
        example["image"] = self._change(example["image"])
      except UnreadableImageError as error:
        raise UnreadableImageError(f"{example['id']}: {error}") from error
    return example


class _NumberedExamples(Subset):
  """Some examples of a source; the label of each is its number among them."""

  def __getitem__(self, index: int) -> Example:
    return {**super().__getitem__(index), "label": index}

  def read(self, indices: Sequence[int]) -> list[Example]:
    pairs = zip(super().read(indices), indices, strict=True)
    return [{**example, "label": index} for example, index in pairs]


def _open_images(root: str | None, folder: str, **how: Any) -> _Files | None:
  """The images of a set's folder, as `_Files`; None without the folder."""
  path = os.path.join(os.path.expanduser(root or ""), folder)
  return _Files(path, **how) if root and os.path.isdir(path) else None


def _open_prepared(
  name: str, split: str, data_dir: str | None, label: str | None = None
) -> Source:
  """Opens a set that TFDS prepared; raises AbsentError if TFDS has not."""
  try:
    extras.check("tensorflow_datasets", "tfds", name)
    settings = DataSettings(
      name=name, data_dir=data_dir, eval_split=split, tfds_label=label
    )
    return open_source("eval", settings)
  except ValueError as error:
    raise AbsentError(str(error)) from error


SETS: dict[str, Callable[..., TestSet]] = {
  "imagenet": partial(
    _open_class_folders, "val", "imagenet2012", "validation", None
  ),
  "real": _open_real,
  "v2": partial(
    _open_class_folders,
    "imagenetv2-matched-frequency-format-val",
    "imagenet_v2/matched-frequency",
    "test",
    None,
  ),
  "sketch": partial(
    _open_class_folders, "sketch", "imagenet_sketch", "test", None
  ),
  "a": partial(
    _open_class_folders, "imagenet-a", "imagenet_a", "test", "imagenet_a"
  ),
  "r": partial(
    _open_class_folders, "imagenet-r", "imagenet_r", "test", "imagenet_r"
  ),
  "objectnet": _open_objectnet,
}
