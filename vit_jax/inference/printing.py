"""Predictions as lines of text: a table, or a JSON object per image."""

import json
from collections.abc import Callable, Sequence

from vit_jax.inference.predictor import Prediction
from vit_jax.tasks.task import Task

Lines = Callable[[list[Prediction]], list[str]]


def json_lines(
  task: Task, names: Sequence[str], top: int | None = None
) -> Lines:
  """Formats predictions as a JSON object per image, by `task.as_json`."""

  def line(prediction: Prediction) -> str:
    found: dict[str, object] = {"image": prediction.image}
    if prediction.error is not None:
      return json.dumps(found | {"error": prediction.error})
    return json.dumps(found | task.as_json(prediction, names, top))

  return lambda batch: [line(prediction) for prediction in batch]


def table(task: Task, names: Sequence[str], top: int | None = None) -> Lines:
  """Formats predictions as a table, with a row for each of `task.lines`."""
  width = 0

  def rows(batch: list[Prediction]) -> list[str]:
    nonlocal width
    width = max(width, *(len(prediction.image) for prediction in batch))
    return [
      f"{'' if number else prediction.image:<{width}}  {cell}"
      for prediction in batch
      for number, cell in enumerate(task.lines(prediction, names, top))
    ]

  return rows
