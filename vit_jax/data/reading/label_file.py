"""Images whose labels are in a file: which files they are, and their splits.

`label_rows` reads the rows of a CSV, TSV, JSON or JSONL file, by the cells of
`tables`, and `column_roles` finds the columns of the images and of the labels.
Here, the images are found on the disk, the rows of an image are joined as its
`Labels` say, and each image is put into a split.
"""

import collections
import dataclasses
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np
from jaxtyping import Shaped

from vit_jax.data.example import NoTestSplitError
from vit_jax.data.reading.cells import AS_BEFORE, Encode, Row
from vit_jax.data.reading.holdout import Holdout
from vit_jax.data.reading.image_files import ImageFiles, counts_of
from vit_jax.data.reading.label_rows import column_names, read_rows
from vit_jax.data.reading.labels import SINGLE, Labels
from vit_jax.data.reading.layouts import Layout
from vit_jax.data.reading.lookup import Lookup, folders_of_all
from vit_jax.data.reading.tables import fail, list_columns
from vit_jax.data.settings import DataSettings
from vit_jax.runtime.printable import printable_path as text

_LOOKED_FOR = 100  # Missing files that are looked for in other folders.


class LabelledImages(ImageFiles):
  """One split of the images that a file of labels names.

  Attributes:
    kind: The kind of the images' labels.
    label_spec: The shape and type of a label.
    notes: Lines on how the file was read as a whole.
    groups: The number of each image's group, int (N,); None if the file is not
      read by groups.
  """

  notes: Sequence[str] = ()
  groups: np.ndarray | None = None

  def __init__(
    self,
    settings: DataSettings,
    split: str,
    rows: Sequence[Row],
    class_names: tuple[str, ...],
    labels: Shaped[np.ndarray, "N ..."],
    kind: Labels,
  ):
    """Takes the rows of a split, and `labels`, the label of each row."""
    assert settings.labels_file and settings.root
    name = os.path.basename(settings.labels_file)
    self.name = name if split == "train" else f"{name}, {split}"
    self.split = split
    self.class_names = class_names
    self.root = settings.root
    self.kind = kind
    self.label_spec = kind.spec(len(class_names))
    self._warnings = kind.warnings(class_names, rows)
    files = [os.fsencode(row.file) for row in rows]
    self._set_files(os.fsencode(settings.root), files, labels)
    if settings.group_column:
      groups = [row.group for row in rows]
      self.groups = np.unique(groups, return_inverse=True)[1]

  def warnings(self) -> list[str]:
    """The warnings of `ImageFiles` and of the kind of labels."""
    of_classes = super().warnings() if self.kind.are_classes else []
    return [*self.notes, *of_classes, *self._warnings]


def locate(settings: DataSettings, file: str) -> str:
  """Finds a file of labels: at the path as given, or else below the root.

  Returns the path to open. Raises ValueError if there is no such file.
  """
  file = os.path.expanduser(file)
  root = settings.root or "."
  names = (file, os.path.basename(file))
  inside = [os.path.join(root, name) for name in names]
  path = next(filter(os.path.isfile, (file, *inside)), None)
  if path is None:
    raise ValueError(
      f"data.labels_file={file!r} is not a file, here or in {root!r}."
    )
  return path


def open_folder(
  settings: DataSettings, labels: Labels = SINGLE
) -> dict[str, LabelledImages]:
  """Opens the splits "train", "eval" and, if there is one, "test".

  Raises ValueError if a file of labels is missing, has a mistake (the message
  names its line), or names an image that is missing, or if no image can be held
  out.
  """
  assert settings.labels_file
  path = locate(settings, settings.labels_file)
  columns, rows, notes = image_rows(path, settings, labels)
  parts: dict[str, list[Row]] = collections.defaultdict(list)
  for row in rows:
    parts[row.split or "train"].append(row)
  if not parts["train"]:
    fail(path, "has no row with split=train: set it for images to train on")
  # The split to evaluate on is chosen as for folders, by their `Layout`.
  place = os.fsencode(path)
  val, test = (place if parts[split] else None for split in ("val", "test"))
  layout = Layout(root=place, train=place, val=val, test=test)
  chosen = layout.evaluation(settings.eval_split)
  names, encode = labels.fit(columns, parts["train"])
  rule = None
  if chosen is None:
    chosen = "held out"
    has_class = labels.spec(len(names)).shape == ()
    rule = _move_held_out(parts, encode if has_class else None, settings)
    if not parts["held out"]:
      encode(parts["train"])  # If a cell has a mistake, this error names it.
      _fail_to_hold_out(parts["train"], labels.warnings(names, parts["train"]))
  labels.note_training(parts["train"])
  sources = {"train": "train", "eval": chosen, "test": "test"}
  notes += _group_lines(
    {split: parts[split] for split in sources.values()}, settings
  )
  opened = {}
  for name, split in sources.items():
    if rows := parts[split]:
      opened[name] = LabelledImages(
        settings, split, rows, names, encode(rows), labels
      )
      opened[name].held_out = rule
  train = opened["train"]
  train.notes = notes
  labels.check(path, names, train.labels(range(len(train))))
  return opened


