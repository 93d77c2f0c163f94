"""Families of text towers, and how to read one, for all formats."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.models.text import TextTower
from vit_jax.pretrained.formats.architecture import need, section
from vit_jax.pretrained.formats.hf_encoders import GELUS
from vit_jax.pretrained.formats.mapping import Rule, Shapes
from vit_jax.pretrained.formats.table import Config, Table
from vit_jax.runtime.checks import COUNT, POSITIVE, checked

ACTIVATIONS = {**GELUS, "relu": "relu"}
PAIR = {name: name for name in ("logit_scale", "logit_bias", "temperature")}
"""The names of the arrays that a pair has beside its two towers -> their roles.

`logit_scale` is the logarithm of the factor of similarities, and `temperature`
is the reciprocal of this factor.
"""


@dataclasses.dataclass(frozen=True)
class TextFamily:
  """A family of text towers whose arrays have names with dots."""

  name: str
  signature: str  # Name of an array that only this family has, after its base.
  table: Table
  bases: tuple[str, ...]  # Prefixes that the names of its arrays may have.
  # The library's values of keys that a configuration lacks.
  defaults: Config
  # Returns the fields of the tower that are particular to the family. It gets
  # the shapes of the tower's arrays by their names without the base, those of
  # all arrays of the file, and the tower's configuration. It raises ValueError
  # for a value that is not supported.
  fields: Callable[[Shapes, Shapes, Config], dict[str, Any]]
  # Beginnings of the names of the image tower's arrays, after the base.
  others: tuple[str, ...] = ()
  # Returns the tower's own section of a file's configuration.
  configuration: Callable[[Config], Config] = lambda config: (
    section("text_config", config.get("text_config")) or config
  )

  def base(self, shapes: Shapes) -> str | None:
    """The prefix of the family's arrays in a file; None if it has none."""
    return next((x for x in self.bases if x + self.signature in shapes), None)

  def layout(
    self, base: str, shapes: Shapes, config: Mapping[str, Any]
  ) -> "TextLayout":
    """The tower whose arrays' names start with `base`.

    Raises ValueError if a value of `config` is not supported, or an array that
    tells a size is missing.
    """
    config = {**self.defaults, **self.configuration(config)}
    local = {
      name.removeprefix(base): shape
      for name, shape in shapes.items()
      if name.startswith(base)
    }
    fields = self.fields(local, shapes, config)
    tower = TextTower(
      num_classes=0, **{**_sizes(self.table, local, config), **fields}
    )
    rules = self.table.rules(tower, base)
    mapped = {rule.theirs for rule in rules}
    tower_shapes = {
      name: shape
      for name, shape in shapes.items()
      if name in mapped or self._is_of_tower(name, base)
    }
    return TextLayout(self.name, tower, rules, tower_shapes)

  def _is_of_tower(self, name: str, base: str) -> bool:
    """Whether an array is the text tower's, not the pair's or the images'."""
    if name.endswith("position_ids") or name in PAIR:
      return False
    if name.startswith(tuple(base + other for other in self.others)):
      return False
    return name.startswith(base)


@dataclasses.dataclass(frozen=True)
class TextLayout:
  """A text tower in a file, and which arrays hold it.

  Attributes:
    family: The name of its family.
    tower: The tower, without parameters.
    rules: Which array holds which of its parameters.
    shapes: The shapes of the tower's arrays, by name.
    pair: The names in this file of the arrays of `PAIR` -> their roles.
  """

  family: str
  tower: TextTower
  rules: list[Rule]
  shapes: Shapes
  pair: Mapping[str, str] = dataclasses.field(default_factory=PAIR.copy)


def _sizes(table: Table, local: Shapes, config: Config) -> dict[str, Any]:
  """The sizes of a tower and its activation, as fields of `TextTower`.

  Raises ValueError for a value that is not supported, or if an array that shows
  a size is missing.
  """
  names = {row.ours[0]: row.theirs for row in table.rows("base")}
  V, D = need(local, names["E"], 2)
  layers = table.stacks[0]
  expand = next(
    row.theirs
    for row in table.rows("mlp")
    if row.ours == ("mlp/expand/kernel",)
  )
  act = checked(
    "hidden_act", str, config["hidden_act"], choices=(*ACTIVATIONS,)
  )
  epsilon = config["layer_norm_eps"]
  heads = config["num_attention_heads"]
  T = config.get("max_position_embeddings")
  name = names.get("E_pos", "")
  if name in local:
    T = need(local, name, 2)[0]
  return dict(
    vocabulary=V,
    length=checked("max_position_embeddings", int, T, COUNT),
    hidden_size=D,
    num_layers=layers.count(local),
    mlp_size=need(local, layers.theirs.format(0) + expand, 2)[0],
    num_heads=checked("num_attention_heads", int, heads, COUNT),
    gelu=ACTIVATIONS[act],
    layer_norm_epsilon=checked("layer_norm_eps", float, epsilon, POSITIVE),
  )


def width(shapes: Shapes, name: str) -> int | None:
  """The number of outputs of a projection; None if there is none.

  Raises ValueError if its array has other than two axes, or is empty.
  """
  return need(shapes, name, 2)[0] if name in shapes else None
