"""Builds everything that a run needs from its settings; compiles nothing."""

import dataclasses
import functools
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
from vit_jax.data.settings import located
from vit_jax.evaluation.evaluator import Evaluator
from vit_jax.models import ResNet, Vit, from_fields, to_fields
from vit_jax.models.variants import BLOCKS, with_block
from vit_jax.run import build, evaluators
from vit_jax.run.adaptation import Adaptation, check_adapted, make_adaptation
from vit_jax.run.evaluators import FewShotMetrics
from vit_jax.run.settings import Settings, read_saved
from vit_jax.run.task import check_evaluation, targets_of, with_loss
from vit_jax.runtime import extras
from vit_jax.runtime.settings import flat, replaced, to_dict
from vit_jax.training import sharding
from vit_jax.training.state import TrainState
from vit_jax.workdir import description as descriptions

# Imported only by the runs that need them.
if TYPE_CHECKING:
  from vit_jax.inspection.eval_pictures import Pictures
  from vit_jax.pretrained.loaded import Loaded


@dataclasses.dataclass(frozen=True)
class Plan:
  """The settings of a run and everything that is built from them.

  Attributes:
    settings: The settings, with all values resolved.
    start: The checkpoint whose weights the run starts from, if any.
    preprocessing: The preprocessing of an image in evaluation.
    targets: Facts about the labels, from `task.targets_of`.
    evaluator: Evaluates parameters on the evaluation split.
    few_shot: Few-shot evaluation, if the settings ask for it.
    pictures: Pictures of each evaluation, if the settings ask for them.
    init: Makes the initial state from a random key.
    train_step: Maps (state, batch, *adaptation.fixed) to (state, metrics).
    adaptation: The parameters that are not in the state, and their teacher.
    open_batches: Opens the training batches, starting at a batch number.
    shapes: Shapes, types and shardings of the state.
    total: Length of the run in steps.
    log_every: Steps between two log lines; 0 never writes one.
    eval_every: Steps between two evaluations.
    save_every: Steps between two checkpoints.
  """

  settings: Settings
  mesh: Mesh
  splits: Splits
  model: Vit | ResNet
  start: Optional["Loaded"]
  preprocessing: Preprocessing
  targets: dict[str, Any]
  evaluator: Evaluator
  few_shot: FewShotMetrics | None
  pictures: Optional["Pictures"]
  init: Callable[[jax.Array], TrainState]
  train_step: Callable
  adaptation: Adaptation
  open_batches: Callable[[int], BatchIterator]
  shapes: TrainState
  total: int
  log_every: int
  eval_every: int
  save_every: int

  @property
  def source(self) -> Source:
    """The training split."""
    return self.splits.train

  @property
  def scanned(self) -> bool:
    """Whether the parameters of all blocks are stacked."""
    return getattr(self.model, "scan", False)

  def description(self, step: int) -> dict[str, Any]:
    """The description that the checkpoint of a step carries, as JSON."""
    config = to_dict(self.settings)
    for place in ("root", "dir", "data_dir", "labels_file", "eval_labels_file"):
      if path := config["data"][place]:
        if "file" in place:
          path = located(self.settings.data, path)
        path = os.path.expanduser(path)
        absolute = path if "://" in path else os.path.abspath(path)
        config["data"][place] = absolute
    return {
      "config": config,
      "model": to_fields(self.model),
      "class_names": list(self.source.class_names),
      "train_examples": len(self.source),
      **({"targets": self.targets} if self.targets else {}),
      # These two values determine the stream of batches.
      "data_iterator": {"seed": self.settings.seed, "next_batch": step},
      **self.adaptation.sources,
    }


