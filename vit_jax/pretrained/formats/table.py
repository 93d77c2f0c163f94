"""Tables of names: which published array holds which of our parameters.

`names.csv` has a row for each array, with the tables that it belongs to. Rows
that only one family of transformers has are in the family's file in
`vit_jax.families`. One table serves a whole family of models: a row applies to
a model that has the row's parameters, so rows for a bias, registers or
LayerScale are skipped for models without them. A table has one or several
stacks of layers, each with its own number of layers and of heads, such as an
encoder's and a decoder's:

    Table("mae", (
      Layers("encoder.layer.{}."),
      Layers("decoder.decoder_layers.{}.", ours="decoder", has_base=False),
    ))
"""

import csv
import dataclasses
import functools
import importlib.resources
import re
from collections.abc import Mapping
from typing import Any

from vit_jax.models.grid import param_shapes
from vit_jax.models.parts import unit_name
from vit_jax.models.paths import below, within
from vit_jax.pretrained.formats.architecture import count_layers
from vit_jax.pretrained.formats.mapping import SAME, Rule, Shapes

Config = Mapping[str, Any]


_COLUMNS = ("part", "theirs", "ours", "pattern")


@functools.cache
def _names_csv() -> list[dict[str, str]]:
  """The rows of `names.csv`, by column."""
  table = importlib.resources.files("vit_jax.pretrained.formats") / "names.csv"
  return [*csv.DictReader(table.read_text("utf-8").splitlines())]


@dataclasses.dataclass(frozen=True)
class Layers:
  """The published names of one of a model's stacks of layers.

  Attributes:
    theirs: The beginning of a layer's names, with {} for its number.
    ours: `Part.prefix` of the part of our model that has these layers.
    rows: The table whose rows name the arrays of a layer; "" for the table that
      the stack belongs to.
    has_base: Whether the prefix of the family's names comes before `theirs`.
  """

  theirs: str
  ours: str = ""
  rows: str = ""
  has_base: bool = True

  def count(self, shapes: Shapes) -> int:
    """The number of layers in a file, whose names are without their base."""
    return count_layers(shapes, self.theirs.split("{")[0])


@dataclasses.dataclass(frozen=True)
class Units:
  """The published names of the residual units of a hybrid's ResNet.

  Attributes:
    theirs: The beginning of a unit's names, with {stage} and {unit}.
    first: The number of the first stage, and of a stage's first unit.
  """

  theirs: str
  first: int = 0

  def name(self, stage: int, unit: int) -> str:
    """The beginning of a unit's names; stages and units count from 0."""
    first = self.first
    return self.theirs.format(stage=stage + first, unit=unit + first)

  def layers(self, shapes: Shapes) -> tuple[int, ...]:
    """The number of units in each stage of a file; () without a ResNet."""
    counts = []
    while units := self._count(shapes, len(counts)):
      counts.append(units)
    return tuple(counts)

  def _count(self, shapes: Shapes, stage: int) -> int:
    """The number of units in a stage."""
    stage_prefix, _, _ = self.theirs.partition("{unit}")
    stage_prefix = stage_prefix.format(stage=stage + self.first)
    names = (name for name in shapes if name.startswith(stage_prefix))
    separator = self.theirs[-1]
    inside = (name.removeprefix(stage_prefix) for name in names)
    return len({name.split(separator)[0] for name in inside})


