"""Finds the image files that the names on a command line stand for."""

import glob
import os
from collections.abc import Iterable, Iterator

from vit_jax.data.reading.folders import EXTENSIONS, HEIF, images_below

# Without the library for HEIC, reading such a file says what to install.
_ENDINGS = tuple(dict.fromkeys((*EXTENSIONS, *HEIF)))


def find_images(names: Iterable[str]) -> Iterator[str]:
  """Yields the image files that names stand for, in the order of the names.

  A name is a file with any extension; a folder, which is searched at any depth
  for images of all kinds that are read; or a pattern such as
  "photos/**/*.jpg" that matches such files and folders. Hidden files have to be
  named in full.
  """
  for name in names:
    yield from _named(os.path.expanduser(name))


def check_found(names: Iterable[str]) -> None:
  """Raises ValueError if any of the names stands for no image."""
  for name in names:
    if next(find_images([name]), None) is not None:
      continue
    if os.path.isdir(os.path.expanduser(name)):
      known = os.fsdecode(b", ".join(EXTENSIONS))
      raise ValueError(f"folder {name!r} holds no images ({known}).")
    raise ValueError(
      f"{name!r} matches no image: give files, folders or quoted patterns."
    )


def _named(path: str) -> Iterator[str]:
  if os.path.isdir(path):
    yield from _below(path)
  elif os.path.exists(path):  # Even if the name could be read as a pattern.
    yield path
  else:
    searched = None
    # Sorted by parts, a folder comes right before its content.
    for match in sorted(glob.glob(path, recursive=True), key=_parts):
      if searched is not None and match.startswith(searched):
        continue
      if os.path.isdir(match):
        searched = os.path.join(match, "")
        yield from _below(match)
      elif _is_image(match) and os.path.isfile(match):
        yield match


def _below(folder: str) -> Iterator[str]:
  """Yields the images in a folder, sorted by path."""
  for path in images_below(os.fsencode(folder), endings=_ENDINGS):
    yield os.path.join(folder, os.fsdecode(path))


def _is_image(path: str) -> bool:
  return os.fsencode(path).lower().endswith(_ENDINGS)


def _parts(path: str) -> list[str]:
  return path.split(os.sep)
