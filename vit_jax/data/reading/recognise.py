"""Tells which kind of labels the images of a path have."""

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax.data.reading import cells
from vit_jax.data.reading.captions import CAPTIONS, captions_and_classes
from vit_jax.data.reading.column_roles import (
  LOOKED_AT,
  chosen_columns,
  label_candidates,
)
from vit_jax.data.reading.columns import (
  UNCERTAIN,
  as_bit,
  is_empty,
  plain,
  unknown_cells,
)
from vit_jax.data.reading.folders import holds_images, subfolders
from vit_jax.data.reading.labels import NONE, SINGLE, Labels
from vit_jax.data.reading.mask_folder import MASKS
from vit_jax.data.reading.masks import names as mask_names
from vit_jax.data.reading.masks.beside import NUMBERS as NUMBER_FILES
from vit_jax.data.reading.number_folder import PIXEL_NUMBERS, why_numbers
from vit_jax.data.reading.places import place_of
from vit_jax.data.reading.several import SEVERAL
from vit_jax.data.reading.tables import cells_of
from vit_jax.data.reading.targets import NUMBERS
from vit_jax.data.settings import DataSettings
from vit_jax.runtime.printable import first_of
from vit_jax.runtime.printable import printable_path as text

_MOST_ROWS = 1_000  # Rows of a file of labels that are looked at.
_LEAST = 10  # The fewest different whole numbers that may be no classes.
_COMMA = re.compile(r"[-+]?\d+,\d+")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+\.\d+")


Rows = Sequence[Mapping[str, Any]]


class Recognised(NamedTuple):
  """The kind of labels that data have, and the reason for thinking so.

  Attributes:
    labels: The kind of labels; `labels.NONE` for images without labels.
    why: The reason, in words that follow "as"; "" for classes.
    columns: The columns of labels that the settings have to name, if any.
  """

  labels: Labels
  why: str = ""
  columns: tuple[str, ...] = ()


def recognise_path(
  path: str, settings: DataSettings | None = None
) -> Recognised | None:
  """Recognises a folder or a file of labels; None for any other path.

  It is None for packed images too. Raises ValueError as `recognise_file` does.
  """
  place = place_of(path)
  if place is None or place.is_packed:
    return None
  return (
    recognise_file(path, settings) if place.is_file else recognise_folder(path)
  )


def recognise_folder(root: str) -> Recognised:
  """Recognises a folder: as classes, if it looks like nothing else."""
  base = os.fsencode(root)
  if not os.path.isdir(base):  # Opening it says what is wrong.
    return Recognised(SINGLE)
  names = subfolders(base)
  pair = mask_names.find_folders(base, names)
  if pair is not None and mask_names.can_be_read(base, pair):
    both = f"{text(pair.images)} and {text(pair.masks)}"
    if why := why_numbers(base):
      return Recognised(PIXEL_NUMBERS, f"it has {both}, {why}")
    return Recognised(MASKS, f"it has {both}")
  pair = mask_names.find_folders(base, names, NUMBER_FILES)
  if pair is not None and mask_names.can_be_read(base, pair, NUMBER_FILES):
    both = f"{text(pair.images)} and {text(pair.masks)}"
    return Recognised(PIXEL_NUMBERS, f"it has {both}")
  if not names and holds_images(base):
    return Recognised(NONE, "it holds images and no class folders")
  return Recognised(SINGLE)


def recognise_file(
  path: str, settings: DataSettings | None = None
) -> Recognised:
  """Recognises a file of labels, by its columns and its first rows.

  `settings` say where its images are, and may choose its columns. Raises
  ValueError, which names the line, if the file cannot be read as a table, or
  lacks a column of images or one that is chosen.
  """
  settings = settings or DataSettings(labels_file=path)
  first = [*itertools.islice(cells_of(path), _MOST_ROWS)]
  if not first:
    return Recognised(SINGLE)
  rows = [row.by_column for row in first]
  names = [*rows[0]]
  place = f"{path}, {first[0].place}"
  if settings.label_columns:
    chosen = chosen_columns(place, names, settings.label_columns)
    return _recognise_chosen(chosen, rows, settings)
  captions, classes = captions_and_classes(names)
  if captions and not classes:
    return Recognised(CAPTIONS, f"it has the column {captions[0]}")
  if classes:
    return _recognise_column(classes[0], rows)
  others = label_candidates(place, rows[:LOOKED_AT], settings)
  found = _recognise_chosen(others, rows, settings)
  # Several columns of classes are not named here: either each row has a single
  # 1, for which a run needs no names, or the user has to choose a column.
  if not found.why and len(others) > 1:
    return found
  return found._replace(columns=tuple(others))


