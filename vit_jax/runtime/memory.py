"""Makes the process reuse freed memory, which saves mapping new pages."""

import ctypes
import sys

# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> None:
  """Has glibc's malloc keep freed memory for the next buffers.

  XLA's CPU backend frees its buffers at every step. By default, large ones go
  back to the system, and new ones are mapped in page by page, which takes up to
  a third of a train step. It is kept in one heap, because the others, of
  threads, are too small for such buffers.
  """
  if sys.platform == "linux":
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # The C library is glibc.
      mallopt(_M_ARENA_MAX, 1)
      mallopt(_M_MMAP_MAX, 0)
      mallopt(_M_TRIM_THRESHOLD, -1)  # Never give it back.
