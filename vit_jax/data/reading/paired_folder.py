"""A folder of images, each paired with a picture of classes or numbers."""

import contextlib
import io
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Shaped
from PIL import Image

from vit_jax.data.decoding.decode import image_size
from vit_jax.data.decoding.orientation import QUARTER_TURNS, of_picture
from vit_jax.data.example import (
  Example,
  NoTestSplitError,
  Source,
  UnreadableImageError,
  evenly_spread,
  refuse_text,
)
from vit_jax.data.reading import folders
from vit_jax.data.reading.holdout import Holdout
from vit_jax.data.reading.image_files import read_file
from vit_jax.data.reading.masks import names as mask_names
from vit_jax.data.reading.masks.beside import PairedFiles
from vit_jax.data.reading.masks.lookup import MaskLookup
from vit_jax.data.reading.split_names import split_named
from vit_jax.data.settings import DataSettings
from vit_jax.runtime.printable import printable_path as text

WHOLE = "whole"
"""All images of a folder without splits, or else the split to evaluate on."""
_LOOKED_AT = 16  # Images whose Exif is read.

Picture = Shaped[np.ndarray, "h w"]


class PairedFolder(Source):
  """One split of a folder of images, and of the files beside them.

  A reader derives from this class, and says what lies beside the images, and
  how such a file becomes a label for each pixel.

  Attributes:
    root: The whole folder.
    split: "train", "val" or "test"; without folders of splits, the split that
      was asked for.
    folder_name: The name of the whole folder.
    name: The name of the whole folder, followed by that of the split.
    has_test: Whether there is a folder to test on.
    beside: The folder of the files beside the images.
  """

  def __init__(
    self,
    settings: DataSettings,
    split: str,
    kind: PairedFiles,
    size: tuple[int, int] | None = None,
    earlier: bool = False,
  ):
    """Lists the files.

    `split` is "train", "test", `WHOLE`, or any other name for the split to
    evaluate on. Without a `size`, pictures keep their own. With `earlier`,
    folders and files are found as by earlier versions. Raises ValueError if a
    folder or a file beside an image is missing, or the split has no images.
    """
    root = self._root = os.fsencode(settings.root or "")
    places, left_out = mask_names.find_places(root, earlier, kind)
    self.has_test = "test" in places
    self.split = split
    has_no_splits = "" in places
    if has_no_splits:
      chosen = None if split == "test" else ""
    else:
      chosen = _choose_split(places, split, settings)
    if chosen is None:
      if split == "test":
        raise NoTestSplitError(f"{text(root)!r} has no test folder")
      raise ValueError(f"{text(root)!r} has a train folder but no val: add it.")
    images, self.beside = places[chosen]
    self.split = chosen or split
    files = [*folders.images_below(images)]
    if not chosen and split != WHOLE:
      self.held_out = Holdout.of(
        len(files),
        settings.eval_fraction,
        by=settings.held_out_by,
        below=settings.held_out_below,
      )
      evaluated = self.held_out.of_class(0, files)
      files = [f for f in files if (f in evaluated) != (split == "train")]
    if not files:
      raise ValueError(f"{text(images)!r} has no images for {split}: add some.")
    self.root = text(root)
    lookup = MaskLookup(self.beside, earlier, kind)
    paths = [os.path.join(images, file) for file in files]
    self._pairs = [*zip(paths, lookup.find_all(files), strict=True)]
    self._lines: list[str] = [*left_out, *lookup.lines()]
    self.folder_name = text(os.path.basename(os.path.abspath(root)))
    self.name = self.folder_name
    if self.split != WHOLE:
      self.name += f", {self.split}"
    self._size = size
    self._kind = kind

  def _read(self, path: bytes) -> Picture:
    """Reads the file at `path` beside an image: a label for each pixel."""
    raise NotImplementedError

  def __len__(self) -> int:
    return len(self._pairs)

  def __getitem__(self, index: int) -> Example:
    """The example at `index`, whose label has been resized if there is a size.

    Raises UnreadableImageError or ValueError for a file that cannot be read, or
    does not fit its image.
    """
    refuse_text(index)
    image, beside = self._pairs[index]
    encoded = read_file(image)
    label = self._read(beside)
    _check_proportions(image, encoded, label.shape, self._kind.singular)
    if self._size is not None:
      label = resize_mask(label, self._size)
    return {"image": encoded, "label": label, "id": text(image)}

  def ids(self, indices: Sequence[int]) -> list[str]:
    """The paths of these examples' images, without reading them."""
    return [text(self._pairs[index][0]) for index in indices]

  def files(self) -> list[str]:
    """The paths of all images, as they are opened."""
    return [os.fsdecode(image) for image, _ in self._pairs]

  def warnings(self) -> list[str]:
    """Lines on the files beside the images, and on possible mistakes."""
    return self._lines

  def _rotation_lines(self) -> list[str]:
    """A line on images that Exif turns without a change of their size."""
    return _rotation_lines(
      [image for image, _ in self._pairs], self._kind.plural
    )


