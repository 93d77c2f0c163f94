"""Reads Parquet files with image bytes, as the Hugging Face Hub ships them.

A row group is read as a whole, and the one read last is kept.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from etils import epath

from vit_jax.data.example import Example, Source, UnreadableImageError
from vit_jax.pack.records import Splits, numbered, split_of


class ParquetImages(Source):
  """One split of Parquet files; fastest in the order of their row groups.

  `blocks` has the number of rows of each row group, in order.
  """

  def __init__(self, name: str, files: Sequence[str], columns: tuple[str, str]):
    self.name, self.columns = name, columns
    self.class_names: tuple[str, ...] = ()
    self._groups: list[tuple[str, int]] = []
    blocks: list[int] = []
    for path in files:
      with epath.Path(path).open("rb") as file:
        metadata = pq.ParquetFile(file).metadata
      for group in range(metadata.num_row_groups):
        self._groups.append((path, group))
        blocks.append(metadata.row_group(group).num_rows)
    self.blocks = np.array(blocks, np.int64)
    self._ends = np.cumsum(self.blocks)
    self._read: tuple[int, pa.Table] | None = None

  def __len__(self) -> int:
    return int(self._ends[-1]) if len(self._ends) else 0

  def __getitem__(self, index: int) -> Example:
    group = int(np.searchsorted(self._ends, index, "right"))
    row = index - int(self._ends[group] - self.blocks[group])
    table = self._table(group)
    image, label = (table[column][row].as_py() for column in self.columns)
    encoded = image["bytes"] if isinstance(image, dict) else image
    name = f"{self._groups[group][0]}, row group {group}, row {row}"
    if not encoded:
      raise UnreadableImageError(f"{name}: there are no bytes.")
    return {"image": encoded, "label": int(label), "id": name}

  def labels(self) -> np.ndarray:
    """All labels, read without the images."""
    found = []
    for path in dict.fromkeys(path for path, _ in self._groups):
      with epath.Path(path).open("rb") as file:
        table = pq.read_table(file, columns=[self.columns[1]])
      found.append(table[self.columns[1]].to_numpy())
    return np.concatenate(found)

  def _table(self, group: int) -> pa.Table:
    if self._read is None or self._read[0] != group:
      path, number = self._groups[group]
      with epath.Path(path).open("rb") as file:
        opened = pq.ParquetFile(file)
        self._read = group, opened.read_row_group(number, [*self.columns])
    return self._read[1]


def open_parquet(folder: epath.Path) -> Splits:
  """Opens the splits of a folder of Parquet files, by the files' names."""
  files: dict[str, list[str]] = {}
  for path in sorted(folder.iterdir()):
    if path.suffix == ".parquet":
      files.setdefault(split_of(path.name), []).append(str(path))
  with epath.Path(next(iter(files.values()))[0]).open("rb") as file:
    try:
      schema = pq.ParquetFile(file).schema_arrow
    except pa.ArrowInvalid as error:
      raise ValueError(f"{folder}: {str(error).splitlines()[0]}") from error
  columns = _columns(folder, schema)
  splits: Any = {
    split: ParquetImages(f"{folder.name}, {split}", paths, columns)
    for split, paths in files.items()
  }
  labels = np.concatenate([source.labels() for source in splits.values()])
  least, most = labels.min(), labels.max()
  names = _class_names(schema, columns[1])
  if not names and most >= 0:  # An empty cell makes it NaN.
    names = numbered(int(most), len(labels), f"{folder}: {columns[1]!r}")
  if not 0 <= least <= most < len(names):
    raise ValueError(
      f"{folder}: column {columns[1]!r} holds {least} to {most}, and there are "
      f"{len(names)} classes; images without a label cannot be packed."
    )
  for source in splits.values():
    source.class_names = tuple(names)
  return splits


def _columns(folder: epath.Path, schema: pa.Schema) -> tuple[str, str]:
  """Names of the column of images and of the column of class numbers."""

  def is_image(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
      return kind.get_field_index("bytes") >= 0
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)

  images = [field.name for field in schema if is_image(field.type)]
  labels = [f.name for f in schema if pa.types.is_integer(f.type)]
  labels = [n for n in labels if n in ("label", "labels", "cls")] or labels
  if len(images) != 1 or len(labels) != 1:
    raise ValueError(
      f"{folder} has the columns {', '.join(schema.names)}; there must be one "
      "of image bytes and one of class numbers."
    )
  return images[0], labels[0]


def _class_names(schema: pa.Schema, label: str) -> list[str]:
  """Names of the classes, from what the Hub writes into the files."""
  text = (schema.metadata or {}).get(b"huggingface", b"{}")
  try:
    features: Any = json.loads(text)["info"]["features"]
    return [str(name) for name in features[label]["names"]]
  except (ValueError, KeyError, TypeError):
    return []
