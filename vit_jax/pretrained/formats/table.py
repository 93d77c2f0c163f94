"""Tables of names: which published array holds which of our parameters.

`names.csv` has a row for each array, with the tables that it belongs to. One
table serves a whole family of models: a row applies to a model that has the
row's parameters, so rows for a bias, registers or LayerScale are skipped for
models without them.
"""

import csv
import dataclasses
import functools
import importlib.resources
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.models import BaseVit
from vit_jax.models.grid import param_shapes
from vit_jax.models.stacking import OURS
from vit_jax.pretrained.formats.architecture import IMAGENET_MEAN, IMAGENET_STD
from vit_jax.pretrained.formats.mapping import SAME, Rule, Shapes

Config = Mapping[str, Any]

_LAYER = f"{OURS.of(0)}/"


@functools.cache
def _names_csv() -> list[dict[str, str]]:
  table = importlib.resources.files("vit_jax.pretrained.formats") / "names.csv"
  return [*csv.DictReader(table.read_text("utf-8").splitlines())]


@dataclasses.dataclass(frozen=True)
class Table:
  """The names of a family's arrays.

  `layers` is the prefix of a layer's names, with {} for its number.
  """

  name: str
  layers: str

  @functools.cache  # noqa: B019
  def rows(self, *parts: str) -> tuple[Rule, ...]:
    """The rows of these parts of the table.

    "root" has the arrays whose names start with no base, such as a head's, and
    "base" the others outside the layers. "layer" has those of a layer, without
    `layers` and "block_0/", to which "mlp" adds the paper's MLP and "gated_mlp"
    a gated one.
    """
    return tuple(
      Rule(row["theirs"], tuple(row["ours"].split()), row["pattern"] or SAME)
      for row in _names_csv()
      if self.name in row["tables"].split() and row["part"] in parts
    )

  def rules(self, vit: Any, base: str = "") -> list[Rule]:
    """The rules for a model's arrays, whose names start with `base`."""
    names = _names(vit)

    def held(*parts: str, before: str = "") -> list[Rule]:
      rows = self.rows(*parts)
      return [r for r in rows if names >= {before + path for path in r.ours}]

    found = held("root")
    for row in held("base"):
      found.append(dataclasses.replace(row, theirs=base + row.theirs))
    gated = f"{_LAYER}mlp/gate/kernel" in names
    mlp = "gated_mlp" if gated else "mlp"
    rows = held("layer", mlp, before=_LAYER)
    for i in range(vit.num_layers):
      before = base + self.layers.format(i)
      for row in rows:
        ours = tuple(f"{OURS.of(i)}/{path}" for path in row.ours)
        found.append(Rule(before + row.theirs, ours, row.pattern))
    return found


@functools.lru_cache(maxsize=8)
def _names(vit: Any) -> frozenset[str]:
  """Paths of a model's parameters; of its layers, only the first."""
  first = vit.clone(num_layers=1, scan=False)
  return frozenset(param_shapes(first, (1, 1)))


def unmapped(vit: Any, rules: list[Rule]) -> list[str]:
  """The parameters of a model, outside later layers, that no rule writes."""
  return sorted(_names(vit) - {path for rule in rules for path in rule.ours})


@dataclasses.dataclass(frozen=True)
class Family:
  """A family of encoders."""

  types: tuple[str, ...]  # The `model_type`s of its configurations.
  signature: str  # Name of an array that only this family has, after its base.
  table: Table
  bases: tuple[str, ...]  # Prefixes that names of the table's base may have.
  # Returns fields of the model that are particular to the family.
  fields: Callable[[Shapes, Config], dict[str, Any]]
  # Returns the part of a configuration that is particular to it.
  config: Callable[[Any], dict[str, Any]]
  # The library's classes without and with a head; None for none.
  classes: tuple[str | None, str | None]
  # Values that the library has where a configuration has none.
  defaults: Config
  extended: bool = True  # Whether its models may be `ExtendedVit`s.
  # Whether its table may be for images that are no squares.
  any_shape: bool = False
  # Whether the first base is written, also without a head.
  one_base: bool = True
  # Name of the token of masked pre-training, which is not read and written as
  # zeros; "" if there is none.
  mask_token: str = ""
  mask_axes: int = 1  # Number of axes of length 1 that this token has.
  # Beginnings of the names of other arrays that are not read.
  unused: tuple[str, ...] = ()
  # Where no preprocessor tells them, mean and deviation of each channel.
  mean: tuple[float, ...] = IMAGENET_MEAN
  std: tuple[float, ...] = IMAGENET_STD

  def base(self, vit: Any) -> str:
    """Prefix of the base's names in a file that is written."""
    if self.one_base:
      return self.bases[0]
    return f"{self.config(vit)['model_type']}." if vit.num_classes else ""

  def rules(self, vit: BaseVit) -> list[Rule]:
    """The rules for the arrays of a file that is written."""
    return self.table.rules(vit, self.base(vit))