Folder = TypeVar("Folder", bound=PairedFolder)


def open_split_like_train(
  open_one: Callable[[str, Folder | None], Folder], split: str
) -> Folder:
  """Opens one split of a folder, whose files are read as those to train on.

  `open_one` is called with the name of a split, and with the opened training
  split, or None if it is to open that.
  """
  train = open_one("train", None)
  return train if split == "train" else open_one(split, train)


def open_splits_like_train(
  open_one: Callable[[str, Folder | None], Folder],
) -> dict[str, Folder]:
  """Opens all splits of a folder: "train", "eval" and, if there is one, "test".

  `open_one` is that of `open_split_like_train`.
  """
  train = open_one("train", None)
  splits = ["eval", "test"] if train.has_test else ["eval"]
  return {"train": train, **{s: open_one(s, train) for s in splits}}


def resize_mask(
  mask: Picture, size: tuple[int, int]
) -> Shaped[np.ndarray, "H W"]:
  """Resizes a mask: each new pixel takes the value of the nearest old pixel."""
  rows, columns = (
    ((np.arange(new) + 0.5) * old / new).astype(int)
    for old, new in zip(mask.shape, size, strict=True)
  )
  return mask[rows[:, None], columns[None]]


def _choose_split(
  places: Mapping[str, mask_names.Places], split: str, settings: DataSettings
) -> str | None:
  """The name in `places` of the split that is asked for; None if missing."""
  if split in ("train", "test"):
    return split if split in places else None
  name = os.fsencode(settings.eval_split or "val")
  order = (split_named(name), "test")
  return next((name for name in order if name in places), None)


def _rotation_lines(images: Sequence[bytes], plural: str) -> list[str]:
  """A line on images that Exif turns without a change of their size."""
  places = evenly_spread(_LOOKED_AT, len(images))
  turned = []
  for place in places:
    # Decoding the image reports the error.
    with contextlib.suppress(Exception):
      with Image.open(io.BytesIO(read_file(images[place]))) as image:
        orientation = of_picture(image)
        if orientation in (2, 3, 4) or (
          orientation in QUARTER_TURNS and image.width == image.height
        ):
          turned.append(images[place])
  if not turned:
    return []
  line = (
    f"{len(turned)} of {len(places)} images looked at, such as "
    f"{text(turned[0])}, are turned by their Exif and keep their size: check "
    f"that their {plural} are turned as the images are shown."
  )
  return [line]


def _check_proportions(
  path: bytes, encoded: bytes, mask: tuple[int, ...], noun: str
) -> None:
  """Raises UnreadableImageError if an image and its mask differ in proportions.

  A mask may be smaller than its image. The image may be turned by its Exif; its
  mask is not turned with it. `mask` is the shape of the mask, and `noun` the
  word for it.
  """
  try:
    height, width = image_size(encoded)
  except UnreadableImageError:
    return  # Decoding the image reports the error.
  if abs(mask[0] * width - mask[1] * height) <= width + height:
    return
  is_turned = _orientation(encoded) in QUARTER_TURNS
  turned = ", turned as its Exif says," if is_turned else ""
  cure = "Make both of the same picture."
  if is_turned:
    cure = (
      f"Turn the {noun} as the image is shown, or remove the orientation from "
      "the image's Exif."
    )
  raise UnreadableImageError(
    f"{text(path)}: the image is {width} x {height}{turned} and its {noun} "
    f"{mask[1]} x {mask[0]} pixels wide and high: they need the same "
    f"proportions. {cure}"
  )


def _orientation(encoded: bytes) -> int:
  """How an image is to be turned, as Exif numbers it; 1 if that is unknown."""
  with contextlib.suppress(Exception):  # Decoding the image reports the error.
    with Image.open(io.BytesIO(encoded)) as image:
      return of_picture(image)
  return 1
