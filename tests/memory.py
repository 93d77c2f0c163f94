"""How much memory a piece of code takes."""

import contextlib
import tracemalloc
from collections.abc import Iterator


@contextlib.contextmanager
def bounded_memory(limit: float) -> Iterator[None]:
  """Of what Python and NumPy take; the readers' own code uses no other."""
  tracemalloc.start()
  try:
    yield
    assert tracemalloc.get_traced_memory()[1] < limit
  finally:
    tracemalloc.stop()
