"""Chooses a configuration for `vit_jax train DATA`.

The choice depends on the kind of the data, and with --pretrained on the number
of images as well.
"""

import itertools
import os
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vit_jax.data.reading.places import place_of
from vit_jax.data.settings import TABLES, DataSettings
from vit_jax.run.config_file import FOR_CLASSES, GO_ON, check_weights
from vit_jax.runtime import hints
from vit_jax.tasks.table import LABELLED_TASKS, SECTIONS, labels_of

if TYPE_CHECKING:
  from vit_jax.data.reading.recognise import Recognised

# Tasks whose head reads the features of a pretrained encoder.
_DEPTH = "dense_regression"
_ON_FEATURES = ("segmentation", _DEPTH)
# Configurations for which the number of images decides some keys.
GOING_ON = tuple(f"dino:{argument}" for argument in GO_ON)
_PAIRS = "pairs"

_TASK = "data.task"
# The configurations for classes smooth labels, and these tasks refuse the key.
_SMOOTHING = "loss.label_smoothing"
_UNSMOOTHED = ("multilabel", "regression")
# Keys, besides those of the tasks' sections, that say what is learned.
_SAYS = (_TASK, "data.labels")
# Keys of `data` that say how a file of labels is read.
_COLUMNS = ("root", "file_column", "label_columns", "group_column")
# Beginnings of the keys of those tasks that `recognise` can tell from the data.
_TOLD = tuple(
  f"{section}." for section in SECTIONS if section in LABELLED_TASKS
)
_SECTION_STARTS = ("distill.", *(f"{section}." for section in SECTIONS))


def suited(
  data: str, values: Mapping[str, str], workdir: str = ""
) -> tuple[dict[str, str], str]:
  """The configuration for DATA, and why.

  Returns keys with their values, and the reason, a part of a sentence between
  commas, or "". The key "config" names the configuration, and is absent if the
  user gives one.

  Args:
    data: A folder of images, a file of labels, or a packed folder.
    values: The values on the command line, as text, by dotted key.
    workdir: The run's folder; a run that is there keeps its task.

  Raises:
    ValueError: if the user has to choose; the message has the commands to
      choose from. Also where `check_weights` raises it.
  """
  check_weights(values, workdir)
  if "config" in values:
    return _for_config(values, workdir)
  said = [
    key for key in values if key in _SAYS or key.startswith(_SECTION_STARTS)
  ]
  # A key of a task in `_TOLD` does not decide the task: the data do.
  if all(key.startswith(_TOLD) or key == _TASK for key in said):
    # Imported here so that --help answers at once.
    from vit_jax.data.reading import recognise

    found = recognise.recognise_path(data, _table_settings(data, values))
    own = f"{_task(found)}." if found is not None else ""
    if (
      found is not None
      and all(key.startswith(own) for key in said if key != _TASK)
      and values.get(_TASK, _task(found)) == _task(found)
      and _may_begin(_task(found), workdir)
    ):
      return _for_kind(data, found, values, workdir)
  chosen, why = _for_classes(values, workdir)
  return {**chosen, **_unsmoothed(values.get(_TASK, ""), values)}, why


def _unsmoothed(task: str, values: Mapping[str, str]) -> dict[str, str]:
  """The key that turns smoothing off, for a task that refuses it; else {}."""
  if task not in _UNSMOOTHED or _SMOOTHING in values:
    return {}
  return {_SMOOTHING: "0.0"}


def _table_settings(
  data: str, values: Mapping[str, str]
) -> DataSettings | None:
  """The settings by which a file of labels is read; None for a folder."""
  place = place_of(data)
  if place is None or not place.is_file:
    return None
  given: dict[str, Any] = {
    name: values.get(f"data.{name}") for name in _COLUMNS
  }
  return DataSettings(labels_file=data, **given)


