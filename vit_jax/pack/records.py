"""TFDS's names of splits, and images that are parts of larger files."""

import os
import pathlib
from array import array
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

from vit_jax.data.example import (
  MAX_BYTES,
  Source,
  UnreadableImageError,
  check_classes,
)
from vit_jax.data.reading.split_names import NAMES
from vit_jax.pack.captioned import captions_in
from vit_jax.runtime.files import open_anywhere

Splits = Mapping[str, Source]
"""The splits to pack, by TFDS's names."""

# TFDS's names of our splits.
TFDS_NAMES = {"train": "train", "eval": "validation", "val": "validation"}


def split_of(name: str) -> str:
  """TFDS's name of the split with which a file's name begins, or else train."""
  start = pathlib.PurePosixPath(name).name.lower()
  for split, names in NAMES.items():
    # The longer names first: "validation" begins with "val".
    for prefix in sorted(names, key=len, reverse=True):
      suffix = start.removeprefix(prefix.decode())
      if suffix != start and not suffix[:1].isalpha():
        return TFDS_NAMES.get(split, split)
  return "train"


def number_names(most: int, num_images: int, source: str) -> list[str]:
  """The numbers 0 to `most` as names of classes.

  Raises ValueError as `check_classes` does.
  """
  check_classes(most + 1, num_images, source)
  return [str(number) for number in range(most + 1)]


class CaptionPlace(NamedTuple):
  """The place of the captions of an image in an archive.

  Attributes:
    start: The offset of the file that has them, in bytes.
    size: The size of that file; 0 if there is none.
    is_json: Whether it is JSON.
    num_captions: The number of captions in it.
  """

  start: int
  size: int
  is_json: bool
  num_captions: int


class Listing:
  """Places of images, gathered while a source is listed.

  Attributes:
    files: Paths of the files that hold the images.
    names: The images' names, one after another.
    file: The index in `files` of each image's file.
    label: The class of each image.
    start: The offset of each image in its file, in bytes.
    size: The size of each image, in bytes.
    ends: Where each image's name ends in `names`.
    texts: The first three numbers of each image's `CaptionPlace`, one after
      another; empty if there are no captions.
    captions: The numbers of captions that images have.
  """

  def __init__(self, files: Sequence[str] = ()):
    self.files = [*files]
    self.names = bytearray()
    self.file = array("i")
    self.label = array("i")
    self.start = array("q")
    self.size = array("q")
    self.ends = array("q")
    self.texts = array("q")
    self.captions: set[int] = set()

  def add(
    self,
    start: int,
    size: int,
    label: int,
    name: str,
    captions: CaptionPlace | None = None,
  ) -> None:
    """Adds an image of the file that was last added to `files`."""
    if captions is not None:
      self.texts.extend((captions.start, captions.size, captions.is_json))
      self.captions.add(captions.num_captions)
    self.file.append(len(self.files) - 1)
    self.start.append(start)
    self.size.append(size)
    self.label.append(label)
    self.names += os.fsencode(name)
    self.ends.append(len(self.names))


class Records(Source):
  """One split of images that are parts of files, such as members of archives.

  Attributes:
    captions: The least and the most captions of an image, over all splits; None
      without captions. With them, an example has `captions` as well.
  """

  def __init__(
    self,
    name: str,
    class_names: Sequence[str],
    listing: Listing,
    captions: tuple[int, int] | None = None,
  ):
    self.name = name
    self.class_names = tuple(class_names)
    self.captions = captions
    self._listing = listing

  def __len__(self) -> int:
    return len(self._listing.label)

  def __getitem__(self, index: int) -> Any:
    """The example at `index`; raises UnreadableImageError for a huge image."""
    listing = self._listing
    start = listing.ends[index - 1] if index else 0
    name = os.fsdecode(bytes(listing.names[start : listing.ends[index]]))
    if listing.size[index] > MAX_BYTES:
      raise UnreadableImageError(
        f"{name}: it has {listing.size[index]:,} bytes, more than "
        f"{MAX_BYTES:,}."
      )
    with open_anywhere(listing.files[listing.file[index]]) as file:
      file.seek(listing.start[index])
      image = file.read(listing.size[index])
      texts = self._texts(file, index) if self.captions else {}
    return {"image": image, "label": listing.label[index], "id": name, **texts}

  def _texts(self, file: IO[bytes], index: int) -> dict[str, list[str]]:
    """A dictionary of `captions`, the captions of an image in an open archive.

    Raises ValueError as `captions_in` does.
    """
    start, size, is_json = self._listing.texts[3 * index : 3 * index + 3]
    file.seek(start)
    ending = "json" if is_json else "txt"
    return {"captions": captions_in(file.read(size), ending)}
