"""Reads images whose labels stand in a CSV or JSONL file beside them."""

import collections
import dataclasses
import os
from collections.abc import Sequence

import numpy as np
from jaxtyping import Shaped

from vit_jax.data.reading.folders import Layout
from vit_jax.data.reading.holdout import Holdout
from vit_jax.data.reading.image_files import ImageFiles
from vit_jax.data.reading.label_rows import Encode, Row, fail, read_rows
from vit_jax.data.reading.labels import SINGLE, Labels
from vit_jax.data.settings import DataSettings


class LabelledImages(ImageFiles):
  """One split of the images that a file of labels names.

  Attributes:
    kind: The kind of its labels.
    label_spec: The shape and type of a label.
  """

  def __init__(
    self,
    settings: DataSettings,
    split: str,
    rows: Sequence[Row],
    class_names: tuple[str, ...],
    labels: Shaped[np.ndarray, "N ..."],
    kind: Labels,
  ):
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
    self._hold(os.fsencode(settings.root), files, labels)

  def warnings(self) -> list[str]:
    """The warnings of `ImageFiles` and of the kind of labels."""
    of_classes = super().warnings() if self.kind.are_classes else []
    return of_classes + self._warnings


def located(settings: DataSettings, file: str) -> str:
  """The path of a file of labels: as it is given, or else below the root.

  Raises ValueError if there is no such file.
  """
  file = os.path.expanduser(file)
  root = settings.root or "."
  inside = (os.path.join(root, f) for f in (file, os.path.basename(file)))
  path = next(filter(os.path.isfile, (file, *inside)), None)
  if path is None:
    raise ValueError(
      f"data.labels_file={file!r} is no file, nor is it in {root!r}."
    )
  return path


def open_folder(
  settings: DataSettings, labels: Labels = SINGLE
) -> dict[str, LabelledImages]:
  """Opens the splits "train", "eval" and, if there is one, "test".

  Raises ValueError if a file of labels is missing, has a mistake (the message
  names its line), or names an image that is missing.
  """
  assert settings.labels_file
  path = located(settings, settings.labels_file)
  columns, rows = read_rows(path, settings, labels.columns)
  if settings.eval_labels_file:
    rows += _eval_rows(path, columns, rows, settings, labels)
  rows = labels.joined(rows)
  _check_files(rows, settings.root or ".")
  parts: dict[str, list[Row]] = collections.defaultdict(list)
  for row in rows:
    parts[row.split or "train"].append(row)
  if not parts["train"]:
    fail(path, "has no row with split=train")
  place = os.fsencode(path)
  val, test = (place if parts[split] else None for split in ("val", "test"))
  chosen = Layout(place, place, val, test).evaluation(settings.eval_split)
  names, encode = labels.fit(columns, parts["train"])
  rule = None
  if chosen is None:
    chosen = "held out"
    rule = _hold_out(parts, encode, settings)
  sources = {"train": "train", "eval": chosen, "test": "test"}
  opened = {}
  for name, split in sources.items():
    if rows := parts[split]:
      opened[name] = LabelledImages(
        settings, split, rows, names, encode(rows), labels
      )
      opened[name].held_out = rule
  train = opened["train"]
  labels.check(path, names, train.labels(range(len(train))))
  return opened


def open_split(
  settings: DataSettings, split: str, labels: Labels = SINGLE
) -> LabelledImages:
  """Opens one of the splits; raises ValueError if it has no rows."""
  opened = open_folder(settings, labels)
  if split not in opened:
    raise ValueError(f"{settings.labels_file} has no row with split={split}.")
  return opened[split]


def summary(splits: Sequence[LabelledImages]) -> str:
  """The numbers of images found, such as "train 8, val 2 images, 3 classes"."""
  counts = ", ".join(f"{s.split} {len(s):,}" for s in splits)
  first = splits[0]
  what = f"{len(first.class_names):,} {first.kind.plural}"
  return f"{first.name}: {counts} images, {what}"


def _eval_rows(
  path: str,
  columns: list[str],
  rows: list[Row],
  settings: DataSettings,
  labels: Labels,
) -> list[Row]:
  """The rows of `eval_labels_file`, all of the split "val"."""
  assert settings.eval_labels_file
  other = located(settings, settings.eval_labels_file)
  other_columns, other_rows = read_rows(other, settings, labels.columns)
  if columns != other_columns:
    theirs = ", ".join(other_columns)
    ours = ", ".join(columns)
    fail(other, f"has labels in {theirs}, and {path} in {ours}")
  for row in (*rows, *other_rows):
    if row.split:
      problem = "has a split, which data.eval_labels_file gives as well"
      fail(row.place, f"{problem}: drop one")
  return [dataclasses.replace(row, split="val") for row in other_rows]


def _check_files(rows: Sequence[Row], root: str) -> None:
  """Raises ValueError for a file that is missing or named twice."""
  seen: dict[str, Row] = {}
  for row in rows:
    before = seen.setdefault(os.path.normpath(row.file), row)
    if before is not row:
      problem = f"names {row.file!r} as {before.place} does"
      fail(row.place, f"{problem}: keep one row for a file")
  absent = [
    row for row in rows if not os.path.isfile(os.path.join(root, row.file))
  ]
  if absent:
    problem = f"names {absent[0].file!r}, which is not in {root!r}"
    share = f"{len(absent):,} of {len(rows):,} files are missing"
    fail(absent[0].place, f"{problem} ({share})")


def _hold_out(
  parts: dict[str, list[Row]], encode: Encode, settings: DataSettings
) -> Holdout:
  """Moves a fixed part of the training rows to "held out".

  Returns the rule that chose it.
  """
  train = parts["train"]
  groups: dict[int, list[bytes]] = collections.defaultdict(list)
  labels = encode(train)
  for row, label in zip(train, labels, strict=True):
    group = int(label) if labels.ndim == 1 else 0
    groups[group].append(os.fsencode(row.file))
  root = os.fsencode(settings.root or ".")
  rule = Holdout.of(
    len(train),
    settings.eval_fraction,
    settings.held_out_by,
    settings.held_out_below,
    root,
  )
  evaluated: set[bytes] = set()
  for group in sorted(groups):
    evaluated |= rule.of_class(group, groups[group])
  parts["held out"] = [r for r in train if os.fsencode(r.file) in evaluated]
  parts["train"] = [r for r in train if os.fsencode(r.file) not in evaluated]
  if not parts["held out"]:
    fail(train[0].place, "and the other rows are too few to hold some out")
  return rule
