"""Reads images and masks of classes from folders beside each other."""

import io
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from PIL import Image

from vit_jax.data.batch import ArraySpec
from vit_jax.data.decoding.decode import image_size
from vit_jax.data.example import (
  Example,
  Source,
  UnreadableImageError,
  check_size,
)
from vit_jax.data.reading import folders
from vit_jax.data.reading.holdout import Holdout
from vit_jax.data.reading.image_files import content
from vit_jax.data.reading.labels import Labels, Names
from vit_jax.data.settings import DataSettings
from vit_jax.runtime.files import read_regular
from vit_jax.runtime.printable import printable
from vit_jax.runtime.printable import printable_path as text

IGNORED = 255  # Pixels of no class.
_IGNORED_OF_16_BITS = 65535
_NAMED = 2  # Classes below an image.
_IMAGES = (b"images", b"image", b"img")
_MASKS = (b"masks", b"mask", b"annotations", b"labels")
_FORMATS = ("PNG", "TIFF", "BMP", "GIF")
_MODES = ("L", "P", "I;16", "I", "1")  # With one number for each pixel.
CLASSES = "classes.txt"
"""A file in the folder with the name of a class in each line, from class 0 on.

A name may be followed by a colour, as in "road 128 64 128". Masks may then be
in colours, and the name "ignored" has that of pixels of no class.
"""
_NO_CLASS = "ignored"
_LINE = re.compile(r"(.*?)(?:[\s,]+(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\d{1,3}))?")
_MOST_BYTES = 1 << 20
_MOST_CLASSES = 1 << 16


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
    classes = np.where(label == IGNORED, count, label)
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


MASKS = Masks()


class Classes(NamedTuple):
  """The classes of masks.

  Attributes:
    names: Their names, from class 0 on.
    colours: The class of each colour, 65536 R + 256 G + B, if masks have them.
  """

  names: tuple[str, ...]
  colours: dict[int, int]


class SegmentationFolder(Source):
  """One split of a folder of images and index masks.

  The folder holds `images` and `masks` (or `annotations`, `labels`), and each
  of these the folders `train` and `val` (or other names of `folders.NAMES`), or
  the files themselves, of which a part is then held out. A mask is named as its
  image, and holds the index of a class for each pixel; 255 is ignored, and
  65535 in a mask of 16 bits.

  Attributes:
    root: The whole folder.
    split: "train", "val" or "test"; without folders what was asked for.
    folder_name: The name of the whole folder.
    name: The same, and that of the split's folder.
    has_test: Whether there is a folder to test on.
    label_spec: Masks of int32 are resized to this height and width, by the
      nearest neighbour of each pixel's centre; or they keep their own.
  """

  class_names: tuple[str, ...] = ()

  def __init__(
    self,
    settings: DataSettings,
    split: str,
    size: tuple[int, int] | None = None,
  ):
    """Lists the files; raises ValueError if a folder or a mask is missing.

    `split` is "train", "test", or what is evaluated on by any other name. With
    no `size`, masks keep their own.
    """
    root = os.fsencode(settings.root or "")
    images, masks = (_only(root, names) for names in (_IMAGES, _MASKS))
    inside = {folders.split_named(n): n for n in folders.subfolders(images)}
    self.split = name = split
    self.has_test = "train" in inside and "test" in inside
    if "train" in inside:
      named = split if split in ("train", "test") else settings.eval_split
      folder = inside.get(named or "val")
      if folder is None and split not in ("train", "test"):
        folder = inside.get("test")
      if folder is None:
        missing = "test" if split == "test" else "val"
        raise ValueError(
          f"{text(images)!r} has a train folder but no {missing}."
        )
      images = _below(images, folder)
      masks = _below(masks, folder)
      self.split = folders.split_named(folder) or ""
      name = text(folder)
    elif split == "test":
      raise ValueError(f"{text(images)!r} has no test folder.")
    files = [*folders.images_below(images)]
    if "train" not in inside:
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
    self._pairs = [(os.path.join(images, f), _mask(masks, f)) for f in files]
    self.root = text(root)
    self.folder_name = text(os.path.basename(os.path.abspath(root)))
    self.name = f"{self.folder_name}, {name}"
    self._size = size
    self._classes = _read_classes(os.path.join(root, os.fsencode(CLASSES)))
    self.label_spec = MASKS.spec(1)
    if size is not None:
      self.label_spec = ArraySpec(size, np.int32)

  def __len__(self) -> int:
    return len(self._pairs)

  def __getitem__(self, index: int) -> Example:
    image, mask = self._pairs[index]
    encoded = content(image)
    label = self._read(mask)
    _check_proportions(image, encoded, label.shape)
    if self._size is not None:
      label = resize_mask(label, self._size)
    return {"image": encoded, "label": label, "id": text(image)}

  def ids(self, indices: Sequence[int]) -> list[str]:
    """The paths of these examples' images, without reading them."""
    return [text(self._pairs[index][0]) for index in indices]

  def num_classes(self) -> int:
    """The classes that are named, or one more than the highest in all masks.

    Each of these is then read.
    """
    if self._classes is not None:
      return len(self._classes.names)
    masks = (self._read(path) for _, path in self._pairs)
    highest = (int(mask[mask != IGNORED].max(initial=-1)) for mask in masks)
    return 1 + max(highest, default=-1)

  def named(self, names: tuple[str, ...] | None = None) -> "SegmentationFolder":
    """The split with the names of its classes, and masks of no other.

    They are `names`, or those of its own masks, numbers unless they have names.
    Raises ValueError if there are fewer than two.
    """
    if names is None and self._classes is not None:
      names = self._classes.names
    if names is None:
      names = tuple(map(str, range(self.num_classes())))
    if len(names) < 2:
      raise ValueError("the training masks have one class: give two or more.")
    self.class_names = names
    return self

  def warnings(self) -> list[str]:
    """Warnings about what may be a mistake: none."""
    return []

  def exposure(self) -> list[str]:
    """Warnings about images of 16 bits: none."""
    return []

  def _read(self, path: bytes) -> Int[np.ndarray, "h w"]:
    """The classes in a file, which has no others."""
    mask = _read_mask(path, self._classes.colours if self._classes else {})
    count = len(self.class_names)
    if count and (highest := mask[mask != IGNORED].max(initial=0)) >= count:
      raise ValueError(
        f"{text(path)} has the class {highest}, and the classes are 0 to "
        f"{count - 1}, those of {CLASSES} or of the training masks; a pixel of "
        f"no class is {IGNORED}."
      )
    return mask


