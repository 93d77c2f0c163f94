"""The settings with which a train step is known to be fastest on TPUs.

`vit_jax estimate --tune` found them (docs/evidence/scaling.md). `fastest.csv`
has a row for each chip, model, number of tokens, and number of images on a
device that was searched. Its times are the TPU compiler's estimates, in
Mcycles, of the plain supervised step in bfloat16 with Adam and without dropout.
A new run that sets none of the keys in `KEYS` takes the values of its row.
"""

import csv
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from vit_jax.models import Model, Vit, make_vit, to_fields
from vit_jax.models.grid import grid_of
from vit_jax.models.partitioning import chip_of
from vit_jax.models.variants import variant_of
from vit_jax.run.build import make_preprocessing
from vit_jax.run.settings import Settings
from vit_jax.runtime.settings import replaced
from vit_jax.tasks.task import Task
from vit_jax.training.settings import MeshSettings
from vit_jax.training.sharding import SCOPED_VMEM

KEYS = {
  "accumulation_steps": "accumulation_steps",
  "mesh.fsdp": "fsdp",
  "scoped_vmem_mib": "scoped_vmem_mib",
}
"""The keys of the configuration that a row sets, each with the row's column."""


_FREE = {
  "representation_size",
  "head_bias",
  "splash",
  "attention",
  "dropout_rate",
  "embedding_dropout_rate",
}
"""Fields of a model that its row does not depend on."""


class Row(NamedTuple):
  """The fastest settings of a model on a chip.

  Attributes:
    chip, model: Their names.
    tokens: Tokens of an image.
    images: Images of a batch on each device.
    accumulation_steps, fsdp, scoped_vmem_mib: The settings; None is the default
      of the compiler.
    mcycles: The estimate of a step with these settings, in 1e6 cycles.
    untuned: The estimate with the default settings; 0 if it is not known.
  """

  chip: str
  model: str
  tokens: int
  images: int
  accumulation_steps: int
  fsdp: int
  scoped_vmem_mib: int | None
  mcycles: float
  untuned: float

  def fits(self, chip: str, model: str | None) -> bool:
    """Whether the row is that of this chip and this model, by their names."""
    return (self.chip, self.model) == (chip, model)

  @property
  def changes(self) -> dict[str, Any]:
    """The values of the keys that the row sets, by key."""
    return {key: getattr(self, column) for key, column in KEYS.items()}


def rows() -> list[Row]:
  """All rows of the table."""
  path = pathlib.Path(__file__).with_name("fastest.csv")
  with path.open(newline="") as file:
    return [_row(line) for line in csv.DictReader(file)]


def _row(line: dict[str, str]) -> Row:
  """A line of the table; empty cells are 0, or None for the scoped VMEM."""
  counts = ("tokens", "images", "accumulation_steps", "fsdp", "scoped_vmem_mib")
  values: dict[str, Any] = {name: int(line[name] or 0) for name in counts}
  values |= {name: float(line[name] or 0) for name in ("mcycles", "untuned")}
  values["scoped_vmem_mib"] = values["scoped_vmem_mib"] or None
  return Row(**{**line, **values})


def row_of(
  settings: Settings, task: Task, model: Model, devices: Sequence[Any]
) -> Row | None:
  """The row of a run whose settings are resolved; None if there is no row.

  All rows are for models trained as a whole (without LoRA or frozen layers), by
  Adam, without a teacher, with a loss that does not couple the examples of a
  batch.
  """
  chip = chip_of(devices[0])
  optimizer = settings.optimizer
  differs = settings.lora.rank or settings.distill.teacher
  differs = differs or optimizer.freeze_layers or optimizer.kind != "adam"
  if chip is None or differs or not _is_plain(model):
    return None
  if task.objective(model, make_preprocessing(settings)).couples:
    return None
  searched = [row for row in rows() if row.fits(chip, variant_of(model))]
  if not searched:
    return None
  height, width = grid_of(model, settings.image_size or (0, 0))
  sizes = model.prefix + height * width, settings.batch_size / len(devices)
  for row in searched:
    if (row.tokens, row.images) == sizes and len(devices) % row.fsdp == 0:
      return row
  return None


def _is_plain(model: Model) -> bool:
  """Whether a model is one of the paper's in bfloat16, as the rows' models are.

  It may differ in `num_classes`, `pooling` and the fields of `_FREE`.
  """
  name = variant_of(model)
  if type(model) is not Vit or name is None:
    return False
  same = {"num_classes": model.num_classes, "pooling": model.pooling}
  plain = to_fields(make_vit(name, **same, dtype="bfloat16"))
  fields = to_fields(model).items()
  return {field for field, value in fields if value != plain[field]} <= _FREE


def chosen(
  settings: Settings, task: Task, model: Model, devices: Sequence[Any]
) -> Settings:
  """The settings with the values of their row in `fastest.csv`.

  They stay as they are if they set a key in `KEYS` or of the mesh, if
  LIBTPU_INIT_ARGS sets the scoped VMEM, or if there is no row for them.
  """
  is_set = (
    settings.accumulation_steps is not None
    or settings.mesh != MeshSettings()
    or settings.scoped_vmem_mib is not None
    or SCOPED_VMEM in os.environ.get("LIBTPU_INIT_ARGS", "")
  )
  row = None if is_set else row_of(settings, task, model, devices)
  return settings if row is None else replaced(settings, row.changes)


def fastest_line(
  settings: Settings, task: Task, model: Model, devices: Sequence[Any]
) -> str | None:
  """A line that says that the settings are the fastest, if they are."""
  row = row_of(settings, task, model, devices)
  if row is None or replaced(settings, row.changes) != settings:
    return None
  values = ", ".join(f"{k}={v}" for k, v in row.changes.items() if v)
  instead = f" in place of {row.untuned:g}" if row.untuned else ""
  dropout = " without dropout" if model.dropout_rate else ""
  return (
    f"{values}, the fastest known for {row.images} images of {row.model} on a "
    f"device of {row.chip} (estimate: {row.mcycles:g}{instead} "
    f"Mcycles{dropout})"
  )
