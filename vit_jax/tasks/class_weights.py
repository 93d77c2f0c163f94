"""Weights of the classes in the loss: listed, or balanced by their counts."""

from typing import Any

import numpy as np

from vit_jax.data.example import Source
from vit_jax.training.settings import LossSettings


def class_weights(settings: LossSettings, train: Source) -> tuple[float, ...]:
  """The weights that `loss.class_weights` asks for, one for each class.

  Balanced weights of single classes are N / (K n_k); of several labels, those
  of the positive terms are (N - n_k) / n_k, with n_k of N images having k.

  Raises:
    ValueError: if the weights do not fit the data.
  """
  names, listed = train.class_names, settings.listed_weights()
  if listed is not None:
    if len(listed) != len(names):
      raise ValueError(
        f"loss.class_weights has {len(listed)} weights, and the data have "
        f"{len(names)} classes: give one for each, in the order of their names."
      )
    return tuple(listed)
  read: Any = getattr(train, "labels", None)
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
    found = np.maximum(count - counts.astype(float), 1) / counts
  else:
    found = count / (len(names) * counts)
  return tuple(found.tolist())
