"""Checks that settings fit their task and their data.

Nothing is made here. What does not fit is a ValueError, before anything is
downloaded or compiled.
"""

import jax

from vit_jax.data.batching.loader import Loader
from vit_jax.data.reading.sources import Splits, check_same_classes
from vit_jax.run.settings import Settings
from vit_jax.runtime import extras as libraries
from vit_jax.runtime.settings import changed, check_needs
from vit_jax.tasks.task import Task


def check_task(settings: Settings, task: Task) -> None:
  """Raises ValueError if keys mean nothing for the task."""
  unlabelled = bool(settings.data.root) and not settings.data.labels
  if task.refuses or unlabelled:
    _check_keys(settings, task, unlabelled)
  parts = settings.accumulation_steps
  if task.couples_examples and parts > 1:
    raise ValueError(
      f"accumulation_steps={parts} computes a batch in parts, and in "
      f"data.task={task.name!r} the loss of an example depends on the whole "
      "batch: set it to 1."
    )


def _check_keys(settings: Settings, task: Task, unlabelled: bool) -> None:
  if unlabelled and task.labels.are_used:
    raise ValueError(
      "data.labels=False leaves no classes to train on: leave it out, or set "
      "masked.rate to train without labels."
    )
  few_shot = settings.fewshot
  has_own_data = few_shot.data.name or few_shot.data.photographs
  changes = changed(settings)
  for key in task.refuses:
    if key in changes and not (key == "fewshot.shots" and has_own_data):
      value, default = changes[key]
      raise ValueError(
        f"{key}={value!r} {task.why_refused}: set it to {default!r}."
      )
  if few_shot.shots and unlabelled and not has_own_data:
    raise ValueError(
      f"fewshot.shots={few_shot.shots} needs labels: set data.labels=True "
      "for a folder of class folders, or give fewshot.data.root."
    )


def check_run(settings: Settings, task: Task, *, is_new: bool) -> None:
  """Raises ValueError if settings contradict each other, or lack a library.

  Keys that need another key are checked in a new run alone: a run of an older
  version may have set one.
  """
  if is_new:
    check_needs(settings)
    _check_repeats(settings)
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


def _check_repeats(settings: Settings) -> None:
  repeats, size = settings.train_transform.repeats, settings.batch_size
  if repeats > size:
    raise ValueError(
      f"train_transform.repeats={repeats} is more than batch_size={size}: a "
      "batch would show copies of a single image."
    )


def check_splits(settings: Settings, splits: Splits) -> None:
  """Raises ValueError if the data do not fit the settings or each other."""
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
  loader = Loader(
    on_unreadable=settings.loader.on_unreadable,
    process_index=jax.process_index(),
    process_count=jax.process_count(),
  )
  loader.check(splits.train, settings.batch_size, settings.seed)