def _recognise_chosen(
  names: Sequence[str], rows: Rows, settings: DataSettings
) -> Recognised:
  """Recognises the columns that have the labels."""
  if len(names) == 1:
    return _recognise_column(names[0], rows)
  return _recognise_flags(names, rows, settings) or _recognise_columns(
    names, rows
  )


def _recognise_column(name: str, rows: Rows) -> Recognised:
  """Recognises one column: several labels in a cell, numbers, or classes.

  Numbers are targets if some have fractions. They also are if a file of fewer
  than 1,000 rows has at least 10 different numbers, and on average fewer than
  two rows for each. Otherwise they are classes. Empty cells say nothing.
  """
  values = [row.get(name) for row in rows]
  values = [value for value in values if not is_empty(value)]
  for value in values:
    try:
      parts = cells.values_of(value, None)
    except ValueError:  # Reading the row for the run names its line.
      return Recognised(SINGLE)
    several = isinstance(parts, list)
    if isinstance(parts, str):
      several = any(mark in parts for mark in cells.BETWEEN)
    if several:
      return Recognised(SEVERAL, f"{name} has {value!r}")
  numbers = [*map(_number, values)]
  if None in numbers:
    return Recognised(SINGLE)
  fractions = [x for x in numbers if x is not None and x % 1]
  if fractions:
    return Recognised(NUMBERS, f"{name} has numbers such as {fractions[0]:g}")
  different = len({*numbers})
  if different >= _LEAST and 2 * different > len(rows) < _MOST_ROWS:
    why = f"{name} has {different:,} different numbers in {len(rows):,} rows"
    return Recognised(NUMBERS, why)
  return Recognised(SINGLE)


def _recognise_flags(
  names: Sequence[str], rows: Rows, settings: DataSettings
) -> Recognised | None:
  """Recognises columns of 0 and 1, whose cells may be empty or unknown.

  Returns None for other columns, or if a column has neither 0 nor 1. If each
  row has a single 1, the columns are classes.
  """
  if len(names) < 2:
    return None
  unknown = unknown_cells(settings.unknown) | {UNCERTAIN}
  table = [[row.get(name) for name in names] for row in rows]
  bits = [[as_bit(cell) for cell in row] for row in table]
  pairs = zip(itertools.chain(*table), itertools.chain(*bits), strict=True)
  undecided = [cell for cell, bit in pairs if bit is None]
  if not all(is_empty(cell) or plain(cell) in unknown for cell in undecided):
    return None
  for column in zip(*bits, strict=True):
    if all(bit is None for bit in column):
      return None
  if all(sum(bit or 0 for bit in row) == 1 for row in bits):
    return Recognised(SINGLE)
  why = (
    f"{first_of(names, 3)} are 0 or 1, and a row may have several 1s or none"
  )
  if undecided:
    why += "; cells may be unknown"
  return Recognised(SEVERAL, why)


def _recognise_columns(names: Sequence[str], rows: Rows) -> Recognised:
  """Recognises several columns: as numbers, or else as classes.

  Empty cells say nothing. If a column has only empty cells, all columns are
  classes.
  """
  columns = [[row.get(name) for row in rows] for name in names]
  known = [[*itertools.filterfalse(is_empty, cells)] for cells in columns]
  if len(names) < 2 or not all(known):
    return Recognised(SINGLE)
  if any(_number(cell) is None for cell in itertools.chain(*known)):
    return Recognised(SINGLE)
  return Recognised(NUMBERS, f"{first_of(names, 3)} have numbers")


def _number(value: Any) -> float | None:
  """The finite number in a cell, or None.

  It may have a decimal comma or marks for thousands, though
  `columns.read_number` may refuse these.
  """
  text = str(value).strip()
  if _COMMA.fullmatch(text):
    text = text.replace(",", ".")
  elif _THOUSANDS.fullmatch(text):
    text = text.replace(",", "")
  try:
    number = float(text)
  except ValueError:
    return None
  return number if abs(number) < float("inf") else None
