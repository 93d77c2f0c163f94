"""Imports libraries that are installed only with an extra."""

import importlib
import importlib.util
from typing import Any


def load(module: str, extra: str) -> Any:
  """Imports a module that needs an extra; raises ValueError without it."""
  try:
    return importlib.import_module(module)
  except ModuleNotFoundError as error:
    name = str(error.name).split(".")[0]
    if name == "vit_jax":
      raise
    install = f'{name} is not installed: pip install "vit_jax[{extra}]"'
    raise ValueError(install) from error


def check(library: str, extra: str, key: str) -> None:
  """Raises ValueError unless the library that a key needs is installed."""
  try:
    is_installed = importlib.util.find_spec(library) is not None
  except ValueError:  # A test hides it: sys.modules holds None.
    is_installed = False
  if not is_installed:
    raise ValueError(
      f"{key} needs {library}, which is not installed: "
      f'pip install "vit_jax[{extra}]"'
    )