def open_split(
  settings: DataSettings, split: str, labels: Labels = MASKS
) -> SegmentationFolder:
  """Opens the split "train", "eval" or "test" of the folder `settings.root`.

  Raises ValueError if there is no such folder, image or mask.
  """
  del labels
  _check(settings)
  train = SegmentationFolder(settings, "train").named()
  if split == "train":
    return train
  return SegmentationFolder(settings, split).named(train.class_names)


def open_folder(
  settings: DataSettings, labels: Labels = MASKS
) -> dict[str, SegmentationFolder]:
  """Opens "train", "eval" and, if there is one, "test"; see `open_split`."""
  train = open_split(settings, "train", labels)
  opened = {"train": train, "eval": SegmentationFolder(settings, "eval")}
  if train.has_test:
    opened["test"] = SegmentationFolder(settings, "test")
  return {name: one.named(train.class_names) for name, one in opened.items()}


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


def _read_classes(path: bytes) -> Classes | None:
  """The classes in a file of their names; None if there is none."""
  if not os.path.isfile(path):
    return None
  where = text(path)
  encoded = read_regular(os.fsdecode(path), _MOST_BYTES)
  lines = encoded.decode("utf-8-sig", "replace").splitlines()
  names: list[str] = []
  colours: dict[int, int] = {}
  for number, line in enumerate(lines, start=1):
    match = _LINE.fullmatch(line.strip())
    if not line.strip() or match is None:
      continue
    name, *channels = match.groups()
    values = [int(value) for value in channels if value is not None]
    is_class = name.lower() != _NO_CLASS
    code = int.from_bytes(bytes(v & 255 for v in values), "big")
    if not name or name in names or max(values, default=0) > 255:
      raise ValueError(
        f"{where}, line {number}, is {printable(line)!r}: a line is the name "
        "of a class, each of its own, and maybe a colour, as in road 128 64 "
        "128."
      )
    if values and code in colours:
      raise ValueError(f"{where}, line {number}, has the colour of another.")
    if values:
      colours[code] = len(names) if is_class else IGNORED
    if is_class:
      names.append(printable(name))
  if colours and len({*colours.values()} - {IGNORED}) < len(names):
    raise ValueError(
      f"{where} has colours for some classes: give all of them one, or none."
    )
  if len(names) > _MOST_CLASSES or (len(names) > IGNORED and colours):
    raise ValueError(f"{where} names {len(names):,} classes: too many.")
  return Classes(tuple(names), colours)