def open_split(
  settings: DataSettings, split: str, labels: Labels = SINGLE
) -> LabelledImages:
  """Opens one of the splits of `open_folder`.

  Raises ValueError as `open_folder` does, and if the split has no rows.
  """
  opened = open_folder(settings, labels)
  if split not in opened and split == "test":
    raise NoTestSplitError(f"{settings.labels_file} has no row with split=test")
  if split not in opened:
    raise ValueError(f"{settings.labels_file} has no row with split={split}.")
  return opened[split]


def summary(splits: Sequence[LabelledImages]) -> str:
  """A line on what was found: "a.csv: train 8, val 2 images, 3 classes"."""
  counts = counts_of(splits)
  first = splits[0]
  what = first.kind.counted(len(first.class_names))
  return f"{first.name}: {counts}, {what}"


def image_rows(
  path: str, settings: DataSettings, labels: Labels
) -> tuple[list[str], list[Row], list[str]]:
  """The columns of labels, a row for each image, and lines on the reading.

  Raises ValueError as `open_folder` does.
  """
  _check_separator(settings, labels)
  notes: list[str] = []
  columns, rows = read_rows(path, settings, labels, notes)
  if settings.eval_labels_file:
    rows += _eval_rows(path, columns, rows, settings, labels)
  # Whether the settings or the columns' names tell, without a guess.
  are_named = settings.label_columns or [*labels.columns(columns)] == columns
  if len(columns) > 1 and labels.may_be_several and not are_named:
    notes.append(
      f"the columns {list_columns(columns)} have 0 and 1, and are taken for "
      "the labels; --config.data.label_columns chooses."
    )
  if columns == ["class"] and {"class_1", "probability_1"} <= {
    *column_names(path)
  }:
    notes.append(
      f"{path} is a table of `vit_jax predict`: its labels, in 'class', are a "
      "model's answers where nobody has corrected them."
    )
  rows, spelled = _with_existing_files(rows, settings.root or ".")
  rows, meanings = labels.interpret(columns, rows, settings)
  joined = labels.join_rows(rows)
  if labels.further_rows and (more := len(rows) - len(joined)):
    notes.append(f"rows that {labels.further_rows}: {more:,}.")
  notes = [*spelled, *notes, *meanings]
  return columns, joined, notes + labels.remarks(columns, joined)


def _check_separator(settings: DataSettings, labels: Labels) -> None:
  """Raises ValueError for a separator of labels if an image has one label."""
  separator = settings.label_separator
  if separator not in (None, AS_BEFORE) and not labels.may_be_several:
    raise ValueError(
      f"data.label_separator={separator!r} separates several labels of an "
      "image: set data.task=multilabel, or leave it out."
    )


def _eval_rows(
  path: str,
  columns: list[str],
  rows: list[Row],
  settings: DataSettings,
  labels: Labels,
) -> list[Row]:
  """The rows of `eval_labels_file`, all of the split "val".

  `columns` and `rows` are those of the file of labels at `path`. Raises
  ValueError if the two files have different columns of labels, or a row of
  either names a split.
  """
  assert settings.eval_labels_file
  other = locate(settings, settings.eval_labels_file)
  other_columns, other_rows = read_rows(other, settings, labels)
  if columns != other_columns:
    theirs = ", ".join(other_columns)
    ours = ", ".join(columns)
    fail(
      other,
      f"has labels in {theirs}, and {path} in {ours}: name the columns alike",
    )
  for row in (*rows, *other_rows):
    if row.split:
      problem = (
        "names a split, and data.eval_labels_file says as well which images "
        "to evaluate on"
      )
      fail(row.place, f"{problem}: drop one")
  return [dataclasses.replace(row, split="val") for row in other_rows]


