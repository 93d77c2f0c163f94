"""Weights of the classes: listed, or balanced as in scikit-learn."""

import pytest

from tests.tasks import made_up
from vit_jax.tasks.classification.task import ClassificationTask
from vit_jax.training.settings import LossSettings


def weights(labels, text="balanced", task="classification"):
  task = made_up.task(loss__class_weights=text, data__task=task)
  return task.fitted(made_up.Split(labels)).facts()["weights"]


def test_balanced_weights():
  """As in scikit-learn, N / (K n); of several labels, negatives / positives."""
  assert weights([0, 0, 0, 1]) == [4 / 6, 4 / 2]
  several = [[1, 1], [1, 0], [1, 0], [0, 0]]
  assert weights(several, task="multilabel") == [1 / 3, 3 / 1]
  assert weights([0, 1], "3,0.5") == [3, 0.5]
  with pytest.raises(ValueError, match="no training image has the class 'b'"):
    weights([0, 0])
  with pytest.raises(ValueError, match="has 3 weights, and the data"):
    weights([0, 1], "1,2,3")


@pytest.mark.parametrize("weights", ["", "1,x", "1,0", "1,-2", "inf"])
def test_weights_that_are_none(weights):
  with pytest.raises(ValueError, match=f"class_weights='{weights}' must be"):
    LossSettings(class_weights=weights)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_the_answers_of_a_sigmoid_are_explained(kind):
  legend = ClassificationTask(LossSettings(kind=kind)).answers.legend
  assert (legend is not None) == (kind == "sigmoid")
  assert "need not sum to 1" in (legend or "need not sum to 1")
