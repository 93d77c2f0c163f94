"""Several labels of an image: 1 for each that it has, and 0 for others.

A label that nobody knows is NaN. Losses and metrics leave such labels out.
"""

import dataclasses
import functools
import operator
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.data.batch import ArraySpec
from vit_jax.data.reading.cells import (
  BETWEEN,
  MARKS,
  Encode,
  Row,
  find_separator,
  parts_of,
)
from vit_jax.data.reading.class_rows import finder_of_places, index_names
from vit_jax.data.reading.columns import (
  UNCERTAIN,
  UNKNOWN,
  as_bit,
  in_columns,
  is_empty,
  plain,
  read_bit,
  unknown_cells,
)
from vit_jax.data.reading.image_files import name_warnings
from vit_jax.data.reading.labels import Labels, Names
from vit_jax.data.reading.tables import fail, list_columns
from vit_jax.data.settings import DataSettings
from vit_jax.runtime.printable import printable

_MEANING = {"ignore": UNKNOWN, "positive": 1, "negative": 0}
"""The value of an uncertain cell, by `data.uncertain`."""


class SeveralLabels(Labels):
  """For each name, 1 if an example has that label, 0 if not, NaN if unknown."""

  records = ""
  may_be_several = True
  further_rows = "name an image again add their labels to it"
  singular = "label"
  heading = "label"
  copies_alike = "twice with the same labels"
  copies_unlike = "there with different labels"

  def spec(self, count: int) -> ArraySpec:
    return ArraySpec((count,), np.float32)

  def fit(
    self, columns: Sequence[str], rows: Sequence[Row]
  ) -> tuple[Names, Encode]:
    """As `Labels.fit`, for a column of each label, or one column of lists."""
    if len(columns) > 1:
      return tuple(columns), functools.partial(_flags, columns)
    read = functools.partial(_read_labels, columns[0])
    names, places = index_names(read, rows, least=1)
    return names, functools.partial(_multi_hot, places, len(names))

  def fit_to(
    self, columns: Sequence[str], rows: Sequence[Row], names: Names
  ) -> Encode:
    """As `Labels.fit_to`; a single column may have some of the labels alone.

    The function then raises ValueError for a label that is not among `names`.
    """
    if len(columns) > 1:
      return super().fit_to(columns, rows, names)
    read = functools.partial(_read_labels, columns[0])
    advice = functools.partial(_separator_advice, names)
    places = finder_of_places(read, names, advice)
    return functools.partial(_multi_hot, places, len(names))

  def guess_columns(self, first: Mapping[str, Any]) -> Sequence[str]:
    """As `Labels.guess_columns`; all cells but one may also be empty or -1."""
    bits = [as_bit(value) is not None for value in first.values()]
    unsaid = [
      is_empty(value) or plain(value) == UNCERTAIN for value in first.values()
    ]
    are_flags = all(map(operator.or_, bits, unsaid)) and any(bits)
    return [*first] if are_flags and len(first) > 1 else ()

  def interpret(
    self, columns: Sequence[str], rows: Sequence[Row], settings: DataSettings
  ) -> tuple[Sequence[Row], list[str]]:
    """Replaces empty, uncertain and unknown cells by 0, 1 or `UNKNOWN`.

    Other cells, and a single column of lists, stay as they are. A row without a
    known label is left out. Raises ValueError if all rows are left out.
    """
    if len(columns) == 1:
      return super().interpret(columns, rows, settings)
    cells = [*zip(*(row.values for row in rows), strict=True)]
    # Training rows decide: the zeros of others may be another annotator's.
    train = [row.values for row in rows if row.split in (None, "train")]
    deciding = [*zip(*train, strict=True)] or cells
    meanings = [_Meaning.of(column, settings) for column in deciding]
    read = [*map(_Meaning.read, meanings, cells)]
    values_of_rows = zip(*read, strict=True)
    known = [
      dataclasses.replace(row, values=values)
      for row, values in zip(rows, values_of_rows, strict=True)
      if not all(value is UNKNOWN for value in values)
    ]
    if not known:
      fail(rows[0].place, "and no other row says whether an image has a label")
    lines = _empty_cell_lines(columns, cells, meanings)
    lines += _unknown_cell_lines(columns, read)
    if left_out := len(rows) - len(known):
      lines.append(
        f"{left_out:,} of {len(rows):,} rows are left out, as nothing is known "
        "of their labels."
      )
    return known, lines

  def merge(self, before: Row, row: Row) -> Row:
    """`before`, with the labels of both rows."""
    if before.values == row.values:
      return before
    if len(row.values) == 1:
      values = [[*_parts(before), *_parts(row)]]
    else:
      pairs = zip(before.values, row.values, strict=True)
      values = [_merge_cells(ours, theirs) for ours, theirs in pairs]
    return dataclasses.replace(before, values=values)

  def remarks(self, columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """A line on images without a label."""
    if len(columns) > 1:
      return []
    none = sum(row.values[0] == "" for row in rows)
    line = f"{none:,} of {len(rows):,} images have no label: their cells of"
    return [f"{line} {columns[0]!r} are empty."] if none else []

  def check(self, path: str, names: Sequence[str], labels: np.ndarray) -> None:
    """Raises ValueError for a label of which no training row says anything."""
    unknown = np.isnan(labels).all(axis=0)
    if unknown.any():
      raise ValueError(
        f"data.label_columns has {names[int(unknown.argmax())]}, and no "
        f"training row of {path} says whether an image has it: leave it out, "
        "or set data.empty_cells=absent if an empty cell means that it has not."
      )

  def warnings(self, names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    return [
      *_separator_line(names, rows),
      *_one_answer_lines(names, rows),
      *name_warnings(names),
    ]

  def overview(self, summaries: np.ndarray, names: Names) -> dict[str, str]:
    """How many images have each label, and how many have none, if any."""
    counts = (summaries > 0).sum(axis=0)
    known = (~np.isnan(summaries)).sum(axis=0)
    cells = {}
    for name, count, num_known in zip(names, counts, known, strict=True):
      cells[name] = f"{count:,}"
      if num_known < len(summaries):
        cells[name] += f" of {num_known:,} known"
    none = int((summaries <= 0).all(axis=1).sum())
    return cells | ({"(no label)": f"{none:,}"} if none else {})

  def spread(self, summaries: np.ndarray, names: Names) -> str:
    counts = (summaries > 0).sum(axis=0)
    return f"{counts.min():,} to {counts.max():,} images each"

  def label_text(self, label: np.ndarray, names: Names) -> str:
    return ", ".join(names[k] for k in np.flatnonzero(label > 0))

  def describe(self, label: Any, names: Sequence[str]) -> str:
    return self.label_text(np.asarray(label), tuple(names)) or "no label"


SEVERAL = SeveralLabels("labels")


@dataclasses.dataclass(frozen=True)
class _Meaning:
  """The meaning of the cells of a column of 0 and 1."""

  unknown: frozenset[str]
  uncertain: float | None  # 0, 1 or UNKNOWN; None if the settings do not say.
  empty: float  # 0 or UNKNOWN.

  @classmethod
  def of(cls, cells: Sequence[Any], settings: DataSettings) -> "_Meaning":
    """The meaning of a column's cells, by the settings.

    If the settings do not tell, an empty cell is 0 if `cells`, those of the
    training rows, have a 1 and no 0; otherwise it is unknown.
    """
    unknown = unknown_cells(settings.unknown)
    uncertain = _MEANING.get(settings.uncertain or "")
    says = settings.empty_cells
    if says is None:
      bits = {*map(as_bit, cells)}
      says = "absent" if 1 in bits and 0 not in bits else "unknown"
    empty = UNKNOWN if says == "unknown" else 0
    return cls(unknown, uncertain, empty)

  def read(self, cells: Sequence[Any]) -> list[Any]:
    """The cells, with 0, 1 or UNKNOWN for those that are not plain bits.

    These are empty, uncertain or unknown cells; all others stay as they are.
    """
    return [*map(self._read, cells)]

  def _read(self, cell: Any) -> Any:
    """One cell, as `read` gives it."""
    text = plain(cell)
    if text in self.unknown:
      return UNKNOWN
    if text == UNCERTAIN and self.uncertain is not None:
      return self.uncertain
    return self.empty if is_empty(cell) else cell


def _empty_cell_lines(
  columns: Sequence[str],
  cells: Sequence[Sequence[Any]],
  meanings: Sequence[_Meaning],
) -> list[str]:
  """A line on empty cells that are taken for 0, if there are any."""
  empty = {
    name: sum(map(is_empty, column))
    for name, column, meaning in zip(columns, cells, meanings, strict=True)
    if meaning.empty is not UNKNOWN
  }
  total = sum(map(len, cells))
  return _count_lines(empty, total, "are empty and count as 0")


def _unknown_cell_lines(
  columns: Sequence[str], read: Sequence[Sequence[Any]]
) -> list[str]:
  """A line on cells that are left out, if there are any."""
  unknown = {
    name: sum(cell is UNKNOWN for cell in column)
    for name, column in zip(columns, read, strict=True)
  }
  total = sum(map(len, read))
  what = "do not say whether an image has the label, and are left out"
  return _count_lines(unknown, total, f"{what} of the loss and the metrics")


def _one_answer_lines(names: Sequence[str], rows: Sequence[Row]) -> list[str]:
  """Lines on labels that all training images have, or that none has.

  Images for which the label is unknown do not count. A single column of lists
  has no such lines.
  """
  if not rows or len(names) != len(rows[0].values) or len(names) == 1:
    return []
  columns = zip(*(row.values for row in rows), strict=True)
  bits = [{*map(as_bit, {*cells})} - {None} for cells in columns]
  lines = []
  for only, what in ((1, "is known to lack"), (0, "has")):
    said = [
      name for name, found in zip(names, bits, strict=True) if found == {only}
    ]
    if said:
      label = "label" if len(said) == 1 else "labels"
      lines.append(
        f"no training image {what} the {label} {list_columns(said)}: the model "
        "learns one answer for all images."
      )
  return lines


def _count_lines(counts: dict[str, int], total: int, what: str) -> list[str]:
  """A line on how many of `total` cells are as `what` says, by column.

  `counts` has these numbers; the list is empty if they are all 0.
  """
  if not any(counts.values()):
    return []
  each = [f"{name} {count:,}" for name, count in counts.items() if count]
  line = f"{sum(counts.values()):,} of {total:,} cells {what}"
  return [f"{line}: {list_columns(each)}."]


def _multi_hot(
  places: Callable[[Row], list[int]], count: int, rows: Sequence[Row]
) -> np.ndarray:
  """The labels of rows, uint8 (N, K), 1 at the `places` of each row."""
  labels = np.zeros((len(rows), count), np.uint8)
  for n, row in enumerate(rows):
    labels[n, places(row)] = 1
  return labels


def _flags(columns: Sequence[str], rows: Sequence[Row]) -> np.ndarray:
  """The labels of rows (N, K): uint8, or float32 if one is unknown (NaN)."""
  flags = in_columns(columns, functools.partial(_flag, columns, rows), rows)
  return flags if np.isnan(flags).any() else flags.astype(np.uint8)


def _flag(
  columns: Sequence[str], rows: Sequence[Row], row: Row, name: str, value: Any
) -> np.float32:
  """The label in a cell: 0, 1 or NaN. Raises ValueError for any other cell.

  `rows` are all rows of these columns, for the message.
  """
  if value is UNKNOWN:
    return np.float32(UNKNOWN)
  if plain(value) == UNCERTAIN:
    fail(
      row.place,
      f"has {name}={value!r}, an uncertain label, it seems: set "
      "--config.data.uncertain=ignore, positive or negative, or "
      "--config.data.unknown=-1",
    )
  if as_bit(value) is None and not is_empty(value):
    place = columns.index(name)
    advice = _word_advice(value, [row.values[place] for row in rows])
    return np.float32(read_bit(row, name, value, advice))
  return np.float32(read_bit(row, name, value))


def _word_advice(value: Any, cells: Sequence[Any]) -> str:
  """The end of a message on a word among the cells of a column of 0 and 1.

  Beside both 0 and 1, a word may mean that nobody knows. If the column has two
  words, they may stand for 0 and 1. Otherwise the message says both, as empty
  cells may stand for 0.
  """
  said = [cell for cell in cells if cell is not UNKNOWN and not is_empty(cell)]
  bits = {as_bit(cell) for cell in said} - {None}
  words = sorted({str(cell).strip() for cell in said if as_bit(cell) is None})
  unknown = f"--config.data.unknown={shlex.quote(str(value).strip())}"
  advice = f"; if it means that nobody knows, add {unknown}"
  if bits == {0, 1}:
    return advice
  write = "write 1 where an image has the label, and 0 where it has not"
  if len(words) == 2:
    return f": in place of {words[0]!r} and {words[1]!r}, {write}"
  return f": {write}{advice}"


def _merge_cells(ours: Any, theirs: Any) -> Any:
  """Merges the cells of two rows of an image.

  The result is 1 if either is 1, else 0 if either is 0, else UNKNOWN. Another
  value is kept, and refused later, unless a 1 of `theirs` replaces it.
  """
  if as_bit(theirs) == 0:
    return 0 if ours is UNKNOWN else ours
  return ours if theirs is UNKNOWN else theirs


def _read_labels(name: str, row: Row) -> list[str]:
  """The labels in a row's only cell; the list is empty for an empty cell.

  Raises ValueError unless the cell is a text, or a list of texts or numbers.
  """
  parts = _parts(row)
  if any(isinstance(part, list | dict | None) for part in parts):
    fail(
      row.place,
      f"has {name}={row.values[0]!r}, which is not a list of labels",
    )
  return [printable(str(part)) for part in parts if part != ""]


def _separator_advice(names: Sequence[str], text: str) -> str:
  """The end of a message on a text that is not among the labels' `names`.

  It says how to write the text if that holds several of them; else it is "".
  """
  for mark in MARKS:
    parts = parts_of(text, mark)
    if len(parts) > 1 and {*parts} <= {*names}:
      between = ";".join(parts)
      return f": write {between!r} in its place, with a ; between labels"
  return ""


def _parts(row: Row) -> list[Any]:
  """The labels in the only cell of a row; [None] if it is no text or list."""
  (value,) = row.values
  if isinstance(value, str):
    return parts_of(value, BETWEEN)
  return value if isinstance(value, list) else [None]


def _separator_line(names: Sequence[str], rows: Sequence[Row]) -> list[str]:
  """A line if names look like several labels with another separator.

  The list is empty otherwise, and where no separator is needed: for a column
  for each label, or cells that hold lists.
  """
  if not rows or len(rows[0].values) > 1:
    return []
  if any(isinstance(row.values[0], list) for row in rows):
    return []
  mark, combined = find_separator(names)
  if not combined and all(len(_parts(row)) <= 1 for row in rows):
    mark, combined = find_separator(names, of_one=True)
  if not combined:
    return []
  share = f"({len(combined):,} of {len(names):,} labels)"
  key = f"--config.data.label_separator={mark!r}"
  like = f"names such as {combined[0]!r} share parts with others {share}"
  return [f"{like}, and may each be several labels, which {key} separates."]