def _by_colour(
  path: bytes, pixels: np.ndarray, colours: dict[int, int]
) -> Int[np.ndarray, "h w"]:
  """The class of each pixel (h, w, 3) by its colour."""
  codes = pixels.astype(np.int32) @ np.array([65536, 256, 1], np.int32)
  table = np.array(sorted(colours), np.int32)
  places = np.searchsorted(table, codes).clip(0, len(table) - 1)
  strange = np.argwhere(table[places] != codes)
  if len(strange):
    row, column = strange[0]
    colour = ", ".join(map(str, pixels[row, column]))
    raise ValueError(
      f"{text(path)} has the colour ({colour}) in row {row}, column {column}, "
      f"which is no class of {CLASSES}: add it, or {_NO_CLASS!r} with it."
    )
  classes = np.array([colours[code] for code in table.tolist()], np.int32)
  return classes[places]


def resize_mask(
  mask: Int[np.ndarray, "h w"], size: tuple[int, int]
) -> Int[np.ndarray, "H W"]:
  """Takes the pixel that lies nearest to the centre of each new one."""
  rows, columns = (
    ((np.arange(new) + 0.5) * old / new).astype(int)
    for old, new in zip(mask.shape, size, strict=True)
  )
  return mask[rows[:, None], columns[None]]


def _only(root: bytes, names: Sequence[bytes]) -> bytes:
  """The folder in the root that has one of these names."""
  inside = folders.subfolders(root) if os.path.isdir(root) else []
  matches = [name for name in inside if name.lower() in names]
  if len(matches) != 1:
    expected = text(b", ".join(names))
    raise ValueError(
      f"{text(root)!r} has {len(matches)} folders named {expected}, and "
      "segmentation needs one: images, and masks of the same file names."
    )
  return os.path.join(root, matches[0])


def _below(parent: bytes, folder: bytes) -> bytes:
  """The folder in `parent` of the split of which `folder` is a name.

  Raises ValueError if there is none.
  """
  split = folders.split_named(folder)
  for name in folders.subfolders(parent):
    if folders.split_named(name) == split:
      return os.path.join(parent, name)
  raise ValueError(f"{text(parent)!r} has no folder {text(folder)!r}.")


def _mask(masks: bytes, file: bytes) -> bytes:
  stem = os.path.join(masks, os.path.splitext(file)[0])
  for ending in (b".png", b".tif", b".tiff", b".bmp", b".gif"):
    if os.path.isfile(stem + ending):
      return stem + ending
  raise ValueError(f"there is no mask {text(stem)}.png for {text(file)!r}.")


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
      "proportions."
    )


def _read_mask(path: bytes, colours: dict[int, int]) -> Int[np.ndarray, "h w"]:
  """The classes in a file, by their indices or by their colours."""
  encoded = content(path)
  try:
    image = Image.open(io.BytesIO(encoded), formats=_FORMATS)
    check_size(image.height, image.width)
    image.load()
  except (OSError, ValueError, SyntaxError) as error:
    why = str(error).rstrip(".")
    raise UnreadableImageError(f"{text(path)}: {why}.") from error
  if image.mode == "RGB" and colours:
    return _by_colour(path, np.asarray(image), colours)
  if image.mode not in _MODES:
    raise ValueError(
      f"{text(path)} has the mode {image.mode}: a mask has one number for each "
      f"pixel, the index of its class, or colours that {CLASSES} beside the "
      "images names."
    )
  mask = np.asarray(image).astype(np.int32)
  if image.mode in ("I", "I;16"):
    mask[mask == _IGNORED_OF_16_BITS] = IGNORED
  if mask.min() < 0:
    raise ValueError(
      f"{text(path)} has the class {mask.min()}: classes are counted from 0, "
      f"and a pixel of no class is {IGNORED}."
    )
  return mask
