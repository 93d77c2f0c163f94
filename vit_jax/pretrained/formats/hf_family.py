"""The families that transformers saves, by the files of `vit_jax.families`."""

import dataclasses
import functools
from typing import Any

from vit_jax import families
from vit_jax.families.family import Transformers
from vit_jax.pretrained.formats.architecture import length, section
from vit_jax.pretrained.formats.mapping import Rule, Shapes
from vit_jax.pretrained.formats.table import Config, Layers, Table
from vit_jax.runtime.checks import POSITIVE, checked
from vit_jax.runtime.printable import quoted

# The order is that in which their signatures are looked for.
FAMILIES: tuple[Transformers, ...] = tuple(
  family for file in families.records("TRANSFORMERS") for family in file
)


@functools.cache
def table_of(family: Transformers) -> Table:
  """The names of a family's arrays."""
  return Table(family.table, (Layers(family.layers),), names=family.names)


def rules_of(family: Transformers, vit: Any) -> list[Rule]:
  """The rules for the arrays of a file to write for the family."""
  return table_of(family).rules(vit, family.base(vit))


@dataclasses.dataclass(frozen=True)
class File:
  """A file's shapes and configuration.

  It is a `vit_jax.families.family.Stored`, which describes the methods.
  """

  shapes: Shapes
  config: Config

  def axis(self, name: str, i: int, default: Any = None) -> Any:
    shape = self.shapes.get(name, ())
    return shape[i] if -len(shape) <= i < len(shape) else default

  def length(self, name: str) -> int | None:
    return length(self.shapes, name, None)

  def number(self, key: str, default: float, positive: bool = False) -> float:
    value = self.config.get(key, default)
    return checked(key, float, value, POSITIVE if positive else None)

  def whole_numbers(
    self, key: str, default: tuple[int, ...]
  ) -> tuple[int, ...]:
    value = self.config.get(key)
    return default if value is None else checked(key, tuple[int, ...], value)

  def choice(self, key: str, default: str, choices: tuple[str, ...]) -> str:
    return checked(key, str, self.config.get(key, default), choices=choices)

  def section(self, key: str) -> "File":
    return File(self.shapes, section(key, self.config.get(key)))

  def says(self, key: str) -> str:
    return f"its config.json says {key}={quoted(self.config.get(key))}"
