"""A survey of a folder in lines, and an augmented batch as a picture."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from vit_jax.data.batch import label_spec
from vit_jax.data.batching.loader import Loader
from vit_jax.data.example import ImageSpec
from vit_jax.data.reading import recognise
from vit_jax.data.reading.captions import NONE, Captions
from vit_jax.data.reading.label_file import located
from vit_jax.data.reading.label_rows import Row
from vit_jax.data.reading.labels import NONE as UNUSED
from vit_jax.data.reading.labels import SINGLE, Labels
from vit_jax.data.reading.sources import Splits, check_classes, open_splits
from vit_jax.data.reading.survey import UNREADABLE, Survey, looks
from vit_jax.data.settings import LABEL_FILES, DataSettings
from vit_jax.data.transforming.transforms import make_train_transform
from vit_jax.data.transforming.with_masks import with_label
from vit_jax.inspection.label_issues import (
  IssueFiles,
  inspect_labels,
  open_for_features,
)
from vit_jax.inspection.panels import Drawing, Panel, put_together
from vit_jax.inspection.photograph import in_colours
from vit_jax.inspection.settings import InspectSettings
from vit_jax.runtime.display import Display, table_lines
from vit_jax.runtime.files import output_file, replacing

_SHOWN = 3  # Files named for each finding.
_CLASSES = 30  # Classes listed.
_TILE = 128  # Pixels.
_COLUMNS, _BATCH = 8, 32
_LETTERS = 24  # Letters of a caption that the picture of a batch shows.
_PICTURES = {"png": (".png",), "jpeg": (".jpg", ".jpeg"), "webp": (".webp",)}


def inspect_folder(
  root: str,
  settings: InspectSettings,
  out: str,
  *,
  model: str | None = None,
  issues: str = "issues.csv",
  probabilities: str | None = None,
  **overrides: Any,
) -> int:
  """Prints what is in a folder, and draws an augmented batch.

  Returns the exit code: 1 if a file is unreadable. Raises ValueError if the
  folder is no data set, a file cannot be written, or `model` cannot be opened,
  and UnreadableImageError if no training image can be read.

  Args:
    root: A folder, or a file of labels, as for a training run.
    out: The picture to write.
    model: A checkpoint whose representations tell likely label errors.
    issues: The CSV file for them; a picture of them is written beside it.
    probabilities: An .npz file for the out-of-fold probabilities.
    **overrides: What `load_pretrained` takes beside the checkpoint.
  """
  path, kind = output_file(out, _PICTURES)
  if not model:
    unusable = [*overrides]
    if probabilities:
      unusable = ["probabilities", *unusable]
    if unusable:
      raise ValueError(
        f"--{unusable[0]} needs --model=CHECKPOINT, whose representations tell "
        "the label errors."
      )
  issue_files = IssueFiles.named(issues, probabilities) if model else None
  spec = ImageSpec(settings.channels, settings.normalization.window)
  data, labels, told = _recognised(root, settings.data)
  splits = _opened(root, data, labels, spec.window is not None)
  if model:
    check_classes(splits.train, "--model")
  loaded = open_for_features(model, **overrides) if model else None
  display = Display()
  display.header([("data", splits.found)])
  rule = getattr(splits.train, "held_out", None)
  kept = rule.lines() if rule else []
  for line in (*told, *kept, *splits.warnings):
    display.note(line)
  every: Any = [splits.train, splits.eval, splits.test]
  folders = [folder for folder in every if folder is not None]
  total = sum(map(len, folders))
  files = display.track(looks(folders, spec, labels), "reading", total)
  survey = Survey(splits.train.class_names, list(files), labels)
  for line in survey_lines(survey, settings.image_size):
    display.note(line)
  images = make_train_transform(
    settings.image_size, settings.train_transform, spec
  )
  classes = len(splits.train.class_names)
  transform = with_label(images, label_spec(splits.train), classes)
  order = {"batch_size": min(_BATCH, len(splits.train)), "seed": 0}
  loader = Loader(on_unreadable="skip")
  with loader.train(splits.train, transform, **order) as batches:
    batch = next(batches)
  names = [labels.shown(y, survey.class_names) for y in batch["label"]]
  with replacing(path) as file:
    batch_sheet(in_colours(batch["image"]), names).savefig(file, format=kind)
  display.note(f"an augmented batch: {path}")
  if loaded and issue_files:
    inspect_labels(loaded, folders, issue_files, display)
  return int(UNREADABLE in survey.odd)


def _opened(
  root: str, data: DataSettings, labels: Labels, windowed: bool
) -> Splits:
  """The splits of a folder or a file.

  Raises ValueError as `open_splits`, and for a folder of packed images.
  """
  if os.path.isfile(os.path.join(root, "dataset_info.json")):
    raise ValueError(
      f"{root!r} is packed, and each of its images was decoded then: give the "
      "folder or the file that it was packed from."
    )
  key = "labels_file" if _is_file(root) else "root"
  return open_splits(dataclasses.replace(data, **{key: root}), windowed, labels)


def _is_file(root: str) -> bool:
  return os.path.isfile(root) and root.lower().endswith(LABEL_FILES)


def _recognised(
  root: str, data: DataSettings
) -> tuple[DataSettings, Labels, list[str]]:
  """The settings, the kind of labels, and a line if the data tell it.

  Without a task or columns, what the data are for is told as `vit_jax train`
  does.
  """
  kind: Labels = data.label_kind or SINGLE
  told: list[str] = []
  file = root if _is_file(root) else data.labels_file
  if not data.labels:
    kind = UNUSED
  elif kind == SINGLE and not data.label_columns:
    if file:
      place = located(dataclasses.replace(data, root=root), file)
      found = recognise.of_file(place)
    else:
      found = recognise.of_folder(root)
    if found.why:
      kind = found.labels if found.labels.are_used else UNUSED
      told = [f"There are no class labels, as {found.why}."]
      data = dataclasses.replace(data, labels=found.labels.are_used)
    if found.columns:
      columns = ",".join(found.columns)
      data = dataclasses.replace(data, labels_file=file, label_columns=columns)
  kind = _Letters() if isinstance(kind, Captions) else kind
  return data, kind, told


@dataclasses.dataclass(frozen=True)
class _Letters(Captions):
  """The letters of the first caption of an image, to be shown, (1, T)."""

  most: int = 1
  length: int = _LETTERS

  def ids(self, captions: Sequence[Sequence[str]]) -> np.ndarray:
    ids = np.full((len(captions), 1, self.length), NONE, np.int32)
    for row, (first, *_) in zip(ids, captions, strict=True):
      letters = [*map(ord, first[: self.length])]
      row[0, : len(letters)] = letters
    return ids

  def shown(self, label: np.ndarray, names: Sequence[str]) -> str:
    del names
    return "".join(map(chr, label[label != NONE]))

  def warnings(self, names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """A line on the captions: how many there are, and how long they are."""
    del names
    texts = [text for row in rows for text in row.values]
    each = [len(row.values) for row in rows]
    lengths = [len(text.split()) for text in texts]
    line = (
      f"{rows[0].split or 'all'}: {len(texts):,} captions, {len({*texts}):,} "
      f"of them different; {min(each):,} to {max(each):,} an image, of "
      f"{min(lengths):,} to {max(lengths):,} words"
    )
    return [line]


def survey_lines(survey: Survey, image_size: tuple[int, int]) -> list[str]:
  """The classes, the sizes, the odd files and the duplicates, in lines."""
  odd = [f"{len(f):,} {what}: {_first(f)}" for what, f in survey.odd.items()]
  same = [
    f"{len(groups):,} {'picture is' if len(groups) == 1 else 'pictures are'} "
    f"{extent}: {_first([' = '.join(group) for group in groups])}"
    for extent, groups in survey.same.items()
  ]
  return [
    *_names(survey),
    *_sizes(survey.sizes, image_size),
    *(odd or ["no odd files"]),
    *(same or ["no picture is there twice"]),
  ]


def batch_sheet(
  images: UInt8[np.ndarray, "B H W 3"], names: Sequence[str]
) -> Drawing:
  """Images side by side, each below its name; small ones are enlarged."""
  times = max(1, _TILE // max(images.shape[1:3]))
  large = images.repeat(times, axis=1).repeat(times, axis=2)
  panels = [
    Panel(picture=image, caption=name)
    for image, name in zip(large, names, strict=True)
  ]
  return put_together(panels, columns=min(_COLUMNS, len(images)))


def _names(survey: Survey) -> list[str]:
  """A table of the classes, labels or targets, with a column for each split."""
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
      for split, labels in survey.kept.items()
    }
    of_all = ", ".join(f"{split} {s}" for split, s in spreads.items() if s)
    line = f"... and {more:,} more {survey.kind.plural}"
    lines.append(line + (f"; of all: {of_all}" if of_all else ""))
  return lines


def _sizes(sizes: np.ndarray, image_size: tuple[int, int]) -> list[str]:
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


def _first(names: Sequence[str]) -> str:
  more = ", ..." if len(names) > _SHOWN else ""
  return ", ".join(names[:_SHOWN]) + more
