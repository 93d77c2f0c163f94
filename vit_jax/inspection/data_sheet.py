"""A survey of a folder in lines, and an augmented batch as a picture."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vit_jax.data.batch import Batch, label_spec
from vit_jax.data.batching.loader import Loader
from vit_jax.data.decoding.pillow import WIDE
from vit_jax.data.example import ImageSpec, adds_alpha
from vit_jax.data.reading.sources import check_classes
from vit_jax.data.reading.survey import UNREADABLE, Survey, look_at
from vit_jax.data.transforming.transforms import make_train_transform
from vit_jax.data.transforming.with_masks import with_label
from vit_jax.inspection.batch_sheet import batch_sheet
from vit_jax.inspection.found_data import open_found, recognised
from vit_jax.inspection.label_issues import (
  IssueFiles,
  inspect_labels,
  open_for_features,
)
from vit_jax.inspection.settings import InspectSettings
from vit_jax.runtime.display import Display, table_lines
from vit_jax.runtime.files import check_apart, output_file, replacing
from vit_jax.runtime.printable import first_of

_SHOWN = 3  # The most files named for each finding.
_CLASSES = 30  # The most classes listed.
_BATCH = 32
_PICTURES = {"png": (".png",), "jpeg": (".jpg", ".jpeg"), "webp": (".webp",)}


def inspect_folder(
  root: str,
  settings: InspectSettings,
  out: str,
  *,
  model: str | None = None,
  issues: str | None = None,
  probabilities: str | None = None,
  task_is_given: bool = False,
  **overrides: Any,
) -> int:
  """Prints what is in a folder, and draws an augmented batch.

  Returns the exit code: 1 if a file is unreadable. Raises ValueError if the
  folder is no data set, a file cannot be written, `model` cannot be opened, or
  it is missing and an option needs it, and UnreadableImageError if no training
  image can be read.

  Args:
    root: A folder, or a file of labels, as for a training run.
    out: The picture to write.
    model: A checkpoint, to find likely label errors by its representations.
    issues: The CSV file for these errors, whose picture is written beside it;
      issues.csv by default.
    probabilities: An .npz file for the out-of-fold probabilities.
    task_is_given: Whether the user gave `data.task`; otherwise the images and
      the labels may tell another task than the default one.
    **overrides: Other options of `load_pretrained`.
  """
  path, kind = output_file(out, _PICTURES)
  if not model:
    given = {"issues": issues, "probabilities": probabilities, **overrides}
    _refuse_without_model([k for k, v in given.items() if v is not None])
  issue_files = None
  if model:
    issue_files = IssueFiles.of_paths(issues or "issues.csv", probabilities)
  check_apart((path, *(issue_files.each if issue_files else ())), [root])
  bands = settings.data.band_names
  channels = len(bands) or settings.channels
  window = settings.normalization.window
  spec = ImageSpec(channels, window, adds_alpha=adds_alpha(bands))
  data, labels, notes = recognised(root, settings.data, task_is_given)
  splits = open_found(root, data, labels)
  if model:
    check_classes(splits.train, "--model")
  loaded = open_for_features(model, **overrides) if model else None
  display = Display()
  display.header([("data", splits.found)])
  rule = getattr(splits.train, "held_out", None)
  held_out_lines = rule.lines() if rule else []
  warnings = splits.warnings_for(spec)
  for line in (*notes, *held_out_lines, *warnings):
    display.note(line)
  all_splits: Any = [splits.train, splits.eval, splits.test]
  folders = [folder for folder in all_splits if folder is not None]
  total = sum(map(len, folders))
  # A run on RGB images takes the mean and deviation of its pretrained weights.
  measured = channels != 3 or bool(bands)
  each = look_at(folders, spec, labels, measured=measured)
  files = display.track(each, "reading", total)
  survey = Survey(splits.train.class_names, list(files), labels)
  lines = survey_lines(survey, settings.image_size)
  lines += _normalization_lines(survey, folders[0].split, bands, window is None)
  for line in lines:
    display.note(line)
  batch = _augmented_batch(splits.train, settings, spec)
  sheet = batch_sheet(
    batch["image"], batch["label"], survey.class_names, labels
  )
  with replacing(path) as file:
    sheet.savefig(file, format=kind)
  display.note(f"an augmented batch: {path}")
  if loaded and issue_files:
    inspect_labels(loaded, folders, issue_files, display)
  return int(UNREADABLE in survey.oddities)


def _refuse_without_model(unusable: Sequence[str]) -> None:
  """Raises ValueError if an option is given, as each needs a model."""
  if unusable:
    raise ValueError(
      f"--{unusable[0]} needs --model=CHECKPOINT, whose representations find "
      "the label errors."
    )


def _augmented_batch(
  train: Any, settings: InspectSettings, spec: ImageSpec
) -> Batch:
  """The first batch of training images, as a run would augment them."""
  images = make_train_transform(
    settings.image_size, settings.train_transform, spec
  )
  transform = with_label(images, label_spec(train), len(train.class_names))
  rows = min(_BATCH, len(train))
  loader = Loader(on_unreadable="skip")
  with loader.train(train, transform, batch_size=rows, seed=0) as batches:
    return next(batches)


def survey_lines(survey: Survey, image_size: tuple[int, int]) -> list[str]:
  """The classes, the sizes, the odd files and the duplicates, in lines."""
  odd = [
    f"{len(files):,} {what}: {first_of(files, _SHOWN)}"
    for what, files in survey.oddities.items()
  ]
  same = [
    f"{len(groups):,} {'picture is' if len(groups) == 1 else 'pictures are'} "
    f"{extent}: {first_of([' = '.join(group) for group in groups], _SHOWN)}"
    for extent, groups in survey.copies.items()
  ]
  return [
    *_label_lines(survey),
    *_size_lines(survey.sizes, image_size),
    *(odd or ["no odd files"]),
    *(same or ["no picture is there twice"]),
  ]


def _label_lines(survey: Survey) -> list[str]:
  """A table of the classes, labels or targets, with a column for each split.

  Below it, a line tells for each split how many labels could not be read.
  """
  overview = survey.overview
  names = [
    *dict.fromkeys(name for cells in overview.values() for name in cells)
  ]
  # Counts without a name, such as pixels of no class, are always listed.
  further = [name for name in names if name not in {*survey.class_names}]
  listed = [*survey.class_names[:_CLASSES], *further]
  rows = [[survey.kind.heading, *overview]]
  for name in listed:
    rows.append(
      [name, *(cells.get(name, "none") for cells in overview.values())]
    )
  lines = table_lines(rows)
  if (more := len(survey.class_names) - _CLASSES) > 0:
    spreads = {
      split: survey.kind.spread(labels, survey.class_names)
      for split, labels in survey.summaries.items()
    }
    of_all = ", ".join(f"{split} {s}" for split, s in spreads.items() if s)
    line = f"... and {more:,} more {survey.kind.plural}"
    lines.append(line + (f"; of all: {of_all}" if of_all else ""))
  for split in overview:
    labels = [look.label for look in survey.looks if look.split == split]
    unread = sum(label is None for label in labels)
    if unread:
      says = f"the labels of {len(labels) - unread:,} of {len(labels):,} images"
      lines.append(f"{split}: {says} could be read; only these count.")
  return lines


def _size_lines(sizes: np.ndarray, image_size: tuple[int, int]) -> list[str]:
  """Lines on the sizes of the images, given as width x height."""
  if not len(sizes):
    return []
  order = np.argsort(sizes.prod(axis=1))
  smallest, middle, largest = (
    "{1} x {0}".format(*sizes[order[i]]) for i in (0, len(order) // 2, -1)
  )
  line = f"sizes: {smallest} to {largest}, the middle one {middle}"
  height, width = image_size
  enlarged = int(((sizes[:, 0] < height) & (sizes[:, 1] < width)).sum())
  if enlarged:
    line += f"; {enlarged:,} are smaller than {width} x {height}"
  return [line]


def _normalization_lines(
  survey: Survey, split: str, bands: Sequence[str], no_window: bool
) -> list[str]:
  """The keys for the mean and deviation of a split's images, if measured.

  They depend on the window, so a line says if there is none for 16 bits.
  """
  keys = [
    "--config.normalization.{}='({},)'".format(
      name, ",".join(_share(value) for value in values)
    )
    for name, values in zip(
      ("mean", "std"), survey.normalization(split), strict=False
    )
  ]
  if not keys:
    return []
  of_bands = f" of {', '.join(bands)}" if bands else ""
  line = f"mean and deviation{of_bands}: {' '.join(keys)}"
  if no_window and WIDE in survey.oddities:
    line += "; normalization.window changes them: give it first, if you set it"
  return [line]


def _share(value: float) -> str:
  """A share of full scale, with three decimals, or digits if it is small."""
  return f"{value:.3f}" if value >= 0.1 else f"{value:.3g}"
