"""The kinds of labels: their shape and type, and how a file gives them.

A kind of your own derives from `Labels`, and is a task's `labels`.
"""

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vit_jax.data.batch import CLASS, ArraySpec
from vit_jax.data.reading.split_names import OLDER
from vit_jax.data.settings import DataSettings
from vit_jax.runtime.printable import counted

# Only runs with a file of labels load the module `cells`.
if TYPE_CHECKING:
  from vit_jax.data.reading.cells import Encode, Row

USUAL = ("label", "labels", "class")
"""Columns of labels, the likeliest first."""
_FURTHER = ("label_name",)

Names = tuple[str, ...]
# Numbers may be no classes if there are more than _FEWEST different ones and
# some occur again, or if there are _MANY different ones or more.
_FEWEST = 2
_MANY = 10
_NUMBER = re.compile(r"-?\d+(\.\d+)?\Z")


@dataclasses.dataclass(frozen=True)
class Labels:
  """A kind of labels; this one is the index of a class.

  A file of labels is opened by these calls, in this order: `columns`, or else
  `guess_columns`, chooses its columns; `interpret` reads the cells by the
  settings; `join_rows` makes one row of all rows of an image, two at a time by
  `merge`, and `remarks` says in lines how the rows were read; `fit` takes the
  names from the training rows; once some rows are held out, `note_training` is
  given the others, and `check` the labels to train on. `summarise`, `overview`,
  `spread`, `label_text` and `describe` are for people who look at the data.

  Attributes:
    singular, plural: The words for the `class_names` of a source with such
      labels.
    are_used: False if the task ignores the labels.
    reader: The module of `data.reading` that reads a folder of images with such
      labels; "" for class folders, or a file of labels.
    records: The module of `data.reading` that finds such labels in the records
      of TFDS; "" if none does, and they are in a file.
    may_be_several: Whether a cell may have several labels, with a separator
      between them.
    pixels_may_be_unknown: Whether `data.unknown` is for values of pixels.
    further_rows: The use of further rows of an image, for a line that begins
      with "rows that"; "" for no such line.
    heading: The heading of the column of names in a table.
    copies_alike, copies_unlike: The words for equal images with equal labels,
      and for those with different labels.
  """

  plural: str = "classes"
  singular: ClassVar[str] = "class"
  are_used: bool = True
  reader: ClassVar[str] = ""
  records: ClassVar[str] = "tfds.labels"
  may_be_several: ClassVar[bool] = False
  pixels_may_be_unknown: ClassVar[bool] = False
  further_rows: ClassVar[str] = "repeat an image and its label count once"
  heading: ClassVar[str] = "class"
  copies_alike: ClassVar[str] = "twice in a class"
  copies_unlike: ClassVar[str] = "in several classes"

  @property
  def are_classes(self) -> bool:
    """Whether a label is the index of one class."""
    return self.spec(1) == CLASS

  def counted(self, count: int) -> str:
    """The number of names in words, such as "1 target" or "3 classes"."""
    return counted(count, self.singular, self.plural)

  def spec(self, count: int) -> ArraySpec:
    """Shape and type of the label of an example, if there are `count` names."""
    del count
    return CLASS

  def columns(self, names: Sequence[str]) -> Sequence[str]:
    """The columns of a file of labels that have the labels.

    `names` has the names of all columns but those of the files and of `split`.
    The returned columns need not be among them: a message then says which is
    missing.
    """
    from vit_jax.data.reading.tables import column

    return (column((*USUAL, *_FURTHER), names) or USUAL[0],)

  def guess_columns(self, first: Mapping[str, Any]) -> Sequence[str]:
    """The columns that have the labels, if those of `columns` are not there.

    These are all columns, if there are two or more and all first cells are 0 or
    1; otherwise the result is empty. `first` has the first cell with a known
    value of each column but those of the files and of `split`, or else "".
    """
    from vit_jax.data.reading.columns import as_bit

    are_bits = all(as_bit(value) is not None for value in first.values())
    return [*first] if are_bits and len(first) > 1 else ()

  def interpret(
    self, columns: Sequence[str], rows: Sequence["Row"], settings: DataSettings
  ) -> tuple[Sequence["Row"], list[str]]:
    """Reads the cells as the settings say.

    Returns the rows with the meanings of their cells, and lines on them. Raises
    ValueError if a setting is for another kind of labels, or a cell has no
    meaning.
    """
    del columns
    no_change = (None, "absent")  # "absent" in older runs.
    for name in ("unknown", "uncertain", "empty_cells"):
      if (value := getattr(settings, name)) not in no_change:
        key = f"data.{name}"
        raise ValueError(
          f"{key}={value!r} is for images with several labels, in one column "
          "for each label: set data.task=multilabel, or leave it out."
        )
    return rows, []

  def join_rows(self, rows: Sequence["Row"]) -> list["Row"]:
    """Makes one row for each image from the rows of a file.

    Raises ValueError if two rows of an image are of different splits or groups,
    or their labels cannot be merged.
    """
    from vit_jax.data.reading.class_rows import join_rows

    return join_rows(rows, self.merge)

  def merge(self, before: "Row", row: "Row") -> "Row":
    """Merges two rows of an image into one.

    Raises ValueError if they disagree.
    """
    from vit_jax.data.reading.cells import are_sentences
    from vit_jax.data.reading.class_rows import merge_equal

    hint = ""
    if self.are_classes:
      hint = " (data.task=multilabel takes several)"
      if are_sentences([*before.values, *row.values], num_cells=2):
        hint = f", or train on captions with {_pairs_of(row)}"
    return merge_equal(before, row, hint)

  def remarks(self, columns: Sequence[str], rows: Sequence["Row"]) -> list[str]:
    """Lines on how all rows of a file are read, after `join_rows`."""
    del rows
    if len(columns) == 1 or not self.are_classes:
      return []
    from vit_jax.data.reading.tables import list_columns

    why = "are the classes, as each row has a single 1"
    return [f"the columns {list_columns(columns)} {why}."]

  def fit(
    self, columns: Sequence[str], rows: Sequence["Row"]
  ) -> tuple[Names, "Encode"]:
    """The names of classes, labels or targets, and the encoder of rows.

    Args:
      columns: The columns that have the labels.
      rows: The rows of the training split, in their order.

    Raises:
      ValueError: if a row has no such label (the message names its line), or
        all rows have the same class.
    """
    from vit_jax.data.reading.class_rows import fit

    return fit(columns, rows)

  def fit_to(
    self, columns: Sequence[str], rows: Sequence["Row"], names: Names
  ) -> "Encode":
    """A function that encodes rows of another file for the names of a run.

    For classes, the file need not have all of the names. Raises ValueError for
    a column of a class that is not among them, and the function raises
    ValueError, with the line, for a cell of such a class. For other labels,
    raises ValueError unless the file has the same names, and as `fit` does.
    """
    if self.are_classes:
      from vit_jax.data.reading.class_rows import fit_to

      return fit_to(columns, names)
    theirs, encode = self.fit(columns, rows)
    if theirs != names:
      raise ValueError(
        f"the {self.plural} are {', '.join(theirs)}, and those of the run "
        f"{', '.join(names)}: they must be the same, so the file needs all "
        f"{self.plural} of the run."
      )
    return encode

  def note_training(self, rows: Sequence["Row"]) -> None:
    """Takes note of the rows to train on, once others are held out."""

  def check(self, path: str, names: Sequence[str], labels: np.ndarray) -> None:
    """Raises ValueError if nothing can be learned from the training labels.

    `path` is the file of labels, and `labels` are those of all its training
    examples.
    """

  def numbers_warning(self, names: Sequence[str], count: int) -> str:
    """A line if the classes of `count` images may be numbers, or ""."""
    many = _FEWEST < len(names) < count or len(names) >= _MANY
    if not (self.are_classes and many and all(map(_NUMBER.match, names))):
      return ""
    what = "whole numbers" if all(map(str.isdecimal, names)) else "numbers"
    return (
      f"the labels are {what} and taken for classes; "
      "--config.data.task=regression learns them as numbers."
    )

  def warnings(self, names: Sequence[str], rows: Sequence["Row"]) -> list[str]:
    """Warnings about labels of a file that may be a mistake, a line each.

    Warnings about the names of classes come from `ImageFiles.warnings`.
    """
    if not self.are_classes:
      return []
    if line := self.numbers_warning(names, len(rows)):
      return [line]
    from vit_jax.data.reading.cells import are_sentences, several_labels_hint

    if rows and are_sentences(names, num_cells=len(rows)):
      like = f"classes, such as {names[0]!r}, look like captions: train on them"
      return [f"the {len(names):,} {like} with {_pairs_of(rows[0])}"]
    hint = several_labels_hint(names)
    return [f"{hint}."] if hint else []

  def summarise(self, label: Any, count: int) -> np.ndarray:
    """The summary of a label for `overview`, of one shape for all labels.

    `count` is the number of names.
    """
    del count
    return np.asarray(label)

  def overview(self, summaries: np.ndarray, names: Names) -> dict[str, str]:
    """A few words on each name, from the summaries (N, ...) of some labels.

    For the index of a class, they are the number of images that have it.
    Further entries, such as "(no label)", may follow those of the names.
    """
    counts = np.bincount(summaries, minlength=len(names))
    return {name: f"{n:,}" for name, n in zip(names, counts, strict=True)}

  def spread(self, summaries: np.ndarray, names: Names) -> str:
    """How many images the names have, for a table of some names; may be ""."""
    counts = np.bincount(summaries, minlength=len(names))
    return f"{counts.min():,} to {counts.max():,} images each"

  def label_text(self, label: np.ndarray, names: Names) -> str:
    """The label of an image in words, to be shown below it."""
    return names[int(label)]

  def describe(self, label: Any, names: Sequence[str]) -> str:
    """A label, or an answer of its kind, in words that stand alone."""
    return names[int(label)]

  def about_other_names(self, names: Names, new: bool) -> str:
    """The advice if a folder has other names than the `names` of a run.

    `new` says that it is not the folder that the run was trained on.
    """
    del names
    if not new:
      return OLDER
    return (
      " Evaluate on classes of the run, spelt as it spells them: a folder or "
      "a table (file,label) may lack some of them, and must have no others."
    )


class IgnoredLabels(Labels):
  """Labels of a task that ignores them; all are 0."""

  heading = "images"
  copies_alike = "twice"

  def label_text(self, label: np.ndarray, names: Names) -> str:
    del label, names
    return ""


def _pairs_of(row: "Row") -> str:
  """The command that trains on the captions of the file of a row."""
  file, _, _ = row.place.rpartition(", ")
  return f"vit_jax train {shlex.quote(file)} --config pairs"


SINGLE = Labels()
NONE = IgnoredLabels(are_used=False)
"""Labels of a task that ignores them."""
