"""Checks a run's settings and puts its parts together; compiles nothing."""

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Optional

import jax
from jax.sharding import Mesh

from vit_jax.data.batch import Spec, batched, label_spec, row_spec
from vit_jax.data.batching.workers import BatchIterator
from vit_jax.data.example import Source
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.sources import Splits, open_splits
from vit_jax.models import Model, to_fields
from vit_jax.models.partitioning import for_tpu
from vit_jax.models.parts import Parts
from vit_jax.models.variants import BLOCKS, with_block
from vit_jax.run import build, fastest
from vit_jax.run.evaluation import RunEvaluation
from vit_jax.run.settings import Settings, read_saved
from vit_jax.runtime.printable import say
from vit_jax.runtime.settings import flat, replaced, to_dict
from vit_jax.tasks import choose
from vit_jax.tasks.task import Task
from vit_jax.training import sharding
from vit_jax.training.state import Extras, TrainState
from vit_jax.workdir import description as descriptions
from vit_jax.workdir.checkpoint_reader import again_if_deleted

_SIDES = ("data.held_out_by", "data.held_out_below")
_AS_BEGUN = (
  *("data.eval_split", "data.label_separator"),
  *_SIDES,
  *fastest.KEYS,
)

# Imported only by the runs that need it.
if TYPE_CHECKING:
  from vit_jax.pretrained.loaded import Loaded


@dataclasses.dataclass(frozen=True)
class Lengths:
  """Steps of a run, and between its periodic work, where 0 means never."""

  total: int
  log_every: int
  eval_every: int
  save_every: int