def _with_existing_files(
  rows: Sequence[Row], root: str
) -> tuple[list[Row], list[str]]:
  """The rows with the names that files have on disk, and lines on differences.

  Raises ValueError for files that are missing.
  """
  names = dict.fromkeys(os.fsencode(row.file) for row in rows)
  holding = [*map(os.fsdecode, folders_of_all(root, [*names]))]
  if len(holding) == 1:
    (folder,) = holding
    return _with_files_below(folder, rows, root)
  lookup = Lookup(os.fsencode(root))
  paths = _without_ambiguous(_find_files(rows, lookup))
  existing = {name: path for name, path in paths.items() if path is not None}
  if len(existing) < len(paths):
    _fail_missing_files(rows, paths, lookup, root, holding)
  return _with_paths(rows, existing), lookup.lines()


def _find_files(rows: Sequence[Row], lookup: Lookup) -> dict[str, str | None]:
  """The path of each file that a row names, by that name; None if missing."""
  paths: dict[str, str | None] = {}
  for row in rows:
    if row.file in paths:
      continue
    name = os.fsencode(row.file)
    found = lookup.find(name)
    path = row.file
    if found != name:
      path = None if found is None else os.fsdecode(found)
    paths[row.file] = path
  return paths


def _without_ambiguous(
  paths: Mapping[str, str | None],
) -> Mapping[str, str | None]:
  """The paths, with None for names that may not mean the file that was found.

  A name that is spelt otherwise than its file is ambiguous if a second such
  name leads to the same file, or if another name is exactly the file's. A name
  that only lacks the ending is not ambiguous.
  """
  spellings: dict[str, list[str]] = collections.defaultdict(list)
  for name, path in paths.items():
    if path is None or path == name:
      continue
    if not path.startswith(name.replace("\\", "/")):
      spellings[os.path.normpath(path)].append(name)
  if not spellings:
    return paths
  exact = {
    os.path.normpath(name) for name, path in paths.items() if path == name
  }
  ambiguous: list[str] = []
  for path, names in spellings.items():
    if path in exact or len(names) > 1:
      ambiguous += names
  return {**paths, **dict.fromkeys(ambiguous)}


def _with_paths(rows: Sequence[Row], paths: Mapping[str, str]) -> list[Row]:
  """The rows with the path of each file in place of the name in the row."""
  replaced = []
  for row in rows:
    path = paths[row.file]
    if path != row.file:
      row = dataclasses.replace(row, file=path)
    replaced.append(row)
  return replaced


def _with_files_below(
  folder: str, rows: Sequence[Row], root: str
) -> tuple[list[Row], list[str]]:
  """As `_with_existing_files`, where only this folder in root has all files."""
  found, lines = _with_existing_files(rows, os.path.join(root, folder))
  rows = [dataclasses.replace(r, file=f"{folder}/{r.file}") for r in found]
  taken = f"the images are read from the folder {text(folder)!r}, the only one "
  return rows, [f"{taken}in {root!r} that has all of them.", *lines]


def _fail_missing_files(
  rows: Sequence[Row],
  paths: Mapping[str, str | None],
  lookup: Lookup,
  root: str,
  holding: Sequence[str],
) -> NoReturn:
  """Raises ValueError, which names the first row without a path.

  `paths` and `lookup` are as in `_with_existing_files`; `holding` has the
  folders in `root` that have all of the files.
  """
  row = next(row for row in rows if paths[row.file] is None)
  missing = sum(path is None for path in paths.values())
  problem = f"names {row.file!r}, which is not in {root!r}"
  share = f"{missing:,} of {len(paths):,} files are missing"
  near = lookup.nearest(os.fsencode(row.file))
  hint = "; --config.data.root is the folder from which names are read"
  if near:
    hint = f"; the most similar name there is {text(near)!r}"
  if holding:
    first, second = (text(os.path.join(root, name)) for name in holding[:2])
    hint = f"; {first!r} and {second!r} both have all of them: choose one by "
    hint += f"--config.data.root={shlex.quote(first)}"
  elif folder := _folder_of_most([*paths], lookup):
    place = text(os.path.join(root, folder))
    hint = f"; most are in {place!r}: set "
    hint += f"--config.data.root={shlex.quote(place)}"
  elif near and near.endswith(b"/" + os.fsencode(row.file)):
    hint += ": write the names with their folders"
  if re.match(r"[A-Za-z]:[\\/]", row.file):
    hint += "; it is a path on another machine: write the names relative to "
    hint += f"the folder {root!r}"
  fail(row.place, f"{problem} ({share}){hint}")


