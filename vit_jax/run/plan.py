"""Assembles a run from its settings; compiles nothing.

`make_plan` opens the data and the weights. `plan_of_shapes` does without them,
for `vit_jax.estimate`.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

import jax
import optax
from jax.sharding import Mesh

from vit_jax.data.batch import (
  ArraySpec,
  Spec,
  Transform,
  batch_spec,
  by_share,
  label_spec,
  row_spec,
)
from vit_jax.data.batching.workers import BatchIterator
from vit_jax.data.example import BalancedClasses, Example, Source, sides
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.labels import NONE
from vit_jax.data.reading.sources import Splits, open_splits
from vit_jax.models import Model, to_fields
from vit_jax.models.grid import grid_of
from vit_jax.models.layer import EXECUTION
from vit_jax.models.parts import Parts
from vit_jax.models.variants import BLOCKS, with_block
from vit_jax.run import begun, build, fastest
from vit_jax.run.evaluation import RunEvaluation, open_stream
from vit_jax.run.settings import Settings, read_saved
from vit_jax.runtime.printable import say
from vit_jax.runtime.settings import to_dict
from vit_jax.tasks import choose
from vit_jax.tasks.scores import Score
from vit_jax.tasks.task import Task
from vit_jax.training import sharding
from vit_jax.training.losses import Objective
from vit_jax.training.operations import Operations, step_gflops
from vit_jax.training.optimizer import (
  make_optimizer,
  make_schedule,
  trainable_filter,
)
from vit_jax.training.schedules import RunLength
from vit_jax.training.state import Extras, TrainState, make_init
from vit_jax.training.step import TrainStep, make_train_step
from vit_jax.workdir import description as descriptions
from vit_jax.workdir.checkpoint_reader import again_if_deleted

# For the annotations alone: only runs that need these modules import them.
if TYPE_CHECKING:
  from vit_jax.data.batching.packing import Packing
  from vit_jax.pretrained.loaded import Loaded


@dataclasses.dataclass(frozen=True)
class Lengths:
  """The steps of a run, and the steps between its periodic work; 0 is never."""

  total: int
  log_every: int
  eval_every: int
  save_every: int


@dataclasses.dataclass(frozen=True)
class Plan:
  """The resolved settings of a run, and everything that is built from them.

  `dataclasses.replace` makes a plan with another `model` or `rate`, which
  builds its own optimizer, step and shapes.

  Attributes:
    task: The task, with the facts of its labels.
    splits: The data. Those of `plan_of_shapes` cannot be read.
    start: The checkpoint whose weights the run starts from, if any.
    extras: LoRA's base and a teacher: used, but not trained.
    rate: The learning rate by step, if it replaces that of the settings.
  """

  settings: Settings
  task: Task
  mesh: Mesh
  splits: Splits
  start: Optional["Loaded"]
  model: Model
  extras: Extras
  rate: optax.Schedule | None = None

  @property
  def source(self) -> Source:
    """The training split."""
    return self.splits.train

  @functools.cached_property
  def shown(self) -> Source:
    """The training split as training draws from it.

    It has each example once, or all classes equally often.
    """
    if self.settings.data.sampling == "images":
      return self.source
    return BalancedClasses(self.source)

  @functools.cached_property
  def preprocessing(self) -> Preprocessing:
    """The preprocessing of images, by the settings."""
    return build.make_preprocessing(self.settings, self.model)

  @functools.cached_property
  def packing(self) -> Optional["Packing"]:
    """How images share the rows of a batch; None if each has its own."""
    return build.make_packing(self.settings)

  @functools.cached_property
  def length(self) -> RunLength:
    """The length of the run, and of an epoch."""
    settings = self.settings
    size = len(self.source)
    total = settings.total.in_steps(settings.batch_size, size)
    return RunLength(total, settings.batch_size, size)

  @functools.cached_property
  def lengths(self) -> Lengths:
    """The steps of the run and of its periodic work."""
    names = [field.name for field in dataclasses.fields(Lengths)]
    return Lengths(
      **{
        name: self.length.steps(getattr(self.settings, name)) for name in names
      }
    )

  @functools.cached_property
  def schedule(self) -> optax.Schedule:
    """The learning rate by step."""
    if self.rate is not None:
      return self.rate
    length, options = self.length, self.settings.optimizer
    epoch = length.num_examples / length.batch_size
    return make_schedule(options, length.total_steps, self.warmup_steps, epoch)

  @property
  def warmup_steps(self) -> int:
    """The warm-up; a tenth of the run if the run is too short for it."""
    total = self.length.total_steps
    steps = self.length.steps(self.settings.optimizer.warmup)
    return steps if steps < total else total // 10

  @functools.cached_property
  def is_trainable(self) -> Callable[[str], bool] | None:
    """Tells by a parameter's path whether it is trained; None if all are."""
    frozen = self.settings.optimizer.freeze_layers
    return trainable_filter(frozen, self.parts, self.model.scan)

  @functools.cached_property
  def optimizer(self) -> optax.GradientTransformation:
    """The optimizer, with what the task adds to it."""
    tx = make_optimizer(
      self.settings.optimizer,
      self.schedule,
      is_trainable=self.is_trainable,
      parts=self.parts,
      total_steps=self.length.total_steps,
    )
    return self.task.optimizer(tx, self.parts, self.length)

  @functools.cached_property
  def objective(self) -> Objective:
    """The task's objective, with the answers of a teacher if there is one.

    That of classification is `losses.Classification`.
    """
    plain = self.task.objective(self.model, self.preprocessing)
    objective = plain.for_run(self.model, self.length)
    teacher = self.extras.teacher
    if teacher is None:
      return objective
    return objective.with_answers(teacher)

  @property
  def may_spoil_features(self) -> bool:
    """Whether published features are trained without labels, and probed."""
    published = self.settings.pretrained is not None
    learns = self.task.labels is NONE and self.lengths.eval_every > 0
    return published and learns and self.evaluation.probe is not None

  @property
  def score(self) -> Score:
    """The score that ranks checkpoints: a probe's if features may get worse."""
    probe = self.evaluation.probe if self.may_spoil_features else None
    return probe or self.task.scores.score

  @functools.cached_property
  def init(self) -> Callable[[jax.Array], TrainState]:
    """Makes the initial state from a random key.

    It is jitted, so that its shapes and its arrays come from one trace.
    """
    init = make_init(
      self.model,
      self.optimizer,
      self.preprocessing.image_shape,
      self.settings.ema_decay,
      self.extras,
      self.objective,
    )
    return jax.jit(init)

  @functools.cached_property
  def train_step(self) -> TrainStep:
    """Maps (state, batch, *extras.frozen_params) to (state, metrics)."""
    return make_train_step(
      self.model,
      self.optimizer,
      self.schedule,
      seed=self.settings.seed,
      objective=self.objective,
      extras=self.extras,
      # The parts of a batch; `self.parts` are the parts of the model.
      accumulation_steps=self.settings.parts,
      ema_decay=self.settings.ema_decay,
      ema_warmup=self.settings.ema_warmup,
      is_trainable=self.is_trainable,
    )

  @functools.cached_property
  def shapes(self) -> TrainState:
    """Shapes, types and shardings of the state."""
    return sharding.array_shapes(self.init, self.mesh)

  @functools.cached_property
  def jitted_step(self) -> Any:
    """The train step for the mesh, by `sharding.jit_train_step`."""
    return sharding.jit_train_step(
      self.train_step,
      self.shapes,
      self.mesh,
      *self.extras.frozen_params,
      scoped_vmem_mib=self.settings.scoped_vmem_mib,
    )

  @property
  def step_shapes(self) -> list[tuple[Any, ...]]:
    """The shapes and shardings of the arguments of `jitted_step`.

    There is a tuple for each shape that a batch may have, in the order in which
    `by_share` gives them.
    """
    rows = sharding.batch_sharding(self.mesh)
    batches = [
      {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=rows)
        for name, array in self._batch_spec(transform).items()
      }
      for transform, _ in by_share(self.train_transform)
    ]
    frozen = self.extras.frozen_params
    return [(self.shapes, batch, *frozen) for batch in batches]

  @functools.cached_property
  def operations_by_shape(self) -> list[Operations]:
    """The operations of matrix products for an image, in units of 1e9.

    There is one `Operations` for each of `step_shapes`, in their order.
    """
    images = self.settings.data.images_per_row
    every = (
      step_gflops(self.model, self.objective, self.extras, *shapes)
      for shapes in self.step_shapes
    )
    return [
      Operations(one.forward / images, one.step / images) for one in every
    ]

  @property
  def operations(self) -> Operations:
    """The operations for an image, a mean over the shapes of batches."""
    forward, step = 0.0, 0.0
    shares = (share for _, share in by_share(self.train_transform))
    for one, share in zip(self.operations_by_shape, shares, strict=True):
      forward += share * one.forward
      step += share * one.step
    return Operations(forward, step)

  @property
  def param_shapes(self) -> Any:
    """Shapes and shardings of all parameters of the model."""
    return self.extras.param_shapes or self.shapes.params

  @functools.cached_property
  def parts(self) -> Parts:
    """The parts that the model is made of."""
    return build.parts_of(self.model, self.preprocessing.image_shape)

  @functools.cached_property
  def train_transform(self) -> Transform:
    """The task's transform from an example to its arrays in a batch."""
    return self.task.train_transform(
      self.preprocessing, self.settings.train_transform
    )

  @property
  def batch_spec(self) -> Spec:
    """The arrays of a batch to train on, the largest of each if they vary."""
    return self._batch_spec(self.train_transform)

  def _batch_spec(self, transform: Transform) -> Spec:
    """The arrays of a batch of examples that this transform makes."""
    row = row_spec(transform, label_spec(self.source))
    if self.packing is not None:
      row = self.packing.spec(row)
    return batch_spec(row, self.settings.rows)

  def open_batches(self, first_batch: int) -> BatchIterator:
    """Opens this host's rows of the training batches, from `first_batch` on.

    Batch k is what `batches.TrainBatches.compute(k)` makes of the examples of
    `shown` by the task's transform; the loader computes some ahead.
    """
    settings = self.settings
    loader = build.open_loader(settings, self.preprocessing)
    return loader.train(
      self.shown,
      self.train_transform,
      batch_size=settings.batch_size,
      seed=settings.seed,
      first_batch=first_batch,
      repeats=settings.train_transform.repeats,
      packing=self.packing,
    )

  @functools.cached_property
  def evaluation(self) -> RunEvaluation:
    """The metrics and pictures of an evaluation."""
    return RunEvaluation(
      settings=self.settings,
      task=self.task,
      model=self.model,
      stream=open_stream(
        self.settings,
        self.task,
        self.mesh,
        self.preprocessing,
        self.splits.eval,
      ),
      splits=self.splits,
    )

  def description(self, step: int) -> dict[str, Any]:
    """The description that the checkpoint of a step carries, as JSON."""
    config = to_dict(self.settings)
    config["data"] |= begun.absolute_places(self.settings)
    probed = self.evaluation.probe_splits
    # A run also keeps which images of the probes' data it holds out.
    if probed is not self.splits:
      config["fewshot"]["data"] |= sides(probed.train)
    return {
      "config": config,
      "model": to_fields(self.model),
      "class_names": list(self.source.class_names),
      "train_examples": len(self.source),
      **choose.record(self.task),
      **self._scored(),
      # These two values determine the stream of batches.
      "data_iterator": {"seed": self.settings.seed, "next_batch": step},
      **self.extras.sources,
    }

  def _scored(self) -> dict[str, str]:
    """The entry "score" of a description; {} if the score is the task's."""
    key = self.score.key
    return {} if key == self.task.scores.key else {"score": key}

  def checked(self) -> "Plan":
    """The same plan, after all checks that need no compilation.

    Raises ValueError if the mesh does not split the batch, or if the model does
    not match the images, the optimizer or the objective.
    """
    settings = self.settings
    _ = self.train_step  # Raises if the objective allows no parts of a batch.
    build.check_rows(settings, self.mesh)
    if self.model.num_layers:
      grid_of(self.model, self.preprocessing.image_size)
    _ = self.shapes
    return self


