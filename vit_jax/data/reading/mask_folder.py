"""Reads images and masks of classes from folders beside each other."""

import contextlib
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int
from PIL import Image

from vit_jax.data.batch import ArraySpec
from vit_jax.data.decoding.decode import image_size
from vit_jax.data.decoding.orientation import of_picture
from vit_jax.data.example import Example, Source, UnreadableImageError
from vit_jax.data.reading import folders
from vit_jax.data.reading.holdout import Holdout
from vit_jax.data.reading.image_files import content
from vit_jax.data.reading.labels import Labels, Names
from vit_jax.data.reading.masks import decision as mask_decision
from vit_jax.data.reading.masks import names as mask_names
from vit_jax.data.reading.masks.census import census
from vit_jax.data.reading.masks.classes import (
  CLASSES,
  IGNORED,
  Classes,
  find_classes,
  ignored,
  read_classes,
)
from vit_jax.data.reading.masks.lookup import MaskLookup
from vit_jax.data.reading.masks.meaning import Meaning
from vit_jax.data.reading.split_names import split_named
from vit_jax.data.settings import DataSettings
from vit_jax.runtime.printable import printable_path as text

__all__ = ["IGNORED", "MASKS", "SegmentationFolder", "ignored"]

_LOOKED_AT = 16  # Images whose Exif is read.
_NAMED = 2  # Classes below an image.


class Masks(Labels):
  """A picture of classes; a transform brings it to the size of its image."""

  reader = "mask_folder"
  heading = "share of pixels"
  twice = "twice"
  apart = "there with different masks"
  records = ""

  def spec(self, count: int) -> ArraySpec:
    """One of any height and width; a transform gives it a size."""
    del count
    return ArraySpec((0, 0), np.int32)

  def kept(self, label: np.ndarray, count: int) -> np.ndarray:
    """The pixels of each class, and those of none, (K + 1,)."""
    classes = np.where(label == ignored(count), count, label)
    return np.bincount(classes.ravel(), minlength=count + 1)

  def overview(self, kept: np.ndarray, names: Names) -> dict[str, str]:
    """The share of the pixels that have each class, and none, if any."""
    pixels = kept.sum(axis=0, dtype=np.int64)
    shares = [f"{n:.1%}" if n else "none" for n in pixels / pixels.sum()]
    *of_classes, of_none = shares
    cells = dict(zip(names, of_classes, strict=True))
    return cells | ({"(no class)": of_none} if pixels[-1] else {})

  def spread(self, kept: np.ndarray, names: Names) -> str:
    images = (kept > 0).sum(axis=0)[: len(names)]
    return f"each in {images.min():,} to {images.max():,} images"

  def shown(self, label: np.ndarray, names: Names) -> str:
    """The classes of most pixels."""
    pixels = self.kept(label, len(names))[:-1]
    first = np.argsort(-pixels, kind="stable")[:_NAMED]
    return ", ".join(names[k] for k in first if pixels[k])

  def told(self, label: Any, names: Sequence[str]) -> str:
    """All classes of a mask."""
    none = ignored(len(names))
    classes = np.unique(np.asarray(label)).tolist()
    shown = (k for k in classes if k != none)
    told = [str(names[k]) if k < len(names) else f"class {k}" for k in shown]
    return ", ".join(told) or "no class"


MASKS = Masks()


