"""Reads images and masks of classes from folders beside each other."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from vit_jax.data.batch import ArraySpec
from vit_jax.data.reading.image_files import counts_of
from vit_jax.data.reading.labels import Labels, Names
from vit_jax.data.reading.masks import decision as mask_decision
from vit_jax.data.reading.masks.beside import MASKS as MASK_FILES
from vit_jax.data.reading.masks.census import take_census
from vit_jax.data.reading.masks.classes import (
  CLASSES,
  IGNORED,
  Classes,
  find_classes,
  ignored_label,
  read_classes,
)
from vit_jax.data.reading.masks.meaning import Meaning
from vit_jax.data.reading.paired_folder import (
  WHOLE,
  PairedFolder,
  open_split_like_train,
  open_splits_like_train,
  resize_mask,
)
from vit_jax.data.settings import DataSettings
from vit_jax.runtime.printable import counted
from vit_jax.runtime.printable import printable_path as text

__all__ = [
  "IGNORED",
  "MASKS",
  "SegmentationFolder",
  "ignored_label",
  "resize_mask",
]


class Masks(Labels):
  """A picture of classes; a transform brings it to the size of its image."""

  reader = "mask_folder"
  heading = "share of pixels"
  copies_alike = "twice"
  copies_unlike = "there with different masks"
  records = ""

  def spec(self, count: int) -> ArraySpec:
    """A label of any height and width; a transform gives it a size."""
    del count
    return ArraySpec((0, 0), np.int32)

  def summarise(self, label: np.ndarray, count: int) -> np.ndarray:
    """The number of pixels of each class, and of no class, (K + 1,)."""
    classes = np.where(label == ignored_label(count), count, label)
    return np.bincount(classes.ravel(), minlength=count + 1)

  def overview(self, summaries: np.ndarray, names: Names) -> dict[str, str]:
    """The share of the pixels of each class, and of no class, if any.

    `summaries` has the pixel counts of masks by `summarise`, (N, K + 1).
    """
    pixels = summaries.sum(axis=0, dtype=np.int64)
    shares = [f"{n:.1%}" if n else "none" for n in pixels / pixels.sum()]
    *of_classes, of_none = shares
    cells = dict(zip(names, of_classes, strict=True))
    return cells | ({"(no class)": of_none} if pixels[-1] else {})

  def spread(self, summaries: np.ndarray, names: Names) -> str:
    images = (summaries > 0).sum(axis=0)[: len(names)]
    return f"each in {images.min():,} to {images.max():,} images"

  def label_text(self, label: np.ndarray, names: Names) -> str:
    """The names of a mask's classes, the one with the most pixels first."""
    pixels = self.summarise(label, len(names))[:-1]
    first = np.argsort(-pixels, kind="stable")
    return ", ".join(names[k] for k in first if pixels[k])

  def describe(self, label: Any, names: Sequence[str]) -> str:
    """The names of all classes of a mask."""
    none = ignored_label(len(names))
    classes = np.unique(np.asarray(label)).tolist()
    words = []
    for k in classes:
      if k != none:
        words.append(str(names[k]) if k < len(names) else f"class {k}")
    return ", ".join(words) or "no class"

  def about_other_names(self, names: Names, new: bool) -> str:
    """The advice to give the folder the classes.txt of the run's classes."""
    del new
    if all(map(str.isdecimal, names)):
      return (
        f" The run was trained without {CLASSES}, so its classes are numbers: "
        "write into that file in the folder a line for each number from 0 to "
        f"{len(names) - 1}, or train anew with names."
      )
    return (
      f" The classes of the run come from a {CLASSES}: put the same file into "
      "this folder."
    )


MASKS = Masks()


