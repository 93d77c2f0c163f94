"""Tables of names: which published array holds which of our parameters.

One table serves a whole family of models. A row applies to a model that has the
row's parameters, so rows for a bias, registers or LayerScale are skipped for
models without them.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.models import BaseVit
from vit_jax.models.grid import param_shapes
from vit_jax.pretrained.formats.architecture import IMAGENET_MEAN, IMAGENET_STD
from vit_jax.pretrained.formats.mapping import Rule, Shapes

Config = Mapping[str, Any]

_LAYER = "block_0/"
_QKV = ("query", "key", "value")
_KERNEL = "(k d) D -> D k d"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
  """The names of a family's arrays.

  Attributes:
    root: Rows for arrays whose names start with no base, such as a head's.
    base: Rows for the other arrays outside the layers.
    layers: Prefix of a layer's names, with {} for its number.
    layer: Rows for one layer, without `layers` and without "block_0/".
    mlp: Further rows for a layer whose MLP is the paper's.
    gated_mlp: Further rows for a layer whose MLP is gated.
  """

  root: tuple[Rule, ...] = ()
  base: tuple[Rule, ...] = ()
  layers: str
  layer: tuple[Rule, ...]
  mlp: tuple[Rule, ...] = ()
  gated_mlp: tuple[Rule, ...] = ()

  def rules(self, vit: Any, base: str = "") -> list[Rule]:
    """The rules for a model's arrays, whose names start with `base`."""
    names = _names(vit)

    def held(rows: tuple[Rule, ...], before: str = "") -> list[Rule]:
      return [r for r in rows if names >= {before + path for path in r.ours}]

    found = held(self.root)
    for row in held(self.base):
      found.append(dataclasses.replace(row, theirs=base + row.theirs))
    gated = f"{_LAYER}mlp/gate/kernel" in names
    rows = held(self.layer + (self.gated_mlp if gated else self.mlp), _LAYER)
    for i in range(vit.num_layers):
      before = base + self.layers.format(i)
      for row in rows:
        ours = tuple(f"block_{i}/{path}" for path in row.ours)
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
  """A family of encoders.

  Attributes:
    types: The `model_type`s of its configurations.
    signature: Name of an array that only this family has, after its base.
    bases: Prefixes that the names of the table's base may have.
    fields: Returns fields of the model that are particular to the family.
    config: Returns the part of a configuration that is particular to it.
    classes: The library's classes without and with a head; None for none.
    defaults: Values that the library has where a configuration has none.
    extended: Whether its models may be `ExtendedVit`s.
    any_shape: Whether its table may be for images that are not square.
    one_base: Whether the first base is written, with and without a head.
    mask_token: Name of the token of masked pre-training, which is not read and
      written as zeros; "" if there is none.
    mask_axes: Number of axes of length 1 that this token has.
    unused: Beginnings of the names of other arrays that are not read.
    mean, std: Of each channel, where no preprocessor tells them.
  """

  types: tuple[str, ...]
  signature: str
  table: Table
  bases: tuple[str, ...]
  fields: Callable[[Shapes, Config], dict[str, Any]]
  config: Callable[[Any], dict[str, Any]]
  classes: tuple[str | None, str | None]
  defaults: Config
  extended: bool = True
  any_shape: bool = False
  one_base: bool = True
  mask_token: str = ""
  mask_axes: int = 1
  unused: tuple[str, ...] = ()
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


def dense(
  theirs: str, ours: str, pattern: str = "O I -> I O", kernel: str = "weight"
) -> list[Rule]:
  """The rows of a dense layer; its published name ends with a separator.

  The pattern is the kernel's, and `kernel` the publisher's name for it.
  """
  return [
    Rule(f"{theirs}{kernel}", (f"{ours}/kernel",), pattern),
    Rule(f"{theirs}bias", (f"{ours}/bias",)),
  ]


def layer_norm(theirs: str, ours: str, scale: str = "weight") -> list[Rule]:
  """The rows of a layer norm; `scale` is the publisher's name for it."""
  return [
    Rule(f"{theirs}{scale}", (f"{ours}/scale",)),
    Rule(f"{theirs}bias", (f"{ours}/bias",)),
  ]


def patches(theirs: str) -> list[Rule]:
  """The rows of the convolution that embeds the patches."""
  return dense(theirs, "patches/E", "D C P Q -> (P Q C) D")


def heads_out(theirs: str, ours: str = "msa/out") -> list[Rule]:
  """The rows of the projection that joins the heads."""
  return dense(theirs, ours, "D (k d) -> k d D")


def attention(theirs: str, *names: str) -> list[Rule]:
  """The rows of the projections to query, key and value, by these names."""
  return [
    rule
    for ours, name in zip(_QKV, names, strict=True)
    for rule in (
      Rule(f"{theirs}{name}.weight", (f"msa/{ours}/kernel",), _KERNEL),
      Rule(f"{theirs}{name}.bias", (f"msa/{ours}/bias",), "(k d) -> k d"),
    )
  ]


def fused(
  weight: str, bias: str, ours: str = "msa", parts: tuple[str, ...] = _QKV
) -> list[Rule]:
  """The rows of a dense layer that stacks these parts of attention."""
  kernels, biases = (
    tuple(f"{ours}/{name}/{leaf}" for name in parts)
    for leaf in ("kernel", "bias")
  )
  return [
    Rule(weight, kernels, "(n k d) D -> n D k d"),
    Rule(bias, biases, "(n k d) -> n k d"),
  ]


def mlp(
  expand: str, contract: str, gate: str = "", ours: str = "mlp"
) -> tuple[Rule, ...]:
  """The rows of an MLP, by the names of its dense layers."""
  return rows(
    dense(gate, f"{ours}/gate") if gate else [],
    dense(expand, f"{ours}/expand"),
    dense(contract, f"{ours}/contract"),
  )


def fused_gate(theirs: str) -> list[Rule]:
  """The rows of a dense layer that holds a gated MLP's gate and expansion."""
  kernels = ("mlp/gate/kernel", "mlp/expand/kernel")
  biases = ("mlp/gate/bias", "mlp/expand/bias")
  return [
    Rule(f"{theirs}weight", kernels, "(m O) I -> m I O"),
    Rule(f"{theirs}bias", biases, "(m O) -> m O"),
  ]


def rows(*parts: list[Rule] | Rule) -> tuple[Rule, ...]:
  """Rows and lists of rows as one tuple."""
  lists = ([part] if isinstance(part, Rule) else part for part in parts)
  return tuple(row for part in lists for row in part)
