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
from vit_jax.pretrained.formats.mapping import Rule, Shapes, affine, norm

Config = Mapping[str, Any]

_LAYER = "block_0/"
_QKV = ("query", "key", "value")


@dataclasses.dataclass(frozen=True)
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

  root: tuple[Rule, ...]
  base: tuple[Rule, ...]
  layers: str
  layer: tuple[Rule, ...]
  mlp: tuple[Rule, ...]
  gated_mlp: tuple[Rule, ...] = ()

  def rules(self, vit: BaseVit, base: str = "") -> list[Rule]:
    """The rules for a model's arrays, whose names start with `base`."""
    names = _names(vit)
    found = [row for row in self.root if names >= {*row.ours}]
    found += [
      dataclasses.replace(row, theirs=base + row.theirs)
      for row in self.base
      if names >= {*row.ours}
    ]
    mlp = self.gated_mlp if f"{_LAYER}mlp/gate/kernel" in names else self.mlp
    rows = [
      row
      for row in self.layer + mlp
      if names >= {_LAYER + path for path in row.ours}
    ]
    for i in range(vit.num_layers):
      before = base + self.layers.format(i)
      for row in rows:
        ours = tuple(f"block_{i}/{path}" for path in row.ours)
        found.append(Rule(before + row.theirs, ours, row.pattern))
    return found


def _names(vit: BaseVit) -> frozenset[str]:
  """Paths of a model's parameters; of its layers, only the first."""
  first: Any = vit.clone(num_layers=1, scan=False, origin=None)
  return _names_of(first)


@functools.lru_cache(maxsize=8)
def _names_of(vit: Any) -> frozenset[str]:
  return frozenset(param_shapes(vit, (1, 1)))


def unmapped(vit: BaseVit, rules: list[Rule]) -> list[str]:
  """The parameters of a model, outside later layers, that no rule writes."""
  return sorted(_names(vit) - {path for rule in rules for path in rule.ours})


@dataclasses.dataclass(frozen=True)
class Family:
  """A family of encoders.

  Attributes:
    types: The `model_type`s of its configurations.
    signature: Name of an array that only this family has, after its base.
    table: Its names.
    bases: Prefixes that the names of the table's base may have.
    fields: Returns fields of the model that are particular to the family.
    config: Returns the part of a configuration that is particular to it, or
      says in a ValueError why there is none.
    classes: The library's classes without and with a head; None for none.
    defaults: Values that the library has where a configuration has none.
    modern: Whether its models are `ModernVit`s.
    one_base: Whether the first base is written, with and without a head.
    mask_token: Name of the token of masked pre-training, which is not read and
      written as zeros; "" if there is none.
    mask_axes: Number of axes of length 1 that this token has.
    unused: Beginnings of the names of other arrays that are not read.
    mean: Mean of each channel, where no preprocessor tells it.
    std: Standard deviation of each channel, the same.
  """

  types: tuple[str, ...]
  signature: str
  table: Table
  bases: tuple[str, ...]
  fields: Callable[[Shapes, Config], dict[str, Any]]
  config: Callable[[Any], dict[str, Any]]
  classes: tuple[str | None, str | None]
  defaults: Config
  modern: bool = True
  one_base: bool = False
  mask_token: str = "embeddings.mask_token"
  mask_axes: int = 1
  unused: tuple[str, ...] = ()
  mean: tuple[float, ...] = IMAGENET_MEAN
  std: tuple[float, ...] = IMAGENET_STD

  def base(self, vit: Any) -> str:
    """Prefix of the base's names in a file that is written."""
    if self.one_base:
      return self.bases[0]
    return f"{self.config(vit)['model_type']}." if vit.num_classes else ""


def dense(theirs: str, ours: str) -> list[Rule]:
  """The rows of a dense layer."""
  return affine(theirs, ours, "weight", "O I -> I O")


def patches(theirs: str) -> list[Rule]:
  """The rows of the convolution that embeds the patches."""
  return affine(theirs, "patches/E", "weight", "D C P Q -> (P Q C) D")


def attention(theirs: str, query: str, key: str, value: str) -> list[Rule]:
  """The rows of three projections whose names are given."""
  return [
    rule
    for ours, name in zip(_QKV, (query, key, value), strict=True)
    for rule in (
      Rule(f"{theirs}{name}.weight", (f"msa/{ours}/kernel",), _KERNEL),
      Rule(f"{theirs}{name}.bias", (f"msa/{ours}/bias",), "(k d) -> k d"),
    )
  ]


_KERNEL = "(k d) D -> D k d"


def fused(weight: str, bias: str, ours: str = "msa") -> list[Rule]:
  """The rows of a dense layer that stacks query, key and value."""
  kernels, biases = (
    tuple(f"{ours}/{name}/{leaf}" for name in _QKV)
    for leaf in ("kernel", "bias")
  )
  return [
    Rule(weight, kernels, "(n k d) D -> n D k d"),
    Rule(bias, biases, "(n k d) -> n k d"),
  ]


def heads_out(theirs: str, ours: str = "msa/out") -> list[Rule]:
  """The rows of the projection that joins the heads."""
  return affine(theirs, ours, "weight", "D (k d) -> k d D")


def layer_norm(theirs: str, ours: str) -> list[Rule]:
  """The rows of a layer norm."""
  return norm(theirs, ours, "weight")


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
