"""Calls libraries in other languages, and reports their errors in one line.

When a library in Rust fails, it may panic: that raises no Exception, and prints
lines on standard error.
"""

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from vit_jax.runtime.printable import one_line

_PANIC = "PanicException"  # A class of pyo3, which cannot be imported.
_LOCK = threading.Lock()


@contextlib.contextmanager
def refusing(what: str) -> Iterator[None]:
  """A context for calls of a library, whose errors become ValueErrors.

  Raises ValueError with the message "<what>: <why>." for any error but
  MemoryError. That, and exceptions that end a program, stay as they are.
  """
  try:
    yield
  except MemoryError:
    raise
  except BaseException as error:
    if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
      raise
    exception: Any = error  # A panic is no `Exception`.
    why = one_line(exception) or type(error).__name__
    raise ValueError(f"{what}: {why}.") from error


@contextlib.contextmanager
def hold_back_stderr() -> Iterator[None]:
  """Holds back what libraries print on standard error inside the context.

  It is printed at the end, or dropped if the context raises an error. All
  threads of the process share standard error, so use this only for work that
  is done once.
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
  """Writes the whole text to an open file, unless its reader has gone."""
  with contextlib.suppress(OSError):
    while text:
      text = text[os.write(number, text) :]
