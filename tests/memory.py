"""How much memory a piece of code takes."""

import contextlib
import tracemalloc
from collections.abc import Iterator


@contextlib.contextmanager
def bounded_memory(limit: float) -> Iterator[None]:
  """Fails if Python and NumPy take more; memory of other libraries is not seen.

  What a library in C or Rust may take is bounded in a process of its own, by
  RLIMIT_AS, as in `test_absurd_claims_take_no_memory`.
  """
  tracemalloc.start()
  try:
    yield
    assert tracemalloc.get_traced_memory()[1] < limit
  finally:
    tracemalloc.stop()
