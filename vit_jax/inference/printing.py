"""Predictions as lines of text: a table, or a JSON object per image."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vit_jax.inference.predictor import Prediction, class_name

Lines = Callable[[list[Prediction]], list[str]]


def json_lines(
  class_names: tuple[str, ...],
  threshold: float | None = None,
  top: int | None = None,
) -> Lines:
  """Formats predictions as one JSON object per image.

  With a threshold, an answer says whether its probability reaches it, and those
  that do are given beyond the `top` ones.
  """

  def answer(index: int, probability: float) -> dict[str, object]:
    found = {"class": class_name(class_names, index), "index": index}
    given = {} if threshold is None else {"given": probability >= threshold}
    return {**found, "probability": probability, **given}

  def to_object(prediction: Prediction) -> dict[str, object]:
    found: dict[str, object] = {"image": prediction.image}
    if prediction.error is not None:
      return found | {"error": prediction.error}
    if prediction.values:
      pairs = enumerate(prediction.values)
      return found | {
        "values": {class_name(class_names, k): v for k, v in pairs}
      }
    ranked = _ranked(prediction, threshold, top)
    return found | {"predictions": [answer(*one) for one in ranked]}

  return lambda batch: [json.dumps(to_object(p)) for p in batch]


def table(
  class_names: tuple[str, ...],
  threshold: float | None = None,
  top: int | None = None,
) -> Lines:
  """Formats predictions as a table, with a row for each class of an image.

  With a threshold, a star marks the answers whose probability reaches it, and
  those are shown beyond the `top` ones.
  """
  width = 0

  def cells(prediction: Prediction) -> list[str]:
    if prediction.values:
      return [
        f"{value:12.6g}  {class_name(class_names, k)}"
        for k, value in enumerate(prediction.values)
      ]
    return [
      f"{p:7.2%}{_star(p, threshold)}  {class_name(class_names, k)}"
      for k, p in _ranked(prediction, threshold, top)
    ]

  def rows(batch: list[Prediction]) -> list[str]:
    nonlocal width
    width = max(width, *(len(prediction.image) for prediction in batch))
    return [
      f"{'' if number else prediction.image:<{width}}  {cell}"
      for prediction in batch
      for number, cell in enumerate(cells(prediction))
    ]

  return rows


def _ranked(
  prediction: Prediction, threshold: float | None, top: int | None
) -> list[tuple[int, float]]:
  """The classes to show and their probabilities."""
  pairs = zip(prediction.index, prediction.probability, strict=True)
  return [
    (k, p)
    for rank, (k, p) in enumerate(pairs)
    if top is None or rank < top or (threshold is not None and p >= threshold)
  ]


def _star(probability: float, threshold: float | None) -> str:
  if threshold is None:
    return ""
  return "*" if probability >= threshold else " "


def label_text(names: Sequence[str], label: Any, loss: str) -> str:
  """A label in words: a class, several, or numbers with their names."""
  if not np.ndim(label):
    return names[int(label)]
  pairs = zip(names, np.asarray(label).tolist(), strict=True)
  if loss == "mse":
    return ", ".join(f"{name} {value:.4g}" for name, value in pairs)
  return ", ".join(name for name, given in pairs if given) or "no label"
