"""The base of all tasks: keys, facts, objective, metrics and answers.

`tasks.choose` finds the task of a run. Everything that differs between tasks is
a method or an attribute here; no other code asks which task it is.
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
from vit_jax.models.parts import Parts
from vit_jax.tasks.answers import Answers
from vit_jax.tasks.metrics import Measure
from vit_jax.tasks.outcome import Stream
from vit_jax.tasks.scores import FoldAnswers, FoldScore, Scores
from vit_jax.training.losses import Objective
from vit_jax.training.schedules import RunLength
from vit_jax.training.settings import LossSettings

if TYPE_CHECKING:
  from vit_jax.tasks.pictures import Panels
  from vit_jax.training.distillation import Teacher


OF_CLASSES = (
  "loss.kind",
  "loss.label_smoothing",
  "loss.mixup_alpha",
  "loss.cutmix_alpha",
  "loss.class_weights",
  "model.num_classes",
  "model.head_bias",
  "transfer.probe_head",
)
"""Keys that have no effect for a task without classes of whole images."""
UNLABELLED = (*OF_CLASSES, "eval_per_class", "data.task")
"""Keys that have no effect for a task without labels."""
_OF_A_RUN = ("image_size", "ema_decay")  # A run's keys that a task may take.
# Former attributes of task classes, and the fields of `Scores` in their place.
_OF_SCORES = {"metrics": "metrics", "score": "best", "curves": "curves"}


@dataclasses.dataclass(frozen=True)
class Task:
  """A task, and the facts that it read off the training labels.

  Attributes:
    loss: The loss, of a kind that the task takes.
    text_setup: The tokenizer and the text tower of a task that reads texts
      beside images, a `pairs.text_setup.TextSetup`, which are opened before its
      data; None if it reads none.
    name: The task's name, as `data.task` has it.
    labels: The kind of its labels, such as `labels.SINGLE`.
    any_size: Whether it takes images that keep their proportions, and several
      of them in a row of a batch.
    scores: The metrics of an evaluation, and the score among them.
    losses: The kinds of loss that it takes; the first is its default.
    refuses: Keys of the configuration that have no effect for this task.
    panels: Pictures in which the task draws examples itself; None to draw the
      answers.
    probe_note: A line on the representations, where `probed` changes the model.
    reported: Words for the parts of a run that `vit_jax report` shows.
    asked_by: The flag of `predict` for a run whose images have no classes, and
      what it does; "" for other runs.
  """

  loss: LossSettings = LossSettings()
  text_setup: Any = dataclasses.field(default=None, kw_only=True)
  name: ClassVar[str]
  labels: ClassVar[Labels] = SINGLE
  any_size: ClassVar[bool] = False
  scores: ClassVar[Scores]
  losses: ClassVar[tuple[str, ...]] = ("softmax", "sigmoid")
  refuses: ClassVar[tuple[str, ...]] = ()
  reported: ClassVar[str] = "curves and mistakes"
  asked_by: ClassVar[str] = ""
  panels: ClassVar["Panels | None"] = None
  probe_note: ClassVar[str] = ""

  def __init_subclass__(cls, **more: Any):
    """Takes `metrics`, `score` and `curves` of a class into its `scores`."""
    super().__init_subclass__(**more)
    fields = {
      field: vars(cls)[name]
      for name, field in _OF_SCORES.items()
      if name in vars(cls)
    }
    if not fields:
      return
    if inherited := getattr(cls, "scores", None):
      cls.scores = dataclasses.replace(inherited, **fields)
    else:
      cls.scores = Scores(**fields)

  @classmethod
  def configured(cls, sections: Mapping[str, Any]) -> "Task":
    """The task of a configuration, with its default loss if none is set.

    A field with the name of the task gets the section of that name, and fields
    `image_size` and `ema_decay` get these keys of a run; without a run, as for
    a checkpoint, they keep their defaults. `sections` has the sections by their
    names, such as `loss`. Raises ValueError if `loss.kind` is set, and is not
    one of the task's `losses`.
    """
    loss = sections["loss"]
    fields = {field.name for field in dataclasses.fields(cls)} & sections.keys()
    values = {n: sections[n] for n in fields & {cls.name, *_OF_A_RUN}}
    if "loss.kind" not in cls.refuses and loss.kind not in cls.losses:
      if loss.kind != LossSettings().kind:
        raise ValueError(
          f"loss.kind={loss.kind!r} does not fit data.task={cls.name!r}, which "
          f"takes {' or '.join(cls.losses)}: leave it out."
        )
      loss = dataclasses.replace(loss, kind=cls.losses[0])
    return cls(loss, **values)

  @property
  def why_refused(self) -> str:
    """Why a key of `refuses` has no effect; follows the key in a message."""
    section = vars(self).get(self.name)
    if not self.labels.are_used and section is not None:
      key, value = next(iter(vars(section).items()))
      return (
        f"applies to labels, and {self.name}.{key}={value!r} trains without "
        "labels"
      )
    return f"applies to classes, and data.task={self.name!r} has none"

  @property
  def unread(self) -> Mapping[str, str]:
    """Keys of the configuration that the task takes and does not read.

    Each has the reason, which follows the key and its value in a line.
    """
    return {}

  @property
  def trained(self) -> str:
    """Which part of the pretrained model a run trains, in words."""
    return "all layers"

  def is_frozen(self, path: str) -> bool:
    """Whether the task's optimizer leaves the parameter at a path as it is."""
    del path
    return False

  def fitted(self, train: Source) -> "Task":
    """The task with the facts that it needs of the training labels.

    Raises ValueError if the labels do not give them.
    """
    return self

  def facts(self) -> dict[str, Any]:
    """The facts as JSON, for a checkpoint's description; may be empty."""
    return {}

  def with_facts(self, description: Mapping[str, Any]) -> "Task":
    """The task with the facts of a checkpoint's description.

    Raises ValueError if a fact is invalid, and KeyError if one is missing.
    """
    return self

  def chosen_facts(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The choices of an evaluation, as JSON, for the checkpoint's description.

    `metrics` are those of the evaluation, by their keys.
    """
    return {}

  def for_test(self) -> "Task":
    """The task for a test split, on which nothing may be chosen."""
    return self

  @property
  def answers(self) -> Answers | None:
    """The answers of its models, once they are trained, or None."""
    return None

  @property
  def head_probe(self) -> Any:
    """The kind of linear probe from which the head may start.

    It is a `probes.linear_probe.Kind`; None stands for a probe of classes.
    """
    return None

  def score_folds(
    self, folds: Sequence[FoldAnswers], count: int
  ) -> FoldScore | None:
    """The score of the probe that the head starts from, by its folds.

    The folds have `count` images in all. None if there are no folds, or they
    say nothing.
    """
    if not folds:
      return None
    return FoldScore.of_shares([fold.share for fold in folds], count)

  @property
  def reads_patches(self) -> bool:
    """Whether the task reads patches' tokens, not one vector of an image."""
    return self.answers is None

  @property
  def keeps_parts(self) -> bool:
    """Whether a run always starts from the checkpoint's parts of this task.

    Such a part is a head or a decoder. Runs of other tasks make new ones,
    unless `transfer.keep_head` is set.
    """
    return False

  def num_outputs(self, names: Sequence[str]) -> int:
    """The size of the head, for data with these classes or targets.

    It is 0 for a task that answers nothing, and so has no such head.
    """
    return 0 if self.answers is None else len(names)

  def with_teacher(self, teacher: "Teacher", params: Any = None) -> "Task":
    """The task with its teacher, which a run opens before it makes its model.

    `params` are the teacher's, once they have been read. Raises ValueError if
    the teacher does not fit.
    """
    del teacher, params
    return self

  def about_teacher(
    self, teacher: "Teacher", model: Any, preprocessing: Preprocessing
  ) -> str:
    """The end of the header's line on the teacher, after its source.

    `model` and `preprocessing` are the student's.
    """
    del model
    text = "on images of {} x {}".format(*teacher.image_size)
    if preprocessing.patches is not None:
      text = "on the patches that the student sees"
    teacher_model: Any = teacher.model
    if not teacher_model.origin.class_names:
      text += "; it names no classes, which are taken to be the data's"
    return text

  def adapted(self, model: Any) -> Any:
    """The model to train, from the one that the settings choose.

    Raises ValueError if the task cannot be learned by such a model.
    """
    return model

  def probed(self, model: Any) -> dict[str, Any]:
    """The models whose representations a probe reads.

    The key of each is the suffix of its probe's metrics, "" for none.
    """
    return {"": model}

  def check_evaluation(self, source: Source) -> None:
    """Raises ValueError if the scores mean nothing on an evaluation split."""

  def train_transform(
    self, preprocessing: Preprocessing, settings: TrainTransformSettings
  ) -> Transform:
    """The transform from an example to its arrays in a training batch."""
    return preprocessing.train_transform(settings)

  def eval_transform(self, preprocessing: Preprocessing) -> Transform:
    """The transform from an example to its arrays in an evaluation batch."""
    return preprocessing.transform()

  def objective(
    self, model: nn.Module, preprocessing: Preprocessing
  ) -> Objective:
    """The objective of a train step.

    Raises ValueError if the task does not fit the model or its images.
    """
    raise NotImplementedError

  def optimizer(
    self, tx: optax.GradientTransformation, parts: Parts, length: RunLength
  ) -> optax.GradientTransformation:
    """The optimizer of a run, from the optimizer `tx` of the settings."""
    del parts, length
    return tx

  def measure(self, model: nn.Module, stream: Stream) -> Measure:
    """The measure of a model on a split, by default its objective's means."""
    from vit_jax.tasks.means import means

    objective = self.objective(model, stream.preprocessing)
    return means(objective, model, self.scores.best)

  def advice(
    self,
    run: str,
    data: str | None,
    evaluated: Mapping[str, Any],
    *,
    best: bool,
  ) -> list[str]:
    """Lines on what can be done with a run, beside its evaluation and report.

    Args:
      run: The run's folder.
      data: The folder of its images, if they are in one.
      evaluated: The run's last evaluation; empty without an evaluation.
      best: Whether its best checkpoint is meant, and that is not its last.
    """
    del run, data, evaluated, best
    return []

  def in_unit(self) -> "Task":
    """The task of a model whose heads went through `Answers.leaf_in_unit`.

    Its outputs are answers already, and are not scaled again.
    """
    return self


def class_name(names: Sequence[str], index: int) -> str:
  """The name of a class, or "class" and its index if it has no name.

  >>> from vit_jax.tasks.task import class_name
  >>> class_name(["cat", "dog"], 1), class_name(["cat", "dog"], 2)
  ('dog', 'class 2')
  """
  return names[index] if index < len(names) else f"class {index}"


def class_names(names: Sequence[str], count: int) -> list[str]:
  """The names of all `count` classes of a head, which may exceed the data's.

  >>> from vit_jax.tasks.task import class_names
  >>> class_names(["cat", "dog"], count=3)
  ['cat', 'dog', 'class 2']
  """
  return [class_name(names, k) for k in range(max(count, len(names)))]


def all_labels(source: Any) -> np.ndarray:
  """The labels of all examples, as float64.

  The source has `labels`, which reads them without the images.
  """
  return np.asarray(source.labels(range(len(source))), np.float64)
