"""Modules of commands that are functions in Python too."""

import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.runtime.printable import say

_said = False


def make_callable(name: str, function: Callable[..., Any]) -> None:
  """Makes calling an imported module call a function.

  `vit_jax.train` is a module, since `vit_jax train` runs it as a program, and
  `vit_jax.train("my_photos")` is called. It is one and the same object, whether
  or not `import vit_jax.train` comes before.
  """
  call = {"__call__": staticmethod(function), "__doc__": function.__doc__}
  kind = type("CallableModule", (types.ModuleType,), call)
  sys.modules[name].__class__ = kind


def is_script() -> bool:
  """Whether a worker process would run the main program once more."""
  main = sys.modules["__main__"]
  is_module = getattr(main, "__spec__", None) is not None
  return is_module or getattr(main, "__file__", None) is not None


def say_in_a_thread(given: str = "num_workers=4") -> None:
  """Says, once, that a function of a script starts no workers, and how to."""
  global _said
  if not _said:
    _said = True
    say(
      "Batches are prepared in a thread. For worker processes, which import "
      'this script, put what it does under `if __name__ == "__main__":`, and '
      f"give {given}."
    )


def in_a_thread(options: Mapping[str, Any]) -> dict[str, Any]:
  """Options of a function, with no workers in a script.

  They are as given if they have `num_workers`, or in a notebook.
  """
  if "num_workers" in options or not is_script():
    return dict(options)
  say_in_a_thread()
  return {**options, "num_workers": 0}
