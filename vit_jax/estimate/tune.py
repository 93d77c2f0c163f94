"""Searches for the settings with which a step takes TPUs the least time.

Only settings that do not change the model and its loss are tried: parts of a
batch, FSDP, `model.scan`, `model.remat`, and how much of its own memory the
chip may give to one operation ("scoped VMEM"). The search begins with what is
set already, what is known of the model (`run/fastest.csv`) and what was best
for other models, and tries neighbours of the best choice until none is faster.
Results are kept in a folder, so a search that was stopped continues, and one
that is repeated ends at once.
"""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax.sharding import Mesh

from vit_jax.estimate import compiler
from vit_jax.run.plan import plan_of_shapes
from vit_jax.run.settings import Settings
from vit_jax.runtime.command import cache_folder
from vit_jax.runtime.files import replacing
from vit_jax.runtime.json_files import read_json
from vit_jax.runtime.printable import say
from vit_jax.runtime.settings import flat, replaced, to_dict
from vit_jax.training import sharding

Row = dict[str, Any]
"""A result of `compiler.estimate`, or {"why": ...} if there is none."""

PARTS = (1, 2, 4, 8)
SCOPED_MIB = (None, 24, 32, 48)  # None is the compiler's default.
REMATS = ("none", "dots", "full")
GAIN = 0.002  # A smaller gain than this share of the time does not count.


@dataclasses.dataclass(frozen=True)
class Choice:
  """The settings that the search chooses.

  Attributes:
    parts: Parts in which a batch is computed.
    fsdp: Devices along the fsdp axis.
    scan, remat: As in the settings of the model.
    scoped_mib: MiB of scoped VMEM; None for the compiler's default.
  """

  parts: int = 1
  fsdp: int = 1
  scan: bool = False
  remat: str = "none"
  scoped_mib: int | None = None

  @classmethod
  def of(cls, settings: Settings) -> "Choice":
    """The choice that was made in the settings."""
    model = settings.model
    return cls(
      parts=settings.parts,
      fsdp=settings.mesh.fsdp or 1,
      scan=bool(model.scan),
      remat=model.remat or "none",
      scoped_mib=settings.scoped_vmem_mib,
    )

  def changes(self, settings: Settings) -> dict[str, Any]:
    """The keys to set, so that the settings are this choice.

    Parts and FSDP are set even to 1: a run that leaves them open takes the
    fastest known.
    """
    before = dataclasses.asdict(self.of(settings))
    left_open = {
      "parts": settings.accumulation_steps is None,
      "fsdp": settings.mesh.fsdp is None,
    }
    keys = {
      "parts": "accumulation_steps",
      "fsdp": "mesh.fsdp",
      "scan": "model.scan",
      "remat": "model.remat",
      "scoped_mib": "scoped_vmem_mib",
    }
    return {
      key: getattr(self, name)
      for name, key in keys.items()
      if getattr(self, name) != before[name] or left_open.get(name)
    }

  def __str__(self) -> str:
    vmem = f"{self.scoped_mib} MiB" if self.scoped_mib else "default"
    return (
      f"parts {self.parts}, FSDP over {self.fsdp}, "
      f"{'scanned' if self.scan else 'unrolled'}, remat {self.remat}, "
      f"scoped VMEM {vmem}"
    )


Axes = dict[str, Sequence[Any]]


def axes_of(
  settings: Settings, devices: int, known: Choice | None = None
) -> Axes:
  """The values to try for each field of a choice, in order.

  They include the settings' own values, and those of the choice `known`.
  """
  # Groups of devices, each with images of its own.
  groups = devices // max(1, settings.mesh.tensor)
  present = Choice.of(settings)
  known = known or present
  parts = {*PARTS, present.parts, known.parts}
  fsdp = {1, min(8, groups), groups, present.fsdp, known.fsdp}
  if settings.mesh.data != -1:  # With `data` set, only one size fits.
    fsdp = {present.fsdp}
  images = settings.batch_size // groups
  scoped = (*SCOPED_MIB, present.scoped_mib, known.scoped_mib)
  return {
    "scoped_mib": tuple(dict.fromkeys(scoped)),
    "parts": sorted(n for n in parts if n <= images and images % n == 0),
    "fsdp": sorted(n for n in fsdp if n > 0 and groups % n == 0),
    "scan": (False, True),
    "remat": REMATS,
  }


def known_choice(
  settings: Settings, devices: list[Any], sizes: tuple[int, int]
) -> Choice:
  """The choice with which a run of these settings begins.

  It is that of the table of `run.fastest` if the table has the model and no key
  is set, else that of the settings. So it is for settings that cannot be built:
  the first trial says why. `sizes` are those of `tune`.
  """
  num_classes, num_examples = sizes
  with contextlib.suppress(ValueError):
    plan = plan_of_shapes(
      settings,
      num_classes=num_classes,
      num_examples=num_examples,
      devices=devices,
    )
    settings = plan.settings
  return Choice.of(settings)


