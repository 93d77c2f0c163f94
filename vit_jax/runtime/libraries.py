"""Calls libraries in other languages, whose faults end in one line.

A library in Rust that meets its own fault panics: that is no Exception, and it
prints lines of its own.
"""

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from vit_jax.runtime.printable import one_line

_PANIC = "PanicException"  # pyo3's, which cannot be imported by a name.
_LOCK = threading.Lock()


@contextlib.contextmanager
def refusing(what: str) -> Iterator[None]:
  """Makes whatever a library raises a ValueError, "<what>: <why>.".

  Raises MemoryError, and what ends a program, as they come.
  """
  try:
    yield
  except MemoryError:
    raise
  except BaseException as error:
    if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
      raise
    told: Any = error
    why = one_line(told) or type(error).__name__
    raise ValueError(f"{what}: {why}.") from error


@contextlib.contextmanager
def held_back() -> Iterator[None]:
  """Leaves out what libraries print on standard error, if they fail.

  Otherwise it is printed at the end. All threads of the process share standard
  error, so this is for what is done once.
  """
  with _LOCK, contextlib.ExitStack() as stack:
    try:
      kept = os.dup(2)
      stack.callback(os.close, kept)
      held = stack.enter_context(tempfile.TemporaryFile())
    except OSError:  # It is closed, or the disk is full.
      yield
      return
    sys.stderr.flush()
    stack.callback(os.dup2, kept, 2)
    os.dup2(held.fileno(), 2)
    yield
    held.seek(0)
    _write(kept, held.read())


def _write(number: int, text: bytes) -> None:
  with contextlib.suppress(OSError):  # Its reader may have gone.
    while text:
      text = text[os.write(number, text) :]
