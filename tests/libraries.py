"""PyTorch's libraries, which only some tests and makers of fixtures need."""

import contextlib
import functools
import importlib
from typing import Any

import pytest


def needed(*names: str) -> list[Any]:
  """Imports libraries; skips the test if one is not installed."""
  pytest.importorskip("torch", reason="needs PyTorch")
  define_operators()
  return [pytest.importorskip(x, reason=f"needs {x}") for x in names]


@functools.cache
def define_operators() -> Any:
  """Defines what torchvision's import needs beside some builds of PyTorch."""
  torch = importlib.import_module("torch")
  with contextlib.suppress(ImportError, RuntimeError):
    importlib.import_module("torchvision")
    return None
  library = torch.library.Library("torchvision", "FRAGMENT")
  for name in ("nms", "qnms"):
    with contextlib.suppress(RuntimeError):  # It exists.
      library.define(
        f"{name}(Tensor dets, Tensor scores, float limit) -> Tensor"
      )
  return library
