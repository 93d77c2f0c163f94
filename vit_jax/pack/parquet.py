"""Reads Parquet files with image bytes, as the Hugging Face Hub ships them.

A row group is read as a whole, and the latest one stays in memory.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vit_jax.data.example import Example, Source, UnreadableImageError
from vit_jax.pack.columns import class_names, columns_of
from vit_jax.pack.records import Splits, number_names
from vit_jax.runtime.files import open_anywhere
from vit_jax.runtime.printable import one_line, say

MOST_GROUP = 2**31  # Bytes of a row group, uncompressed.
_MOST_FOOTER = 2**26  # Bytes: 100,000 row groups.
MOST_ROWS = 2**28


class ParquetImages(Source):
  """One split of Parquet files; fastest in the order of their row groups.

  Raises ValueError if a file is damaged, or has no column of images.

  Attributes:
    columns: The names of the image column and of the class-number column.
    blocks: The number of rows of each row group, in order.
  """

  def __init__(self, name: str, files: Sequence[str], columns: tuple[str, str]):
    """Reads the footers of `files`, the paths; for `columns` see the class.

    Raises ValueError if a file is damaged or lacks the column of images, or if
    there are too many rows.
    """
    self.name = name
    self.columns = columns
    self.class_names: tuple[str, ...] = ()
    self._groups: list[tuple[str, int]] = []
    blocks: list[int] = []
    for path in files:
      schema, metadata = _read_footer(path)
      if columns[0] not in schema.names:
        raise ValueError(
          f"{path} has no column {columns[0]!r}, which another file has: give "
          "the columns of images one name."
        )
      for group in range(metadata.num_row_groups):
        self._groups.append((path, group))
        blocks.append(metadata.row_group(group).num_rows)
    if sum(blocks) > MOST_ROWS:  # Their labels are read into memory.
      raise ValueError(
        f"{files[0]} and files like it claim {sum(blocks):,} rows, more than "
        f"{MOST_ROWS:,}: pack a part of them at a time."
      )
    self.blocks = np.array(blocks, np.int64)
    self._ends = np.cumsum(self.blocks)
    self._group_read = -1
    self._table_read: pa.Table | None = None

  def __len__(self) -> int:
    return int(self._ends[-1]) if len(self._ends) else 0

  def __getitem__(self, index: int) -> Example:
    """The example at `index`.

    Raises UnreadableImageError if its row has no bytes of an image, and
    ValueError as `_table` does.
    """
    group = int(np.searchsorted(self._ends, index, "right"))
    row = index - int(self._ends[group] - self.blocks[group])
    table = self._table(group)
    image, label = (table[column][row].as_py() for column in self.columns)
    is_struct = isinstance(image, dict)
    encoded = image["bytes"] if is_struct else image
    name = f"{self._groups[group][0]}, row group {group}, row {row}"
    if not encoded:
      path = image.get("path") if is_struct else None
      alone = f", only the path {path!r}" if path else ""
      raise UnreadableImageError(f"{name}: there are no bytes{alone}.")
    return {"image": encoded, "label": int(label), "id": name}

  def labels(self) -> np.ndarray | None:
    """All labels, (N,), read without the images; None if there are none at all.

    There are none if no file has the column, or if all cells are empty or hold
    -1, as in the Hub's files of a test split. Otherwise raises ValueError,
    which names the row, if a cell is empty.
    """
    column = self.columns[1]
    read = [*self._read_labels()]
    if all((labels[~empty] == -1).all() for _, labels, empty in read):
      return None
    for path, _, empty in read:
      if empty.any():
        raise ValueError(
          f"{path}: row {empty.argmax()} has no label, as its cell of the "
          f"column {column!r} is empty; images without a label cannot be "
          "packed."
        )
    return np.concatenate([labels for _, labels, _ in read])

  def _read_labels(self) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields each file's path, its labels, (n,), and which of them are missing.

    Raises ValueError if a column of labels does not hold whole numbers, or a
    file is damaged.
    """
    name = self.columns[1]
    for path in dict.fromkeys(path for path, _ in self._groups):
      with open_anywhere(path) as file, _naming_file(path):
        opened = _open(file, path)
        if name not in opened.schema_arrow.names:
          rows = opened.metadata.num_rows
          yield path, np.zeros(rows, np.int64), np.ones(rows, bool)
          continue
        column = opened.read(columns=[name])[name]
      kind = column.type
      if not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise ValueError(
          f"{path}: the column {name!r} holds {kind}, not class numbers: "
          "--label_column chooses another."
        )
      empty = column.is_null().to_numpy()
      if pa.types.is_null(kind):
        column = pa.chunked_array([pa.nulls(len(column), pa.int64())])
      yield path, column.fill_null(0).to_numpy(), empty

  def _table(self, group: int) -> pa.Table:
    """The rows of a row group, which stay in memory until another is read.

    Raises ValueError if the group is damaged or too large.
    """
    if self._table_read is None or self._group_read != group:
      path, number = self._groups[group]
      image, _ = self.columns
      with open_anywhere(path) as file, _naming_file(path):
        opened = _open(file, path)
        stored = opened.metadata.row_group(number)
        names = _check_group(stored, self.columns, f"{path}, {number}")
        # Equal images that are stored once are kept once in memory as well.
        once = [name for name in names if _is_below(name, [image])]
        opened = pq.ParquetFile(
          file, metadata=opened.metadata, read_dictionary=once
        )
        self._table_read = opened.read_row_group(number, [*self.columns])
        self._group_read = group
    return self._table_read


