"""Finds the mask of each image by its name."""

import itertools
import os
from collections.abc import Sequence

from vit_jax.data.reading.folders import EXTENSIONS
from vit_jax.data.reading.lookup import Lookup
from vit_jax.data.reading.masks.beside import MASKS, PairedFiles
from vit_jax.runtime.printable import counted, first_of
from vit_jax.runtime.printable import printable_path as text

# Endings that an image's name may have. A suffix replaces them in its mask's.
_OF_IMAGES = (b"", b"_leftImg8bit", b"_image", b"_img", b"_rgb", b"_sat")
_SAME_NAME = b"", b""  # The endings of an image and its mask without suffixes.
_LOSSY = (b".jpg", b".jpeg", b".jfif")
_OTHERS = (*EXTENSIONS, b".npy", b".npz", b".mat", b".json", b".xml", b".txt")


def files_named_as_masks(folder: bytes, files: Sequence[bytes]) -> list[bytes]:
  """The files that are named as masks of images in the same folder."""
  found = []
  for file in files:
    stem, ending = os.path.splitext(os.path.join(folder, file))
    suffix = next((s for s in MASKS.suffixes if stem.endswith(s)), None)
    if suffix is None:
      continue
    image = stem.removesuffix(suffix)
    endings = (ending, b".jpg", b".jpeg", b".png")
    if any(os.path.isfile(image + end) for end in endings):
      found.append(file)
  return found


class MaskLookup:
  """The masks below a folder, found by the names of their images.

  Each mask has its image's name; or all masks add the same suffix to it, such
  as `_mask`, by which the mask of the first image was found.
  """

  def __init__(
    self, folder: bytes, earlier: bool = False, kind: PairedFiles = MASKS
  ):
    """With `earlier`, names must be equal, and endings in lower case.

    `kind` is the kind of files to find, if these are not masks.
    """
    self._folder = folder
    self._earlier = earlier
    self._kind = kind
    self._lookup = Lookup(folder, kind.endings)
    # The ending of an image's name, and the suffix in its place.
    self._suffix: tuple[bytes, bytes] | None = None
    self._example: tuple[bytes, bytes] | None = None

  def find(self, file: bytes) -> bytes:
    """The path of the mask of an image.

    `file` is the image, relative to the images' folder. Raises ValueError if
    there is no such mask, or several files may be it.
    """
    (found,) = self.find_all([file])
    return found

  def find_all(self, files: Sequence[bytes]) -> list[bytes]:
    """The paths of the masks of all images, in the images' order.

    Raises ValueError as `find` does; the message names further images without a
    mask.
    """
    found = {file: self._find(file) for file in files}
    missing = [file for file, mask in found.items() if mask is None]
    if missing:
      message = self._missing_message(missing[0])
      if others := [text(file) for file in missing[1:]]:
        message += (
          f" (and none for {counted(len(others), 'other image')} of "
          f"{len(files):,}: {first_of(others, 5)})"
        )
      raise ValueError(message + ".")
    return [mask for mask in found.values() if mask is not None]

  def _find(self, file: bytes) -> bytes | None:
    """The path of an image's mask, or None.

    The first mask found sets the suffix of all others. Raises ValueError if
    several files may be the mask.
    """
    stem = os.path.splitext(file)[0]
    if self._suffix is None:  # The first image decides.
      found = self._same_name(stem)
      if found is None and not self._earlier:
        found = self._with_suffix(file, stem)
    elif self._suffix == _SAME_NAME:
      found = self._same_name(stem)
    else:
      found = self._lookup.find(_mask_name(stem, *self._suffix))
    if found is None:
      return None
    self._suffix = self._suffix or _SAME_NAME
    return os.path.join(self._folder, found)

  def lines(self) -> list[str]:
    """Lines on the suffix of the names, and on other differences of names."""
    lines = self._lookup.lines()
    if self._example is not None and self._suffix is not None:
      file, found = map(text, self._example)
      lines.append(
        f"{self._kind.plural} are named with {text(self._suffix[1])}, such as "
        f"{found} for {file}."
      )
    return lines

  def _same_name(self, stem: bytes) -> bytes | None:
    """The mask with the name of its image, or None."""
    for ending in self._kind.endings:
      if os.path.isfile(os.path.join(self._folder, stem + ending)):
        return stem + ending
    return None if self._earlier else self._lookup.find(stem)

  def _with_suffix(self, file: bytes, stem: bytes) -> bytes | None:
    """The mask named as its image with a known suffix; None if there is none.

    All other masks must then have the same suffix. Raises ValueError if several
    masks are named so.
    """
    found = {}
    for of_image, of_mask in itertools.product(_OF_IMAGES, self._kind.suffixes):
      if stem.endswith(of_image):
        name = _mask_name(stem, of_image, of_mask)
        if path := self._lookup.find(name):
          found.setdefault(path, (of_image, of_mask))
    if len(found) > 1:
      one, other, *_ = sorted(map(text, found))
      raise ValueError(
        f"{text(file)!r} may have the {self._kind.singular} {one!r} or "
        f"{other!r} in {text(self._folder)!r}: keep one of them there."
      )
    if not found:
      return None
    ((path, self._suffix),) = found.items()
    self._example = file, path
    return path

  def _missing_message(self, file: bytes) -> str:
    """The message for an image without a mask, without its full stop."""
    stem = os.path.splitext(file)[0]
    expected = _mask_name(stem, *self._suffix) if self._suffix else stem
    where = os.path.join(self._folder, expected)
    problem = (
      f"there is no {self._kind.singular} {text(where)}.png for {text(file)!r}"
    )
    names = [expected, stem, *(stem + suffix for suffix in self._kind.suffixes)]
    lossy = Lookup(self._folder, _LOSSY)
    jpeg = next(filter(None, map(lossy.find, names)), None)
    if jpeg is not None:
      return (
        f"{problem}: {text(jpeg)} is a JPEG, whose values are not exact; save "
        f"{self._kind.plural} as PNG"
      )
    others = Lookup(self._folder, _OTHERS)
    near = next(filter(None, map(others.find, names)), None)
    near = near or others.nearest(expected)
    if near is None:
      return f"{problem}: give it one, or move the image away"
    return f"{problem}; the nearest there is {text(near)}"


def _mask_name(stem: bytes, of_image: bytes, of_mask: bytes) -> bytes:
  """A mask's name without its ending: `stem` with one suffix for another."""
  return stem.removesuffix(of_image) + of_mask
