"""The objectives that come with the package: one record for each.

The sections of a configuration, the choices of `data.task`, and the tasks that
a checkpoint's description may name derive from it; a test compares the list in
this folder's README.md. Only the standard library is imported here, and an
objective's files when they are first used.
"""

import dataclasses
import importlib
import types
from typing import TYPE_CHECKING, Any

from vit_jax.runtime.settings import Section

if TYPE_CHECKING:
  from vit_jax.data.reading.labels import Labels


@dataclasses.dataclass(frozen=True)
class Record:
  """An objective, whose files are in the folder of its name.

  Attributes:
    name: Its name, as descriptions of checkpoints have it.
    words: The task in a few words.
    task: The class in its `task.py`, a `tasks.task.Task`.
    labels: The kind of its labels, as module.NAME in `data.reading`; "" for
      none. An objective that has labels is chosen by `data.task`.
    section: The class in its `settings.py`, for the section of a configuration
      with its name; "" for none. Where no labels choose the objective, the
      section's first key does.
  """

  name: str
  words: str
  task: str
  labels: str = ""
  section: str = ""

  @property
  def needs(self) -> str:
    """The setting that its section's keys need: `data.task=NAME`, or ""."""
    return f"data.task={self.name}" if self.labels else ""

  def is_on(self, section: Section) -> bool:
    """Whether `section` turns it on: the first key is not at its default.

    No section turns on an objective that has labels.
    """
    if self.labels:
      return False
    first, *_ = dataclasses.fields(section)
    return getattr(section, first.name) != first.default

  def task_class(self) -> Any:
    """Imports the class of the task, and returns it."""
    return getattr(self._module("task"), self.task)

  def settings(self) -> type[Section]:
    """Imports the class of its section, and returns it."""
    return getattr(self._module("settings"), self.section)

  def _module(self, name: str) -> types.ModuleType:
    """Imports a file of the objective's folder, by its name."""
    return importlib.import_module(f"vit_jax.tasks.{self.name}.{name}")


_EVERY = (
  Record(
    "classification",
    "a class per image",
    task="ClassificationTask",
    labels="labels.SINGLE",
  ),
  Record(
    "multilabel",
    "several labels per image",
    task="MultiLabelTask",
    labels="several.SEVERAL",
  ),
  Record(
    "regression",
    "numbers for an image",
    task="RegressionTask",
    labels="targets.NUMBERS",
  ),
  Record(
    "masked",
    "masked patches, without labels",
    task="MaskedPatchesTask",
    section="MaskedSettings",
  ),
  Record(
    "autoencoder",
    "a masked autoencoder, without labels",
    task="AutoencoderTask",
    section="AutoencoderSettings",
  ),
  Record(
    "student",
    "a student of a published encoder, without labels",
    task="StudentTask",
    section="StudentSettings",
  ),
  Record(
    "self_distillation",
    "self-distillation, without labels",
    task="SelfDistillationTask",
    section="SelfDistillationSettings",
  ),
  Record(
    "lejepa",
    "crops that predict their mean (LeJEPA), without labels",
    task="LeJepaTask",
    section="LeJepaSettings",
  ),
  Record(
    "pairs",
    "pairs of images and captions",
    task="PairsTask",
    labels="captions.CAPTIONS",
    section="PairsSettings",
  ),
  Record(
    "segmentation",
    "a class for each pixel",
    task="SegmentationTask",
    labels="mask_folder.MASKS",
    section="SegmentationSettings",
  ),
  Record(
    "dense_regression",
    "a number for each pixel",
    task="DenseRegressionTask",
    labels="number_folder.PIXEL_NUMBERS",
    section="DenseRegressionSettings",
  ),
)
ALL_TASKS = {record.name: record for record in _EVERY}
LABELLED_TASKS = tuple(record.name for record in _EVERY if record.labels)
"""The objectives that `data.task` names."""
SECTIONS = tuple(record.name for record in _EVERY if record.section)
"""The sections of a configuration that objectives of the same name have."""


def labels_of(task: str) -> "Labels":
  """The kind of labels of a task, by its name.

  A task that the user defines is not imported here; single-class labels are
  assumed. Code that opens data takes the `labels` of that task's class instead.
  """
  record = ALL_TASKS.get(task)
  place = (record.labels if record else "") or "labels.SINGLE"
  module, _, name = place.rpartition(".")
  return getattr(
    importlib.import_module(f"vit_jax.data.reading.{module}"), name
  )


def sections() -> dict[str, type[Section]]:
  """The class of the section of each objective that has one, by its name."""
  return {
    record.name: record.settings()
    for record in ALL_TASKS.values()
    if record.section
  }


def switches() -> tuple[str, ...]:
  """The dotted keys that turn on objectives, such as "masked.rate"."""
  first = {
    name: dataclasses.fields(kind)[0]
    for name, kind in sections().items()
    if not ALL_TASKS[name].labels
  }
  return tuple(f"{name}.{field.name}" for name, field in first.items())
