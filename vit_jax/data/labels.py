"""What the labels of a source are, by kind."""

import dataclasses

import numpy as np

from vit_jax.data.batch import CLASS, ArraySpec


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


class Arrays(Labels):
  """Labels of a number for each name."""

  def spec(self, count: int) -> ArraySpec:
    return ArraySpec((count,), np.float32)


SINGLE = Labels()
SEVERAL = Arrays("labels", "multilabel", are_classes=False)
"""For each name, 1 if an example has that label, or 0."""
NUMBERS = Arrays("targets", "regression", are_classes=False)
NONE = Labels(are_used=False)
"""Whatever the labels are, nobody reads them."""
