"""Splits by the names of TFDS, and images at known places in larger files."""

import os
import pathlib
from array import array
from collections.abc import Mapping, Sequence
from typing import IO, Any

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

# TFDS's names of our splits.
TFDS_NAMES = {"train": "train", "eval": "validation", "val": "validation"}


def split_of(name: str) -> str:
  """TFDS's name of the split that a file's name begins with; else train."""
  start = pathlib.PurePosixPath(name).name.lower()
  for split, names in NAMES.items():
    # The longer names first: "validation" begins with "val".
    for prefix in sorted(names, key=len, reverse=True):
      suffix = start.removeprefix(prefix.decode())
      if suffix != start and not suffix[:1].isalpha():
        return TFDS_NAMES.get(split, split)
  return "train"


def numbered(most: int, num_images: int, source: str) -> list[str]:
  """Names of the classes 0 to `most`; raises ValueError as `check_classes`."""
  check_classes(most + 1, num_images, source)
  return [str(number) for number in range(most + 1)]


class Listing:
  """Places of images, gathered while a source is listed.

  Attributes:
    files: Paths of the files that hold the images.
    names: The images' names, one after another.
    file: Index in `files` of each image.
    label: Class of each image.
    start: Offset of each image in its file, in bytes.
    size: Size of each image, in bytes.
    ends: Where each image's name ends in `names`.
    texts: Offset and size of the file with an image's captions, and 1 if it is
      JSON; a size of 0 if there is none. Three numbers for each image.
    captions: Every number of captions that an image has.
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
    texts: tuple[int, int, bool, int] | None = None,
  ) -> None:
    """Adds an image of the file that was last added to `files`.

    `texts` are the numbers of `self.texts`, and how many captions there are.
    """
    if texts is not None:
      self.texts.extend(texts[:3])
      self.captions.add(texts[3])
    self.file.append(len(self.files) - 1)
    self.start.append(start)
    self.size.append(size)
    self.label.append(label)
    self.names += os.fsencode(name)
    self.ends.append(len(self.names))


class Records(Source):
  """One split of images that are parts of files, as members of archives are.

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
    self._at = listing

  def __len__(self) -> int:
    return len(self._at.label)

  def __getitem__(self, index: int) -> Any:
    at = self._at
    start = at.ends[index - 1] if index else 0
    name = os.fsdecode(bytes(at.names[start : at.ends[index]]))
    if at.size[index] > MAX_BYTES:
      raise UnreadableImageError(
        f"{name}: it has {at.size[index]:,} bytes, more than {MAX_BYTES:,}."
      )
    with open_anywhere(at.files[at.file[index]]) as file:
      file.seek(at.start[index])
      image = file.read(at.size[index])
      texts = self._texts(file, index) if self.captions else {}
    return {"image": image, "label": at.label[index], "id": name, **texts}

  def _texts(self, file: IO[bytes], index: int) -> Any:
    """The captions of an image, from the archive that it is in."""
    start, size, is_json = self._at.texts[3 * index : 3 * index + 3]
    file.seek(start)
    ending = "json" if is_json else "txt"
    return {"captions": captions_in(file.read(size), ending)}
