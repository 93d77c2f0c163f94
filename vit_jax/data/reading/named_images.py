"""Finds image files by names, folders and patterns, without labels."""

import glob
import os
from collections.abc import Iterable, Iterator

from vit_jax.data.reading.folders import EXTENSIONS, HEIF, images_below
from vit_jax.data.reading.lookup import Lookup, folders_of_all
from vit_jax.data.reading.masks.names import masks_beside_images
from vit_jax.data.settings import TABLES, DataSettings
from vit_jax.runtime import hints
from vit_jax.runtime.printable import counted, say
from vit_jax.runtime.printable import printable_path as text

# HEIC files are found without their library too: reading one says what to
# install.
_ENDINGS = tuple(dict.fromkeys((*EXTENSIONS, *HEIF)))

Path = str | os.PathLike[str]


def find_images(names: Path | Iterable[Path]) -> Iterator[str]:
  """Yields the image files that names stand for, in the order of the names.

  `names` are several names, or a single one. A name is that of a file with any
  extension; of a file of labels, such as a CSV file, for the images that it
  names; of a folder, which is searched at any depth for images of all kinds
  that are read; or a pattern such as "photos/**/*.jpg" that matches such files
  and folders. Hidden files have to be named in full. The masks in a folder of
  images and masks are left out; `say_left_out` prints which. Raises ValueError
  for a file of labels that cannot be read, or none of whose images is there.
  """
  for name in _as_paths(names):
    yield from _files_of(os.path.expanduser(name))


def say_missing(names: Path | Iterable[Path]) -> bool:
  """Prints a line for each name that stands for no image.

  It prints what is left out as well. Returns whether a name stands for no
  image. Raises ValueError, with the first line, if no name stands for an image.
  """
  paths = [*_as_paths(names)]
  say_left_out(paths)
  empty = [path for path in paths if next(find_images([path]), None) is None]
  lines = [_missing_line(name) for name in empty]
  if lines and len(lines) == len(paths):
    raise ValueError(lines[0])
  for line in lines:
    say(line)
  return bool(lines)


def say_left_out(names: Path | Iterable[Path]) -> None:
  """Prints a line for each folder of masks that `find_images` leaves out."""
  for name in map(os.path.expanduser, _as_paths(names)):
    if os.path.isdir(name):
      for masks in masks_beside_images(os.fsencode(name)):
        say(
          f"{text(masks)} belongs to the images beside it, and is left out; "
          "name it to read its pictures as images."
        )


def _missing_line(name: str) -> str:
  """The message for a name that stands for no image."""
  if os.path.isdir(os.path.expanduser(name)):
    endings = os.fsdecode(b", ".join(EXTENSIONS))
    return f"folder {name!r} holds no images ({endings})."
  hint = "" if glob.has_magic(name) else hints.hint_for_path(name)
  hint = hint or "give files, folders or quoted patterns."
  if name.isidentifier():  # It may be a data set, as "digits" without files.
    hint += (
      " If it is the data set of a run, `vit_jax evaluate RUN --per_class` "
      "tells what the run answers."
    )
  return f"{name!r} matches no image: {hint}"


def _as_paths(names: Path | Iterable[Path]) -> Iterator[str]:
  """Yields each name as text; `names` may be a single name."""
  if isinstance(names, str | os.PathLike):
    names = [names]
  for name in names:
    yield os.fspath(name)


def with_root(names: Path | Iterable[Path], root: str) -> list[str]:
  """The names, each table replaced by its images, which are in `root`.

  Raises ValueError if no name is a table, or no image of a table is there.
  """
  paths = [*_as_paths(names)]
  if not any(map(_is_table, paths)):
    raise ValueError(
      f"--root={root} is the folder of the images that a table names, and "
      "there is no table: leave it out."
    )
  return [
    file
    for path in paths
    for file in (_files_of_table(path, root) if _is_table(path) else [path])
  ]


def _is_table(path: str) -> bool:
  return os.path.isfile(path) and path.lower().endswith(TABLES)


def _files_of_table(path: str, root: str = "") -> Iterator[str]:
  """Yields the paths of the images in `root` that a file of labels names.

  By default, `root` is the folder of the file of labels. Raises ValueError if
  the file names images and none of them is there, and as `image_names` does.
  """
  from vit_jax.data.reading.label_rows import image_names

  root = os.path.expanduser(root) or os.path.dirname(path)
  names = [*image_names(path, DataSettings(labels_file=path, root=root or "."))]
  holding = folders_of_all(root, [*map(os.fsencode, names)])
  if len(holding) == 1:  # As in training, the only folder with all of them.
    root = os.path.join(root, os.fsdecode(holding[0]))
  lookup = Lookup(os.fsencode(root or "."))
  places = [lookup.find(os.fsencode(name)) for name in names]
  first = os.path.join(root, names[0]) if names else root
  if not any(places) and not os.path.exists(first):
    raise ValueError(
      f"{path} names {counted(len(names), 'image')}, such as {names[0]!r}, and "
      f"none of them is in {root or '.'}: give the folder of the images by "
      "--root of `vit_jax predict` or `evaluate`, or move the table there."
    )
  for name, place in zip(names, places, strict=True):
    yield os.path.join(root, name if place is None else os.fsdecode(place))


def _files_of(path: str) -> Iterator[str]:
  """Yields the image files that one name stands for; see `find_images`.

  Raises ValueError as `_files_of_table` does if the name is that of a table.
  """
  if os.path.isdir(path):
    yield from _files_below(path)
  elif _is_table(path):
    yield from _files_of_table(path)
  elif os.path.exists(path):  # Even if the name could be read as a pattern.
    yield path
  else:
    searched = None
    matches = [m.split(os.sep) for m in glob.glob(path, recursive=True)]
    # Sorted by parts, a folder comes right before its content.
    for match in map(os.sep.join, sorted(matches)):
      if searched is not None and match.startswith(searched):
        continue
      name = os.fsencode(match).lower()
      if os.path.isdir(match):
        searched = os.path.join(match, "")
        yield from _files_below(match)
      elif name.endswith(_ENDINGS) and os.path.isfile(match):
        yield match


def _files_below(folder: str) -> Iterator[str]:
  """Yields the images of a folder, at any depth, without masks beside them."""
  root = os.fsencode(folder)
  masks = tuple(
    os.path.join(os.path.relpath(path, root), b"")
    for path in masks_beside_images(root)
  )
  for path in images_below(root, endings=_ENDINGS):
    if not path.startswith(masks):
      yield os.path.join(folder, os.fsdecode(path))
