"""Standard streams that are closed, or whose reader has gone."""

import contextlib
import io
import os
import select
import sys
from collections.abc import Callable, Iterator
from typing import Any

from vit_jax.runtime import hosts
from vit_jax.runtime.printable import say

_CLOSED_EXIT = 141  # As a shell reports a program that SIGPIPE ended.
_NAMES = ("stdin", "stdout", "stderr")


def open_closed() -> bool:
  """Opens standard streams that were closed at the start, to lead nowhere.

  Python has None in their place, and the next file that is opened gets the
  number of such a stream. Returns whether standard output was closed.
  """
  was_closed = sys.stdout is None
  for number, name in enumerate(_NAMES):
    if getattr(sys, name) is not None:
      continue
    target = os.open(os.devnull, os.O_RDWR)
    try:
      os.fstat(number)  # It is another file's by now.
    except OSError:
      os.dup2(target, number)
    mode = "w" if number else "r"
    # Not closed with the object, which `outlive_readers` replaces.
    setattr(sys, name, open(target, mode, encoding="utf-8", closefd=False))
  return was_closed


@contextlib.contextmanager
def until_closed() -> Iterator[None]:
  """Ends the process quietly if the reader of its output, as `head`, has ended.

  Raises SystemExit then, and BrokenPipeError for any other pipe.
  """
  try:
    yield
    sys.stdout.flush()
  except BrokenPipeError:
    poll = select.poll()
    poll.register(sys.stdout)
    if not any(state & ~select.POLLOUT for _, state in poll.poll(0)):
      raise  # It was another pipe, such as one to a process.
    # The rest of the buffer must not fail at the end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    hosts.leave_soon(_CLOSED_EXIT)
    raise SystemExit(_CLOSED_EXIT) from None


def outlive_readers(then: str) -> None:
  """Lets the process go on where its output can no longer be written.

  The reader may have gone, as `head` or a terminal, or the disk may be full
  that the output is on. One line on standard error says so, and ends in `then`.
  """

  def tell(error: OSError) -> None:
    why = f"standard output cannot be written ({error.strerror})"
    say(f"{why}: {then}")

  for name in _NAMES[1:]:
    stream = getattr(sys, name)
    if type(stream) is not io.TextIOWrapper:  # A notebook's, or a test's.
      continue
    stream.flush()
    raw: Any = _Lasting(stream.fileno(), tell if name == "stdout" else None)
    setattr(
      sys,
      name,
      io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
      ),
    )


class _Lasting(io.FileIO):
  """A stream that drops all that follows its first error."""

  def __init__(self, number: int, tell: Callable[[OSError], None] | None):
    super().__init__(number, "w", closefd=False)
    self._tell, self._is_lost = tell, False

  def write(self, data: Any) -> int:
    if not self._is_lost:
      try:
        return super().write(data)
      except OSError as error:
        self._is_lost = True
        if self._tell is not None:
          self._tell(error)
    return memoryview(data).nbytes
