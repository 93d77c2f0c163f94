"""Finds a run's task: by its name, or a class of the user's own."""

import functools
import importlib
import importlib.util
import inspect
import pathlib
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

import cloudpickle

from vit_jax.models import Model, from_fields
from vit_jax.models.variants import ADAPTED
from vit_jax.runtime.display import Split
from vit_jax.runtime.printable import quoted
from vit_jax.runtime.settings import from_dict
from vit_jax.tasks.table import ALL_TASKS, LABELLED_TASKS, sections
from vit_jax.tasks.task import Task
from vit_jax.training.settings import LOSSES, LossSettings


class OwnTaskError(ValueError):
  """The caller's own task does not fit, or the caller has to give one."""


def task_class(name: str | type[Task]) -> type[Task]:
  """The class of a task.

  `name` is the task's name, "file.py:Class", or the class itself. Raises
  OwnTaskError if there is no such task, or the class has methods that are no
  longer called.

  >>> from vit_jax.tasks.choose import task_class
  >>> task_class("multilabel").__name__
  'MultiLabelTask'
  """
  if isinstance(name, type):
    _check_moved(name)
    return name
  if name in ALL_TASKS:
    return ALL_TASKS[name].task_class()
  place, _, class_name = name.rpartition(":")
  try:
    kind = getattr(_import_place(place), class_name)
  except (ImportError, AttributeError, OSError, ValueError) as error:
    raise OwnTaskError(
      f"task={name!r} is unknown ({error}); choose one of "
      f"{', '.join(LABELLED_TASKS)}, or your own as file.py:Class."
    ) from error
  if not (inspect.isclass(kind) and issubclass(kind, Task)):
    raise OwnTaskError(
      f"task={name!r} is no subclass of vit_jax.tasks.task.Task."
    )
  _check_moved(kind)
  return kind


# Methods that a task once had, and the part of a task that has them now.
_MOVED = {
  **dict.fromkeys(("outputs", "as_json", "lines", "legend"), "answers"),
  **dict.fromkeys(("answer_text", "leaf_in_unit", "make_mark"), "answers"),
  **dict.fromkeys(("meaning", "mark", "ranked", "given_from"), "answers"),
  **dict.fromkeys(("calibrator", "temperatures"), "answers"),
  **dict.fromkeys(("has_answers", "has_rows"), "answers"),
  **dict.fromkeys(("headline", "score_text"), "scores"),
  **dict.fromkeys(("make_panels", "panel_text"), "panels"),
  **dict.fromkeys(("train_objective", "couples_examples"), "objective"),
  **dict.fromkeys(("learns_from_average", "with_answers"), "objective"),
  "learns_features": "objective",
  **dict.fromkeys(("reads_texts", "texts"), "text_setup"),
  "evaluator": "measure",
  "label_text": "labels",
}


def _check_moved(kind: type[Task]) -> None:
  """Raises OwnTaskError if a class has methods that are no longer called."""
  moved = {name: part for name, part in _MOVED.items() if hasattr(kind, name)}
  if moved:
    parts = " and ".join(dict.fromkeys(moved.values()))
    raise OwnTaskError(
      f"{kind.__qualname__} has {', '.join(moved)}, which a task is no longer "
      f"asked for: they belong to its {parts}, as in docs/howto/own_task.md."
    )


@functools.cache
def _import_place(place: str) -> types.ModuleType:
  """Imports a module, by its file or its dotted name, once; returns it."""
  if not place.endswith(".py"):
    return importlib.import_module(place)
  path = pathlib.Path(place).expanduser()
  spec = importlib.util.spec_from_file_location(path.stem, path)
  assert spec and spec.loader
  module = importlib.util.module_from_spec(spec)
  sys.modules.setdefault(path.stem, module)
  spec.loader.exec_module(module)
  # Data workers cannot import this file, so its objects are pickled by value.
  cloudpickle.register_pickle_by_value(module)
  return module


def configured(name: str | type[Task], sections: Mapping[str, Any]) -> Task:
  """The task of a configuration.

  Raises ValueError if there is no such task, if it does not take this loss, or
  if several sections each enable a task.

  Args:
    name: The value of `data.task`. A task that its own section enables takes
      precedence.
    sections: The sections of the configuration by name: `loss`, and the tasks'
      own.
  """
  kind = _enabled_task(sections) or task_class(name)
  return kind.configured(sections)


def _enabled_task(sections: Mapping[str, Any]) -> type[Task] | None:
  """The task that its own section of the configuration enables, or None.

  Such a section has the name of its task. Raises ValueError if several sections
  enable their tasks.
  """
  enabled = [
    name
    for name, record in ALL_TASKS.items()
    if name in sections and record.is_on(sections[name])
  ]
  if len(enabled) > 1:
    raise ValueError(
      f"the sections {' and '.join(enabled)} each choose a task, and a run has "
      "one: leave all but one out."
    )
  return task_class(enabled[0]) if enabled else None


