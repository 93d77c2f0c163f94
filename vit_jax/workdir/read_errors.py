"""Tells damaged checkpoints from trouble in reading them."""

import re
import time
from collections.abc import Callable
from typing import TypeVar

import jax

from vit_jax.runtime.regular_file import NotRegularError, TooLargeError
from vit_jax.workdir.bucket import cause, reason

T = TypeVar("T")
_RETRY_AFTER = (1, 4)  # Seconds between attempts to read.
# Statuses with which TensorStore reports bytes that are gone or do not decode.
_STATUSES = (
  *("DATA_LOSS", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "NOT_FOUND"),
  "OUT_OF_RANGE",
)
# Orbax and the JSON parser raise these on files that are gone or do not parse.
_GONE = (
  *(FileNotFoundError, IsADirectoryError, NotADirectoryError),
  *(NotRegularError, TooLargeError),
)
_UNPARSED = (AttributeError, LookupError, RecursionError, TypeError, ValueError)


class DamagedError(ValueError):
  """A checkpoint with files that are missing, broken or changed."""


class DeletedError(OSError):
  """A checkpoint that its run has deleted since it was chosen."""


def attempt(
  read: Callable[[], T], name: str, was_deleted: Callable[[], bool]
) -> T:
  """Calls `read`, and puts into one line why a checkpoint cannot be read.

  Trouble that may pass, such as a lost network, is retried; not on several
  hosts, though, as they would fall out of step. Raises DamagedError if the
  checkpoint `name` is damaged, DeletedError if it `was_deleted`, and OSError if
  it cannot be read for another reason.
  """
  waits = iter(_RETRY_AFTER if jax.process_count() == 1 else ())
  while True:
    try:
      return read()
    except (MemoryError, jax.errors.JaxRuntimeError):
      raise
    except Exception as error:  # Orbax raises errors of all kinds.
      why = reason(error)
      if is_damage(error) and was_deleted():
        gone = f"{name} was deleted while it was read, as its run goes on."
        raise DeletedError(gone) from error
      if is_damage(error):
        raise DamagedError(
          f"{name} is damaged, or of another version ({why}): choose another "
          "step, or move its folder away."
        ) from error
      seconds = next(waits, None)
      if seconds is None:
        raise OSError(
          f"{name} cannot be read now ({why}); it may be good: try again."
        ) from error
    time.sleep(seconds)


def again_if_deleted(call: Callable[[], T], tell: Callable[[str], None]) -> T:
  """Calls `call`, and again where its checkpoint was deleted meanwhile.

  Every reader of a run that goes on reads through here. `call` chooses a
  checkpoint, opens it and reads what is needed, so another call takes the next
  newest or best one. `tell` is called with a line on each that is gone. Raises
  ValueError if the next call finds none that fits, as where `call` asks for one
  by its step, and DeletedError on several hosts, which would read different
  checkpoints.
  """
  gone = ""
  while True:
    try:
      return call()
    except DeletedError as error:
      if jax.process_count() > 1:
        raise
      gone = str(error)
      tell(gone)
    except ValueError as error:
      if gone:
        raise ValueError(f"{gone[:-1]}: {error}") from error
      raise


def is_damage(error: BaseException) -> bool:
  """Whether files are missing or wrong, rather than out of reach just now."""
  root = cause(error)
  # TensorStore raises ValueError for everything, a lost network included.
  status = re.match(r"([A-Z]+(?:_[A-Z]+)*): ", str(root))
  if isinstance(root, ValueError) and status:
    return status[1] in _STATUSES
  return isinstance(root, (*_GONE, *_UNPARSED))
