"""Captions as their letters, to be shown, or read by a program of your own."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from vit_jax.data.reading.captions import NONE, Captions
from vit_jax.data.reading.cells import Row
from vit_jax.data.reading.labels import Labels

_LENGTH = 128  # Letters of a caption that are kept.


@dataclasses.dataclass(frozen=True)
class Letters(Captions):
  """The letters of the first caption of an image, as Unicode code points.

  A label is of shape (1, T), and has `NONE` after the last letter.
  """

  most: int = 1
  length: int = _LENGTH

  def ids(self, captions: Sequence[Sequence[str]]) -> np.ndarray:
    """The code points of the first caption of each image, (N, 1, T)."""
    ids = np.full((len(captions), 1, self.length), NONE, np.int32)
    for row, (first, *_) in zip(ids, captions, strict=True):
      letters = [*map(ord, first[: self.length])]
      row[0, : len(letters)] = letters
    return ids

  def label_text(self, label: np.ndarray, names: Sequence[str]) -> str:
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


def without_tokens(kind: Labels) -> Labels:
  """The kind of labels, with letters for captions that have no tokenizer."""
  if isinstance(kind, Captions) and kind.files is None:
    return Letters()
  return kind
