"""The base of all tasks: keys, facts, objective, metrics and answers.

`tasks.choose` finds the task of a run. Everything that differs between tasks is
a method or an attribute here; nobody else asks which task it is.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import flax.linen as nn
import numpy as np
import optax

from vit_jax.data.batch import Transform
from vit_jax.data.example import Source
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.labels import SINGLE, Labels
from vit_jax.data.settings import TrainTransformSettings
from vit_jax.models import Model, from_fields
from vit_jax.models.parts import Parts
from vit_jax.models.variants import ADAPTED
from vit_jax.tasks.answers import Answers
from vit_jax.tasks.metrics import Evaluator, Measure
from vit_jax.tasks.outcome import Stream
from vit_jax.tasks.pictures import Panels
from vit_jax.tasks.scores import Scores
from vit_jax.training.losses import Objective
from vit_jax.training.schedules import RunLength
from vit_jax.training.settings import LossSettings

if TYPE_CHECKING:
  from vit_jax.training.distillation import Teacher


# Attributes of classes of a user's own from before `Scores`, and its fields.
_OF_SCORES = {"metrics": "metrics", "score": "best", "curves": "curves"}


@dataclasses.dataclass(frozen=True)
class Task:
  """A task, and the facts that it read off the training labels.

  Attributes:
    loss: The loss, of a kind that the task takes.
    name: The task's name, as `data.task` has it.
    labels: The kind of its labels, such as `labels.SINGLE`.
    scores: The metrics of an evaluation, and the score among them.
    losses: The kinds of loss that it takes; the first is its default.
    refuses: Keys of the configuration that say nothing for this task.
    panels: Pictures of its own, in which it draws examples; None to draw the
      answers.
    probe_note: A line on the representations, where `probed` changes the model.
    couples_examples: Whether the loss of an example depends on the others of
      its batch, and the objective is no `losses.CoupledObjective`. A batch is
      then not computed in parts.
    learns_features: Whether it learns a teacher's features, and not the
      teacher's answers beside the labels.
    reads_texts: Whether it reads texts beside images, for which it needs a
      tokenizer before its data are opened (`run.texts`).
    learns_from_average: Whether training reads the average of the parameters,
      which the run then keeps.
    asked_by: The flag of `predict` that asks a run whose images have no class,
      and what it does; "" if they have, or nothing is asked.
  """

  loss: LossSettings = LossSettings()
  name: ClassVar[str]
  labels: ClassVar[Labels] = SINGLE
  scores: ClassVar[Scores]
  losses: ClassVar[tuple[str, ...]] = ("softmax", "sigmoid")
  refuses: ClassVar[tuple[str, ...]] = ()
  asked_by: ClassVar[str] = ""
  panels: ClassVar[Panels | None] = None
  probe_note: ClassVar[str] = ""
  couples_examples: ClassVar[bool] = False
  learns_features: ClassVar[bool] = False
  learns_from_average: ClassVar[bool] = False
  reads_texts: ClassVar[bool] = False

  def __init_subclass__(cls, **more: Any):
    """Takes `metrics`, `score` and `curves` of a class into its `scores`."""
    super().__init_subclass__(**more)
    given = {
      field: vars(cls)[name]
      for name, field in _OF_SCORES.items()
      if name in vars(cls)
    }
    if given:
      before = getattr(cls, "scores", None)
      changed = dataclasses.replace(before, **given) if before else None
      cls.scores = changed or Scores(**given)

  @classmethod
  def configured(cls, sections: Mapping[str, Any]) -> "Task":
    """The task of a configuration, with its default loss if none is set.

    Raises ValueError if the loss is not one of the task's. `sections` has
    the sections by their names, such as `loss`.
    """
    loss = sections["loss"]
    if loss.kind not in cls.losses:
      if loss.kind != LossSettings().kind:
        raise ValueError(
          f"loss.kind={loss.kind!r} does not fit data.task={cls.name!r}, which "
          f"takes {' or '.join(cls.losses)}: leave it out."
        )
      loss = dataclasses.replace(loss, kind=cls.losses[0])
    return cls(loss)

  @classmethod
  def enabled(cls, sections: Mapping[str, Any]) -> bool:
    """Whether the section of the configuration with its name asks for it."""
    return False

  @property
  def is_own(self) -> bool:
    """Whether it is a class of the user's own."""
    return not type(self).__module__.startswith("vit_jax.")

  @property
  def why_refused(self) -> str:
    """Why the keys of `refuses` say nothing, after the key and its value."""
    return f"applies to classes, and data.task={self.name!r} has none"

  @property
  def trained(self) -> str:
    """The part of its first weights that a run trains, in words."""
    return "all layers"

  def fitted(self, train: Source) -> "Task":
    """The task with the facts that it needs of the training labels.

    Raises ValueError if the labels do not give them.
    """
    return self

  def facts(self) -> dict[str, Any]:
    """The facts as JSON, for a checkpoint's description; empty without any."""
    return {}

  def with_facts(self, description: Mapping[str, Any]) -> "Task":
    """The task with the facts of a checkpoint's description."""
    return self

  def chosen_facts(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Choices of an evaluation, as JSON, for the checkpoint's description."""
    return {}

  def for_test(self) -> "Task":
    """The task for a test split, on which nothing may be chosen."""
    return self

  @property
  def answers(self) -> Answers | None:
    """What its models answer, once they are trained; None for nothing."""
    return None

  def num_outputs(self, names: Sequence[str]) -> int:
    """The size of the head, for data with these classes or targets.

    A task that answers nothing has no such head.
    """
    return 0 if self.answers is None else len(names)

  def with_text(
    self,
    tokenizer: Any,
    tower: Any,
    weights: Sequence[str] = (),
    pair: tuple[float | None, float | None] = (None, None),
  ) -> "Task":
    """The task with a text tower and its tokenizer, if it reads texts."""
    del tokenizer, tower, weights, pair
    return self

  def taught(self, teacher: "Teacher", params: Any = None) -> "Task":
    """The task with its teacher, which a run opens before it makes its model.

    `params` are the teacher's, once they have been read. Raises ValueError if
    the teacher does not fit.
    """
    del teacher, params
    return self

  def about_teacher(
    self, teacher: "Teacher", model: Any, preprocessing: Preprocessing
  ) -> str:
    """The end of the header's line on the teacher, after its source."""
    del model, preprocessing
    text = "on images of {} x {}".format(*teacher.image_size)
    teacher_model: Any = teacher.model
    if not teacher_model.origin.class_names:
      text += "; it names no classes, and theirs are taken to be the data's"
    return text

  def adapted(self, model: Any) -> Any:
    """The model to train, from the one that the settings choose."""
    return model

  def described(self, fields: Mapping[str, Any]) -> Model:
    """The model that a description's fields stand for.

    Raises ValueError as `from_fields` does.
    """
    model_fields = {
      key: value for key, value in fields.items() if key != ADAPTED
    }
    model = from_fields(model_fields)
    return self.adapted(model) if fields.get(ADAPTED) else model

  def probed(self, model: Any) -> dict[str, Any]:
    """The models whose representations a probe reads, by a metric's suffix."""
    return {"": model}

  def check_evaluation(self, source: Source) -> None:
    """Raises ValueError if the scores mean nothing on an evaluation split."""

  def train_transform(
    self, preprocessing: Preprocessing, settings: TrainTransformSettings
  ) -> Transform:
    """From an example to its arrays in a batch to train on."""
    return preprocessing.train_transform(settings)

  def about_images(
    self,
    preprocessing: Preprocessing,
    settings: TrainTransformSettings,
    source: Source,
  ) -> str:
    """The header's line on the images to train on; empty for none.

    It is what the transform's method `about`, if any, says of the source.
    """
    transform = self.train_transform(preprocessing, settings)
    about = getattr(transform, "about", None)
    return about(source) if about else ""

  def eval_transform(self, preprocessing: Preprocessing) -> Transform:
    """From an example to its arrays in a batch to evaluate."""
    return preprocessing.transform()

  def objective(
    self, model: nn.Module, preprocessing: Preprocessing
  ) -> Objective:
    """The objective of a train step.

    Raises ValueError if the task does not fit the model or its images.
    """
    raise NotImplementedError

  def train_objective(
    self, model: nn.Module, preprocessing: Preprocessing, length: RunLength
  ) -> Objective:
    """The objective of a run of this length, which has schedules of its own.

    Raises ValueError as `objective` does.
    """
    del length
    return self.objective(model, preprocessing)

  def with_answers(self, objective: Any, teacher: "Teacher") -> Objective:
    """The objective that learns a teacher's answers, too."""
    from vit_jax.training.distillation import Distilled

    return Distilled(objective, teacher)

  def optimizer(
    self, tx: optax.GradientTransformation, parts: Parts, length: RunLength
  ) -> optax.GradientTransformation:
    """The optimizer of a run, from that of the settings."""
    del parts, length
    return tx

  def measure(self, model: nn.Module, stream: Stream) -> Measure:
    """The measure of a model on a split, by default its objective's means."""
    from vit_jax.tasks.means import means

    objective = self.objective(model, stream.preprocessing)
    return means(objective, model, self.scores.best)

  def evaluator(self, model: nn.Module, stream: Stream) -> Evaluator:
    """Evaluates parameters of the model on a split, by `measure`."""
    return Evaluator(self.measure(model, stream), stream)

  def in_unit(self) -> "Task":
    """The task once `Answers.leaf_in_unit` was applied to the heads."""
    return self


def class_name(names: Sequence[str], index: int) -> str:
  """The name of a class, or its index if there is no name for it.

  >>> from vit_jax.tasks.task import class_name
  >>> class_name(["cat", "dog"], 1), class_name(["cat", "dog"], 2)
  ('dog', 'class 2')
  """
  return names[index] if index < len(names) else f"class {index}"


def class_names(names: Sequence[str], count: int) -> list[str]:
  """Names of all classes of a head, which may have more than the data.

  >>> from vit_jax.tasks.task import class_names
  >>> class_names(["cat", "dog"], count=3)
  ['cat', 'dog', 'class 2']
  """
  return [class_name(names, k) for k in range(max(count, len(names)))]


def all_labels(source: Any) -> np.ndarray:
  """The labels of all examples of a source that can give them alone."""
  return np.asarray(source.labels(range(len(source))), np.float64)
