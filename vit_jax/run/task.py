"""The task of a run: a class, several labels, numbers, or masked patches."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data.example import Source
from vit_jax.data.preprocessing import HALF
from vit_jax.run.settings import Settings
from vit_jax.runtime.settings import flat, to_dict
from vit_jax.training.distillation import Teacher
from vit_jax.training.objectives import Numbers, SeveralLabels
from vit_jax.training.step import Labels

_OF_CLASSES = (
  "loss.label_smoothing",
  "loss.mixup_alpha",
  "loss.cutmix_alpha",
  "loss.binary_targets",
  "loss.class_weights",
  "model.num_classes",
  "model.head_bias",
)
# Keys that say nothing for a task: they are about the class of an image.
_REFUSED = {
  "masked": (
    "loss.kind",
    *_OF_CLASSES,
    "eval_per_class",
    "data.task",
    "lora.rank",
    "distill.teacher",
  ),
  "multilabel": (
    "loss.label_smoothing",
    "model.num_classes",
    "fewshot.shots",
    "distill.teacher",
  ),
  "regression": (
    *_OF_CLASSES,
    "transfer.keep_head",
    "fewshot.shots",
    "distill.teacher",
  ),
}
_LOSSES = {
  "classification": ("softmax", "sigmoid"),
  "multilabel": ("sigmoid",),
  "regression": ("mse",),
}


def with_loss(settings: Settings) -> Settings:
  """The settings with the loss of their task.

  Raises:
    ValueError: for keys that mean nothing for the task.
  """
  _check_keys(settings)
  task, loss = settings.data.task, settings.loss
  if settings.masked.rate or loss.kind in _LOSSES[task]:
    return settings
  if loss.kind != Settings().loss.kind:
    raise ValueError(
      f"loss.kind={loss.kind!r} does not fit data.task={task!r}, which takes "
      f"{' or '.join(_LOSSES[task])}: leave it out."
    )
  loss = dataclasses.replace(loss, kind=_LOSSES[task][0])
  return dataclasses.replace(settings, loss=loss)


def _check_keys(settings: Settings) -> None:
  unlabelled = bool(settings.data.root) and not settings.data.labels
  rate, few_shot = settings.masked.rate, settings.fewshot
  if unlabelled and not rate:
    raise ValueError(
      "data.labels=False leaves no classes to train on: leave it out, or set "
      "masked.rate to train without labels."
    )
  given, default = (flat(to_dict(s)) for s in (settings, Settings()))
  own = few_shot.data.name or few_shot.data.photographs
  for key in _REFUSED.get("masked" if rate else settings.data.task, ()):
    if given[key] != default[key] and not (key == "fewshot.shots" and own):
      why = (
        f"is about labels, and masked.rate={rate} trains without"
        if rate
        else f"is about classes, and data.task={settings.data.task!r} has none"
      )
      raise ValueError(
        f"{key}={given[key]!r} {why}: set it to {default[key]!r}."
      )
  if few_shot.shots and unlabelled and not own:
    raise ValueError(
      f"fewshot.shots={few_shot.shots} needs labels: set data.labels=True "
      "for a folder of class folders, or give fewshot.data.root."
    )


def targets_of(settings: Settings, train: Source) -> dict[str, Any]:
  """Facts about the labels that the loss needs; empty for plain classes.

  Returns:
    `task`; `mean` and `std` of numbers over the training images; `weights` of
    the classes, if the settings ask for them.

  Raises:
    ValueError: if the weights do not fit the data.
  """
  task, found = settings.data.task, {}
  if settings.loss.class_weights and not settings.masked.rate:
    found["weights"] = _weights(settings, train)
  if task == "regression":
    labels = _all_labels(train)
    found |= {"mean": labels.mean(0).tolist(), "std": labels.std(0).tolist()}
  if task == "classification" and not found:
    return {}
  return {"task": task, **found}


def check_evaluation(evaluation: Any) -> None:
  """Raises ValueError if the scores of a task mean nothing on a split."""
  labels = _all_labels(evaluation)
  if evaluation.task == "multilabel" and not labels.any():
    raise ValueError(
      f"no image of {evaluation.name} has a label, so there is no precision to "
      "measure: evaluate on others."
    )
  if evaluation.task == "regression" and not np.ptp(labels, axis=0).all():
    name = evaluation.class_names[int(np.argmin(np.ptp(labels, axis=0)))]
    raise ValueError(
      f"{name} is the same in all images of {evaluation.name}, so there is no "
      "R2 to measure: evaluate on more images."
    )


def _all_labels(source: Any) -> np.ndarray:
  return np.asarray(source.labels(range(len(source))), np.float64)


def make_objective(
  settings: Settings,
  num_classes: int,
  targets: Mapping[str, Any],
  teacher: Teacher | None = None,
) -> Labels | None:
  """The objective of a run with these `targets_of`; None for plain classes."""
  if "task" not in targets:
    return None
  mean, std = settings.normalization.mean, settings.normalization.std
  parts = num_classes, settings.loss, mean or HALF, std or HALF
  if targets["task"] == "regression":
    return Numbers(
      *parts, target_mean=targets["mean"], target_std=targets["std"]
    )
  weights: Any = targets.get("weights")
  if targets["task"] == "multilabel":
    return SeveralLabels(*parts, class_weights=weights)
  # A head may be wider than the data's classes.
  padded = (*weights, *[1.0] * (num_classes - len(weights)))
  return Labels(*parts, class_weights=padded, teacher=teacher)


def _weights(settings: Settings, train: Source) -> list[float]:
  names, listed = train.class_names, settings.loss.listed_weights()
  if listed is not None:
    if len(listed) != len(names):
      raise ValueError(
        f"loss.class_weights has {len(listed)} weights, and the data have "
        f"{len(names)} classes: give one for each, in the order of their names."
      )
    return list(listed)
  read = getattr(train, "labels", None)
  if read is None:
    raise ValueError(
      f"loss.class_weights='balanced' has to count the labels, and "
      f"{train.name} gives them with the images alone: list the weights."
    )
  labels = np.asarray(read(range(len(train))))
  count, several = len(labels), labels.ndim > 1
  counts = (
    labels.sum(0) if several else np.bincount(labels, minlength=len(names))
  )
  if not counts.all():
    raise ValueError(
      f"loss.class_weights='balanced': no training image has the class "
      f"{names[int(np.argmin(counts))]!r}."
    )
  if several:
    return (np.maximum(count - counts.astype(float), 1) / counts).tolist()
  return (count / (len(names) * counts)).tolist()
