"""The kinds of labels: their shape and type, and how a file gives them.

A kind of one's own derives from `Labels`, and is a task's `labels`.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from vit_jax.data.batch import CLASS, ArraySpec
from vit_jax.data.reading.label_rows import Encode, Row, make_encode

_USUAL = ("label", "labels", "class")
# Smallest deviation of a target over its mean that float32 resolves well.
_LEAST_SPREAD = 1e-5


@dataclasses.dataclass(frozen=True)
class Labels:
  """A kind of labels; this one is the index of a class.

  Attributes:
    plural: What the names of a source with such labels are.
    key: The value of `data.task` by which a configuration names the kind.
    are_classes: Whether a label is the index of one class.
    are_used: Whether anybody reads them.
  """

  plural: str = "classes"
  key: str = "classification"
  are_classes: bool = True
  are_used: bool = True

  def spec(self, count: int) -> ArraySpec:
    """Shape and type of the label of an example, if there are `count` names."""
    del count
    return CLASS

  def columns(self, names: Sequence[str]) -> Sequence[str]:
    """The columns of a file of labels that have the labels.

    `names` are those of all columns but that of the files and `split`. What is
    returned need not be among them: a message then says what is missing.
    """
    return [name for name in _USUAL if name in names][:1] or _USUAL[:1]

  def fit(
    self, columns: Sequence[str], rows: Sequence[Row]
  ) -> tuple[tuple[str, ...], Encode]:
    """The names of classes, labels or targets, and how rows are encoded.

    Args:
      columns: The columns that have the labels.
      rows: The rows of the training split, in their order.

    Raises:
      ValueError: if a row has no such label. The message names its line.
    """
    return make_encode(self.key, [*columns], rows)

  def check(self, path: str, names: Sequence[str], labels: np.ndarray) -> None:
    """Raises ValueError if nothing can be learned from the training labels.

    `path` is that of their file, and `labels` are those of all examples.
    """


class Arrays(Labels):
  """Labels of a number for each name."""

  def spec(self, count: int) -> ArraySpec:
    return ArraySpec((count,), np.float32)


class Numbers(Arrays):
  """Numbers, one for each column."""

  def columns(self, names: Sequence[str]) -> Sequence[str]:
    return [*names] or _USUAL[:1]

  def check(self, path: str, names: Sequence[str], labels: np.ndarray) -> None:
    labels = labels.astype(np.float64)
    middle, spread = np.abs(labels.mean(axis=0)), labels.std(axis=0)
    for name, mean, width in zip(names, middle, spread, strict=True):
      if width <= _LEAST_SPREAD * mean or not width:
        raise ValueError(
          f"{path} has the target {name}, which hardly varies ({width:.3g} "
          f"around {mean:.6g}): subtract a constant, or leave it out."
        )


SINGLE = Labels()
SEVERAL = Arrays("labels", "multilabel", are_classes=False)
"""For each name, 1 if an example has that label, or 0."""
NUMBERS = Numbers("targets", "regression", are_classes=False)
NONE = Labels(are_used=False)
"""Whatever the labels are, nobody reads them."""


def labels_of(key: str) -> Labels:
  """The kind of labels that a configuration names by `data.task`."""
  kinds = {kind.key: kind for kind in (SINGLE, SEVERAL, NUMBERS)}
  return kinds.get(key, SINGLE)
