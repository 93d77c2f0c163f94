"""Keeps a model's answer to every example of a split, and writes them as CSV.

The rows are sorted by loss, the worst answer first: that is where wrong labels
and broken images are found.
"""

import codecs
import csv
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from vit_jax.data.example import Source
from vit_jax.evaluation.eval_step import Answers
from vit_jax.evaluation.targets import Outputs
from vit_jax.runtime.atomic_file import replacing

COLUMNS = ("file", "label", "answer", "probability", "loss")
_CHUNK = 64  # Examples read at a time, where only reading them gives their ids.


class AnswerList:
  """Keeps the answers to all examples; `add` takes them batch by batch."""

  def __init__(self):
    self._batches: list[Answers] = []

  def add(self, answers: Answers) -> None:
    """Keeps a batch of answers, in the order of the split."""
    self._batches.append(answers)

  def write(
    self, path: pathlib.Path, source: Source, class_name: Sequence[str]
  ) -> None:
    """Writes the rows of all examples that were counted.

    An example whose loss is NaN comes first and has no answer.

    Args:
      source: The split, for the names of its examples.
      class_name: The name of each class of the model.
    """
    rows = {
      name: np.concatenate([getattr(b, name) for b in self._batches])
      for name in ("label", "answer", "probability", "loss", "counted")
    }
    counted = np.flatnonzero(rows.pop("counted"))
    order = counted[np.argsort(-rows["loss"][counted], kind="stable")]
    nan = np.isnan(rows["loss"][order])
    order = np.concatenate([order[nan], order[~nan]])
    with replacing(path) as file:
      out = csv.writer(codecs.getwriter("utf-8")(file))
      out.writerow(COLUMNS)
      for index, example_id in zip(order, _ids(source, order), strict=True):
        label, answer, probability, loss = (
          rows[name][index].item() for name in rows
        )
        answered = np.isfinite(probability)
        out.writerow(
          [
            example_id,
            class_name[label],
            class_name[answer] if answered else "",
            f"{probability:.6g}",
            f"{loss:.6g}",
          ]
        )


def write_outputs(
  path: pathlib.Path,
  source: Source,
  found: Outputs,
  threshold: float | None = None,
) -> None:
  """Writes labels and outputs of all examples, the highest loss first.

  Args:
    path: The CSV file.
    source: The split, for the names of its examples and of the labels.
    found: The outputs.
    threshold: Probability from which on a label is given; None for numbers.
  """
  names = source.class_names
  columns = ["labels", "answers", *names]
  if threshold is None:
    columns = [f"{name}{end}" for end in ("", "_predicted") for name in names]
  order = np.argsort(-found.loss, kind="stable")
  with replacing(path) as file:
    out = csv.writer(codecs.getwriter("utf-8")(file))
    out.writerow(["file", *columns, "loss"])
    ids = _ids(source, found.index[order])
    for row, example_id in zip(order, ids, strict=True):
      label, output = found.label[row], found.output[row]
      cells = [f"{value:.8g}" for value in output]
      if threshold is None:
        cells = [*(f"{value:.8g}" for value in label), *cells]
      else:
        given = (label > 0, output >= threshold)
        told = (";".join(np.array(names, object)[mask]) for mask in given)
        cells = [*told, *cells]
      out.writerow([example_id, *cells, f"{found.loss[row]:.6g}"])


def _ids(source: Source, indices: np.ndarray) -> Iterable[str]:
  """The examples' ids, without reading them if the source can do that."""
  ids = getattr(source, "ids", None)
  if ids is not None:
    yield from ids(indices)
    return
  for first in range(0, len(indices), _CHUNK):
    for example in source.read(indices[first : first + _CHUNK].tolist()):
      yield example["id"]
