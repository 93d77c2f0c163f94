"""Chooses how the labels of a folder or of a file are read for a model."""

import dataclasses
import os

from vit_jax.data.reading import other_table, recognise
from vit_jax.data.reading.column_roles import as_text
from vit_jax.data.reading.labels import SINGLE, Labels
from vit_jax.data.settings import DataSettings, settings_of_saved
from vit_jax.pretrained.opened import Opened
from vit_jax.runtime import hints
from vit_jax.runtime.printable import say
from vit_jax.tasks.table import labels_of

_TASKS = ("classification", "multilabel", "regression")


def choose_labels(
  path: str,
  task: str | None,
  loaded: Opened,
  root: str | os.PathLike[str] | None = None,
) -> tuple[DataSettings, Labels]:
  """The settings by which labels are read, and their kind.

  A folder has classes. A file has the labels of `task`, or else those of the
  run that `loaded` was read from, or else those that its columns look like; in
  this case a line says so unless they are classes. The images of a file are in
  `root`, if that is given.

  Raises:
    ValueError: if there is no such path or task, a folder is given for labels
      that only a file has, or together with `root`, or the columns of the
      labels cannot be told.
  """
  if task is not None and task not in _TASKS:
    raise ValueError(
      f"task={task!r} is unknown here: give {', '.join(map(repr, _TASKS))}."
    )
  if not os.path.exists(path):
    hint = hints.hint_for_path(path)
    end = f"; {hint}" if hint else "."
    raise ValueError(f"{path!r} is neither a folder nor a file here{end}")
  if not os.path.isfile(path):
    if task not in (None, "classification"):
      raise ValueError(
        f"{path} is no file of labels, from which task={task!r} is read: give "
        "a CSV or JSONL file."
      )
    if root is not None:
      raise ValueError(
        f"root={os.fspath(root)!r} is the folder of the images of a file of "
        f"labels, and {path} is none: leave root out."
      )
    return DataSettings(root=path), SINGLE
  folder = None if root is None else os.path.expanduser(root)
  if task is None and loaded.step is not None:
    learned = loaded.task.labels
    if learned in map(labels_of, _TASKS):
      settings = _settings_of_run(path, loaded, folder)
      names = loaded.class_names
      return other_table.settings_for(path, settings, learned, names), learned
  return _recognise(path, task, folder)


def _settings_of_run(
  path: str, loaded: Opened, root: str | None
) -> DataSettings:
  """The settings by which a run read its labels, for another file of labels."""
  description = loaded.description or {}
  data = description.get("config", {}).get("data", {})
  settings = DataSettings(root=data.get("root"))
  if data.get("labels_file"):  # Other data have no columns.
    settings = settings_of_saved(data)
  settings = other_table.with_file(settings, path, root)
  return dataclasses.replace(settings, labels_file=os.path.abspath(path))


def _recognise(
  path: str, task: str | None, root: str | None
) -> tuple[DataSettings, Labels]:
  """Settings and labels for a file whose columns must tell how to read it."""
  root = root or os.path.dirname(path) or os.curdir
  settings = DataSettings(root=root, labels_file=os.path.abspath(path))
  found = recognise.recognise_file(path, settings)
  looks_like = "classification"
  if found.why:
    names = (name for name in _TASKS if labels_of(name) == found.labels)
    looks_like = next(names, looks_like)
  if task in (None, looks_like) and found.why and found.columns:
    columns = as_text(found.columns)
    settings = dataclasses.replace(settings, label_columns=columns)
  if task is None and looks_like != "classification":
    say(
      f"{path} is read with task={looks_like!r}, as {found.why}; task= chooses "
      "another."
    )
  return settings, labels_of(task or looks_like)
