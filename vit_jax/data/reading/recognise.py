"""Tells what can be learned from the images of a path."""

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax.data.reading import cells
from vit_jax.data.reading.captions import CAPTIONS, captions_and_classes
from vit_jax.data.reading.folders import holds_images, subfolders
from vit_jax.data.reading.labels import BETWEEN, NONE, SINGLE, Labels
from vit_jax.data.reading.mask_folder import MASKS
from vit_jax.data.reading.masks import names as mask_names
from vit_jax.data.reading.masks.beside import NUMBERS as NUMBER_FILES
from vit_jax.data.reading.number_folder import PIXEL_NUMBERS, why_numbers
from vit_jax.data.reading.places import place_of
from vit_jax.data.reading.several import SEVERAL
from vit_jax.data.reading.tables import cells_of, column, column_of_files
from vit_jax.data.reading.targets import NUMBERS
from vit_jax.runtime.printable import printable_path as text

_LOOKED_AT = 1_000  # Rows of a file of labels.
_SPLIT = "split"


class Recognised(NamedTuple):
  """The labels that data have, and the reason for thinking so.

  Attributes:
    labels: The kind of labels; `labels.NONE` for images without any.
    why: The reason, in words that follow "as"; "" for classes.
    columns: The columns of labels that have to be named, if any.
  """

  labels: Labels
  why: str = ""
  columns: tuple[str, ...] = ()


def of_path(path: str) -> Recognised | None:
  """Recognises a folder or a file of labels; None for what is neither.

  Packed images are neither. Raises ValueError as `of_file` does.
  """
  place = place_of(path)
  if place is None or place.is_packed:
    return None
  return of_file(path) if place.is_file else of_folder(path)


def of_folder(root: str) -> Recognised:
  """Recognises a folder: as classes, if it looks like nothing else."""
  base = os.fsencode(root)
  if not os.path.isdir(base):  # Opening it says what is wrong.
    return Recognised(SINGLE)
  names = subfolders(base)
  pair = mask_names.pair(base, names)
  if pair is not None and mask_names.are_read(base, pair):
    both = f"{text(pair.images)} and {text(pair.masks)}"
    if why := why_numbers(base):
      return Recognised(PIXEL_NUMBERS, f"it has {both}, {why}")
    return Recognised(MASKS, f"it has {both}")
  pair = mask_names.pair(base, names, NUMBER_FILES)
  if pair is not None and mask_names.are_read(base, pair, NUMBER_FILES):
    both = f"{text(pair.images)} and {text(pair.masks)}"
    return Recognised(PIXEL_NUMBERS, f"it has {both}")
  if not names and holds_images(base):
    return Recognised(NONE, "it holds images and no class folders")
  return Recognised(SINGLE)


def of_file(path: str) -> Recognised:
  """Recognises a file of labels, by its columns and its first rows.

  Raises ValueError, which names the line, for what is no such file.
  """
  rows = [row.by_column for row in itertools.islice(cells_of(path), _LOOKED_AT)]
  names = [*rows[0]] if rows else []
  captions, classes = captions_and_classes(names)
  if captions and not classes:
    return Recognised(CAPTIONS, f"it has the column {captions[0]}")
  if classes:
    return _of_column(classes[0], [row.get(classes[0]) for row in rows])
  others = [
    name
    for name in names
    if name not in (column_of_files(names, None), column((_SPLIT,), names))
  ]
  return _of_columns(others, rows)


def _of_column(name: str, values: Sequence[Any]) -> Recognised:
  """Recognises one column: several labels in a cell, numbers, or classes."""
  for value in values:
    parts = cells.values_of(value, None)
    several = isinstance(parts, list)
    if isinstance(parts, str):
      several = any(mark in parts for mark in BETWEEN)
    if several:
      return Recognised(SEVERAL, f"{name} has {value!r}")
  numbers = [_number(value) for value in values]
  fractions = [x for x in numbers if x is not None and x % 1]
  if fractions and None not in numbers:
    return Recognised(NUMBERS, f"{name} has numbers such as {fractions[0]:g}")
  return Recognised(SINGLE)


def _of_columns(
  names: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> Recognised:
  """Recognises several columns, none of which is called label."""
  table = [[_number(row.get(name)) for name in names] for row in rows]
  if len(names) < 2 or any(None in row for row in table):
    return Recognised(SINGLE)
  listed = ", ".join(names[:3]) + (", ..." if names[3:] else "")
  if any(x not in (0, 1) for row in table for x in row):
    return Recognised(NUMBERS, f"{listed} have numbers", tuple(names))
  if any(sum(filter(None, row)) != 1 for row in table):
    why = f"{listed} are 0 or 1, and a row may have several 1s or none"
    return Recognised(SEVERAL, why, tuple(names))
  return Recognised(SINGLE)


def _number(value: Any) -> float | None:
  """The number in a cell; None if it is none, or not finite."""
  try:
    number = float(str(value).strip())
  except ValueError:
    return None
  return number if abs(number) < float("inf") else None