class SegmentationFolder(PairedFolder):
  """One split of a folder of images and index masks.

  The folder holds `images` and `masks` (or `annotations`, `labels`), and each
  of these the folders `train` and `val` (or other names of splits), or the
  files themselves, of which a part is then held out; `mask_names.find_places`
  lists other layouts. A mask is named as its image, and holds the index of a
  class for each pixel; 255 is ignored, and 65535 in a mask of 16 bits.

  Attributes:
    label_spec: The shape and type of a label: int32, (height, width), to which
      masks are resized by the nearest pixels, or (0, 0) for any size.
  """

  def __init__(
    self,
    settings: DataSettings,
    split: str,
    size: tuple[int, int] | None = None,
    meaning: Meaning | None = None,
  ):
    """Lists the files, and looks at masks if no `meaning` is given.

    `split` is as `PairedFolder` takes it. Without a `size`, masks keep their
    own. Raises ValueError if a folder or a mask is missing, there are fewer
    than two classes, or a file that is looked at is not a mask.
    """
    self._earlier = settings.mask_values == "index"
    super().__init__(settings, split, MASK_FILES, size, self._earlier)
    self.meaning = meaning or self._decide_meaning(self._read_classes())
    self.class_names = self.meaning.classes.names
    self.label_spec = MASKS.spec(1)
    if size is not None:
      self.label_spec = ArraySpec(size, np.int32)

  def _read(self, path: bytes) -> Int[np.ndarray, "h w"]:
    return self.meaning.read(path)

  def _decide_meaning(self, classes: Classes | None) -> Meaning:
    """Decides the meaning of masks by their contents, and adds lines on it.

    Raises ValueError for a file that is not a mask, or for fewer than two
    classes.
    """
    masks = [mask for _, mask in self._pairs]
    if self._earlier:
      return mask_decision.earlier_meaning(masks, classes)
    found = take_census(masks, classes)
    meaning = mask_decision.decide_meaning(found, classes)
    self._lines += mask_decision.lines(found, meaning)
    self._lines += self._rotation_lines()
    return meaning

  def _read_classes(self) -> Classes | None:
    """The classes that a file names; None without the file.

    Raises ValueError as `read_classes` does.
    """
    path = find_classes(self._root, self._earlier)
    if path is None:
      return None
    if os.path.basename(path) != os.fsencode(CLASSES):
      self._lines.append(f"{text(path)} is read as {CLASSES}.")
    return read_classes(path, self._earlier)


def open_split(
  settings: DataSettings,
  split: str,
  labels: Labels = MASKS,
  size: tuple[int, int] | None = None,
) -> SegmentationFolder:
  """Opens the split "train", "eval" or "test" of the folder `settings.root`.

  Its masks mean what those of "train" mean. They are resized to `size`; without
  it, they keep their own size. Raises ValueError if there is no such folder,
  image or mask, or the training masks have fewer than two classes.
  """
  del labels
  return open_split_like_train(_opener(settings, size), split)


def open_folder(
  settings: DataSettings,
  labels: Labels = MASKS,
  size: tuple[int, int] | None = None,
) -> dict[str, SegmentationFolder]:
  """Opens "train", "eval" and, if there is one, "test"; see `open_split`."""
  del labels
  return open_splits_like_train(_opener(settings, size))


def open_whole(
  settings: DataSettings, names: tuple[str, ...] = ()
) -> SegmentationFolder:
  """All images of a folder without splits, or else its evaluation split.

  It is for a folder that is new to a run: how its masks are read depends on
  these masks alone. Raises ValueError as `open_split` does.
  """
  del names  # Only folders of classes may lack some of a run's classes.
  return _opener(settings, None)(WHOLE, None)


def summary(splits: Sequence[SegmentationFolder]) -> str:
  """A line on what was found.

  It is like "streets: train 8, test 2 images, masks of 5 classes".
  """
  counts = counts_of(splits)
  classes = counted(len(splits[0].class_names), "class", "classes")
  return f"{splits[0].folder_name}: {counts}, masks of {classes}"


def _opener(
  settings: DataSettings, size: tuple[int, int] | None
) -> Callable[[str, SegmentationFolder | None], SegmentationFolder]:
  """A function that opens a split, as `open_split_like_train` takes it.

  Raises ValueError unless the settings name a folder of images and masks.
  """
  if not settings.root or settings.labels_file:
    raise ValueError(
      "data.task=segmentation takes --config.data.root, a folder that holds "
      "images and masks."
    )

  def open_one(
    split: str, train: SegmentationFolder | None
  ) -> SegmentationFolder:
    meaning = train.meaning if train else None
    return SegmentationFolder(settings, split, size, meaning)

  return open_one
