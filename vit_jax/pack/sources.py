"""Opens the splits of a source that is to be packed, whatever its form."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

from etils import epath

from vit_jax.data.example import Example, Source
from vit_jax.data.reading import image_folder
from vit_jax.data.reading.folders import EXTENSIONS, is_byproduct
from vit_jax.data.reading.layouts import surest_splits
from vit_jax.data.reading.split_names import likely_splits
from vit_jax.data.reading.tables import advising
from vit_jax.data.settings import LABEL_FILES, DataSettings
from vit_jax.pack import captioned
from vit_jax.pack.records import TFDS_NAMES, Listing, Records, Splits
from vit_jax.pack.repository import Files, parquet_files
from vit_jax.runtime import extras

# The sources for which an option has an effect.
_FOR = {
  "label_column": "Parquet files",
  "data_dir": "tfds:NAME",
  "outside": "a file of labels",
  "labels": "a folder of .tar files",
}
_READERS = 16  # Requests to a bucket at the same time.
_ONE_CLASS = (
  "a packed image has one class; vit_jax train reads several labels from the "
  "table itself"
)
# Patterns of the advice, in errors on a table, to set keys of a configuration,
# each with the advice that takes its place.
_WITHOUT_KEYS = {
  r"Name the one to learn, as in .*": (
    "Rename the column of the classes to label."
  ),
  r"Several labels of an image, of which .*": f"{_ONE_CLASS.capitalize()}.",
  r"data\.task=multilabel takes any number": _ONE_CLASS,
  r"--config\.data\.root gives another, and .*": (
    "rename the column of the images to file."
  ),
  r"set --config\.data\.root=.*": "write the names with this folder.",
  r"choose one by --config\.data\.root=.*": "write the names with one of them.",
  r"--config\.data\.root is the folder from which names are read": (
    "names are read from the folder of the table on"
  ),
  r"set data\.root to a folder above it.*": (
    "if you trust the file, add --outside."
  ),
  r"of the images, and give that folder as --config\.data\.root": (
    "of the table"
  ),
}
_ENDINGS = tuple(ending.decode() for ending in EXTENSIONS)


def open_sources(
  source: str,
  labels: str | None = None,
  data_dir: str | None = None,
  outside: bool = False,
  held_out: Mapping[str, Any] = MappingProxyType({}),
  label_column: str | None = None,
  older: bool = False,
) -> Splits:
  """Opens the splits of a source, by TFDS's names: train, validation, test.

  `vit_jax.pack` lists the sources. `labels` are ImageNet's validation labels,
  or the names of WebDataset's classes; TFDS keeps its data sets in `data_dir`;
  with `outside`, a file of labels may name images outside of its folder;
  `held_out` has the settings of `DataSettings` that choose the images to hold
  out; `label_column` is the column of classes in Parquet files; and `older`
  says that a packing was begun, whose rule for that column may be an earlier
  one (see `columns.columns_of`). Raises ValueError if the source holds no
  labelled images, or is not there, and for an option of other sources.
  """
  folder = epath.Path(source).expanduser()
  is_prepared = source.startswith("tfds:")
  is_folder = not is_prepared and folder.is_dir()
  names = _visible(folder) if is_folder else []
  if not (is_prepared or is_folder or folder.is_file()):
    raise ValueError(f"there is no folder or file {source!r} to pack.")
  files = _parquet_files(folder, names) if is_folder else {}
  options = {
    "label_column": (label_column, bool(files)),
    "data_dir": (data_dir, is_prepared),
    "outside": (outside, not (is_prepared or is_folder)),
    "labels": (labels, _has_ending(names, ".tar") and not files),
  }
  for name, (value, has_effect) in options.items():
    if value and not has_effect:
      raise ValueError(
        f"--{name}={value} is for {_FOR[name]}, and {source!r} is none: leave "
        "it out."
      )
  if files:
    parquet = extras.load("vit_jax.pack.parquet", "tfds")
    return parquet.open_parquet(files, str(folder), label_column, older)
  if is_prepared:
    from vit_jax.data.reading.tfds.source import open_all

    return open_all(source.removeprefix("tfds:"), data_dir)
  if not is_folder:
    if not source.lower().endswith(LABEL_FILES):
      raise ValueError(
        f"{source!r} is a file, and only CSV and JSONL files of labels can be "
        "packed; for others, give the folder that holds them."
      )
    settings = DataSettings(labels_file=source, outside=outside, **held_out)
    with advising(_WITHOUT_KEYS):
      return _by_tfds_names(captioned.open_rows(settings))
  if _has_ending(names, ".tar"):
    from vit_jax.pack import tars

    return tars.open_tars(folder, labels)
  if "://" in source:
    return open_bucket(source)
  settings = DataSettings(root=source, **held_out)
  return _by_tfds_names(image_folder.open_folder(settings))


def _visible(folder: epath.Path) -> list[str]:
  """Names in a folder, without hidden ones and by-products."""
  names = (path.name for path in folder.iterdir())
  return [name for name in names if not is_byproduct(os.fsencode(name))]


def _has_ending(names: Sequence[str], ending: str) -> bool:
  """Whether one of the names has this ending."""
  return any(name.endswith(ending) for name in names)


def _parquet_files(folder: epath.Path, names: Sequence[str]) -> Files:
  """The Parquet files of each split; {} if there are .tar files instead.

  Raises ValueError as `parquet_files` does.
  """
  if _has_ending(names, ".tar") and not _has_ending(names, ".parquet"):
    return {}
  return parquet_files(folder, names)


def _by_tfds_names(splits: dict[str, Any]) -> Splits:
  """Names splits as TFDS does; "eval" is left out if it is the test split."""
  if splits["eval"].split == "test":
    del splits["eval"]
  return {TFDS_NAMES.get(name, name): s for name, s in splits.items()}


class BucketImages(Records):
  """One split of the images in a bucket; each is read whole, by one request."""

  def __getitem__(self, index: int) -> Any:
    return self.read([index])[0]

  def read(self, indices: Sequence[int]) -> list[Example]:
    """Returns several examples, which are read at the same time."""
    with ThreadPoolExecutor(_READERS) as threads:
      return [*threads.map(super().__getitem__, indices)]


def open_bucket(address: str) -> Splits:
  """Lists the images of a bucket's folder, a thousand names by each request.

  The folder holds class folders, or `train` and `validation` or `test` (see
  `split_names.likely_splits`) that hold them. Nothing is held out of a folder
  without splits: choose a part when you train, as in
  `--config.data.train_split`. Raises ValueError if there is no train folder
  beside other splits, there are fewer than two classes, or another split has a
  class that the train folder lacks.
  """
  system, root = extras.load("fsspec.core", "gcs").url_to_fs(address)
  paths = {
    os.fsencode(_base_name(path)): path for path in _folders(system, root)
  }

  def inside(name: bytes) -> list[bytes]:
    return [os.fsencode(_base_name(p)) for p in _folders(system, paths[name])]

  chosen = surest_splits(os.fsencode(address), likely_splits([*paths], inside))
  parts = {TFDS_NAMES.get(s, s): paths[name] for s, name in chosen.items()}
  parts = parts or {"train": root}
  if "train" not in parts:
    raise ValueError(
      f"{address} has no train folder beside its other splits: add one."
    )
  classes = _folders(system, parts["train"])
  names = [_base_name(path) for path in classes]
  if len(names) < 2:
    raise ValueError(
      f"{address} has {len(names)} class folders, and two or more are needed: "
      "put the images of each class into a folder of its own."
    )
  opened: dict[str, Source] = {}
  for split, path in parts.items():
    if strange := {*map(_base_name, _folders(system, path))} - {*names}:
      raise ValueError(
        f"{path} has the class {min(strange)!r}, which the train folder lacks; "
        "add it there or remove it here."
      )
    listing = _listing(system, path, names)
    opened[split] = BucketImages(f"{_base_name(root)}, {split}", names, listing)
  return opened


def _listing(system: Any, folder: str, names: Sequence[str]) -> Listing:
  """The images in the class folders of these names in a bucket's folder."""
  listing = Listing()
  for label, name in enumerate(names):
    inside = f"{folder}/{name}"
    files = system.find(inside, detail=True) if system.isdir(inside) else {}
    for path, about in sorted(files.items()):
      below = path.removeprefix(f"{inside}/")
      if path.lower().endswith(_ENDINGS) and not is_byproduct(below.encode()):
        listing.files.append(system.unstrip_protocol(path))
        listing.add(start=0, size=about["size"], label=label, name=path)
  return listing


def _folders(system: Any, path: str) -> list[str]:
  """The paths of the folders in a bucket's folder, without by-products."""
  entries = system.ls(path, detail=True)
  paths = [e["name"].rstrip("/") for e in entries if e["type"] == "directory"]
  return sorted(p for p in paths if not is_byproduct(_base_name(p).encode()))


def _base_name(path: str) -> str:
  """The last part of a path."""
  return path.rstrip("/").rpartition("/")[2]
