"""Image files that names on a command line stand for."""

import glob
import os
from collections.abc import Iterable, Iterator

from vit_jax.data.image_folder import EXTENSIONS, is_folder
from vit_jax.runtime.printable import printable


def find_images(names: Iterable[str]) -> Iterator[str]:
  """Image files, in the order of what names them.

  A name is a file of any extension, a folder that is searched to any depth for
  the extensions that `ImageFolder` knows, or a pattern of such files and
  folders, such as "photos/**/*.jpg". Hidden files have to be named in full.
  """
  for name in names:
    yield from _named(os.path.expanduser(name))


def check_found(names: Iterable[str]) -> None:
  """Raises ValueError if one of the names stands for no image."""
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
  elif os.path.exists(path):  # Also a name that could be read as a pattern.
    yield path
  else:
    searched = None
    # A folder comes right before what is in it.
    for match in sorted(glob.glob(path, recursive=True), key=_parts):
      if searched is not None and match.startswith(searched):
        continue
      if os.path.isdir(match):
        searched = os.path.join(match, "")
        yield from _below(match)
      elif _is_image(match):
        yield match


def _below(folder: str, above: tuple = ()) -> Iterator[str]:
  """Images in a folder, sorted by their paths; one listing in memory each."""
  status = os.stat(folder)
  here = status.st_dev, status.st_ino
  if here in above:  # A link back to a folder that we are in.
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
  """A path to print; bytes that are not UTF-8 are written as \\xNN."""
  return printable(os.fsencode(path).decode("utf-8", "backslashreplace"))
