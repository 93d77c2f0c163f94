"""Bounds the memory that a piece of code takes."""

import contextlib
import tracemalloc
from collections.abc import Iterator


@contextlib.contextmanager
def bounded_memory(limit: float) -> Iterator[None]:
  """Fails if Python and NumPy take more; other libraries are not measured.

  To bound a library in C or Rust, run it in a process of its own under
  RLIMIT_AS, as `test_absurd_claims_take_no_memory` does.
  """
  tracemalloc.start()
  try:
    yield
    assert tracemalloc.get_traced_memory()[1] < limit
  finally:
    tracemalloc.stop()
