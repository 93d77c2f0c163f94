"""Families of encoders: a file for each, and this list of them.

A file has what differs between families, as plain data: `FIELDS`, the fields of
the model that make it one of the family (`model.block` is the name of the
file), and records of published files: `TIMM`, what timm tells by the names of
its architectures alone, and `TRANSFORMERS`, the arrays and the configuration
that transformers saves. A new family is its file and its name in the list. A
file is imported when it is first needed.
"""

import functools
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

# In the order in which the names and arrays of families are tried.
FILES = (
  "dinov2",
  "pe",
  "rope_mixed",
  "rope_axial",
  "dinov3",
  "eva02",
  "eva",
  "deit",
  "deit3",
  "mlcd",
  "clip",
  "beit3",
  "tipsv2",
  "aimv2",
  "internvit",
  "radio",
  "pixio",
  "beit",
  "parallel",
  "siglip",
  "relpos",
  "vit",
)
# Files of the paper's model, which have no `FIELDS`.
_PLAIN = ("siglip", "relpos", "vit")


def _load_file(name: str) -> Any:
  """The module of a family."""
  return importlib.import_module(f"vit_jax.families.{name}")


class _Families(Mapping[str, Mapping[str, Any]]):
  """The fields of each family, read from its file when they are looked up."""

  def __getitem__(self, name: str) -> Mapping[str, Any]:
    if name not in self:
      raise KeyError(name)
    return _load_file(name).FIELDS

  def __contains__(self, name: object) -> bool:
    return name in FILES and name not in _PLAIN

  def __iter__(self) -> Iterator[str]:
    return filter(self.__contains__, FILES)

  def __len__(self) -> int:
    return len(FILES) - len(_PLAIN)


FAMILIES: Mapping[str, Mapping[str, Any]] = _Families()
"""The name of a family, as in `model.block` -> the fields of its models."""


@functools.cache
def records(kind: str) -> tuple[Any, ...]:
  """The records of a kind, such as "TIMM", of all families that have one."""
  files = map(_load_file, FILES)
  return tuple(getattr(file, kind) for file in files if hasattr(file, kind))