@dataclasses.dataclass(frozen=True)
class Plan:
  """The settings of a run, all resolved, and what is built from them.

  Attributes:
    task: The task, with the facts of its labels.
    start: The checkpoint whose weights the run starts from, if any.
    extras: LoRA's base and a teacher: used, but not trained.
    init: Makes the initial state from a random key.
    train_step: Maps (state, batch, *extras.frozen_params) to (state, metrics).
    shapes: Shapes, types and shardings of the state.
  """

  settings: Settings
  task: Task
  mesh: Mesh
  splits: Splits
  start: Optional["Loaded"]
  model: Model
  preprocessing: Preprocessing
  extras: Extras
  init: Callable[[jax.Array], TrainState]
  train_step: Callable
  shapes: TrainState
  evaluation: RunEvaluation
  lengths: Lengths

  @property
  def source(self) -> Source:
    """The training split."""
    return self.splits.train

  @property
  def param_shapes(self) -> Any:
    """Shapes and shardings of all parameters of the model."""
    return self.extras.param_shapes or self.shapes.params

  @property
  def parts(self) -> Parts:
    """The parts that the model is made of."""
    return Parts.of(self.model, self.param_shapes)

  @property
  def batch_spec(self) -> Spec:
    """The arrays of a batch to train on."""
    changes = self.settings.train_transform
    transform = self.task.train_transform(self.preprocessing, changes)
    rows = row_spec(transform, label_spec(self.source))
    return batched(rows, self.settings.batch_size)

  def open_batches(self, first_batch: int) -> BatchIterator:
    """Opens the training batches, starting at a batch number."""
    settings, changes = self.settings, self.settings.train_transform
    transform = self.task.train_transform(self.preprocessing, changes)
    order: Any = {"seed": settings.seed, "first_batch": first_batch}
    order |= {"batch_size": settings.batch_size, "repeats": changes.repeats}
    loader = build.open_loader(settings, self.preprocessing)
    return loader.train(self.source, transform, **order)

  @functools.cached_property
  def jitted_step(self) -> Callable:
    """The train step for the mesh, by `sharding.jit_train_step`."""
    return sharding.jit_train_step(
      self.train_step,
      self.shapes,
      self.mesh,
      *self.extras.frozen_params,
      scoped_vmem_mib=self.settings.scoped_vmem_mib,
    )

  def description(self, step: int) -> dict[str, Any]:
    """The description that the checkpoint of a step carries, as JSON."""
    config = to_dict(self.settings)
    config["data"] |= _absolute(self.settings)
    return {
      "config": config,
      "model": to_fields(self.model),
      "class_names": list(self.source.class_names),
      "train_examples": len(self.source),
      **choose.record(self.task),
      # These two values determine the stream of batches.
      "data_iterator": {"seed": self.settings.seed, "next_batch": step},
      **self.extras.sources,
    }


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
  smaller, and a line says so. Raises ValueError if the settings, the data and
  the devices do not fit together.
  """
  task = build.task_of(settings)
  build.check_run(settings, task, is_new=saved is None)
  if saved is not None:
    choose.check_same(task, saved)
  settings, task = build.with_texts(settings, task, saved)
  begun_settings = dataclasses.replace(settings, loss=task.loss)
  if saved is not None:
    begun_settings = _as_begun(begun_settings, saved)
  mesh = sharding.make_mesh(**vars(begun_settings.mesh))
  rows = begun_settings.batch_size
  sharding.check_batch("batch_size", rows, mesh, begun_settings.parts)
  windowed = begun_settings.normalization.window is not None
  splits = open_splits(begun_settings.data, windowed, task.labels)
  begun_settings = _with_sides(begun_settings, splits.train)
  if may_lower_batch:
    begun_settings = _with_lower_batch(begun_settings, mesh, splits.train)
  task = _fitted(task, begun_settings, splits)
  names = splits.train.class_names
  lengths = _lengths(begun_settings, splits.train)
  full_settings, task, mesh, start, model, extras = again_if_deleted(
    lambda task=task: _opened(begun_settings, task, names, saved), say
  )
  preprocessing = build.make_preprocessing(full_settings)
  init, train_step = build.train_functions(
    full_settings,
    model,
    task,
    extras,
    total_steps=lengths.total,
    num_examples=len(splits.train),
  )
  evaluation = RunEvaluation(
    settings=full_settings,
    task=task,
    model=model,
    mesh=mesh,
    preprocessing=preprocessing,
    splits=splits,
  )
  return Plan(
    settings=full_settings,
    task=task,
    mesh=mesh,
    splits=splits,
    start=start,
    model=model,
    preprocessing=preprocessing,
    extras=extras,
    init=init,
    train_step=train_step,
    shapes=sharding.array_shapes(init, mesh),
    evaluation=evaluation,
    lengths=lengths,
  )


def _fitted(task: Task, settings: Settings, splits: Splits) -> Task:
  """The task with the facts of its labels, once the splits are checked."""
  build.check_splits(settings, splits)
  task.check_evaluation(splits.eval)
  return task.fitted(splits.train)


def _with_sides(settings: Settings, train: Source) -> Settings:
  """The settings with the rule that held images out, for the run to keep."""
  rule = getattr(train, "held_out", None)
  if rule is None:
    return settings
  return dataclasses.replace(
    settings, data=dataclasses.replace(settings.data, **rule.as_settings())
  )


def _with_lower_batch(
  settings: Settings, mesh: Mesh, train: Source
) -> Settings:
  """The settings, with a batch that is no larger than the training split.

  They stay as they are, to be refused, if no batch of its size or less splits
  over the devices or holds all `repeats` of an image.
  """
  size = settings.batch_size
  shards = sharding.batch_shards(mesh) * settings.parts
  unit = math.lcm(shards, jax.process_count())
  lower = len(train) // unit * unit
  if size <= len(train) or lower < max(1, settings.train_transform.repeats):
    return settings
  if jax.process_index() == 0:
    say(
      f"{train.name} has {len(train)} training examples: taking "
      f"batch_size={lower} in place of {size}."
    )
  return dataclasses.replace(settings, batch_size=lower)


def _opened(
  settings: Settings,
  task: Task,
  class_names: tuple[str, ...],
  saved: Mapping[str, Any] | None,
) -> tuple[Settings, Task, Mesh, Optional["Loaded"], Model, Extras]:
  """Opens the checkpoints that the run needs, with what they decide.

  They decide the model, and this the mesh, where the settings leave it open.

  The arrays of `Extras` are read, so they are those of the same step as the
  start. They are opened last, since they may have to be downloaded.
  """
  teacher = None
  if settings.distill.teacher:
    from vit_jax.run.extras import open_teacher

    teacher, task = open_teacher(settings, task, saved)
  start, model, start_preprocessing = _model(settings, task, class_names, saved)
  full_settings = build.resolved(settings, start_preprocessing)
  if saved is None and for_tpu():
    full_settings = fastest.chosen(full_settings, task, model, jax.devices())
  mesh = sharding.make_mesh(**vars(full_settings.mesh))
  if not (full_settings.lora.rank or full_settings.distill.teacher):
    return full_settings, task, mesh, start, model, Extras()
  from vit_jax.run.extras import check_teacher, open_extras

  check_teacher(teacher, full_settings, task, model, class_names)
  extras = open_extras(full_settings, model, mesh, teacher, start, saved)
  return full_settings, extras.taught(task), mesh, start, model, extras


def _absolute(settings: Settings) -> dict[str, str]:
  """The paths of the data by their keys, made absolute unless an address."""
  places = {}
  for key in ("root", "dir", "data_dir", "labels_file", "eval_labels_file"):
    if path := getattr(settings.data, key):
      if "file" in key:
        from vit_jax.data.reading.label_file import located

        path = located(settings.data, path)
      path = os.path.expanduser(path)
      places[key] = path if "://" in path else os.path.abspath(path)
  return places


def _lengths(settings: Settings, train: Source) -> Lengths:
  names = [field.name for field in dataclasses.fields(Lengths)]
  size = settings.batch_size
  steps = {
    name: getattr(settings, name).in_steps(size, len(train)) for name in names
  }
  if not steps["total"]:
    raise ValueError(
      "total_steps, total_epochs or total_examples is missing or 0: set one of "
      "them, as by --epochs=20."
    )
  return Lengths(**steps)


def _model(
  settings: Settings,
  task: Task,
  class_names: tuple[str, ...],
  saved: Mapping[str, Any] | None,
) -> tuple[Optional["Loaded"], Model, Preprocessing | None]:
  """The checkpoint to start from, the model, and the preprocessing it had."""
  if saved is not None:
    preprocessing = descriptions.preprocessing(saved)
    return None, _as_saved(settings, task, saved), preprocessing
  start = build.open_start(settings, task) if settings.pretrained else None
  model = build.build_model(settings, task, class_names, start)
  return start, model, start.preprocessing if start else None


def _as_saved(
  settings: Settings, task: Task, saved: Mapping[str, Any]
) -> Model:
  fields = {**saved["model"]}
  if fields.get("block", "axial") not in BLOCKS:  # A class of the user's own.
    fields |= with_block({"block": settings.model.block})
  chosen = settings.model.given()
  changed = {key: chosen[key] for key in build.EXECUTION if key in chosen}
  return task.described(fields).clone(**changed)


def _as_begun(settings: Settings, saved: Mapping[str, Any]) -> Settings:
  """Keeps the saved value of keys that the command does not set.

  These are keys whose default has changed since, the evaluation split, and
  what the run took as the fastest.
  """
  old, before, default, now = (
    flat(to_dict(s))
    for s in (read_saved(saved["config"]), read_saved({}), Settings(), settings)
  )
  old_values = {
    key: before[key]
    for key in old
    if now[key] == default[key] and old[key] == before[key]
  }
  open_keys = [key for key in _AS_BEGUN if now[key] is None]
  old_values |= {key: old[key] for key in open_keys}
  if jax.device_count() % max(1, old_values.get("mesh.fsdp") or 1):
    del old_values["mesh.fsdp"]  # The run goes on with other devices.
  return replaced(settings, old_values)
