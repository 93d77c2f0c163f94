"""Finds the image files that the names on a command line stand for."""

import glob
import os
from collections.abc import Iterable, Iterator

from vit_jax.data.image_folder import EXTENSIONS, is_folder
from vit_jax.runtime.printable import printable


def find_images(names: Iterable[str]) -> Iterator[str]:
  """Yields the image files that names stand for, in the order of the names.

  A name is a file with any extension; a folder, which is searched at any depth
  for the extensions in `image_folder.EXTENSIONS`; or a pattern such as
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
      elif _is_image(match):
        yield match


def _below(folder: str, above: tuple = ()) -> Iterator[str]:
  """Yields the images in a folder, sorted by path.

  Memory holds one listing for each level of folders.
  """
  status = os.stat(folder)
  here = status.st_dev, status.st_ino
  if here in above:  # A link leads back to a folder above.
    return
  with os.scandir(folder) as entries:
    visible = (entry for entry in entries if not entry.name.startswith("."))
    found = sorted(
      os.path.join(e.name, "") if is_folder(e) else e.name for e in visible
    )
  for name in found:
    path = os.path.join(folder, name)
    if name.endswith(os.sep):
      yield from _below(path, (*above, here))
    elif _is_image(name):
      yield path


def _parts(path: str) -> list[str]:
  return path.split(os.sep)


def _is_image(name: str) -> bool:
  return os.fsencode(name).lower().endswith(EXTENSIONS)


def printable_path(path: str) -> str:
  """Returns a path as text to print, with non-UTF-8 bytes as \\xNN."""
  return printable(os.fsencode(path).decode("utf-8", "backslashreplace"))
