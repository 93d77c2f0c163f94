"""Tells the split of each image of `vit_jax similar` by the folders' names."""

import collections
import functools
import os
from collections.abc import Collection, Sequence

from vit_jax.data.reading.folders import subfolders
from vit_jax.data.reading.layouts import descend, folders_in
from vit_jax.data.reading.split_names import likely_splits


def splits_of(files: Sequence[str], folders: Sequence[str]) -> list[str]:
  """The split of each file, or "".

  Folders are taken for splits by their names, as for images to train on: those
  inside the given folders, the given folders themselves, and their parents if
  there are several.

  Args:
    files: Absolute paths of images.
    folders: Folders, and names or patterns of files.
  """
  paths = {os.path.abspath(os.path.expanduser(name)) for name in folders}
  tops = {os.fsencode(path) for path in paths if os.path.isdir(path)}
  places = {os.fsencode(os.path.dirname(file)) for file in files}
  tops |= {place for place in places if not _is_below(place, tops)}
  splits = _above(tops)
  for top in tops:
    root, _ = descend(top)
    splits |= _split_folders(root, subfolders(root))

  @functools.cache
  def split_of(folder: bytes) -> str:
    """The split of a folder, or else of the nearest one above it."""
    above = os.path.dirname(folder)
    if folder in splits or above == folder:
      return splits.get(folder, "")
    return split_of(above)

  return [split_of(os.fsencode(os.path.dirname(file))) for file in files]


def _is_below(place: bytes, tops: Collection[bytes]) -> bool:
  """Whether a folder is one of `tops` or lies inside one."""
  while place not in tops:
    above = os.path.dirname(place)
    if above == place:
      return False
    place = above
  return True


def _above(tops: Collection[bytes]) -> dict[bytes, str]:
  """The split of each of these folders and of their parents.

  Folders whose names are not those of splits are left out.
  """
  splits: dict[bytes, str] = {}
  by_parent: dict[bytes, list[bytes]] = collections.defaultdict(list)
  for place in {*tops, *map(os.path.dirname, tops)}:
    by_parent[os.path.dirname(place)].append(place)
  for root, places in by_parent.items():
    # A single folder above all images does not divide them into splits.
    if len(places) > 1 or places[0] in tops:
      splits |= _split_folders(root, sorted(map(os.path.basename, places)))
  return splits


def _split_folders(root: bytes, names: Sequence[bytes]) -> dict[bytes, str]:
  """The split of each folder in `root` whose name is that of a split."""
  folders = likely_splits(names, functools.partial(folders_in, root))
  return {os.path.join(root, one.name): one.split for one in folders}
