"""Makes modules of commands callable, as functions in Python."""

import inspect
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.runtime.printable import say_once


def make_callable(name: str, function: Callable[..., Any]) -> None:
  """Lets an imported module be called as a function.

  `vit_jax.train` is a module, since `vit_jax train` runs it as a program, and
  users call `vit_jax.train("my_photos")`. Both are the same object, whether or
  not `import vit_jax.train` comes before.
  """
  members = {
    "__call__": staticmethod(function),
    "__doc__": function.__doc__,
    # Python 3.11 would leave out the first parameter of a static method.
    "__signature__": inspect.signature(function),
  }
  kind = type("CallableModule", (types.ModuleType,), members)
  sys.modules[name].__class__ = kind
  sys.modules[name].__doc__ = function.__doc__  # The module's is for a shell.


def is_script() -> bool:
  """Whether the main program is a file, which worker processes would rerun."""
  main = sys.modules["__main__"]
  is_module = getattr(main, "__spec__", None) is not None
  return is_module or getattr(main, "__file__", None) is not None


def say_no_workers(given: str = "num_workers=4") -> None:
  """Prints once that a script gets no worker processes, and how it gets them.

  `given` is the argument to give for workers.
  """
  say_once(
    "Batches are prepared in a thread. For worker processes, which import this "
    'script, put what it does under `if __name__ == "__main__":`, and give '
    f"{given}."
  )


def without_workers(options: Mapping[str, Any]) -> dict[str, Any]:
  """Options of a function, with `num_workers` as 0 in a script.

  Options that have `num_workers`, and those in a notebook, stay as given.
  """
  if "num_workers" in options or not is_script():
    return dict(options)
  say_no_workers()
  return {**options, "num_workers": 0}
