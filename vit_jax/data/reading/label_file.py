"""Reads images whose labels stand in a CSV or JSONL file beside them."""

import collections
import dataclasses
import os
from collections.abc import Sequence

import numpy as np
from jaxtyping import Shaped

from vit_jax.data.reading.folders import Layout
from vit_jax.data.reading.holdout import held_out
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
    self.split, self.class_names, self.root = split, class_names, settings.root
    self.kind, self.label_spec = kind, kind.spec(len(class_names))
    self._warnings = kind.warnings(class_names, rows)
    if split == "held out":
      self.held_out_by = settings.held_out_by
    files = [os.fsencode(row.file) for row in rows]
    self._hold(os.fsencode(settings.root), files, labels)

  def warnings(self) -> list[str]:
    """The warnings of `ImageFiles` and of the kind of labels."""
    of_classes = super().warnings() if self.kind.are_classes else []
    return of_classes + self._warnings


def located(settings: DataSettings, file: str) -> str:
  """Finds a file of labels: at its path, or else below the root."""
  file, root = os.path.expanduser(file), settings.root or "."
  inside = (os.path.join(root, f) for f in (file, os.path.basename(file)))
  found = next(filter(os.path.isfile, (file, *inside)), None)
  if found is None:
    raise ValueError(
      f"data.labels_file={file!r} is no file, nor is it in {root!r}."
    )
  return found


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
  if chosen is None:
    chosen = "held out"
    _hold_out(parts, encode, settings)
  wanted = {"train": "train", "eval": chosen, "test": "test"}
  found = {}
  for end, split in wanted.items():
    if rows := parts[split]:
      found[end] = LabelledImages(
        settings, split, rows, names, encode(rows), labels
      )
  train = found["train"]
  labels.check(path, names, train.labels(range(len(train))))
  return found


def open_split(
  settings: DataSettings, split: str, labels: Labels = SINGLE
) -> LabelledImages:
  """Opens one of the splits; raises ValueError if it has no rows."""
  opened = open_folder(settings, labels)
  if split not in opened:
    raise ValueError(f"{settings.labels_file} has no row with split={split}.")
  return opened[split]


def found(splits: Sequence[LabelledImages]) -> str:
  """The numbers of images, such as "train 8, val 2 images, 3 classes"."""
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
  others, found = read_rows(other, settings, labels.columns)
  if columns != others:
    theirs, ours = ", ".join(others), ", ".join(columns)
    fail(other, f"has labels in {theirs}, and {path} in {ours}")
  if given := next((r for r in (*rows, *found) if r.split), None):
    said = "has a split, which data.eval_labels_file gives as well: drop one"
    fail(given.place, said)
  return [dataclasses.replace(row, split="val") for row in found]


def _check_files(rows: Sequence[Row], root: str) -> None:
  """Raises ValueError for a file that is missing or named twice."""
  seen: dict[str, Row] = {}
  for row in rows:
    before = seen.setdefault(os.path.normpath(row.file), row)
    if before is not row:
      said = f"names {row.file!r} as {before.place} does"
      fail(row.place, f"{said}: keep one row for a file")
  found = [os.path.isfile(os.path.join(root, row.file)) for row in rows]
  if not all(found):
    row, missing = rows[found.index(False)], found.count(False)
    said = f"names {row.file!r}, which is not in {root!r}"
    fail(row.place, f"{said} ({missing:,} of {len(rows):,} files are missing)")


def _hold_out(
  parts: dict[str, list[Row]], encode: Encode, settings: DataSettings
) -> None:
  """Moves a fixed part of the training rows to "held out"."""
  train = parts["train"]
  groups: dict[int, list[bytes]] = collections.defaultdict(list)
  labels = encode(train)
  for row, label in zip(train, labels, strict=True):
    group = int(label) if labels.ndim == 1 else 0
    groups[group].append(os.fsencode(row.file))
  root = os.fsencode(settings.root or ".")
  rule = settings.eval_fraction, settings.held_out_by, root
  kept = set().union(*(held_out(g, *rule) for g in groups.values()))
  parts["held out"] = [r for r in train if os.fsencode(r.file) in kept]
  parts["train"] = [r for r in train if os.fsencode(r.file) not in kept]
  if not parts["held out"]:
    fail(train[0].place, "and the other rows are too few to hold some out")
