"""What needs a library that is not always installed."""

import importlib
import importlib.util
from typing import Any


def load(module: str, extra: str) -> Any:
  """Imports a module, whose libraries come with an extra of this package.

  Raises:
    ValueError: if one of them is missing.
  """
  try:
    return importlib.import_module(module)
  except ModuleNotFoundError as error:
    name = str(error.name).split(".")[0]
    if name == "vit_jax":
      raise
    raise ValueError(
      f'{name} is not installed: pip install -c constraints.txt -e ".[{extra}]"'
    ) from error


def check(library: str, extra: str, key: str) -> None:
  """Raises ValueError unless what a key asks for is installed."""
  try:
    found = importlib.util.find_spec(library) is not None
  except ValueError:  # It is being hidden: sys.modules holds None.
    found = False
  if not found:
    raise ValueError(
      f"{key} needs {library}, which is not installed: "
      f'pip install -c constraints.txt -e ".[{extra}]"'
    )