def first_choices(
  settings: Settings, axes: Axes, known: Choice | None = None
) -> list[Choice]:
  """Choices to begin with: that of the settings, `known`, and three rules.

  The rules are the best choice of docs/evidence/scaling.md, and two that save
  more and more memory.
  """
  rule = Choice(
    parts=max(n for n in axes["parts"] if n <= 2 or n == axes["parts"][0]),
    fsdp=max(axes["fsdp"]),
    scoped_mib=24,
  )
  present = Choice.of(settings)
  choices = [
    present,
    known or present,
    rule,
    dataclasses.replace(rule, remat="dots"),
    dataclasses.replace(rule, remat="full", scan=True),
  ]
  return list(dict.fromkeys(choices))


def neighbours(choice: Choice, axes: Axes, first: str) -> Iterator[Choice]:
  """Yields choices that differ in one field by one step along its values.

  Those that differ in the field `first` come first.
  """
  for name in dict.fromkeys((first, *axes)):
    values = list(axes[name])
    place = values.index(getattr(choice, name))
    for other in (place + 1, place - 1):
      if 0 <= other < len(values):
        yield dataclasses.replace(choice, **{name: values[other]})


def search(
  begin: Sequence[Choice],
  axes: Axes,
  measure: Callable[[Choice], Row],
  most: int,
) -> tuple[Choice | None, dict[Choice, Row]]:
  """Searches for the fastest choice.

  It measures the first of `begin`, and the others until one fits. From the
  fastest of them, it goes to a neighbour that takes less time by more than the
  share `GAIN`, as long as there is one. It measures `most` choices at most.

  Returns:
    The fastest choice, or None if none could be measured, and the rows of all
    that were tried, in their order.
  """
  rows: dict[Choice, Row] = {}
  for place, choice in enumerate(begin[:most]):
    if choice not in rows:
      rows[choice] = measure(choice)
    if place and "why" not in rows[choice]:
      break
  best = min(rows, key=lambda choice: milliseconds(rows[choice]))
  first = next(iter(axes))  # The field whose neighbours are tried first.
  while "why" not in rows[best]:
    for choice in neighbours(best, axes, first):
      if choice in rows:
        continue
      if len(rows) == most:
        return best, rows
      rows[choice] = measure(choice)
      if milliseconds(rows[choice]) < (1 - GAIN) * milliseconds(rows[best]):
        first = _difference(best, choice)
        best = choice
        break
    else:
      return best, rows
  return None, rows


def milliseconds(row: Row) -> float:
  """The time of a step with the network, to compare rows by.

  It is the lower of the row's two `step_ms`, infinity for a row without a
  result, and Mcycles if the chip's clock is unknown.
  """
  if "why" in row:
    return float("inf")
  return row["step_ms"][0] if row["step_ms"] else row["mcycles"]


def _difference(one: Choice, other: Choice) -> str:
  """The first field in which two choices differ."""
  names = (field.name for field in dataclasses.fields(Choice))
  return next(n for n in names if getattr(one, n) != getattr(other, n))


def tune(
  settings: Settings,
  topology: str,
  sizes: tuple[int, int],
  most: int,
  folder: pathlib.Path | None = None,
) -> tuple[Choice, dict[Choice, Row]]:
  """Searches for a configuration's fastest choice, and prints each trial.

  Args:
    sizes: Number of classes, and of training images.
    most: The most steps to compile.
    folder: Where results are kept; None takes `tuned` in the cache folder.

  Returns:
    The fastest choice, and the rows of all, the configuration's own first.

  Raises:
    ValueError: if no choice can be compiled, the topology is unknown, the batch
      does not split over its devices, the configuration cannot be built, or
      LIBTPU_INIT_ARGS sets the scoped VMEM.
  """
  vmem = sharding.SCOPED_VMEM
  if vmem in os.environ.get("LIBTPU_INIT_ARGS", ""):
    raise ValueError(
      f"LIBTPU_INIT_ARGS sets {vmem}, which --tune searches: unset it."
    )
  chip, devices = compiler.devices_of(topology)
  mesh = sharding.make_mesh(**vars(settings.mesh), devices=devices)
  sharding.check_batch("batch_size", settings.batch_size, mesh)
  settings = replaced(settings, _fix_rest(settings, mesh))
  say(
    f"Compiling up to {most} variants of the train step for {topology}; each "
    "result is kept ..."
  )
  known = known_choice(settings, devices, sizes)
  axes = axes_of(settings, len(devices), known)
  begin = first_choices(settings, axes, known)
  folder = folder or cache_folder() / "tuned"
  values = flat(to_dict(settings))
  facts = (topology, sizes, values, _files(settings), *_versions())

  def compile_choice(choice: Choice) -> Row:
    """The row of a choice, compiled now; {"why": ...} if it does not fit."""
    try:
      changed = replaced(settings, choice.changes(settings))
      row, _ = compiler.estimate(changed, chip, devices, *sizes)
    except compiler.DoesNotFit as error:
      return {"why": str(error)}
    return {"topology": topology, **row, "by_op": []}

  def try_choice(choice: Choice) -> Row:
    """The row of a choice, or {"why": the reason} if there is none.

    Rows are kept in the folder, also those of choices that do not fit. Errors
    of the compiler or of a setting are not kept, so these are tried again.
    """
    try:
      return measure_once(compile_choice, folder, facts, choice)
    except ValueError as error:
      is_setting = not isinstance(error, compiler.NotCompiled)
      if is_setting and choice == begin[0]:
        raise  # The configuration itself is wrong.
      return {"why": str(error)}

  best, rows = search(begin, axes, say_each(try_choice), most)
  if best is None:
    raise ValueError(
      f"no choice can be compiled for {topology}, the first because "
      f"{next(iter(rows.values()))['why']}"
    )
  return best, rows