class SegmentationFolder(Source):
  """One split of a folder of images and index masks.

  The folder holds `images` and `masks` (or `annotations`, `labels`), and each
  of these the folders `train` and `val` (or other names of splits), or the
  files themselves, of which a part is then held out; `mask_names.places` lists
  other layouts. A mask is named as its image, and holds the index of a class
  for each pixel; 255 is ignored, and 65535 in a mask of 16 bits.

  Attributes:
    root: The whole folder.
    split: "train", "val" or "test"; without folders what was asked for.
    folder_name: The name of the whole folder.
    name: The same, and that of the split's folder.
    has_test: Whether there is a folder to test on.
    label_spec: Masks of int32 are resized to this height and width, by the
      nearest neighbour of each pixel's centre; or they keep their own.
  """

  def __init__(
    self,
    settings: DataSettings,
    split: str,
    size: tuple[int, int] | None = None,
    meaning: Meaning | None = None,
  ):
    """Lists the files, and looks at masks if `meaning` does not say theirs.

    `split` is "train", "test", or what is evaluated on by any other name. With
    no `size`, masks keep their own. Raises ValueError if a folder or a mask is
    missing, there are fewer than two classes, or a mask that is looked at is
    none.
    """
    root = os.fsencode(settings.root or "")
    self._earlier = settings.mask_values == "index"
    places, left_out = mask_names.places(root, self._earlier)
    self.has_test = "test" in places
    self.split = split
    whole = "" in places
    chosen = "" if whole and split != "test" else None
    chosen = chosen if whole else _chosen(places, split, settings)
    if chosen is None:
      missing = "test" if split == "test" else "val"
      lacks = "no test folder" if whole else f"a train folder but no {missing}"
      raise ValueError(f"{text(root)!r} has {lacks}.")
    images, masks = places[chosen]
    self.split = chosen or split
    files = [*folders.images_below(images)]
    if not chosen:
      self.held_out = Holdout.of(
        len(files),
        settings.eval_fraction,
        settings.held_out_by,
        settings.held_out_below,
      )
      evaluated = self.held_out.of_class(0, files)
      files = [f for f in files if (f in evaluated) != (split == "train")]
    if not files:
      raise ValueError(f"{text(images)!r} has no images for {split}.")
    self.root = text(root)
    lookup = MaskLookup(masks, self._earlier)
    self._pairs = [(os.path.join(images, f), lookup.find(f)) for f in files]
    self._lines = [*left_out, *lookup.lines()]
    self.folder_name = text(os.path.basename(os.path.abspath(root)))
    self.name = f"{self.folder_name}, {self.split}"
    self._size = size
    self.meaning = meaning or self._found(self._read_classes(root))
    self.class_names = self.meaning.classes.names
    self.label_spec = MASKS.spec(1)
    if size is not None:
      self.label_spec = ArraySpec(size, np.int32)

  def __len__(self) -> int:
    return len(self._pairs)

  def __getitem__(self, index: int) -> Example:
    image, mask = self._pairs[index]
    encoded = content(image)
    label = self.meaning.read(mask)
    _check_proportions(image, encoded, label.shape)
    if self._size is not None:
      label = resize_mask(label, self._size)
    return {"image": encoded, "label": label, "id": text(image)}

  def ids(self, indices: Sequence[int]) -> list[str]:
    """The paths of these examples' images, without reading them."""
    return [text(self._pairs[index][0]) for index in indices]

  def _found(self, classes: Classes | None) -> Meaning:
    """The meaning of masks, by their contents."""
    masks = [mask for _, mask in self._pairs]
    if self._earlier:
      return mask_decision.earlier(masks, classes)
    found = census(masks, classes)
    meaning = mask_decision.decided(found, classes)
    self._lines += mask_decision.lines(found, meaning)
    self._lines += _turned([image for image, _ in self._pairs])
    return meaning

  def warnings(self) -> list[str]:
    """Lines on the contents of the masks, and on possible mistakes."""
    return self._lines

  def exposure(self) -> list[str]:
    """Warnings about images of 16 bits: none."""
    return []

  def _read_classes(self, root: bytes) -> Classes | None:
    """The classes that a file names; None without the file."""
    path = find_classes(root, self._earlier)
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

  Its masks mean what those of "train" mean. They are resized to `size`, or keep
  their own. Raises ValueError if there is no such folder, image or mask, or the
  training masks have no two classes.
  """
  del labels
  _check(settings)
  train = SegmentationFolder(settings, "train", size)
  if split == "train":
    return train
  return SegmentationFolder(settings, split, size, train.meaning)


def open_folder(
  settings: DataSettings,
  labels: Labels = MASKS,
  size: tuple[int, int] | None = None,
) -> dict[str, SegmentationFolder]:
  """Opens "train", "eval" and, if there is one, "test"; see `open_split`."""
  train = open_split(settings, "train", labels, size)
  splits = ["eval", "test"] if train.has_test else ["eval"]
  others = {
    split: SegmentationFolder(settings, split, size, train.meaning)
    for split in splits
  }
  return {"train": train, **others}


def summary(splits: Sequence[SegmentationFolder]) -> str:
  """The number of images found, such as "train 8, test 2 images"."""
  counts = ", ".join(f"{s.split} {len(s):,}" for s in splits)
  classes = f"{len(splits[0].class_names):,} classes"
  return f"{splits[0].folder_name}: {counts} images, masks of {classes}"


def _check(settings: DataSettings) -> None:
  if not settings.root or settings.labels_file:
    raise ValueError(
      "data.task=segmentation takes --config.data.root, a folder that holds "
      "images and masks."
    )


def resize_mask(
  mask: Int[np.ndarray, "h w"], size: tuple[int, int]
) -> Int[np.ndarray, "H W"]:
  """Takes the pixel that lies nearest to the centre of each new one."""
  rows, columns = (
    ((np.arange(new) + 0.5) * old / new).astype(int)
    for old, new in zip(mask.shape, size, strict=True)
  )
  return mask[rows[:, None], columns[None]]


def _chosen(
  places: Mapping[str, mask_names.Places], split: str, settings: DataSettings
) -> str | None:
  """The split with folders of its own that is asked for; None without one."""
  if split in ("train", "test"):
    return split if split in places else None
  wanted = os.fsencode(settings.eval_split or "val")
  order = (split_named(wanted), "test")
  return next((name for name in order if name in places), None)


def _turned(images: Sequence[bytes]) -> list[str]:
  """A line on images that Exif turns, where sizes cannot tell of the masks."""
  places = np.linspace(0, len(images) - 1, min(_LOOKED_AT, len(images)))
  turned = []
  for place in places.astype(int).tolist():
    with contextlib.suppress(Exception):  # Decoding it will report the error.
      with Image.open(io.BytesIO(content(images[place]))) as image:
        orientation = of_picture(image)
        if orientation in (2, 3, 4) or (
          orientation in (5, 6, 7, 8) and image.width == image.height
        ):
          turned.append(images[place])
  if not turned:
    return []
  line = (
    f"{len(turned)} of {len(places)} images looked at, such as "
    f"{text(turned[0])}, are turned by their Exif and keep their size: check "
    "that their masks are turned as the images are shown."
  )
  return [line]


def _check_proportions(
  path: bytes, encoded: bytes, mask: tuple[int, ...]
) -> None:
  """Raises UnreadableImageError if an image and its mask differ in proportions.

  A mask may be smaller than its image. The image may be turned by its Exif; its
  mask is not turned with it.
  """
  try:
    height, width = image_size(encoded)
  except UnreadableImageError:
    return  # Decoding it will report the error.
  if abs(mask[0] * width - mask[1] * height) > width + height:
    raise UnreadableImageError(
      f"{text(path)}: the image is {height} x {width}, turned as its Exif "
      f"says, and its mask {mask[0]} x {mask[1]}: they need the same "
      "proportions. Turn the mask as the image is shown, or remove the "
      "orientation from the image's Exif."
    )
