"""Predictions as lines of text: a table, or a JSON object per image."""

import json
from collections.abc import Callable

from vit_jax.inference.predictor import Prediction, class_name

Lines = Callable[[list[Prediction]], list[str]]


def json_lines(class_names: tuple[str, ...]) -> Lines:
  """Formats predictions as one JSON object per image."""

  def to_object(prediction: Prediction) -> dict[str, object]:
    if prediction.error is not None:
      return {"image": prediction.image, "error": prediction.error}
    ranked = zip(prediction.index, prediction.probability, strict=True)
    return {
      "image": prediction.image,
      "predictions": [
        {"class": class_name(class_names, i), "index": i, "probability": p}
        for i, p in ranked
      ],
    }

  return lambda batch: [json.dumps(to_object(p)) for p in batch]


def table(class_names: tuple[str, ...]) -> Lines:
  """Formats predictions as a table, with a row for each class of an image."""
  width = 0

  def rows(batch: list[Prediction]) -> list[str]:
    nonlocal width
    width = max(width, *(len(prediction.image) for prediction in batch))
    return [
      f"{'' if rank else prediction.image:<{width}}  "
      f"{probability:7.2%}  {class_name(class_names, index)}"
      for prediction in batch
      for rank, (index, probability) in enumerate(
        zip(prediction.index, prediction.probability, strict=True)
      )
    ]

  return rows
