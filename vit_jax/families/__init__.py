"""Families of encoders: a file for each, and this list of them.

A file has what differs between families, as plain data: `FIELDS`, those of the
model that make it one (`model.block` is the name of the file), and `TIMM`, what
timm tells by the names of its architectures alone. A new family is its file and
its name in the list.
"""

import importlib
from typing import Any

from vit_jax.families.family import Timm

# In the order in which their names and arrays are tried.
_FILES = (
  *("dinov2", "pe", "rope_mixed", "rope_axial", "dinov3", "eva02", "eva"),
  *("clip", "mlcd", "deit", "deit3", "beit", "beit3"),
  *("tipsv2", "aimv2", "internvit", "radio", "pixio", "parallel"),
  *("siglip", "relpos", "vit"),
)
_MODULES = {
  name: importlib.import_module(f"vit_jax.families.{name}") for name in _FILES
}
FAMILIES: dict[str, dict[str, Any]] = {
  name: module.FIELDS
  for name, module in _MODULES.items()
  if hasattr(module, "FIELDS")
}
"""The name of a family, `model.block` -> the fields that make it one."""
TIMM: tuple[Timm, ...] = tuple(
  module.TIMM for module in _MODULES.values() if hasattr(module, "TIMM")
)
"""Facts that timm's names tell, of each family that has any."""
