"""Lists the folders and the images in folders."""

import collections
import contextlib
import errno
import importlib.util
import itertools
import os
from collections.abc import Collection, Iterator, Mapping

HEIF = (b".heic", b".heif")
EXTENSIONS = (
  b".jpg",
  b".jpeg",
  b".jfif",
  b".png",
  b".webp",
  b".bmp",
  b".gif",
  b".tif",
  b".tiff",
  b".avif",
  b".jp2",
  b".j2k",
  *(HEIF if importlib.util.find_spec("pillow_heif") else ()),
)
"""Endings of the files that are taken for images, in lower case."""

# Image files that are not read here; they are reported by their endings.
_UNREAD = (
  *HEIF,
  b".arw",
  b".cr2",
  b".cr3",
  b".dcm",
  b".dng",
  b".jxl",
  b".mpo",
  b".nef",
  b".npy",
  b".orf",
  b".ppm",
  b".pgm",
  b".psd",
  b".raw",
  b".rw2",
  b".svg",
  b".tfrecord",
  b".tga",
)
# By-products: folders that a system or its archives add, in lower case.
_JUNK = (b"__macosx", b"@eadir", b"$recycle.bin", b"system volume information")
LOOKED_AT = 5_000  # Entries of a folder that are looked at, if not all are.
_INSTALL_HEIF = 'pip install "vit_jax[heif]" reads .heic'

Ignored = collections.Counter[str]
"""Number of files that are not images, by kind, such as ".heic"."""


def subfolders(folder: bytes) -> list[bytes]:
  """The folders in a folder, sorted, without hidden ones and by-products."""
  with os.scandir(folder) as entries:
    return sorted(e.name for e in entries if _visible(e.name) and is_folder(e))


def peek(folder: bytes, most: int = LOOKED_AT) -> list[bytes]:
  """The folders among the first `most` entries of a folder, sorted."""
  with os.scandir(folder) as entries:
    first = itertools.islice(entries, most)
    return sorted(e.name for e in first if _visible(e.name) and is_folder(e))


def endings_in(folder: bytes, most: int = LOOKED_AT) -> set[bytes]:
  """The endings of the files among the first `most` entries of a folder.

  The entries may lie at any depth; the endings are in lower case.
  """
  endings: set[bytes] = set()
  places = [folder]
  while places and most > 0:
    with os.scandir(places.pop()) as entries:
      for entry in itertools.islice(entries, most):
        most -= 1
        if not _visible(entry.name):
          continue
        # A link may lead back to a folder above.
        if is_folder(entry) and not entry.is_symlink():
          places.append(entry.path)
        elif not is_folder(entry):
          endings.add(os.path.splitext(entry.name.lower())[1])
  return endings


def holds_images(folder: bytes) -> bool:
  """Whether an image is among the first files of a folder, at any depth."""
  return not endings_in(folder).isdisjoint(EXTENSIONS)


def hidden_with_images(folder: bytes) -> list[bytes]:
  """The hidden folders in a folder, such as .x, that hold images, sorted."""
  with os.scandir(folder) as entries:
    hidden = sorted(
      e.name for e in entries if e.name.startswith(b".") and is_folder(e)
    )
  with_images = []
  for name in hidden:
    with (
      contextlib.suppress(OSError),
      os.scandir(os.path.join(folder, name)) as inside,
    ):
      if any(_visible(e.name) and _kind(e) is None for e in inside):
        with_images.append(name)
  return with_images


def is_folder(entry: os.DirEntry) -> bool:
  """Whether an entry is a folder or a link to one; a link to itself is not.

  Raises OSError if the entry cannot be looked at.
  """
  try:
    return entry.is_dir()
  except OSError as error:
    if error.errno == errno.ELOOP:
      return False
    raise


def images_below(
  folder: bytes,
  ignored: Ignored | None = None,
  endings: tuple[bytes, ...] | None = None,
  above: tuple[tuple[int, int], ...] = (),
  left_out: Collection[bytes] = (),
) -> Iterator[bytes]:
  """Yields the paths, from `folder` on, of the images at any depth, sorted.

  Images have one of `endings`, in lower case, or by default of `EXTENSIONS`.
  Memory holds one listing for each level of folders. The files that are not
  images are added to `ignored`, and `left_out` has the names of folders in
  `folder` that are not read. `above` has the device and the inode of each
  folder above this one: a link that leads back to one of these is not followed.
  """
  status = os.stat(folder)
  here = status.st_dev, status.st_ino
  if here in above:
    return
  names = []
  with os.scandir(folder) as entries:
    for entry in entries:
      if not _visible(entry.name):
        continue
      if is_folder(entry):
        if entry.name not in left_out:
          names.append(os.path.join(entry.name, b""))
      elif (kind := _kind(entry, endings)) is None:
        names.append(entry.name)
      elif ignored is not None:
        ignored[kind] += 1
  for name in sorted(names):  # By path: a folder's name ends in a slash here.
    if name.endswith(b"/"):
      inside = os.path.join(folder, name)
      for path in images_below(inside, ignored, endings, (*above, here)):
        yield name + path
    else:
      yield name


def ignored_text(ignored: Mapping[str, int]) -> str:
  """The ignored files in words, such as "30 .heic, 2 not images"; or "".

  A kind that begins with "folder" is a single folder, and is not counted.
  """
  parts = []
  for kind in sorted(ignored):  # Endings come first, as a dot does.
    part = kind if kind.startswith("folder") else f"{ignored[kind]:,} {kind}"
    if os.fsencode(kind) in HEIF:
      part += f" ({_INSTALL_HEIF})"
    parts.append(part)
  return ", ".join(parts)


def is_byproduct(path: bytes) -> bool:
  """Whether a relative path leads to or through a hidden file or by-product.

  macOS, for one, writes `._x.jpg` and `__MACOSX` into archives.
  """
  parts = path.split(b"/")
  return not all(_visible(part) for part in parts if part not in (b"", b"."))


def _visible(name: bytes) -> bool:
  """Whether a name is neither that of a hidden file nor of a by-product."""
  return not name.startswith(b".") and name.lower() not in _JUNK


def _kind(
  entry: os.DirEntry, endings: tuple[bytes, ...] | None = None
) -> str | None:
  """The kind of a file that is not an image; None for an image."""
  if not entry.name.lower().endswith(endings or EXTENSIONS):
    ending = os.path.splitext(entry.name.lower())[1]
    return os.fsdecode(ending) if ending in _UNREAD else "not images"
  # Opening a pipe would block. A link to nowhere counts as an image, so that
  # reading it reports the error.
  try:
    regular = entry.is_file()
  except OSError:
    return None
  if regular or not os.path.exists(entry.path):
    return None
  return "pipes or devices"


def count_loose(folder: bytes, ignored: Ignored) -> None:
  """Adds to `ignored` the files in a folder that should hold only folders."""
  with os.scandir(folder) as entries:
    for entry in entries:
      if _visible(entry.name) and not is_folder(entry):
        ignored[_kind(entry) or "outside class folders"] += 1
