"""Finds the Parquet files in a folder, as in repositories of the Hub."""

import itertools
import os
from collections.abc import Iterable

from etils import epath

from vit_jax.data.reading.folders import EXTENSIONS, images_below, subfolders
from vit_jax.data.reading.split_names import split_named
from vit_jax.pack.records import TFDS_NAMES, split_of

_PARQUET = ".parquet"
_DATA = "data"
_LOOKED_AT = 64  # Entries of a folder that are looked at.

Files = dict[str, list[str]]
"""Paths of the files of each split, by TFDS's names."""


def parquet_files(folder: epath.Path, names: Iterable[str]) -> Files:
  """The Parquet files of each split; {} if the folder has none.

  `names` are those of the folder's entries. The files lie in the folder itself,
  in its folder `data`, in its only folder with Parquet files, or in a folder
  for each split. At an address, such as gs://, only the folder and its `data`
  are looked into. Raises ValueError if the files lie in several other folders.
  """
  names = sorted(names)
  here = [name for name in names if name.endswith(_PARQUET)]
  if here:
    return _files_by_split(folder, here)
  if "://" in os.fspath(folder):
    inside = folder / _DATA
    if _DATA not in names or not inside.is_dir():
      return {}
    return _files_by_split(inside, _parquet_in(inside))
  return _files_below(os.fspath(folder))


def _files_below(root: str) -> Files:
  """The Parquet files of each split in the folders of a local folder.

  It is {} if there are no such files, or if the folders that have them, or
  several others, hold images. Raises ValueError as `parquet_files` does.
  """
  folders = [os.fsdecode(name) for name in subfolders(os.fsencode(root))]
  holding = [n for n in folders if _holds_parquet(os.path.join(root, n))]
  if not holding:
    # The Hub converts data sets to files such as default/train/0000.parquet.
    if len(folders) != 1:
      return {}
    return _files_below(os.path.join(root, folders[0]))
  others = [name for name in folders if name not in holding]
  # A repository may have a folder of pictures, for its README.
  if _count_with_images(root, holding) or _count_with_images(root, others) > 1:
    return {}
  if _DATA in holding:
    holding = [_DATA]
  splits = {n: split_named(os.fsencode(n)) for n in holding}
  if all(splits.values()):
    files: Files = {}
    for name, split in splits.items():
      place = epath.Path(root) / name
      key = TFDS_NAMES.get(split or "", split or "")
      files.setdefault(key, []).extend(_paths(place, _parquet_in(place)))
    return files
  if len(holding) > 1:
    raise ValueError(
      f"{root} has Parquet files in the folders {', '.join(holding)}: give one "
      "of these."
    )
  place = epath.Path(root) / holding[0]
  return _files_by_split(place, _parquet_in(place))


def _files_by_split(folder: epath.Path, names: Iterable[str]) -> Files:
  """The paths of files in a folder, by the splits that their names tell."""
  files: Files = {}
  for name in names:
    files.setdefault(split_of(name), []).extend(_paths(folder, [name]))
  return files


def _paths(folder: epath.Path, names: Iterable[str]) -> list[str]:
  return [os.fspath(folder / name) for name in names]


def _parquet_in(folder: epath.Path) -> list[str]:
  """The names of the Parquet files in a folder, sorted."""
  names = (path.name for path in folder.iterdir())
  return sorted(name for name in names if name.endswith(_PARQUET))


def _holds_parquet(folder: str) -> bool:
  """Whether one of a folder's first entries is a Parquet file."""
  with os.scandir(folder) as entries:
    first = itertools.islice(entries, _LOOKED_AT)
    return any(entry.name.endswith(_PARQUET) for entry in first)


def _count_with_images(root: str, names: Iterable[str]) -> int:
  """How many of these folders hold images, as classes or splits do."""
  places = (os.fsencode(os.path.join(root, name)) for name in names)
  first = (
    next(images_below(place, endings=EXTENSIONS), None) for place in places
  )
  return sum(path is not None for path in first)
