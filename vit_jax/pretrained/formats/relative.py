"""Reads the fields of relative positions from the shapes of arrays."""

import math
from typing import Any

from vit_jax.pretrained.formats.architecture import need
from vit_jax.pretrained.formats.mapping import Shapes
from vit_jax.pretrained.formats.table import Table

_TABLE, _HIDDEN = "relative/B", "relative/contract/kernel"


def fields(table: Table, shapes: Shapes) -> dict[str, Any]:
  """The fields of a model's relative positions; {} if it has none.

  Raises ValueError if all layers share some, and each has its own as well.
  """
  names_by_kind = {
    "table": _names(table, shapes, _TABLE),
    "mlp": _names(table, shapes, _HIDDEN),
  }
  kinds = [kind for kind, names in names_by_kind.items() if names]
  if not kinds:
    return {}
  kind = kinds[0]
  names = names_by_kind[kind]
  if len(kinds) > 1 or len(names) > 1:
    raise ValueError(
      "it has relative positions that all layers share beside those of each "
      "layer, which is not supported."
    )
  ((shared, name),) = names.items()
  fields = dict(relative=kind, relative_shared=shared)
  _, width = need(shapes, name, 2)
  return fields if kind == "table" else fields | dict(relative_hidden=width)


def num_heads(table: Table, shapes: Shapes) -> int | None:
  """The number of heads of the relative positions; None if there are none."""
  for ours, axis in ((_TABLE, 1), (_HIDDEN, 0)):
    for name in _names(table, shapes, ours).values():
      return need(shapes, name, 2)[axis]
  return None


def tokens(
  table: Table,
  shapes: Shapes,
  class_token: bool,
  num_patches: int | None = None,
) -> int | None:
  """The number of patches that a table is for; None if there is no table.

  The length of a table for a square grid reveals the number. For any other
  table it is `num_patches`, if the caller knows it, or else 2: as 2 patches are
  no square, the user is then asked for the grid.
  """
  for name in _names(table, shapes, _TABLE).values():
    offsets = need(shapes, name, 2)[0] - 3 * class_token
    side = math.isqrt(max(offsets, 0))
    if side * side == offsets and side % 2:
      return ((side + 1) // 2) ** 2
    return num_patches or 2
  return None


def _names(table: Table, shapes: Shapes, ours: str) -> dict[bool, str]:
  """The names of the arrays that hold a parameter.

  The key is True for an array that all layers share, and False for that of the
  first layer.
  """
  layer = table.stacks[0].theirs.format(0)
  parts = {"base": "", "layer": layer}
  return {
    part == "base": before + row.theirs
    for part, before in parts.items()
    for row in table.rows(part)
    if ours in row.ours and before + row.theirs in shapes
  }