def make_plan(
  settings: Settings,
  saved: Mapping[str, Any] | None = None,
  *,
  may_lower_batch: bool = False,
) -> Plan:
  """Opens the data and builds everything that the run needs.

  `saved` is the description of the checkpoint that the run is resumed from, if
  any. Its model and preprocessing replace those of `settings.pretrained`.
  With `may_lower_batch`, a batch that is larger than the training split gets
  smaller, and a line says so. Raises ValueError if the settings are invalid, or
  do not match the data or the devices.
  """
  task = build.task_of(settings)
  build.check_run(settings, task, is_new=saved is None)
  if saved is not None:
    choose.check_same(task, saved)
  settings, task, start = build.open_texts(settings, task, saved)
  settings = dataclasses.replace(settings, loss=task.loss)
  if saved is not None:
    settings = begun.as_begun(settings, saved)
  mesh = sharding.make_mesh(**vars(settings.mesh))
  # With several parts, `checked` does it: the objective may refuse parts first.
  if settings.parts == 1:
    build.check_rows(settings, mesh)
  splits = open_splits(settings.data, task.labels)
  settings = begun.with_sides(settings, splits.train)
  if may_lower_batch:
    settings = begun.with_lower_batch(settings, mesh, splits.train)
  task = _fit_task(task, settings, splits)
  _check_length(settings, splits.train)
  # If a run deletes this checkpoint, `_assemble` opens the next one.
  starts = iter([start])

  def assembled() -> Plan:
    start = next(starts, None)
    return _assemble(settings, task, splits, saved, start=start).checked()

  plan = again_if_deleted(assembled, say)
  _ = plan.evaluation  # Made now, since it may raise ValueError.
  return plan