def _for_config(
  values: Mapping[str, str], workdir: str
) -> tuple[dict[str, str], str]:
  """The keys that a given configuration sets for the data, and why.

  Both are empty if the configuration depends on no data.
  """
  config = values["config"].partition(":")[0]
  if values["config"] not in (*GOING_ON, _PAIRS) and config != _DEPTH:
    return {}, ""
  # Imported here, as it reads the list of known weights.
  from vit_jax.run import few_images

  if config == _DEPTH:
    return few_images.with_depth_head(values, workdir)
  if values["config"] == _PAIRS:
    return few_images.paired(values, workdir)
  return few_images.continued(values, workdir)


def _for_classes(
  values: Mapping[str, str], workdir: str
) -> tuple[dict[str, str], str]:
  """The keys for a folder of classes, or a file of labels, and why.

  Without weights they are for a run from scratch, with weights for fine-tuning.
  """
  if "pretrained" not in values:
    return {"config": FOR_CLASSES}, ""
  # Imported here, as it reads the list of known weights.
  from vit_jax.run import few_images

  return few_images.fine_tuning(values, workdir)


def _task(found: "Recognised") -> str:
  """The name of the task that learns the labels found; "" if there is none."""
  names = (name for name in LABELLED_TASKS if labels_of(name) == found.labels)
  return next(names, "")


def _may_begin(task_name: str, workdir: str) -> bool:
  """Whether a run of this task may begin or go on in `workdir`.

  It may not if a run of another task is there. The task "" fits any run.
  """
  from vit_jax.workdir.checkpoint import begun_config

  begun = begun_config(workdir)
  if begun is None:
    return True
  return task_name in ("", begun.get("data", {}).get("task", "classification"))


def _for_kind(
  data: str,
  found: "Recognised",
  values: Mapping[str, str],
  workdir: str,
) -> tuple[dict[str, str], str]:
  """The keys for recognised data, and why; raises as `suited` does."""
  task = _task(found)
  why = f", as {found.why},"
  if not found.why:
    return _for_classes(values, workdir)
  if not found.labels.are_used:
    raise ValueError(_without_labels(data, found, values))
  if task in _ON_FEATURES and "pretrained" not in values:
    command = _command(data, "--config", task, "--pretrained", hints.WEIGHTS)
    raise ValueError(
      f"{data!r} is for {task}, as {found.why}, and its head reads the "
      f"features of published weights: name some, as in {command}"
    )
  if task in SECTIONS:  # It has a configuration of its name.
    chosen, few = _for_config({**values, "config": task}, workdir)
    return {"config": task, **chosen}, why.removesuffix(",") + (few or ",")
  chosen = {"data.task": task}
  if found.columns and "data.label_columns" not in values:
    from vit_jax.data.reading.column_roles import as_text

    chosen["data.label_columns"] = as_text(found.columns)
  config, few = _for_classes({**values, **chosen}, workdir)
  return {**config, **chosen, **_unsmoothed(task, values)}, (
    why.removesuffix(",") + (few or ",")
  )


def _without_labels(
  data: str, found: "Recognised", values: Mapping[str, str]
) -> str:
  """The message for images without labels, with the command that suits them."""
  from vit_jax.data.reading.folders import images_below
  from vit_jax.run import few_images

  images = images_below(os.fsencode(data))
  count = sum(1 for _ in itertools.islice(images, few_images.ENOUGH))
  weights = values.get("pretrained", hints.WEIGHTS)
  advice = hints.without_labels(data, weights)
  if count == few_images.ENOUGH:
    anew = _command(data, "--config", "mae")
    advice += f"; or an encoder of your own: {anew}"
  beside = ""
  if tables := _tables(data):
    beside = f" To learn what {tables[0]} says: {_command(tables[0])}."
  return (
    f"{data!r} has no labels, as {found.why}.{beside} To learn classes, put "
    f"the images of each into a folder of its own. {advice}"
  )


def _tables(folder: str) -> list[str]:
  """The files in a folder that may have labels or captions of its images."""
  names = [n for n in os.listdir(folder) if n.lower().endswith(TABLES)]
  return [os.path.join(folder, name) for name in sorted(names)]


def _command(data: str, *words: str) -> str:
  """The command `vit_jax train DATA` with further words, for a shell."""
  return shlex.join(["vit_jax", "train", data, *words])