def _open(file: IO[bytes], path: str) -> pq.ParquetFile:
  """Opens a Parquet file.

  Raises ValueError if its footer is too large, and pyarrow's errors if the file
  is damaged.
  """
  end = file.seek(0, os.SEEK_END)
  file.seek(max(end - 8, 0))
  size = int.from_bytes(file.read(4), "little")
  magic = file.read(4)
  if magic == b"PAR1" and size > _MOST_FOOTER:
    raise ValueError(
      f"{path} is damaged: its footer takes {size:,} bytes, more than "
      f"{_MOST_FOOTER:,}; get it again."
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
  if size > MOST_GROUP:
    raise ValueError(
      f"{source}: this row group takes {size:,} bytes of memory, more than "
      f"{MOST_GROUP:,}; write the file again in smaller ones."
    )
  return [column.path_in_schema for column in taken]


def open_parquet(
  files: Mapping[str, list[str]],
  name: str,
  label_column: str | None = None,
  older: bool = False,
) -> Splits:
  """Opens the splits of Parquet files; `files` has the paths of each split.

  `name` is that of their folder; for the other arguments see `columns_of`. A
  split of which no image has a label is left out, and a line says so. Raises
  ValueError if a file is damaged, or its columns are not images and labels.
  """
  schema, _ = _read_footer(files.get("train", next(iter(files.values())))[0])
  columns = columns_of(schema, name, label_column, older)
  splits: dict[str, Any] = {}
  labels = []
  for split, paths in files.items():
    source = ParquetImages(f"{os.path.basename(name)}, {split}", paths, columns)
    of_split = source.labels()
    if of_split is not None:
      labels.append(of_split)
      splits[split] = source
    elif split == "train" or len(files) == 1:
      raise ValueError(
        f"{name}: no image of the split {split} has a label in the column "
        f"{columns[1]!r}; images without a label cannot be packed."
      )
    else:
      say(
        f"{name}: the split {split} is left out, as none of its "
        f"{len(source):,} images has a label."
      )
  names = _checked_names(
    name, class_names(schema, columns[1]), columns[1], labels
  )
  for source in splits.values():
    source.class_names = tuple(names)
  return splits


def _checked_names(
  source: str, names: list[str], column: str, labels: Sequence[np.ndarray]
) -> list[str]:
  """The names of the classes; without `names`, their numbers.

  Raises ValueError for a label without a name.
  """
  least = min(int(of_split.min()) for of_split in labels)
  most = max(int(of_split.max()) for of_split in labels)
  if not names and most >= 0:
    count = sum(map(len, labels))
    names = number_names(most, count, f"{source}: {column!r}")
  if not 0 <= least <= most < len(names):
    raise ValueError(
      f"{source}: column {column!r} holds {least} to {most}, and there are "
      f"{len(names)} classes; images without a label cannot be packed."
    )
  return names


def _read_footer(path: str) -> tuple[pa.Schema, pq.FileMetaData]:
  """A file's columns and its footer; raises ValueError if it is damaged."""
  with open_anywhere(path) as file, _naming_file(path):
    opened = _open(file, path)
    return opened.schema_arrow, opened.metadata


@contextlib.contextmanager
def _naming_file(path: str) -> Iterator[None]:
  """Turns the library's errors on a damaged file into a ValueError.

  The ValueError names the file.
  """
  try:
    yield
  except (pa.ArrowException, OSError) as error:
    if isinstance(error, OSError) and error.errno is not None:
      raise  # It is an error of the disk, not of the file.
    raise ValueError(
      f"{path} is damaged ({one_line(error)}): get it again."
    ) from error


def _is_below(path: str, columns: Sequence[str]) -> bool:
  """Whether the path of a stored column is one of these columns, or in one."""
  return any(f"{path}.".startswith(f"{column}.") for column in columns)
