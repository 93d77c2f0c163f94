"""Predictions as lines of text: a table, JSON or CSV."""

import collections
import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from vit_jax.inference.predictor import Prediction
from vit_jax.tasks.answers import Answers
from vit_jax.tasks.task import class_name

Lines = Callable[[list[Prediction]], list[str]]


def json_lines(
  answers: Answers, names: Sequence[str], top: int | None = None
) -> Lines:
  """Returns a function that formats each prediction as a line of JSON."""

  def line(prediction: Prediction) -> str:
    """A JSON object with the image, and its error or its answer."""
    record: dict[str, object] = {"image": prediction.image}
    if prediction.error is not None:
      return json.dumps(record | {"error": prediction.error})
    return json.dumps(record | answers.as_json(prediction, names, top))

  return lambda batch: [line(prediction) for prediction in batch]


def table(
  answers: Answers, names: Sequence[str], top: int | None = None
) -> Lines:
  """Returns a function that formats predictions as the rows of a table.

  An image has a row for each line of its answer.
  """
  width = 0

  def rows(batch: list[Prediction]) -> list[str]:
    """The rows of a batch; the first column is as wide as all names so far."""
    nonlocal width
    width = max(width, *(len(prediction.image) for prediction in batch))
    return [
      f"{'' if number else prediction.image:<{width}}  {cell}"
      for prediction in batch
      for number, cell in enumerate(answers.lines(prediction, names, top))
    ]

  return rows


def count_classes(
  lines: Lines,
  answers: Answers,
  names: Sequence[str],
  top: int,
  counts: collections.Counter[str],
) -> Lines:
  """Wraps `lines` to also count the images of each class in `counts`."""

  def rows(batch: list[Prediction]) -> list[str]:
    """The lines of a batch, after its classes are counted."""
    for one in batch:
      if one.error is None:
        counts.update(_predicted_classes(answers.as_json(one, names, top)))
    return lines(batch)

  return rows


def _predicted_classes(answer: dict[str, Any]) -> list[str]:
  """The likeliest class of an answer, or all labels above the threshold.

  `answer` is what `Answers.as_json` returned.
  """
  ranked = answer.get("predictions", [])
  if ranked and "given" not in ranked[0]:
    return [ranked[0]["class"]]
  return [one["class"] for one in ranked if one["given"]]


def csv_lines(
  answers: Answers, names: Sequence[str], top: int, outputs: int
) -> Lines:
  """Returns a function that formats predictions as CSV, a row per image.

  A row has the class, or all labels above the threshold, and the `top`
  likeliest with their probabilities; or a number for each target; or an error.
  With several labels, it also has the probability of each, under its name.
  `outputs` is the number of classes or targets of the model.
  """
  zeros = (0.0,) * outputs
  # The answer of this prediction has a key for each column.
  blank = Prediction(
    image="", index=tuple(range(outputs)), probability=zeros, values=zeros
  )
  text = io.StringIO()

  def named_cells(one: Prediction) -> list[tuple[str, Any]]:
    """The cells of a prediction's row, each with the title of its column."""
    record = answers.as_json(one, names, top)
    ranked = record.get("predictions", [])
    cells: list[tuple[str, Any]] = [("image", one.image)]
    if ranked:
      cells.append(("class", ";".join(_predicted_classes(record))))
    for rank, answer in enumerate(ranked[:top], start=1):
      cells.append((f"class_{rank}", answer["class"]))
      cells.append((f"probability_{rank}", answer["probability"]))
    if answers.given_from is not None:
      by_class = sorted(zip(one.index, one.probability, strict=True))
      cells += [(class_name(names, k), p) for k, p in by_class]
    return [*cells, *record.get("values", {}).items()]

  def rows(batch: list[Prediction]) -> list[str]:
    """One text with the rows of a batch; the first begins with the titles."""
    # The column of errors is the last.
    for one in batch:
      if one.error is None:
        cells = [*(cell for _, cell in named_cells(one)), None]
      else:
        cells = [one.image, *[None] * (len(columns) - 2), one.error]
      writer.writerow(cells)
    written = text.getvalue()[:-1]
    text.seek(0)
    text.truncate()
    return [written]

  # A list, not a dictionary: a label may be named like another column.
  columns = [*(column for column, _ in named_cells(blank)), "error"]
  writer = csv.writer(text, lineterminator="\n")
  writer.writerow(columns)
  return rows
