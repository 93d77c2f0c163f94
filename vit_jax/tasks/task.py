"""The base of all tasks: keys, facts, objective, metrics and answers.

`tasks.choose` finds the task of a run. Everything that differs between tasks is
a method or an attribute here; nobody else asks which task it is.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import (
  TYPE_CHECKING,
  Any,
  ClassVar,
  NamedTuple,
  Protocol,
  runtime_checkable,
)

import flax.linen as nn
import numpy as np
import optax
from jaxtyping import Array, Float

from vit_jax.data.batch import Transform
from vit_jax.data.example import Source
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.labels import SINGLE, Labels
from vit_jax.data.settings import TrainTransformSettings
from vit_jax.models import Model, from_fields
from vit_jax.models.parts import Parts
from vit_jax.models.variants import ADAPTED
from vit_jax.tasks.metrics import Evaluator, Measure
from vit_jax.tasks.outcome import Stream
from vit_jax.tasks.scores import Scores
from vit_jax.training.losses import Objective
from vit_jax.training.schedules import RunLength
from vit_jax.training.settings import LossSettings

if TYPE_CHECKING:
  from vit_jax.training.distillation import Teacher


# Attributes of classes of a user's own from before `Scores`, and its fields.
_OF_SCORES = {"metrics": "metrics", "score": "best", "curves": "curves"}


@runtime_checkable
class Answer(Protocol):
  """A model's answer to one image, as `inference.predictor.Prediction`."""

  @property
  def index(self) -> tuple[int, ...]: ...
  @property
  def probability(self) -> tuple[float, ...]: ...
  @property
  def values(self) -> tuple[float, ...]: ...


class PanelText(NamedTuple):
  """Texts for pictures of a task's own: a heading, a sentence, and the alt."""

  title: str
  text: str
  alt: str


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
    panel_text: Texts for the pictures of `make_panels`, if it makes any.
    probe_note: A line on the representations, where `probed` changes the model.
    has_answers: Whether it answers for whole images, in words or numbers.
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
  panel_text: ClassVar[PanelText] = PanelText(
    "What it fills in",
    "The image that the model saw is on the left, grey where patches are "
    "hidden; its predictions fill them in the middle, and the right shows what "
    "they should be.",
    "Three panels: what the model saw, its predictions, the truth",
  )
  probe_note: ClassVar[str] = ""
  has_answers: ClassVar[bool] = True
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
  def given_from(self) -> float | None:
    """The probability from which on a label is given; None for one class."""
    return None

  @property
  def has_rows(self) -> bool:
    """Whether an evaluation scores each class, and each example by itself."""
    return self.has_answers

  def num_outputs(self, names: Sequence[str]) -> int:
    """The size of the head, for data with these classes or targets.

    A task that answers nothing for a whole image has no such head.
    """
    return len(names) if self.has_answers else 0

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

  def temperatures(self, names: Sequence[str]) -> int:
    """How many temperatures divide the logits of these classes."""
    del names
    return 0

  def calibrator(self, model: nn.Module, stream: Stream) -> Callable[..., Any]:
    """Fits temperatures of the answers on a split, from parameters.

    Raises ValueError if the answers have no probabilities of the model's own.
    """
    raise ValueError(
      f"the task {self.name} gives no probabilities that a temperature could "
      "calibrate: leave out --calibrate."
    )

  def make_panels(
    self, model: nn.Module, preprocessing: Preprocessing
  ) -> Callable[[Any, Sequence[tuple]], list[np.ndarray]] | None:
    """Makes what draws examples of its own; None to draw the answers.

    Returns a function from parameters, and the place in the split, the pixels
    and the label of each example, to a picture (H, W, 3) of each.
    """
    return None

  def make_mark(
    self,
    model: nn.Module,
    preprocessing: Preprocessing,
    short_side: int | None = None,
  ) -> Callable[[Any, np.ndarray], np.ndarray] | None:
    """Makes what names the class of each pixel of an image; None without.

    Returns a function from parameters and an image's pixels (H, W, C), of any
    size, to its mask (H, W). With `short_side`, the image is read in windows.
    """
    return None

  def outputs(self, logits: Float[Array, "B K"], top: int) -> dict[str, Array]:
    """The parts of an answer, on the device.

    It is `index` and `probability`, both (B, top), or `values`, (B, T).
    """
    raise NotImplementedError

  def in_unit(self) -> "Task":
    """The task once `leaf_in_unit` was applied to the heads."""
    return self

  def leaf_in_unit(self, path: str, array: np.ndarray) -> np.ndarray:
    """An output head's parameter such that its outputs are the answer."""
    return array

  @property
  def meaning(self) -> str:
    """A sentence on what the model's outputs mean."""
    return f"Probabilities are the {self.loss.kind} of the logits."

  @property
  def legend(self) -> str | None:
    """A line that explains the rows of `lines`."""
    return None

  def as_json(
    self, answer: Answer, names: Sequence[str], top: int | None = None
  ) -> dict[str, Any]:
    """An answer as JSON.

    `names` are those of classes or targets, as far as they are known, and `top`
    is the most classes to give; by default all that the answer has.
    """
    raise NotImplementedError

  def lines(
    self, answer: Answer, names: Sequence[str], top: int | None = None
  ) -> list[str]:
    """An answer as lines of text; the arguments are those of `as_json`."""
    raise NotImplementedError

  def answer_text(self, row: Mapping[str, Any], names: Sequence[str]) -> str:
    """One image's `outputs` in a few words."""
    raise NotImplementedError

  def label_text(self, label: Any, names: Sequence[str]) -> str:
    """A label in words."""
    return names[int(label)]


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
