"""Classification: an image has one class."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import Array, Float

from vit_jax.data.example import Source, read_labels
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.runtime.checks import PerChannel, checked
from vit_jax.runtime.display import Metric, Split
from vit_jax.tasks.answers import Answer, Answers
from vit_jax.tasks.classification.evaluation import (
  ClassificationOutcome,
  class_measure,
)
from vit_jax.tasks.metrics import Measure
from vit_jax.tasks.outcome import Curves, Stream
from vit_jax.tasks.scores import Scores
from vit_jax.tasks.task import Task, class_name, class_names
from vit_jax.training import losses
from vit_jax.training.losses import Classification
from vit_jax.training.settings import LossSettings

# Only the fit of a calibration needs this module when it runs.
if TYPE_CHECKING:
  from vit_jax.tasks.classification.calibration import Calibration


@dataclasses.dataclass(frozen=True)
class ClassificationTask(Task):
  """Naming the class of an image.

  `counts_answers` tells whether its metrics need the counts of the answers, and
  `has_several` whether an image may have several labels. The logits are divided
  by `temperature`, one for all classes or one for each label, unless it is
  empty.
  """

  class_weights: tuple[float, ...] | None = None
  temperature: tuple[float, ...] = ()
  outcome: ClassVar[type[ClassificationOutcome]] = ClassificationOutcome
  counts_answers: ClassVar[bool] = False
  has_several: ClassVar[bool] = False
  objective_class: ClassVar[type[Classification]] = Classification
  name = "classification"
  any_size = True
  scores = Scores(
    (
      Metric("top1", "top-1", of_examples=True),
      Metric("macro_f1", "macro-F1"),
      Metric("balanced_accuracy", "balanced accuracy"),
      Metric("top5", "top-5"),
      Metric("calibration_error", "calibration error", higher_is_better=False),
    ),
    curves=(
      Curves(
        "Top-1 accuracy",
        {
          Split.TRAIN.key("top1"): "training",
          Split.EVAL.key("top1"): "evaluation",
          Split.FEW_SHOT.key("top1"): "few-shot",
        },
        percent=True,
      ),
    ),
    sentence="{top1:.1%} of {examples:,} images are right",
    phrase="{top1:.1%} are right",
  )

  def fitted(self, train: Source) -> "ClassificationTask":
    """The task with the weights of the classes, if the loss has any."""
    if not self.loss.class_weights:
      return self
    weights = _class_weights(self.loss, train)
    return dataclasses.replace(self, class_weights=weights)

  def facts(self) -> dict[str, Any]:
    """The weights of the classes; empty without weights."""
    if self.class_weights is None:
      return {}
    return {"task": self.name, "weights": [*self.class_weights]}

  def with_facts(self, description: Mapping[str, Any]) -> "ClassificationTask":
    """The task with the stored class weights and temperature."""
    weights = description.get("targets", {}).get("weights")
    calibration = description.get("calibration", {})
    return dataclasses.replace(
      self,
      class_weights=checked("weights", PerChannel | None, weights),
      temperature=tuple(calibration.get("temperature", ())),
    )

  def objective(
    self, model: nn.Module, preprocessing: Preprocessing
  ) -> Classification:
    """The objective; classes beyond the data's have weight 1."""
    num_classes, weights = model.num_classes, self.class_weights
    if weights is not None:  # A head may be wider than the data's classes.
      weights = (*weights, *[1.0] * (num_classes - len(weights)))
    return self.objective_class(
      num_classes,
      self.loss,
      mean=preprocessing.mean,
      std=preprocessing.std,
      class_weights=weights,
    )

  def measure(self, model: nn.Module, stream: Stream) -> Measure:
    return class_measure(
      model,
      self.objective(model, stream.preprocessing).for_evaluation(),
      class_names(stream.source.class_names, model.num_classes),
      class_logits=self.class_logits,
      outcome=self.outcome,
      counts_answers=self.counts_answers,
    )

  @property
  def answers(self) -> "ClassAnswers":
    return ClassAnswers(self)

  def class_logits(self, logits: Float[Array, "B K"]) -> Array:
    """One logit for each class, from the outputs of the model."""
    if not self.temperature:
      return logits
    return logits / np.array(self.temperature, np.float32)[None]

  def calibration_facts(self, fitted: "Calibration") -> dict[str, Any]:
    """The entries of a checkpoint's description for a calibration."""
    return {"temperature": [*fitted.temperature]}

  def in_unit(self) -> "ClassificationTask":
    return dataclasses.replace(self, temperature=())