def plan_of_shapes(
  settings: Settings,
  *,
  num_classes: int,
  num_examples: int,
  devices: Sequence[Any],
) -> Plan:
  """The plan of a run on data of these sizes and on these devices.

  It opens neither the data nor the devices, and reads no array of a checkpoint.
  Raises ValueError if the settings are invalid.
  """
  task = build.task_of(settings)
  settings, task, start = build.open_texts(settings, task, with_data=False)
  splits = absent_splits(task, num_classes, num_examples)
  return _assemble(settings, task, splits, None, devices, start=start)


def absent_splits(task: Task, num_classes: int, num_examples: int) -> Splits:
  """Splits that have sizes and kinds of labels, but cannot be read."""
  spec = task.labels.spec(num_classes)
  source = _Absent(spec, num_classes, num_examples)
  return Splits(train=source, eval=source, test=None, found="", warnings=[])


class _Absent(Source):
  """A data set that has a size and a kind of labels, but no examples."""

  name = "the data"

  def __init__(self, spec: ArraySpec, num_classes: int, num_examples: int):
    self.label_spec = spec
    self.class_names = tuple(map(str, range(num_classes)))
    self._num_examples = num_examples

  def __len__(self) -> int:
    return self._num_examples

  def __getitem__(self, index: int) -> Example:
    raise NotImplementedError