def _fix_rest(settings: Settings, mesh: Mesh) -> dict[str, int]:
  """The keys of the mesh's axes that are -1, with their actual sizes.

  `data` stays -1, so that FSDP can be changed.
  """
  sizes = {"fsdp": settings.mesh.fsdp, "tensor": settings.mesh.tensor}
  return {f"mesh.{k}": mesh.shape[k] for k, n in sizes.items() if n == -1}


def say_each(measure: Callable[[Choice], Row]) -> Callable[[Choice], Row]:
  """A function that calls `measure` and prints a line on its result."""

  def measure_and_say(choice: Choice) -> Row:
    row = measure(choice)
    say(f"{choice}: {_result(row)}")
    return row

  return measure_and_say


def _result(row: Row) -> str:
  """The outcome of a trial, in a few words."""
  if "why" in row:
    return row["why"]
  time = f"{row['step_ms'][0]:.1f} ms, " if row["step_ms"] else ""
  peak = row["hbm_gib"]["peak"]
  return f"{row['mcycles']:.1f} Mcycles, {time}{peak:.1f} GiB"


def measure_once(
  measure: Callable[[Choice], Row],
  folder: pathlib.Path,
  facts: Any,
  choice: Choice,
) -> Row:
  """The row of a choice, from its file in `folder`, or measured and kept there.

  `facts` has all that a row depends on besides the choice.
  """
  whole = json.dumps([facts, dataclasses.asdict(choice)], default=str)
  name = hashlib.sha256(whole.encode()).hexdigest()[:32]
  path = folder / f"{name}.json"
  try:
    row = read_json(path)
  except (ValueError, OSError):  # Written by another version, or damaged.
    row = {}
  if not row:
    row = measure(choice)
    with replacing(path) as file:
      file.write(json.dumps(row).encode())
  return row


def _files(settings: Settings) -> list[tuple[str, int, int]]:
  """(name, bytes, time in ns) of the local files that decide the model.

  The time is that of the last modification. Of a folder, only the JSON files
  count, such as a published model's `config.json`; its other files do not
  change what is compiled.
  """
  task = (settings.data.task or "").partition(":")[0]  # It may name a file.
  files: list[pathlib.Path] = []
  for name in (settings.pretrained, settings.distill.teacher, task):
    path = pathlib.Path(os.path.expanduser(name or ""))
    if name and path.exists():
      files += sorted(path.glob("*.json")) if path.is_dir() else [path]
  stats = [(path.name, path.stat()) for path in files]
  return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def _versions() -> tuple[str, ...]:
  """Versions of packages, a hash of our code, and the compiler's flags."""
  code = hashlib.sha256()
  package = pathlib.Path(__file__).parents[1]
  for path in sorted(package.rglob("*.py")):
    code.update(path.read_bytes())
  flags = os.environ.get("LIBTPU_INIT_ARGS", "")
  names = ("jax", "libtpu", "flax", "optax")
  versions = [importlib.metadata.version(name) for name in names]
  return (*versions, code.hexdigest(), flags)


def report(
  best: Choice, rows: dict[Choice, Row], settings: Settings
) -> list[str]:
  """Lines to print on a search.

  They give the result of the configuration as it is, which is the first of
  `rows`, how many choices were compiled, and the best one as flags.
  """
  changes = best.changes(settings)
  flags = " ".join(f"--config.{k}={v}" for k, v in changes.items())
  compiled = sum("why" not in row for row in rows.values())
  return [
    f"as configured  {_result(next(iter(rows.values())))}",
    f"fastest of     {compiled} compiled",
    f"flags          {flags or 'none: the configuration has the best'}",
  ]