def _folder_of_most(files: Sequence[str], lookup: Lookup) -> str | None:
  """The folder that has more than half of the first files, if there is one."""
  names = [*map(os.fsencode, files[:_LOOKED_FOR])]
  for folder in lookup.folders():
    find = lookup.inside(folder).find
    count = sum(find(name) is not None for name in names)
    if 2 * count > len(names):
      return os.fsdecode(folder)
  return None


def _group_lines(
  parts: Mapping[str, Sequence[Row]], settings: DataSettings
) -> list[str]:
  """A line that counts the groups of each split, if there are any.

  It also says so if intervals of scores are too narrow, since groups have
  several images. Raises ValueError if a group is in two splits.
  """
  column = settings.group_column
  if column is None:
    return []
  seen: dict[str, str] = {}
  for split, rows in parts.items():
    for row in rows:
      other = seen.setdefault(row.group, split)
      if other != split:
        raise ValueError(
          f"data.group_column={column!r}: {row.place} puts an image of "
          f"{row.group!r} into {split}, and others are in {other}. Images of a "
          "group belong to one split: mend the column split, or leave it out "
          "to hold out whole groups."
        )
  counts = collections.Counter(seen.values())
  each = ", ".join(f"{split} {count:,}" for split, count in counts.items())
  line = f"groups by {column!r}: {each}; none is in two splits."
  if sum(map(len, parts.values())) > len(seen):
    line += (
      " The intervals of scores count images, as if those of a group were "
      "independent, and so are too narrow."
    )
  return [line]


def _move_held_out(
  parts: dict[str, list[Row]], encode: Encode | None, settings: DataSettings
) -> Holdout:
  """Moves the rows to hold out from "train" to "held out".

  With `data.group_column` they are those of whole groups. Otherwise, with
  `encode`, which gives the classes of rows, they are a part of each class, and
  without it a part of all rows. Returns the rule that chose them. Raises
  ValueError if the rule cannot hold out groups, as `Holdout.of_groups` does.
  """
  train = parts["train"]
  root = os.fsencode(settings.root or ".")
  rule = Holdout.of(
    len(train),
    settings.eval_fraction,
    by=settings.held_out_by,
    below=settings.held_out_below,
    root=root,
  )
  if settings.group_column:
    groups = rule.of_groups([row.group for row in train])
    is_held_out = [row.group in groups for row in train]
  else:
    classes = [0] * len(train)
    if encode is not None:
      classes = encode(train).tolist()
    files = _held_out_files(rule, train, classes)
    is_held_out = [os.fsencode(row.file) in files for row in train]
  parts["train"] = []
  for row, is_out in zip(train, is_held_out, strict=True):
    parts["held out" if is_out else "train"].append(row)
  return rule


def _fail_to_hold_out(rows: Sequence[Row], lines: Sequence[str]) -> NoReturn:
  """Raises ValueError for rows of which none can be held out.

  `lines` are warnings about the rows' labels; the message gives the first of
  them as advice.
  """
  cells = {str(row.values[0]) for row in rows if len(row.values) == 1}
  if len(cells) > 1:
    example = min(cells)
    has = f"{len(cells):,} classes,"
    advice = "give more images of each class"
    if lines:
      advice = lines[0].removesuffix(".")
    else:
      has += f" such as {example!r},"
      if any(map(str.isdigit, example)):
        advice += "; numbers to learn are written alone, as in 3.5"
    fail(
      rows[0].place,
      f"and the other {len(rows) - 1:,} rows have {has} so many that none has "
      f"images to hold out: {advice}",
    )
  fail(rows[0].place, "and the other rows are too few to hold some out")


def _held_out_files(
  rule: Holdout, rows: Sequence[Row], classes: Sequence[float]
) -> set[bytes]:
  """The files that a rule holds out of each class."""
  by_class: dict[int, list[bytes]] = collections.defaultdict(list)
  for row, label in zip(rows, classes, strict=True):
    by_class[int(label)].append(os.fsencode(row.file))
  files: set[bytes] = set()
  for label in sorted(by_class):
    files |= rule.of_class(label, by_class[label])
  return files