def _fit_task(task: Task, settings: Settings, splits: Splits) -> Task:
  """The task with the facts of its labels, once the splits are checked."""
  build.check_splits(settings, splits)
  task.check_evaluation(splits.eval)
  return task.fitted(splits.train)


def _assemble(
  settings: Settings,
  task: Task,
  splits: Splits,
  saved: Mapping[str, Any] | None,
  devices: Sequence[Any] | None = None,
  *,
  start: Optional["Loaded"] = None,
) -> Plan:
  """Opens the checkpoints that the run needs, and fills in what they decide.

  The checkpoints decide the model, and the model decides the mesh if the
  settings leave it open. With `devices`, which may be mere descriptions, no
  array is read. `start` is the checkpoint to begin with, if it is open already.

  The arrays of `Extras` are read here, so that they are of the same step as the
  start. They are opened last, since they may have to be downloaded.
  """
  teacher = None
  names = splits.train.class_names
  if settings.distill.teacher:
    from vit_jax.run.extras import open_teacher

    teacher, task = open_teacher(settings, task, saved)
  if start is None and saved is None and settings.pretrained:
    start = build.open_start(settings, task)
  model, start_preprocessing = _model(settings, task, names, start, saved)
  settings = build.resolved(settings, start_preprocessing)
  if settings.data.tokens is not None:
    from vit_jax.run import any_size

    any_size.check(settings, task, model)
  if saved is None:
    settings = fastest.chosen(settings, task, model, devices or jax.devices())
  mesh = sharding.make_mesh(**vars(settings.mesh), devices=devices)
  extras = Extras()
  if settings.lora.rank or settings.distill.teacher:
    from vit_jax.run.extras import check_teacher, open_extras, shapes_of_extras

    check_teacher(teacher, settings, task, model, () if devices else names)
    if devices:
      extras = shapes_of_extras(settings, model, teacher, mesh)
    else:
      extras = open_extras(settings, model, mesh, teacher, start, saved)
    task = extras.with_teacher(task)
  return Plan(
    settings=settings,
    task=task,
    mesh=mesh,
    splits=splits,
    start=start,
    model=model,
    extras=extras,
  )


def _check_length(settings: Settings, train: Source) -> None:
  """Raises ValueError if a run has no steps."""
  if not settings.total.in_steps(settings.batch_size, len(train)):
    raise ValueError(
      "total_steps, total_epochs or total_examples is missing or 0: set one of "
      "them, such as --epochs=20."
    )


def _model(
  settings: Settings,
  task: Task,
  class_names: tuple[str, ...],
  start: Optional["Loaded"],
  saved: Mapping[str, Any] | None,
) -> tuple[Model, Preprocessing | None]:
  """The model, and the preprocessing of the checkpoint that it comes from.

  The preprocessing is None for a model that comes from no checkpoint.
  """
  if saved is not None:
    preprocessing = descriptions.preprocessing(saved)
    return _saved_model(settings, task, saved), preprocessing
  model = build.build_model(settings, task, class_names, start)
  return model, start.preprocessing if start else None


def _saved_model(
  settings: Settings, task: Task, saved: Mapping[str, Any]
) -> Model:
  """The model of a saved description, with the fields that were set anew.

  How it is computed is as the settings say. Any other field is changed if the
  settings differ from those of the run; `check_same_run` tells whether the run
  may go on then.
  """
  fields = {**saved["model"]}
  if fields.get("block", "axial") not in BLOCKS:  # A class of the user's own.
    fields |= with_block({"block": settings.model.block})
  before = read_saved(saved["config"]).model.given()
  fields |= {
    key: value
    for key, value in settings.model.given().items()
    if key in fields and (key in EXECUTION or value != before.get(key))
  }
  return choose.model_of(task, fields)
