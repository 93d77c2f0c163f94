"""Reads images and masks of class indices from folders beside each other."""

import io
import os
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int
from PIL import ExifTags, Image

from vit_jax.data.batch import ArraySpec
from vit_jax.data.example import (
  Example,
  Source,
  UnreadableImageError,
  check_size,
)
from vit_jax.data.reading import folders
from vit_jax.data.reading.holdout import held_out
from vit_jax.data.reading.image_files import content
from vit_jax.data.settings import DataSettings
from vit_jax.runtime.printable import printable_path as text

IGNORED = 255  # Pixels of no class.
_IGNORED_OF_16_BITS = 65535
_IMAGES = (b"images", b"image", b"img")
_MASKS = (b"masks", b"mask", b"annotations", b"labels")
_FORMATS = ("PNG", "TIFF", "BMP", "GIF")
_MODES = ("L", "P", "I;16", "I", "1")  # With one number for each pixel.


class SegmentationFolder(Source):
  """One split of a folder of images and index masks.

  The folder holds `images` and `masks` (or `annotations`, `labels`), and each
  of these the folders `train` and `val` (or other names of `folders.NAMES`), or
  the files themselves, of which a part is then held out. A mask is named as its
  image, and holds the index of a class for each pixel; 255 is ignored, and
  65535 in a mask of 16 bits.

  Attributes:
    split: The name of the split's folder, or "train" or "val" without one.
    name: The name of the whole folder, and `split`.
    label_spec: Masks of int32 are resized to this height and width, by the
      nearest neighbour of each pixel's centre.
  """

  class_names: tuple[str, ...] = ()

  def __init__(self, settings: DataSettings, split: str, size: tuple[int, int]):
    """Lists the files; raises ValueError if a folder or a mask is missing."""
    root = os.fsencode(settings.root or "")
    images, masks = (_only(root, names) for names in (_IMAGES, _MASKS))
    inside = {folders.split_named(n): n for n in folders.subfolders(images)}
    self.split = split
    if "train" in inside:
      named = "train" if split == "train" else "val"
      folder = inside.get(named) or inside.get("test")
      if folder is None:
        raise ValueError(f"{text(images)!r} has a train folder but no val.")
      images = _below(images, folder)
      masks = _below(masks, folder)
      self.split = text(folder)
    files = [*folders.images_below(images)]
    if "train" not in inside:
      evaluated = held_out(files, settings.eval_fraction, settings.held_out_by)
      files = [f for f in files if (f in evaluated) != (split == "train")]
    if not files:
      raise ValueError(f"{text(images)!r} has no images for {split}.")
    self._pairs = [(os.path.join(images, f), _mask(masks, f)) for f in files]
    self.name = f"{text(os.path.basename(os.path.abspath(root)))}, {self.split}"
    self._size = size
    self.label_spec = ArraySpec(size, np.int32)

  def __len__(self) -> int:
    return len(self._pairs)

  def __getitem__(self, index: int) -> Example:
    image, mask = self._pairs[index]
    encoded = content(image)
    indices = _read_mask(mask)
    _check_proportions(image, encoded, indices.shape)
    label = resize_mask(indices, self._size)
    return {"image": encoded, "label": label, "id": text(image)}

  def num_classes(self) -> int:
    """One more than the highest index in all masks; each of them is read."""
    masks = (_read_mask(path) for _, path in self._pairs)
    highest = (int(mask[mask != IGNORED].max(initial=-1)) for mask in masks)
    return 1 + max(highest, default=-1)


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
      f"{text(root)!r} has {len(matches)} folders named {expected}, and a "
      "segmentation probe needs one: images, and masks of the same file names."
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
    with Image.open(io.BytesIO(encoded)) as picture:
      width, height = picture.size
      if picture.getexif().get(ExifTags.Base.Orientation, 1) > 4:
        width, height = height, width
  except (OSError, SyntaxError, ValueError):
    return  # Decoding it will report the error.
  if abs(mask[0] * width - mask[1] * height) > width + height:
    raise UnreadableImageError(
      f"{text(path)}: the image is {height} x {width}, turned as its Exif "
      f"says, and its mask {mask[0]} x {mask[1]}: they need the same "
      "proportions."
    )


def _read_mask(path: bytes) -> Int[np.ndarray, "h w"]:
  """The indices in a file."""
  encoded = content(path)
  try:
    image = Image.open(io.BytesIO(encoded), formats=_FORMATS)
    check_size(image.height, image.width)
    image.load()
  except (OSError, ValueError, SyntaxError) as error:
    why = str(error).rstrip(".")
    raise UnreadableImageError(f"{text(path)}: {why}.") from error
  if image.mode not in _MODES:
    raise ValueError(
      f"{text(path)} has the mode {image.mode}: a mask has one number for each "
      "pixel, the index of its class."
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
