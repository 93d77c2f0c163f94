"""Learning a frozen encoder's outputs as a task: its student needs no labels.

`models.student` has the model.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models.patches import Patches
from vit_jax.models.student import PATCHES, student, widths_of
from vit_jax.runtime.checks import WIDTH, checked
from vit_jax.runtime.display import Metric, Split
from vit_jax.tasks.means import MeansOutcome, sums_of
from vit_jax.tasks.metrics import Measure
from vit_jax.tasks.outcome import PROBES, SINCE_START, Curves, Stream
from vit_jax.tasks.scores import Scores
from vit_jax.tasks.student.objective import (
  Imitation,
  grids,
  learned_outputs,
  size_for,
)
from vit_jax.tasks.student.settings import StudentSettings
from vit_jax.tasks.task import UNLABELLED, Task
from vit_jax.tasks.unlabelled import UnlabelledTask
from vit_jax.training.distillation import Teacher

_PLAIN = StudentSettings()


@dataclasses.dataclass(frozen=True)
class StudentTask(UnlabelledTask):
  """Learning the outputs of a frozen encoder, its teacher.

  Attributes:
    widths: The teacher's width of each output that is learned, a fact.
    teacher, teacher_params: The teacher; None where the model is used alone.
  """

  student: StudentSettings = _PLAIN
  widths: tuple[tuple[str, int], ...] = ()
  teacher: Teacher | None = dataclasses.field(default=None, compare=False)
  teacher_params: Any = dataclasses.field(
    default=None, compare=False, repr=False
  )
  name = "student"
  any_size = True
  scores = Scores(
    (Metric("cosine", "cosine to the teacher", format="{:.4f}"),),
    curves=(
      Curves(
        "Cosine between the student's and the teacher's outputs",
        {
          Split.TRAIN.key("cosine"): "training",
          Split.EVAL.key("cosine"): "evaluation",
          Split.EVAL.key("cosine_class"): "evaluation, class token",
          Split.EVAL.key("cosine_patches"): "evaluation, patches",
        },
      ),
      PROBES,
      SINCE_START,
    ),
  )
  refuses = (
    *UNLABELLED,
    "eval_pictures",
    "lora.rank",
    "distill.form",
    "distill.kind",
    "distill.temperature",
    "distill.weight",
  )

  @classmethod
  def configured(cls, sections: Mapping[str, Any]) -> Task:
    """The task of a configuration.

    Raises ValueError if it names no teacher.
    """
    settings = sections["student"]
    distill = sections.get("distill")  # A checkpoint's description lacks it.
    if distill is not None and not distill.teacher:
      raise ValueError(
        f"student.learns={settings.learns!r} needs a teacher: set "
        "distill.teacher to a published encoder or a run, as in "
        "--config.distill.teacher=hf_s14_dinov2."
      )
    return super().configured(sections)

  @property
  def unread(self) -> dict[str, str]:
    why = "as the student learns outputs that come before that layer"
    return {"model.representation_size": why, "transfer.keep_pre_logits": why}

  def facts(self) -> dict[str, Any]:
    return {"task": self.name, "widths": dict(self.widths)}

  def with_facts(self, description: Mapping[str, Any]) -> "StudentTask":
    """The task with the stored widths of the learned outputs."""
    widths = description["targets"]["widths"]
    checked_widths = (
      (name, checked(f"widths.{name}", int, widths[name], WIDTH))
      for name in learned_outputs(self.student)
    )
    return dataclasses.replace(self, widths=tuple(checked_widths))

  def with_teacher(self, teacher: Teacher, params: Any = None) -> "StudentTask":
    """The task with a teacher, and the widths of its learned outputs."""
    model: Any = teacher.model
    shape = (*teacher.image_size, len(teacher.mean))
    widths = widths_of(model, shape)
    names = learned_outputs(self.student)
    return dataclasses.replace(
      self,
      widths=tuple((name, widths[name]) for name in names),
      teacher=teacher,
      teacher_params=params,
    )

  def about_teacher(
    self, teacher: Teacher, model: Any, preprocessing: Preprocessing
  ) -> str:
    """The size of the teacher's images, and how its patches are resized."""
    if preprocessing.patches is not None:
      return super().about_teacher(teacher, model, preprocessing)
    grid, teacher_grid = grids(teacher, model, preprocessing.image_size)
    text = "on images of {} x {}".format(*size_for(teacher, grid))
    if self.student.learns != "class" and teacher_grid != grid:
      text += "; its {} x {} patches".format(*teacher_grid)
      text += " are resized to the student's {} x {}".format(*grid)
    return text

  def adapted(self, model: Any) -> Any:
    """A model of the encoder that predicts the teacher's outputs."""
    return student(model, dict(self.widths))

  def objective(self, model: Any, preprocessing: Preprocessing) -> Imitation:
    """The objective of a student.

    Raises ValueError if the patches do not fill the images.
    """
    assert self.teacher is not None
    grid, _ = grids(self.teacher, model, preprocessing.image_size)
    return Imitation(
      self.student,
      self.teacher,
      size=size_for(self.teacher, grid),
      mean=preprocessing.mean,
      std=preprocessing.std,
    )

  def measure(self, model: Any, stream: Stream) -> Measure:
    objective = self.objective(model, stream.preprocessing)
    return Measure(
      make_sums(model, objective),
      functools.partial(MeansOutcome, means=("loss", *_metrics(self))),
      frozen=(self.teacher_params,),
    )


def _metrics(task: StudentTask) -> tuple[str, ...]:
  """The keys of the outputs' mean cosine, and of the cosine of each output."""
  names = learned_outputs(task.student)
  return ("cosine", *(f"cosine_{name}" for name in names))


def make_sums(
  model: Any, objective: Imitation
) -> Callable[[Any, Mapping[str, Array], Array, Any], dict[str, Array]]:
  """Returns a function that gives the sums of a batch, as `sums_of`.

  Its arguments are (params, batch, first, teacher_params).
  """

  def sums(
    params: Any, batch: Mapping[str, Array], first: Array, teacher_params: Any
  ) -> dict[str, Array]:
    del first
    images = objective.inputs(batch)
    predicted: Any = model.apply({"params": params}, images)
    teacher = objective.teacher_outputs(teacher_params, images)
    layout = images.layout if isinstance(images, Patches) else None
    loss, cosines = objective.compare(predicted, teacher, layout)
    if layout is not None and PATCHES in predicted:
      patches = predicted[PATCHES]
      total = jnp.where(layout.counts[..., None], patches, 0).sum(axis=1)
      count = jnp.maximum(layout.counts.sum(axis=1), 1)[..., None]
      predicted |= {PATCHES: total / count}
    each = {"cosine": jnp.stack([*cosines.values()]).mean(axis=0)}
    each |= {f"cosine_{name}": values for name, values in cosines.items()}
    answers = [x.reshape(len(x), -1) for x in predicted.values()]
    return sums_of(batch, loss, each, jnp.concatenate(answers, axis=1))

  return sums
