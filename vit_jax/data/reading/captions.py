"""Captions as labels: texts on an image, as the ids of their tokens.

An image may have several captions. The tokenizer of `tokenizer_files` makes the
ids.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int

from vit_jax.data.batch import ArraySpec
from vit_jax.data.reading.cells import Encode, Row
from vit_jax.data.reading.class_rows import join_rows
from vit_jax.data.reading.labels import SINGLE, Labels, Names
from vit_jax.data.reading.tables import column, fail
from vit_jax.data.reading.tokenizer import cut_lines
from vit_jax.data.reading.tokenizer_files import TokenizerFiles
from vit_jax.runtime.printable import quoted

TEXT = "text"
"""The array of a batch that has the ids of one caption of each image."""
COLUMNS = ("caption", "captions", "text", "texts", "title", "txt")
# Columns of captions in files of labels, but not in other sources.
_FURTHER = ("comment", "sentence", "sentences")
NONE = -1  # In place of the ids of a caption that an image does not have.


@dataclasses.dataclass(frozen=True)
class Captions(Labels):
  """The captions of an image: the ids of their tokens, int32 (M, T).

  `encode` makes the ids of the rows of a file, when the file is opened, and
  `of_record` those of a record, when the record is read. A caption that an
  image does not have is all `NONE`.

  Attributes:
    files: The files of the tokenizer; None reads captions without making ids.
    most: M, the most captions of an image that are used.
    length: T, if there is no tokenizer.
  """

  plural: str = "column of captions"
  singular = "column of captions"
  records = "tfds.captions"
  may_be_several = True
  further_rows = ""
  heading = "images"
  copies_alike = "twice"
  copies_unlike = "there with different captions"
  files: TokenizerFiles | None = None
  most: int = 5
  length: int = 1
  names: ClassVar[Names] = COLUMNS[:1]
  """The names of a source, whatever its column or feature is called."""

  def spec(self, count: int) -> ArraySpec:
    """The shape (M, T) and the type of a label; `count` does not matter."""
    del count
    tokens = self.files.length if self.files else self.length
    return ArraySpec((self.most, tokens), np.int32)

  def columns(self, names: Sequence[str]) -> Sequence[str]:
    return (column((*COLUMNS, *_FURTHER), names) or COLUMNS[0],)

  def guess_columns(self, first: Mapping[str, Any]) -> Sequence[str]:
    del first
    return ()

  def join_rows(self, rows: Sequence[Row]) -> list[Row]:
    """One row for each image, with the captions of all of its rows.

    `class_rows.join_rows` finds the rows of an image, and `merge` joins them.
    Raises ValueError if two rows of an image are of different splits or groups,
    or a cell has no caption, or one that is empty, not text or not whole.
    """
    return join_rows(map(_collect_captions, rows), self.merge)

  def merge(self, before: Row, row: Row) -> Row:
    """`before`, with the captions of both rows."""
    return dataclasses.replace(before, values=[*before.values, *row.values])

  def remarks(self, columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    return []

  def fit(
    self, columns: Sequence[str], rows: Sequence[Row]
  ) -> tuple[Names, Encode]:
    """As `Labels.fit`; raises ValueError for fewer than two images."""
    if len(rows) < 2:
      fail(
        rows[0].place,
        "is the only pair to train on: a pair is compared with others, so give "
        "two or more",
      )
    return self.names, self.encode

  def encode(self, rows: Sequence[Row]) -> Int[np.ndarray, "N M T"]:
    """The ids of the captions of rows that `join_rows` returned.

    `label_file` keeps the array, and `ImageFiles` gives its element i, (M, T),
    as the label of example i.
    """
    return self.ids([row.values for row in rows])

  def of_record(self, captions: Sequence[str]) -> Any:
    """The label of a record that has these captions."""
    return self.ids([captions])[0]

  def ids(self, captions: Sequence[Sequence[str]]) -> np.ndarray:
    """The ids of the first M captions of each image, (N, M, T).

    `NONE` stands where there is no caption. Without a tokenizer, 0 stands for
    each id of a first caption, and `NONE` for all others.
    """
    shape = self.spec(1).shape
    labels = np.full((len(captions), *shape), NONE, np.int32)
    used = [texts[: self.most] for texts in captions]
    if self.files is None:
      labels[:, 0] = 0  # Not `NONE`: there is a caption, without ids.
      return labels
    flat = [text for texts in used for text in texts]
    rows = iter(self.files.tokenizer(flat) if flat else ())
    for label, texts in zip(labels, used, strict=True):
      for place in range(len(texts)):
        label[place] = next(rows)
    return labels

  def warnings(self, names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Lines on captions that are left out, and on those that are cut."""
    del names
    lines = []
    more = [row for row in rows if len(row.values) > self.most]
    if more:
      lines.append(
        f"{len(more):,} of {len(rows):,} images have more than {self.most} "
        "captions, and only the first are used: set --config.pairs.captions to "
        "use more."
      )
    used = [text for row in rows for text in row.values[: self.most]]
    return lines + self.cut_lines(used)

  def label_text(self, label: np.ndarray, names: Names) -> str:
    """The first caption of an image, about as it was written.

    It is "" without a caption or a tokenizer.
    """
    del names
    if self.files is None or label[0, 0] == NONE:
      return ""
    return self.files.text(label[0])

  def describe(self, label: Any, names: Sequence[str]) -> str:
    return self.label_text(np.asarray(label), tuple(names))

  def summarise(self, label: np.ndarray, count: int) -> np.ndarray:
    """0, the place of the only name, so that `overview` counts the images."""
    del label, count
    return np.array(0)

  def cut_lines(self, texts: Sequence[str]) -> list[str]:
    """A line if texts have more tokens than the text tower reads."""
    files = self.files
    if files is None:
      return []
    return cut_lines(texts, files.tokenizer, lambda: files.longer, "captions")


