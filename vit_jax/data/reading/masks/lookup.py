"""Finds the mask of each image by its name."""

import os
from collections.abc import Sequence

from vit_jax.data.reading.folders import EXTENSIONS
from vit_jax.data.reading.lookup import Lookup
from vit_jax.data.reading.masks.beside import MASKS, Beside
from vit_jax.runtime.printable import printable_path as text

# Endings of an image's name, by those of its mask's.
_OF_IMAGES = (b"", b"_leftImg8bit", b"_image", b"_img", b"_rgb", b"_sat")
_LOSSY = (b".jpg", b".jpeg", b".jfif")
_OTHERS = (*EXTENSIONS, b".npy", b".npz", b".mat", b".json", b".xml", b".txt")


def with_image(folder: bytes, files: Sequence[bytes]) -> list[bytes]:
  """The files that are named as masks of images in the same folder."""
  found = []
  for file in files:
    stem, ending = os.path.splitext(os.path.join(folder, file))
    of = next((s for s in MASKS.suffixes if stem.endswith(s)), None)
    if of is None:
      continue
    image = stem.removesuffix(of)
    endings = (ending, b".jpg", b".jpeg", b".png")
    if any(os.path.isfile(image + end) for end in endings):
      found.append(file)
  return found


class MaskLookup:
  """The masks below a folder, which are named as their images.

  Each has its image's name; or all have the same suffix, such as `_mask`, which
  the first image decides.
  """

  def __init__(self, folder: bytes, earlier: bool = False, of: Beside = MASKS):
    """With `earlier`, names are the same and endings in lower case.

    `of` is the kind of the files, where they are no masks.
    """
    self._folder = folder
    self._earlier = earlier
    self._of = of
    self._lookup = Lookup(folder, of.endings)
    self._suffix: tuple[bytes, bytes] | None = None  # An image's, and a mask's.
    self._example: tuple[bytes, bytes] | None = None

  def find(self, file: bytes) -> bytes:
    """The path of the mask of an image, given from the images' folder on.

    Raises ValueError if there is none, or several may be it.
    """
    stem = os.path.splitext(file)[0]
    found = None
    if self._suffix in (None, (b"", b"")):
      found = self._same_name(stem)
    if found is None and self._suffix is None and not self._earlier:
      found = self._with_suffix(file, stem)
    elif self._suffix not in (None, (b"", b"")):
      found = self._lookup.find(_renamed(stem, *self._suffix))
    if found is None:
      raise ValueError(self._missing(file, stem))
    self._suffix = self._suffix or (b"", b"")
    return os.path.join(self._folder, found)

  def lines(self) -> list[str]:
    """A line on the suffix of the names, and on each other difference."""
    said = self._lookup.lines()
    if self._example is not None and self._suffix is not None:
      file, found = map(text, self._example)
      said.append(
        f"{self._of.plural} are named with {text(self._suffix[1])}, such as "
        f"{found} for {file}."
      )
    return said

  def _same_name(self, stem: bytes) -> bytes | None:
    for ending in self._of.endings:
      if os.path.isfile(os.path.join(self._folder, stem + ending)):
        return stem + ending
    return None if self._earlier else self._lookup.find(stem)

  def _with_suffix(self, file: bytes, stem: bytes) -> bytes | None:
    """The only mask with a known suffix, which all others must have."""
    found = {}
    for suffix in (
      (one, two) for one in _OF_IMAGES for two in self._of.suffixes
    ):
      if stem.endswith(suffix[0]):
        name = _renamed(stem, *suffix)
        if path := self._lookup.find(name):
          found.setdefault(path, suffix)
    if len(found) > 1:
      one, other, *_ = sorted(map(text, found))
      raise ValueError(
        f"{text(file)!r} may have the {self._of.one} {one!r} or {other!r} in "
        f"{text(self._folder)!r}: keep one of them there."
      )
    for path, suffix in found.items():
      self._suffix, self._example = suffix, (file, path)
      return path
    return None

  def _missing(self, file: bytes, stem: bytes) -> str:
    """The message for an image without a mask."""
    wanted = _renamed(stem, *self._suffix) if self._suffix else stem
    where = os.path.join(self._folder, wanted)
    said = f"there is no {self._of.one} {text(where)}.png for {text(file)!r}"
    names = [wanted, stem, *(stem + suffix for suffix in self._of.suffixes)]
    lossy = Lookup(self._folder, _LOSSY)
    jpeg = next(filter(None, map(lossy.find, names)), None)
    if jpeg is not None:
      return (
        f"{said}: {text(jpeg)} is a JPEG, whose values are not exact; save "
        f"{self._of.plural} as PNG."
      )
    others = Lookup(self._folder, _OTHERS)
    near = next(filter(None, map(others.find, names)), None)
    near = near or others.nearest(wanted)
    if near is None:
      return f"{said}: give it one, or move the image away."
    return f"{said}; the nearest there is {text(near)}."


def _renamed(stem: bytes, of_image: bytes, of_mask: bytes) -> bytes:
  """A mask's name, from its image's."""
  return stem.removesuffix(of_image) + of_mask
