"""What Orbax prints that is of no use, or is said in our own words."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

from absl import logging as absl_logging


def hide_tracebacks() -> None:
  """Keeps back the errors of saving, which `Checkpoints.save` returns."""
  absl_logging.get_absl_logger().addFilter(_is_no_failed_save)


def _is_no_failed_save(record: logging.LogRecord) -> bool:
  return not (record.exc_info and "orbax" in record.pathname)


@contextlib.contextmanager
def only_errors() -> Iterator[None]:
  """Keeps Orbax's warnings back."""
  verbosity = absl_logging.get_verbosity()
  absl_logging.set_verbosity(absl_logging.ERROR)
  try:
    yield
  finally:
    absl_logging.set_verbosity(verbosity)


@contextlib.contextmanager
def without_late_reads() -> Iterator[None]:
  """Keeps back what reads under way print when another one has failed.

  Orbax closes its event loop at the first failure. Each read that ends later
  prints a traceback about that, or about its own error, which nobody takes.
  They may outlast this context, so after a failure both stay hidden.
  """
  shown = sys.unraisablehook

  def hook(unraisable: Any) -> None:
    if str(unraisable.exc_value) != "Event loop is closed":
      shown(unraisable)

  sys.unraisablehook = hook
  try:
    yield
  except Exception:
    logging.getLogger("asyncio").addFilter(_is_retrieved)
    raise
  sys.unraisablehook = shown


def _is_retrieved(record: logging.LogRecord) -> bool:
  return "exception was never retrieved" not in record.getMessage()