def captions_and_classes(columns: Sequence[str]) -> tuple[Names, Names]:
  """The column of captions and that of classes, each () if there is none.

  Beside a column of classes, captions are only in a column called caption or
  captions.
  """
  classes = tuple(name for name in SINGLE.columns(columns) if name in columns)
  candidates = COLUMNS[:2] if classes else (*COLUMNS, *_FURTHER)
  found = column(candidates, columns)
  captions = () if found is None else (found,)
  return captions, classes


def no_captions(name: str) -> str:
  """The message for a source that has no captions."""
  return (
    f"{name} has no captions, which pairs need: give a CSV or JSONL file with "
    "the columns file and caption, or data.dir, which vit_jax pack made of "
    "such a file or of WebDataset's .tar files."
  )


CAPTIONS = Captions()
"""Captions whose tokenizer is not known yet."""


def _collect_captions(row: Row) -> Row:
  """The row with the captions from all of its cells as its values."""
  texts = [text for value in row.values for text in _texts(row, value)]
  return dataclasses.replace(row, values=texts)


def is_whole(text: str) -> bool:
  """Whether a text has no half of a character (a lone surrogate).

  A text in JSON may have one.
  """
  try:
    text.encode()
  except UnicodeEncodeError:
    return False
  return True


def _texts(row: Row, value: Any) -> list[str]:
  """The captions in a cell.

  Raises ValueError if there are none, or one is empty, not text, or not whole.
  """
  values = value if isinstance(value, list) else [value]
  for text in values:
    if not isinstance(text, str):
      fail(row.place, f"has the caption {quoted(text)}, which is not text")
    if not (text.isascii() or is_whole(text)):
      fail(
        row.place,
        f"has the caption {quoted(text)}, with half a character (a lone "
        "surrogate): write it whole",
      )
    if not text.strip():
      fail(row.place, "has an empty caption: write one, or leave out the line")
  if not values:
    fail(row.place, "has no caption: write one, or leave out the line")
  return values
