"""Opens a file of labels that is new to a run, with the labels of the run."""

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Sequence

from vit_jax.data.reading.column_roles import (
  LOOKED_AT,
  as_text,
  label_candidates,
  names_in,
)
from vit_jax.data.reading.label_file import LabelledImages, image_rows, locate
from vit_jax.data.reading.label_rows import column_names, image_names
from vit_jax.data.reading.labels import Labels
from vit_jax.data.reading.lookup import Lookup
from vit_jax.data.reading.tables import (
  advising,
  cells_of,
  fail,
  list_columns,
  without_advice,
)
from vit_jax.data.settings import DataSettings

_LOOKED_FOR = 16  # Images of a file of labels that are looked for.
# Patterns of advice that names keys of a configuration, each with the advice
# that takes its place. {unknown} is what to do with a cell that is unknown.
_WITHOUT_KEYS = {
  r"add --config\.data\.unknown=.*": "{unknown}.",
  r"set --config\.data\.uncertain=.*": "write 1 or 0, or {unknown}.",
  r", and --config\.data\.file_column.*": (
    " folder; rename the column of the images to file."
  ),
  r"data\.label_columns chooses the columns": (
    "correct it, or leave out the line"
  ),
}


def open_whole(
  settings: DataSettings, labels: Labels, names: tuple[str, ...]
) -> LabelledImages:
  """Opens the split "val" or "test" of a file, or all images if it has neither.

  The file is new to a run, and its labels are encoded for the run's `names`; a
  file of classes need not have all of them. Raises ValueError as
  `label_file.open_folder` does, and for a label that is not among the names.
  """
  assert settings.labels_file
  path = locate(settings, settings.labels_file)
  with without_keys(settings):
    settings = settings_for(path, settings, labels, names)
    columns, rows, notes = image_rows(path, settings, labels)
    encode = labels.fit_to(columns, rows, names)
    splits = {row.split for row in rows}
    split = next((name for name in ("val", "test") if name in splits), "train")
    if split != "train":
      rows = [row for row in rows if row.split == split]
    encoded = encode(rows)
  source = LabelledImages(settings, split, rows, names, encoded, labels)
  # Configuration keys are left out below: the commands for runs take none.
  if settings.root != (os.path.dirname(path) or "."):
    notes.append(f"the images are read from {settings.root!r}.")
  has_one = len(columns) == len(names) == 1
  if has_one and not labels.are_classes and names != tuple(columns):
    notes.append(f"{columns[0]!r} is compared with the run's {names[0]!r}.")
  source.notes = without_advice(notes)
  return source


def without_keys(settings: DataSettings) -> contextlib.AbstractContextManager:
  """A block whose errors advise what to write into the file of labels.

  It is for commands that take no keys of a configuration.
  """
  absent = settings.empty_cells == "absent"
  unknown = "leave out the row" if absent else "leave the cell empty"
  return advising(
    {key: text.format(unknown=unknown) for key, text in _WITHOUT_KEYS.items()}
  )


def settings_for(
  path: str, settings: DataSettings, labels: Labels, names: tuple[str, ...]
) -> DataSettings:
  """The settings of a run for another file, which may lack the run's columns.

  Columns that the file lacks are no longer chosen; columns of numbers, or of 0
  and 1, are those with the run's `names`. Raises ValueError if it cannot be
  told which of several columns has the labels.
  """
  there = column_names(path)
  file = settings.file_column if settings.file_column in there else None
  chosen = settings.label_columns
  if {*names} <= {*there} and not labels.are_classes:
    chosen = as_text(names)
  elif chosen and not {*names_in(chosen, there)} <= {*there}:
    chosen = None
  new = dataclasses.replace(settings, label_columns=chosen, file_column=file)
  if chosen is None and not _tells_labels(path, new, labels):
    fail(path, _no_labels(settings.label_columns, labels, names, there))
  return new


def _no_labels(
  chosen: str | None,
  labels: Labels,
  names: tuple[str, ...],
  there: Sequence[str],
) -> str:
  """The message that no column of `there` has labels of the run's `names`.

  The message lacks its subject, the file. `chosen` is the run's
  data.label_columns.
  """
  needed = names_in(chosen or "", there)
  if len(needed) > 1:
    lacking = [name for name in needed if name not in there]
    return (
      f"lacks {list_columns(lacking)} of the columns from which the run "
      f"learned ({list_columns(needed)}); its columns are "
      f"{list_columns(there)}: add those that it lacks, with empty cells where "
      "nothing is known"
    )
  expected = chosen or as_text(names)
  if not chosen and (labels.are_classes or labels.may_be_several):
    expected = labels.columns(())[0]
  missing = f"has no column {expected!r}, from which the run learned"
  if not chosen and labels.may_be_several and len(names) > 1:
    missing = (
      f"has neither a column {expected!r} nor one of 0 and 1 for each label of "
      f"the run ({list_columns(names)})"
    )
  return (
    f"{missing}; its columns are {list_columns(there)}: give the column with "
    f"the answers the name {expected}"
  )


def with_file(
  settings: DataSettings, file: str, root: str | None = None
) -> DataSettings:
  """The settings of a run for another file of labels.

  The file's images are in `root`. By default, that is the folder of the file,
  or the run's if the images are there.
  """
  if root is None:
    beside = os.path.dirname(file) or os.curdir
    root = root_with_images(file, (beside, settings.root or beside))
  return dataclasses.replace(
    settings,
    labels_file=file,
    eval_labels_file=None,
    group_column=None,
    root=root,
  )


def root_with_images(file: str, folders: Sequence[str]) -> str:
  """The first of the folders that has the images of a file; else the first."""
  for root in folders:
    if _images_are_there(file, DataSettings(labels_file=file, root=root)):
      return root
  return folders[0]


def _images_are_there(path: str, settings: DataSettings) -> bool:
  """Whether the first images that a file names are in the folder `root`."""
  lookup = Lookup(os.fsencode(settings.root or "."))
  names = image_names(path, settings)
  with contextlib.suppress(ValueError):  # No column has images of this folder.
    first = itertools.islice(names, _LOOKED_FOR)
    return all(lookup.find(os.fsencode(name)) is not None for name in first)
  return False


def _tells_labels(path: str, settings: DataSettings, labels: Labels) -> bool:
  """Whether a file says by itself which of its columns have the labels.

  It does if only one column may have them, if all have 0 and 1, or if the names
  of some of the columns, but not all of them, are usual ones.
  """
  first = [*itertools.islice(cells_of(path, settings.file_column), LOOKED_AT)]
  rows = [row.by_column for row in first]
  others = label_candidates(path, rows, settings) if rows else []
  first_cells = {name: rows[0][name] for name in others}
  if len(others) < 2 or labels.guess_columns(first_cells):
    return True
  by_name = {*labels.columns(others)}
  return by_name <= {*others} and by_name != {*others}
