"""Builds everything that a run needs from its settings; compiles nothing."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Optional

import jax
from jax.sharding import Mesh

from vit_jax.data.batching.loader import Loader
from vit_jax.data.batching.workers import BatchIterator
from vit_jax.data.example import Source
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.sources import Splits, check_same_classes, open_splits
from vit_jax.models import Model, to_fields
from vit_jax.models.parts import Parts
from vit_jax.models.variants import BLOCKS, with_block
from vit_jax.run import build
from vit_jax.run.evaluation import RunEvaluation
from vit_jax.run.settings import Settings, read_saved
from vit_jax.runtime import extras as libraries
from vit_jax.runtime.settings import check_needs, flat, replaced, to_dict
from vit_jax.tasks import choose
from vit_jax.tasks.task import Task
from vit_jax.training import sharding
from vit_jax.training.state import Extras, TrainState
from vit_jax.workdir import description as descriptions

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

  def open_batches(self, first_batch: int) -> BatchIterator:
    """Opens the training batches, starting at a batch number."""
    settings, changes = self.settings, self.settings.train_transform
    transform = self.task.train_transform(self.preprocessing, changes)
    order: Any = {"seed": settings.seed, "first_batch": first_batch}
    order |= {"batch_size": settings.batch_size, "repeats": changes.repeats}
    loader = build.open_loader(settings, self.preprocessing)
    return loader.train(self.source, transform, **order)

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
  settings: Settings, saved: Mapping[str, Any] | None = None
) -> Plan:
  """Opens the data and builds everything that the run needs.

  `saved` is the description of the checkpoint that the run is resumed from, if
  any. Its model and preprocessing replace those of `settings.pretrained`.
  Raises ValueError if the settings, the data and the devices do not fit
  together.
  """
  task = build.task_of(settings)
  if saved is None:  # A run of an older version may have set such a key.
    check_needs(settings)
    _check_repeats(settings)
  _check(settings, task)
  settings = dataclasses.replace(settings, loss=task.loss)
  if saved is not None:
    settings = _as_begun(settings, saved)
  mesh = sharding.make_mesh(**vars(settings.mesh))
  sharding.check_batch(
    "batch_size", settings.batch_size, mesh, settings.accumulation_steps
  )
  windowed = settings.normalization.window is not None
  splits = open_splits(settings.data, windowed, task.labels)
  _check_splits(settings, splits)
  task.check_evaluation(splits.eval)
  task = task.fitted(splits.train)
  names, lengths = splits.train.class_names, _lengths(settings, splits.train)
  # Opened last, since it may have to be downloaded.
  start, model, decided = _model(settings, task, names, saved)
  settings = build.resolved(settings, decided)
  preprocessing = build.make_preprocessing(settings)
  extras = Extras()
  if settings.lora.rank or settings.distill.teacher:
    from vit_jax.run.extras import open_extras

    extras = open_extras(settings, model, mesh, names, start, saved)
  init, train_step = build.train_functions(
    settings, model, task, extras, lengths.total, len(splits.train)
  )
  parts = settings, task, model, mesh, preprocessing, splits
  return Plan(
    *(settings, task, mesh, splits, start, model, preprocessing, extras),
    init=init,
    train_step=train_step,
    shapes=sharding.array_shapes(init, mesh),
    evaluation=RunEvaluation(*parts),
    lengths=lengths,
  )


def _check_repeats(settings: Settings) -> None:
  repeats, size = settings.train_transform.repeats, settings.batch_size
  if repeats > size:
    raise ValueError(
      f"train_transform.repeats={repeats} is more than batch_size={size}: a "
      "batch would show copies of a single image."
    )


def _absolute(settings: Settings) -> dict[str, str]:
  """The places of the data as absolute paths, by their keys."""
  found = {}
  for key in ("root", "dir", "data_dir", "labels_file", "eval_labels_file"):
    if path := getattr(settings.data, key):
      if "file" in key:
        from vit_jax.data.reading.label_file import located

        path = located(settings.data, path)
      path = os.path.expanduser(path)
      found[key] = path if "://" in path else os.path.abspath(path)
  return found


def _lengths(settings: Settings, train: Source) -> Lengths:
  names = [field.name for field in dataclasses.fields(Lengths)]
  size = settings.batch_size
  steps = [getattr(settings, name).in_steps(size, len(train)) for name in names]
  if not steps[0]:
    raise ValueError(
      "total_steps, total_epochs or total_examples is missing: set one of them."
    )
  return Lengths(*steps)


def _model(
  settings: Settings,
  task: Task,
  class_names: tuple[str, ...],
  saved: Mapping[str, Any] | None,
) -> tuple[Optional["Loaded"], Model, Preprocessing | None]:
  """The checkpoint to start from, the model, and the preprocessing it had."""
  if saved is not None:
    decided = descriptions.preprocessing(saved)
    return None, _as_saved(settings, task, saved), decided
  start = build.open_start(settings) if settings.pretrained else None
  model = build.build_model(settings, task, class_names, start)
  return start, model, start.preprocessing if start else None


def _as_saved(
  settings: Settings, task: Task, saved: Mapping[str, Any]
) -> Model:
  fields = {**saved["model"]}
  if fields.get("block", "axial") not in BLOCKS:  # A class of the user's own.
    fields |= with_block({"block": settings.model.block})
  given = settings.model.given()
  changed = {key: given[key] for key in build.EXECUTION if key in given}
  return task.described(fields).clone(**changed)


def _as_begun(settings: Settings, saved: Mapping[str, Any]) -> Settings:
  """Keeps the saved value of keys that the command does not set.

  These are keys whose default has changed since, and the evaluation split.
  """
  old, before, default, now = (
    flat(to_dict(s))
    for s in (read_saved(saved["config"]), read_saved({}), Settings(), settings)
  )
  kept = {
    key: before[key]
    for key in old
    if now[key] == default[key] and old[key] == before[key]
  }
  if settings.data.eval_split is None:
    kept["data.eval_split"] = old["data.eval_split"]
  return replaced(settings, kept)


def _check_splits(settings: Settings, splits: Splits) -> None:
  names = splits.train.class_names
  check_same_classes(
    names, "the training split", splits.eval.class_names, "the evaluation split"
  )
  num_classes = settings.model.num_classes
  if num_classes is not None and num_classes < len(names):
    raise ValueError(
      f"model.num_classes={num_classes} is less than the {len(names)} classes "
      f"of the data: set it to {len(names)} or more."
    )
  hosts = jax.process_index(), jax.process_count()
  loader = Loader(0, settings.loader.on_unreadable, *hosts)
  loader.check(splits.train, settings.batch_size, settings.seed)


def _check(settings: Settings, task: Task) -> None:
  if settings.eval_pictures and task.has_answers:
    libraries.check("matplotlib", "figures", "eval_pictures")
  if settings.wandb_project:
    libraries.check("wandb", "wandb", "wandb_project")
  rank, frozen = settings.lora.rank, settings.optimizer.freeze_layers
  if rank and frozen:
    raise ValueError(
      f"lora.rank={rank} trains nothing that optimizer.freeze_layers={frozen} "
      "could freeze: leave one out, and choose layers with lora.kernels."
    )
