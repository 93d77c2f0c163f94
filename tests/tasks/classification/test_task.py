"""Weights of the classes: listed, or balanced as in scikit-learn."""

import pytest

from tests.tasks import made_up
from vit_jax.inference.predictor import Prediction
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


def test_tiny_probabilities_are_told_apart():
  answers = ClassificationTask(LossSettings(kind="sigmoid")).answers
  probability = 0.5, 0.00006, 0.000012, 3e-9, 0.0
  answer = Prediction("a.jpg", index=(0, 1, 2, 3, 4), probability=probability)
  lines = [line.split()[0] for line in answers.lines(answer, "abcde")]
  assert lines == ["50.00%", "0.01%", "0.0012%", "3e-07%", "0.00%"]
