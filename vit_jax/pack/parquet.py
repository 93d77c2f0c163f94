"""Reads Parquet files with image bytes, as the Hugging Face Hub ships them.

A row group is read as a whole, and the latest one stays in memory.
"""

import json
import os
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from etils import epath

from vit_jax.data.example import Example, Source, UnreadableImageError
from vit_jax.pack.records import Splits, numbered, split_of
from vit_jax.runtime.files import open_anywhere

_MOST_GROUP = 2**31  # Bytes of a row group, uncompressed.
_MOST_FOOTER = 2**26  # Bytes: 100,000 row groups.
_MOST_ROWS = 2**28


class ParquetImages(Source):
  """One split of Parquet files; fastest in the order of their row groups.

  `blocks` has the number of rows of each row group, in order.
  """

  def __init__(self, name: str, files: Sequence[str], columns: tuple[str, str]):
    self.name = name
    self.columns = columns
    self.class_names: tuple[str, ...] = ()
    self._groups: list[tuple[str, int]] = []
    blocks: list[int] = []
    for path in files:
      with open_anywhere(path) as file:
        metadata = _opened(file, path).metadata
      for group in range(metadata.num_row_groups):
        self._groups.append((path, group))
        blocks.append(metadata.row_group(group).num_rows)
    if sum(blocks) > _MOST_ROWS:  # Their labels are read into memory.
      raise ValueError(
        f"{files[0]} and its like claim {sum(blocks):,} rows, more than "
        f"{_MOST_ROWS:,}: pack a part of them at a time."
      )
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
    labels = []
    for path in dict.fromkeys(path for path, _ in self._groups):
      with open_anywhere(path) as file:
        table = _opened(file, path).read(columns=[self.columns[1]])
      labels.append(table[self.columns[1]].to_numpy())
    return np.concatenate(labels)

  def _table(self, group: int) -> pa.Table:
    if self._read is None or self._read[0] != group:
      path, number = self._groups[group]
      image, _ = self.columns
      with open_anywhere(path) as file:
        opened = _opened(file, path)
        stored = opened.metadata.row_group(number)
        names = _check_group(stored, self.columns, f"{path}, {number}")
        # Images that are equal, and stored once, stay so in memory.
        once = [name for name in names if _is_below(name, [image])]
        opened = pq.ParquetFile(
          file, metadata=opened.metadata, read_dictionary=once
        )
        self._read = group, opened.read_row_group(number, [*self.columns])
    return self._read[1]


def _opened(file: IO[bytes], path: str) -> pq.ParquetFile:
  """Opens a Parquet file; raises ValueError if its footer is too large."""
  end = file.seek(0, os.SEEK_END)
  file.seek(max(end - 8, 0))
  size = int.from_bytes(file.read(4), "little")
  magic = file.read(4)
  if magic == b"PAR1" and size > _MOST_FOOTER:
    raise ValueError(
      f"{path} is damaged: its footer takes {size:,} bytes, more than "
      f"{_MOST_FOOTER:,}."
    )
  return pq.ParquetFile(file)


def _check_group(
  group: pq.RowGroupMetaData, columns: Sequence[str], source: str
) -> list[str]:
  """The paths of these columns in a row group, such as "image.bytes".

  Raises ValueError if they take too much memory.
  """
  stored = [group.column(number) for number in range(group.num_columns)]
  taken = [c for c in stored if _is_below(c.path_in_schema, columns)]
  size = sum(column.total_uncompressed_size for column in taken)
  if size > _MOST_GROUP:
    raise ValueError(
      f"{source}: this row group takes {size:,} bytes of memory, more than "
      f"{_MOST_GROUP:,}; write the file again in smaller ones."
    )
  return [column.path_in_schema for column in taken]


def open_parquet(folder: epath.Path) -> Splits:
  """Opens the splits of a folder of Parquet files, by the files' names.

  Raises ValueError if a file is damaged, or its columns are not images and
  labels.
  """
  files: dict[str, list[str]] = {}
  for path in sorted(folder.iterdir()):
    if path.suffix == ".parquet":
      files.setdefault(split_of(path.name), []).append(str(path))
  first = next(iter(files.values()))[0]
  with open_anywhere(first) as file:
    try:
      schema = _opened(file, first).schema_arrow
    except pa.ArrowInvalid as error:
      raise ValueError(f"{folder}: {str(error).splitlines()[0]}") from error
  columns = _columns(folder, schema)
  splits: Any = {
    split: ParquetImages(f"{folder.name}, {split}", paths, columns)
    for split, paths in files.items()
  }
  labels = np.concatenate([source.labels() for source in splits.values()])
  least = labels.min()
  most = labels.max()
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


def _is_below(path: str, columns: Sequence[str]) -> bool:
  return any(f"{path}.".startswith(f"{column}.") for column in columns)


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
