"""Finds the splits, the classes and the images in folders."""

import collections
import contextlib
import dataclasses
import errno
import importlib.util
import os
from collections.abc import Iterator, Mapping

from vit_jax.runtime.printable import printable_path as text

HEIF = (b".heic", b".heif")
EXTENSIONS = (
  *(b".jpg", b".jpeg", b".jfif", b".png", b".webp", b".bmp", b".gif"),
  *(b".tif", b".tiff", b".avif", b".jp2", b".j2k"),
  *(HEIF if importlib.util.find_spec("pillow_heif") else ()),
)
"""Endings of the files that are taken for images, in lower case."""

NAMES = {
  "train": (b"train", b"training"),
  "val": (b"val", b"valid", b"validation", b"dev"),
  "test": (b"test", b"testing"),
}
"""Names of the splits' folders, in lower case."""

# Image files that are not read here; they are reported by their endings.
_UNREAD = (
  *HEIF,
  *(b".arw", b".cr2", b".cr3", b".dcm", b".dng", b".jxl", b".mpo"),
  *(b".nef", b".npy", b".orf", b".ppm", b".pgm", b".psd", b".raw", b".rw2"),
  *(b".svg", b".tfrecord", b".tga"),
)
_JUNK = (b"__macosx", b"@eadir", b"$recycle.bin", b"system volume information")
_INSTALL_HEIF = 'pip install "vit_jax[heif]" reads .heic'

Ignored = collections.Counter[str]
"""Number of files that are not images, by kind, such as ".heic"."""


@dataclasses.dataclass(frozen=True)
class Layout:
  """The folders of the splits; those that are missing are None."""

  root: bytes
  train: bytes
  val: bytes | None = None
  test: bytes | None = None
  ignored: Mapping[str, int] = dataclasses.field(default_factory=dict)

  def evaluation(self, eval_split: str | None) -> str | None:
    """The split to evaluate on; None for a part of the training images.

    Without a name it is val, else test, else a part. "test", once the default,
    falls back to val and then to a part. Raises ValueError if there is no such
    split.
    """
    orders = {"val": ("val",), "test": ("test", "val"), "train": ("train",)}
    order = ("val", "test")
    if eval_split is not None:
      order = orders.get(split_named(os.fsencode(eval_split)) or "")
    if order is None:
      raise ValueError(
        f"data.eval_split={eval_split!r} is no split of a folder; use val or "
        "test."
      )
    for name in order:
      if getattr(self, name) is not None:
        return name
    if order == ("val",):
      raise ValueError(
        f"data.eval_split={eval_split!r}: {text(self.root)!r} has no split "
        "val; add it or leave data.eval_split out."
      )
    return None


def find_layout(root: bytes) -> Layout:
  """Finds the splits below `root`, or below the only folder in it.

  Raises ValueError if a split has two folders, or there is none to train on.
  """
  ignored: Ignored = collections.Counter()
  root = _innermost(root, ignored)
  names = _splits(root)
  if not names:
    return Layout(root, root, ignored=ignored)
  for name in {*subfolders(root)} - {*names.values()}:
    ignored[f"folder {text(name)}"] += 1
  places = {split: os.path.join(root, name) for split, name in names.items()}
  for place in places.values():
    _count_loose(place, ignored)
  return Layout(root, **places, ignored=ignored)


def unlabelled(root: bytes) -> Layout:
  """Finds the splits in `root`, else takes all of it; class folders or not."""
  names = subfolders(root)
  places = {split_named(name): os.path.join(root, name) for name in names}
  if "train" not in places:
    return Layout(root, root)
  return Layout(root, places["train"], places.get("val"), places.get("test"))


def _innermost(root: bytes, ignored: Ignored) -> bytes:
  """Goes down as long as a folder holds a single folder of folders."""
  seen = set()
  while True:
    _count_loose(root, ignored)
    seen.add(os.path.realpath(root))
    inside = subfolders(root)
    if len(inside) != 1:
      return root
    only = os.path.join(root, inside[0])
    # A link may lead back to a folder above.
    if os.path.realpath(only) in seen or not subfolders(only):
      return root
    root = only


def _splits(root: bytes) -> dict[str, bytes]:
  """The name of each split's folder; empty if there are no splits.

  A class may be called "test" too: its folder holds images, not folders.
  Raises ValueError as `find_layout` does.
  """
  splits: dict[str, bytes] = {}
  flat = []
  for name in subfolders(root):
    split = split_named(name)
    if split is None:
      continue
    if not subfolders(os.path.join(root, name)):
      flat.append(name)
    elif split in splits:
      raise ValueError(
        f"{text(root)!r} has both {text(splits[split])!r} and {text(name)!r}, "
        f"which are names of the {split} split; keep one."
      )
    else:
      splits[split] = name
  if "train" not in splits and (splits or len(flat) > 1):
    names = " and ".join(text(name) for name in [*splits.values(), *flat])
    raise ValueError(
      f"{text(root)!r} has {names}, but no train folder that holds a folder "
      "for each class; add one."
    )
  return splits


def split_named(name: bytes) -> str | None:
  """The split that a folder's name stands for, or None."""
  return next((s for s, names in NAMES.items() if name.lower() in names), None)


def subfolders(folder: bytes) -> list[bytes]:
  """The folders in a folder, sorted, without hidden ones and by-products."""
  with os.scandir(folder) as entries:
    return sorted(e.name for e in entries if _visible(e.name) and is_folder(e))


def hidden_with_images(folder: bytes) -> list[bytes]:
  """The folders in a folder that begin with a dot and hold images, sorted."""
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
  """Whether an entry is a folder or a link to one, but not to itself."""
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
  above: tuple = (),
) -> Iterator[bytes]:
  """Yields the paths, from `folder` on, of the images at any depth, sorted.

  Memory holds one listing for each level of folders. `ignored` counts the files
  that are not images, which have other `endings` than `EXTENSIONS` or those
  given, in lower case; `above` has the folders to which a link may lead back.
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
  """Such as "30 .heic, 2 not images"; "" if nothing was ignored."""
  parts = []
  for kind in sorted(ignored, key=lambda kind: (kind[0] != ".", kind)):
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


def _count_loose(folder: bytes, ignored: Ignored) -> None:
  """Counts the files in a folder that should hold folders alone."""
  with os.scandir(folder) as entries:
    for entry in entries:
      if _visible(entry.name) and not is_folder(entry):
        ignored[_kind(entry) or "outside class folders"] += 1
