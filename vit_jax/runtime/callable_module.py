"""Modules of commands that are functions in Python too."""

import sys
import types
from collections.abc import Callable
from typing import Any


def make_callable(name: str, function: Callable[..., Any]) -> None:
  """Makes calling an imported module call a function.

  `vit_jax.train` is a module, since `vit_jax train` runs it as a program, and
  `vit_jax.train("my_photos")` is called. It is one and the same object, whether
  or not `import vit_jax.train` comes before.
  """
  call = {"__call__": staticmethod(function), "__doc__": function.__doc__}
  kind = type("CallableModule", (types.ModuleType,), call)
  sys.modules[name].__class__ = kind
