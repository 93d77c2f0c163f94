"""Writes a model's answer to every example of a split as CSV.

The rows are sorted by loss, the worst answer first: that is where wrong labels
and broken images are found.
"""

import codecs
import csv
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vit_jax.data.example import Source
from vit_jax.runtime.atomic_file import replacing
from vit_jax.tasks.eval_step import Predictions

COLUMNS = ("label", "answer", "probability", "loss")
_CHUNK = 64  # Examples read at a time, where only reading them gives their ids.


def write_classes(
  path: pathlib.Path,
  source: Source,
  batches: Sequence[Predictions],
  names: Sequence[str],
) -> None:
  """Writes a classifier's answer to every example that was counted.

  An example whose loss is NaN comes first and has no answer.

  Args:
    path: The CSV file.
    source: The split, for the names of its examples.
    batches: The answers, in the order of the split.
    names: The name of each class of the model.
  """
  columns = {
    name: np.concatenate([getattr(b, name) for b in batches])
    for name in (*COLUMNS, "counted")
  }
  counted = np.flatnonzero(columns.pop("counted"))
  order = counted[np.argsort(-columns["loss"][counted], kind="stable")]
  nan = np.isnan(columns["loss"][order])
  order = np.concatenate([order[nan], order[~nan]])

  def cells(index: int) -> list[Any]:
    label, answer, probability, loss = (
      column[index].item() for column in columns.values()
    )
    answered = names[answer] if np.isfinite(probability) else ""
    return [names[label], answered, f"{probability:.6g}", f"{loss:.6g}"]

  write_rows(path, source, COLUMNS, order, map(cells, order))


def write_rows(
  path: pathlib.Path,
  source: Source,
  columns: Sequence[str],
  order: np.ndarray,
  rows: Iterable[Sequence[str]],
) -> None:
  """Writes a row for each example, which begins with the example's file.

  Args:
    path: The CSV file.
    source: The split, for the names of its examples.
    columns: Names of the columns after the first.
    order: The places in the split of the examples, in the order of the rows.
    rows: The cells of each example after the first.
  """
  with replacing(path) as file:
    out: Any = csv.writer(codecs.getwriter("utf-8")(file))
    out.writerow(["file", *columns])
    for name, cells in zip(_ids(source, order), rows, strict=True):
      out.writerow([name, *cells])


def _ids(source: Source, indices: np.ndarray) -> Iterable[str]:
  """The examples' ids, without reading them if the source can do that."""
  ids = getattr(source, "ids", None)
  if ids is not None:
    yield from ids(indices)
    return
  for first in range(0, len(indices), _CHUNK):
    for example in source.read(indices[first : first + _CHUNK].tolist()):
      yield example["id"]