def saved(
  description: Mapping[str, Any],
  loss: LossSettings,
  given: str | type[Task] | None = None,
) -> Task:
  """The task of a checkpoint, with its facts.

  `given` is the user's own task, as "file.py:Class", if the description names
  one: a class is never imported because a checkpoint names it.

  Raises OwnTaskError if `given` is no task, is another one than the description
  has, or is None although the description names a class, and ValueError if the
  description is damaged.
  """
  name, names_own = _task_name(description)
  if names_own and given is None:
    raise OwnTaskError(
      f"its task is {name}, a class of your own: give it, as in "
      f"--task=file.py:{name.split(':')[-1]}."
    )
  sections = {**_sections(description), "loss": loss}
  task = configured(given if given and names_own else name, sections)
  if given is not None:
    kind = task_class(given)
    recorded_name = name if names_own else task.name
    if recorded_name.split(":")[-1] not in (kind.__qualname__, kind.name):
      raise OwnTaskError(
        f"task={given!r} is given, and the run's task is {recorded_name}: give "
        "that one."
      )
  return task.with_facts(description)


def check_same(task: Task, description: Mapping[str, Any]) -> None:
  """Raises ValueError if a checkpoint is of another task of this package.

  Classes of the user's own are not compared.
  """
  name, names_own = _task_name(description)
  if names_own or is_own(task):
    return
  saved_kind = _enabled_task(_sections(description)) or task_class(name)
  if saved_kind.name != task.name:
    raise ValueError(
      f"the run in this workdir is of the task {saved_kind.name}, and these "
      f"settings are of {task.name}: choose another workdir, as in "
      "--workdir=runs/another (workdir= in Python)."
    )


def _sections(description: Mapping[str, Any]) -> dict[str, Any]:
  """The tasks' sections of a saved configuration, by name."""
  config = description["config"]
  return {
    key: from_dict(kind, config.get(key, {}), saved=True)
    for key, kind in sections().items()
  }


def _task_name(description: Mapping[str, Any]) -> tuple[str, bool]:
  """The task that a description names, and whether it is the user's own class.

  The entry `task` names a class of the user's own, and `targets` a task of this
  package; without either it is classification. A section of the configuration
  may enable another task of this package, which callers ask of `_enabled_task`.
  Raises ValueError if the name is unknown.
  """
  if (own_class := description.get("task")) is not None:
    return own_class, True
  name = description.get("targets", {}).get("task", "classification")
  # A class that is only named here is never imported.
  if not isinstance(name, str) or name not in ALL_TASKS:
    raise ValueError(f"targets.task={name!r} is unknown")
  return name, False


def answering(loss: str) -> Task:
  """The first task that takes a kind of loss, for weights without a run.

  The outputs of a regression are then in the unit of its targets. Raises
  ValueError if no task takes the loss.

  >>> from vit_jax.tasks.choose import answering
  >>> answering("sigmoid").name
  'classification'
  """
  kinds = map(task_class, ALL_TASKS)
  kind = next((kind for kind in kinds if loss in kind.losses), None)
  if kind is None:
    raise ValueError(
      f"loss={quoted(loss)} is unknown; choose one of {', '.join(LOSSES)}."
    )
  return kind(LossSettings(kind=loss))


def is_own(task: Task) -> bool:
  """Whether the class of a task is the user's own."""
  return not type(task).__module__.startswith("vit_jax.")


def model_of(task: Task, fields: Mapping[str, Any]) -> Model:
  """Builds a task's model from the fields in a checkpoint's description.

  Raises ValueError as `from_fields` and `Task.adapted` do.
  """
  plain = {key: value for key, value in fields.items() if key != ADAPTED}
  model = from_fields(plain)
  return task.adapted(model) if fields.get(ADAPTED) else model


def record(task: Task) -> dict[str, Any]:
  """The entries of a checkpoint's description about a task, as JSON.

  If the task is a class of the user's own, the entries name the class, and the
  metric by which the best checkpoint is found.
  """
  facts = task.facts()
  entries: dict[str, Any] = {"targets": facts} if facts else {}
  kind = type(task)
  if is_own(task):
    entries["task"] = f"{kind.__module__}:{kind.__qualname__}"
    entries["score"] = task.scores.key
  return entries


def score_key(description: Mapping[str, Any]) -> str:
  """The metric by which the best checkpoint of a run is found.

  It is the metric that the description names, or else its task's. An evaluation
  may have the score of another task among its metrics: pairs have a cosine,
  which is the score of a student. Raises ValueError if the description is
  damaged.
  """
  if "score" in description:
    return description["score"]
  name, names_own = _task_name(description)
  # No class of the user's own is imported, and its description has a score.
  kind = task_class("classification" if names_own else name)
  return (_enabled_task(_sections(description)) or kind).scores.key


def by_metrics(keys: Iterable[str]) -> Task | None:
  """The task whose score is among the metrics of an evaluation, or None.

  If there are several such tasks, it is the one with most metrics among them:
  pairs also have a cosine, which is the score of a student.

  >>> from vit_jax.tasks.choose import by_metrics
  >>> by_metrics(["eval/loss", "eval/map"]).name
  'multilabel'
  """
  metric_keys = {*keys}
  tasks = [task_class(name)() for name in ALL_TASKS]
  scored = [task for task in tasks if task.scores.key in metric_keys]

  def num_metrics(task: Task) -> int:
    return sum(
      Split.EVAL.key(m.key) in metric_keys for m in task.scores.metrics
    )

  return max(scored, key=num_metrics, default=None)