@dataclasses.dataclass(frozen=True)
class ClassAnswers(Answers):
  """Classes and their probabilities."""

  task: "ClassificationTask"

  @property
  def meaning(self) -> str:
    return f"Probabilities are the {self.task.loss.kind} of the logits."

  @property
  def legend(self) -> str | None:
    if self.task.loss.kind != "sigmoid":
      return None
    return (
      "Each class is answered by itself (sigmoid): the probabilities of an "
      "image need not sum to 1, and it may fit no class."
    )

  def outputs(self, logits: Float[Array, "B K"], top: int) -> dict[str, Array]:
    logits = self.task.class_logits(logits)
    _, index = jax.lax.top_k(logits, min(top, logits.shape[1]))
    probabilities = losses.probabilities(self.task.loss.kind, logits)
    probability = jax.numpy.take_along_axis(probabilities, index, axis=1)
    return {"index": index, "probability": probability}

  def as_json(
    self, answer: Answer, names: Sequence[str], top: int | None = None
  ) -> dict[str, Any]:
    return {
      "predictions": [
        {"class": class_name(names, k), "index": k, "probability": p}
        for k, p in self.ranked(answer, top)
      ]
    }

  def lines(
    self, answer: Answer, names: Sequence[str], top: int | None = None
  ) -> list[str]:
    percent = "{:.2%}".format if self.legend is None else _percent
    return [
      f"{percent(p):>7}{self.mark(p)}  {class_name(names, k)}"
      for k, p in self.ranked(answer, top)
    ]

  def mark(self, probability: float) -> str:
    """The mark after a probability; "" if an image has one class."""
    return ""

  def ranked(
    self, answer: Answer, top: int | None = None
  ) -> list[tuple[int, float]]:
    """The classes to show and their probabilities, the likeliest first."""
    return [*zip(answer.index, answer.probability, strict=True)][:top]

  def text(self, row: Mapping[str, Any], names: Sequence[str]) -> str:
    answer = class_name(names, row["index"][0])
    return f"{answer}, {row['probability'][0]:.1%}"

  def leaf_in_unit(self, path: str, array: np.ndarray) -> np.ndarray:
    """The head's arrays, divided by the temperature."""
    if not self.task.temperature:
      return array
    return (array / np.array(self.task.temperature)).astype(array.dtype)

  def temperatures(self, names: Sequence[str]) -> int:
    return len(names) if self.task.has_several else 1

  def calibrator(
    self, model: nn.Module, stream: Stream
  ) -> Callable[..., "Calibration"] | None:
    """A function that fits the temperature of the task's probabilities.

    It is None if a subclass's task has its own `class_logits`.
    """
    task = self.task
    if type(task).class_logits is not ClassificationTask.class_logits:
      return None
    objective = task.objective(model, stream.preprocessing)
    from vit_jax.tasks.classification.calibration import calibrator

    return calibrator(objective, model, stream, each=task.has_several)


def _percent(probability: float) -> str:
  """A probability with two decimals, or with two digits if they are all 0."""
  text = f"{probability:.2%}"
  if probability and not float(text[:-1]):
    return f"{100 * probability:.2g}%"
  return text


def _class_weights(settings: LossSettings, train: Source) -> tuple[float, ...]:
  """The weights that `loss.class_weights` asks for, one for each class.

  Balanced weights of single classes are N / (K n_k), where n_k of the N images
  have class k. For several labels, the weights of the positive terms are
  (N - n_k) / n_k, where label k is known for N images and n_k of them have it;
  if all of them do, 1 / n_k.

  Raises ValueError if the weights do not fit the classes, or no image has a
  class that is to be balanced.
  """
  names = train.class_names
  listed = settings.listed_weights()
  if listed is not None:
    if len(listed) != len(names):
      raise ValueError(
        f"loss.class_weights has {len(listed)} weights, and the data have "
        f"{len(names)} classes: give one for each, in the order of their names."
      )
    return tuple(listed)
  key = "loss.class_weights='balanced'"
  labels = read_labels(train, key, "list the weights")
  count = len(labels)
  several = labels.ndim > 1
  if several:
    counts = (labels > 0).sum(0)
  else:
    counts = np.bincount(labels, minlength=len(names))
  if not counts.all():
    raise ValueError(
      f"loss.class_weights='balanced': no training image has the class "
      f"{names[int(np.argmin(counts))]!r}: add some, or list the weights."
    )
  if several:
    absent = (labels == 0).sum(0)
    weights = np.maximum(absent.astype(float), 1) / counts
  else:
    weights = count / (len(names) * counts)
  return tuple(weights.tolist())