@dataclasses.dataclass(frozen=True)
class Table:
  """The names of a family's arrays, and its stacks; the encoder's is first."""

  name: str
  stacks: tuple[Layers, ...]
  units: Units | None = None  # None for a family without hybrids.
  shared: str = ""  # Name of the rows that it shares with other tables.
  names: str = ""  # Its own rows, as in `names.csv` but without `tables`.

  @functools.cache  # noqa: B019
  def rows(self, *parts: str, table: str = "") -> tuple[Rule, ...]:
    """The rows of these parts of the table, or of the table named `table`.

    The parts are:

    - "root": arrays whose names do not start with the base, such as a head's;
    - "base": all others outside the layers;
    - "layer": those of a layer, without `Layers.theirs` and "block_0/"; "mlp"
      adds the paper's MLP, and "gated_mlp" a gated one;
    - "layers": those that hold a parameter of every layer, along the axis `n`
      of their patterns;
    - "unit": those of a residual unit of a ResNet, without `Units.theirs` and
      "resnet/stage0_unit0/".
    """
    tables = {table} if table else {self.name, self.shared}
    rows = [row for row in _names_csv() if tables & {*row["tables"].split()}]
    if not table:
      lines = self.names.strip().splitlines()
      rows += [*csv.DictReader(lines, fieldnames=[*_COLUMNS])]
    return tuple(
      Rule(row["theirs"], tuple(row["ours"].split()), row["pattern"] or SAME)
      for row in rows
      if row["part"] in parts
    )

  def rules(self, vit: Any, base: str = "") -> list[Rule]:
    """The rules for a model's arrays, whose names start with `base`."""
    shapes = _shapes(vit)
    rules = _rows_for(self.rows("root"), shapes)
    for rule in _rows_for(self.rows("base"), shapes):
      heads = _heads(rule.pattern, shapes[rule.ours[0]])
      theirs = base + rule.theirs
      rules.append(dataclasses.replace(rule, theirs=theirs, heads=heads))
    rules += self._unit_rules(vit, base)
    for layers in self.stacks:
      rules += self._layer_rules(vit, layers, base if layers.has_base else "")
    return rules

  def _unit_rules(self, vit: Any, base: str) -> list[Rule]:
    """The rules for the residual units; there are none without a ResNet."""
    rules: list[Rule] = []
    if self.units is None:
      return rules
    for stage, units in enumerate(vit.resnet_layers):
      for unit in range(units):
        inside = f"resnet/{unit_name(stage, unit)}"
        theirs = base + self.units.name(stage, unit)
        for row in _rows_for(
          self.rows("unit"), _shapes_inside(_shapes(vit), inside)
        ):
          paths = tuple(f"{inside}/{path}" for path in row.ours)
          rules.append(Rule(theirs + row.theirs, paths, row.pattern))
    return rules

  def _layer_rules(self, vit: Any, layers: Layers, base: str) -> list[Rule]:
    """The rules for one stack; there are none if the model does not have it."""
    stacks = {part.prefix: part.stack for part in vit.parts() if part.stack}
    if layers.ours not in stacks:
      return []
    stack = stacks[layers.ours]
    inside = f"{layers.ours}/" if layers.ours else ""
    shapes = _shapes_inside(_shapes(vit), f"{inside}{stack.names.of(0)}")
    mlp = "gated_mlp" if "mlp/gate/kernel" in shapes else "mlp"
    rules = []
    rows = _rows_for(self.rows("layer", mlp, table=layers.rows), shapes)
    for i in range(stack.num_layers):
      theirs = base + layers.theirs.format(i)
      ours = f"{inside}{stack.names.of(i)}/"
      for row in rows:
        paths = tuple(ours + path for path in row.ours)
        heads = _heads(row.pattern, shapes[row.ours[0]])
        rules.append(Rule(theirs + row.theirs, paths, row.pattern, heads))
    # Arrays that hold a parameter of every layer.
    for row in self.rows("layers", table=layers.rows):
      if row.ours[0] not in shapes:
        continue
      names = map(stack.names.of, range(stack.num_layers))
      paths = tuple(f"{inside}{name}/{row.ours[0]}" for name in names)
      pattern = row.pattern
      if len(paths) == 1:  # A single parameter has no axis `n`.
        left, right = pattern.split(" -> n ")
        pattern = f"{left.replace(' n ', ' 1 ')} -> {right}"
      heads = _heads(pattern, shapes[row.ours[0]])
      rules.append(Rule(base + row.theirs, paths, pattern, heads))
    return rules


def _shapes_inside(shapes: Shapes, module: str) -> Shapes:
  """The parameters of a module, by their paths in it."""
  return {below(k, module): v for k, v in shapes.items() if within(k, module)}


def _rows_for(rows: tuple[Rule, ...], shapes: Shapes) -> list[Rule]:
  """The rows whose parameters a model has, with as many axes as the pattern."""
  return [
    row
    for row in rows
    if shapes.keys() >= {*row.ours} and _has_axes(row, shapes[row.ours[0]])
  ]


def _has_axes(row: Rule, shape: tuple[int, ...]) -> bool:
  """Whether the first of a row's parameters has the axes of its pattern."""
  first, plus, _ = row.pattern.split("->")[1].partition("+")
  if "..." in first:
    return True
  axes = re.findall(r"\([^)]*\)|\S+", first)
  # If a row has several parameters, the first axis runs over them.
  has_param_axis = len(row.ours) > 1 and not plus
  return len(axes) - has_param_axis == len(shape)


def _heads(pattern: str, shape: tuple[int, ...]) -> int | None:
  """The length of axis `k` in one of our parameters, if it has that axis."""
  axes = pattern.split("->")[1].split()
  # Counted from the end: if a row has several parameters, the first axis of
  # the pattern runs over them.
  return shape[axes.index("k") - len(axes)] if "k" in axes else None


@functools.lru_cache(maxsize=8)
def _shapes(vit: Any) -> Shapes:
  """The parameters of the model with one layer, for an image of one patch."""
  first = vit.clone(num_layers=1, scan=False)
  return param_shapes(first, (1, 1))


def unmapped(vit: Any, rules: list[Rule]) -> list[str]:
  """The parameters that no rule writes, of a model cut to its first layer."""
  return sorted(
    _shapes(vit).keys() - {path for rule in rules for path in rule.ours}
  )
