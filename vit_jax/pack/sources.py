"""Opens what is to be packed: the splits of a source, whatever its form."""

import pathlib
from typing import Any

from etils import epath

from vit_jax.data.reading import image_folder, label_file
from vit_jax.data.settings import DataSettings
from vit_jax.pack.splits import TFDS_NAMES, Splits
from vit_jax.runtime import extras


def open_sources(
  source: str, labels: str | None = None, data_dir: str | None = None
) -> Splits:
  """Opens the splits of a source, by TFDS's names: train, validation, test.

  Args:
    source: See `vit_jax.pack`.
    labels: ImageNet's validation labels, or the names of WebDataset's classes.
    data_dir: Where TFDS keeps its data sets.

  Raises:
    ValueError: if the source holds no labelled images, or is not there.
  """
  if source.startswith("tfds:"):
    from vit_jax.data.reading.tfds_source import open_all

    return open_all(source.removeprefix("tfds:"), data_dir)
  folder = epath.Path(source).expanduser()
  if folder.is_file():
    return _labelled(source)
  if not folder.is_dir():
    raise ValueError(f"there is no folder or file {source!r} to pack.")
  endings = {path.suffix for path in folder.iterdir()}
  if ".parquet" in endings:
    return extras.load("vit_jax.pack.parquet", "tfds").open_parquet(folder)
  if ".tar" in endings:
    from vit_jax.pack import tars

    return tars.open_tars(folder, labels)
  if "://" in source:
    from vit_jax.pack.bucket_folder import open_bucket

    return open_bucket(source)
  return _named(image_folder.open_folder(DataSettings(root=source)))


def _labelled(source: str) -> Splits:
  if not source.endswith((".csv", ".tsv", ".jsonl")):
    raise ValueError(
      f"{source!r} is a file, and only CSV and JSONL files of labels can be "
      "packed; for others, give the folder that holds them."
    )
  root = str(pathlib.Path(source).parent)
  settings = DataSettings(root=root, labels_file=source)
  return _named(label_file.open_folder(settings))


def _named(splits: dict[str, Any]) -> Splits:
  """Names splits as TFDS does; "eval" is left out if it is the test split."""
  if splits["eval"].split == "test":
    del splits["eval"]
  return {TFDS_NAMES.get(name, name): s for name, s in splits.items()}