def make_plan(
  settings: Settings, saved: Mapping[str, Any] | None = None
) -> Plan:
  """Opens the data and builds everything that the run needs.

  Args:
    saved: The description of the checkpoint that the run is resumed from, if
      any. Its model and preprocessing replace those of `settings.pretrained`.

  Raises:
    ValueError: if the settings, the data and the devices do not fit together.
  """
  _check_extras(settings)
  settings = with_loss(settings)
  check_adapted(settings)
  if saved is not None:
    settings = _as_begun(settings, saved)
  mesh = evaluators.make_mesh(settings)
  sharding.check_batch(
    "batch_size", settings.batch_size, mesh, settings.accumulation_steps
  )
  windowed = settings.normalization.window is not None
  splits = open_splits(settings.data, windowed)
  train, evaluation = splits.train, splits.eval
  _check_sources(settings, train, evaluation)
  if settings.data.task != "classification":
    check_evaluation(evaluation)
  targets = targets_of(settings, train)
  steps = _lengths(settings, len(train))
  # Opened last, since it may have to be downloaded.
  start, model, decided = _model(settings, train.class_names, saved)
  settings = build.resolved(settings, decided)
  preprocessing = build.make_preprocessing(settings)
  adaptation = make_adaptation(
    settings, model, mesh, train.class_names, start, saved
  )
  init, train_step = build.train_functions(
    settings,
    model,
    steps["total"],
    len(train),
    teacher=adaptation.teacher,
    targets=targets,
  )
  parts = settings, model, mesh, preprocessing
  return Plan(
    settings=settings,
    mesh=mesh,
    splits=splits,
    model=model,
    start=start,
    preprocessing=preprocessing,
    targets=targets,
    evaluator=evaluators.make_evaluator(*parts, evaluation, targets),
    few_shot=evaluators.make_few_shot(*parts, train, evaluation),
    pictures=evaluators.make_pictures(*parts, evaluation, targets),
    init=init,
    train_step=train_step,
    adaptation=adaptation,
    open_batches=functools.partial(
      _open_batches,
      settings,
      evaluators.open_loader(settings, preprocessing),
      preprocessing,
      train,
    ),
    shapes=sharding.array_shapes(init, mesh),
    **steps,
  )


def _lengths(settings: Settings, num_examples: int) -> dict[str, int]:
  """The length of the run and the time between its periodic work, in steps."""
  names = ("total", "log_every", "eval_every", "save_every")
  steps = {
    name: getattr(settings, name).in_steps(settings.batch_size, num_examples)
    for name in names
  }
  if not steps["total"]:
    raise ValueError(
      "the run has no length: set total_steps, total_epochs or total_examples."
    )
  return steps


def _model(
  settings: Settings,
  class_names: tuple[str, ...],
  saved: Mapping[str, Any] | None,
) -> tuple[Optional["Loaded"], Vit | ResNet, Preprocessing | None]:
  """The checkpoint to start from, the model, and the preprocessing it had."""
  if saved is None:
    start = build.open_start(settings)
    model = build.build_model(settings, class_names, start)
    return start, model, start.preprocessing if start else None
  fields = {**saved["model"]}
  if fields.get("block", "axial") not in BLOCKS:  # A class of the user's own.
    fields |= with_block({"block": settings.model.block})
  model = build.with_execution(from_fields(fields), settings.model)
  return None, model, descriptions.preprocessing(saved)


def _as_begun(settings: Settings, saved: Mapping[str, Any]) -> Settings:
  """Keeps a resumed run as it was, in what nobody sets now.

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


def _open_batches(
  settings: Settings,
  loader: Loader,
  preprocessing: Preprocessing,
  source: Source,
  first_batch: int,
) -> BatchIterator:
  return loader.train(
    source,
    preprocessing.train_transform(settings.train_transform),
    batch_size=settings.batch_size,
    seed=settings.seed,
    first_batch=first_batch,
    repeats=settings.train_transform.repeats,
  )


def _check_sources(
  settings: Settings, source: Source, eval_source: Source
) -> None:
  """Raises ValueError if the data does not fit the settings."""
  check_same_classes(
    source.class_names,
    "the training split",
    eval_source.class_names,
    "the evaluation split",
  )
  num_labels = len(source.class_names)
  num_classes = settings.model.num_classes
  if num_classes is not None and num_classes < num_labels:
    raise ValueError(
      f"the data set has {num_labels} classes and model.num_classes is "
      f"{num_classes}: set it to {num_labels} or more."
    )
  loader = Loader(
    0, settings.loader.on_unreadable, jax.process_index(), jax.process_count()
  )
  loader.check(source, settings.batch_size, settings.seed)


def _check_extras(settings: Settings) -> None:
  """Raises ValueError if a key needs a library that is not installed."""
  if settings.eval_pictures and not settings.masked.rate:
    extras.check("matplotlib", "figures", "eval_pictures")
  if settings.wandb_project:
    extras.check("wandb", "wandb", "wandb_project")
