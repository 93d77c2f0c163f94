"""Restarts a run after a failure that a restart can mend.

Such failures are a lost peer, a worker or a run that was killed for lack of
memory, and a crash in compiled code, but not bad input or a loss that is not
finite. With several hosts, each host's supervisor restarts its own process, and
all processes meet at the coordinator.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from vit_jax.runtime.printable import say

MENDABLE = 75  # EX_TEMPFAIL: the same command may succeed later.
_TOLD = (signal.SIGTERM, signal.SIGINT)  # Requests to stop.
WAIT = 5  # Seconds before a restart.


def supervise(
  restarts: int,
  newest_step: Callable[[], int | None],
  command: Sequence[str] = (),
) -> int:
  """Runs this command in a child process, and restarts it where that helps.

  Returns the exit code of the last start.

  Args:
    restarts: The most restarts in a row without a new checkpoint.
    newest_step: Returns the step of the newest checkpoint, or None.
    command: The command to run; by default this one, without supervision.
  """
  command = command or [sys.executable, *_unsupervised(sys.orig_argv[1:])]
  before = newest_step()
  fruitless = 0  # Restarts in a row without a new checkpoint.
  # Restart if the exit code asks for it, or if the command was killed by a
  # signal that was no request to stop.
  while (code := _run(command)) == MENDABLE or (
    code < 0 and -code not in _TOLD
  ):
    now = newest_step()
    fruitless = 1 if now != before else fruitless + 1
    before = now
    then = f"restart {fruitless} of at most {restarts} until a new checkpoint."
    if fruitless > restarts:
      then = f"{restarts} restarts brought no new checkpoint: giving up."
    trouble = f"trouble (exit code {code})"
    cause = trouble if code == MENDABLE else signal.Signals(-code).name
    say(f"The run was ended by {cause}; {then}")
    if fruitless > restarts:
      break
    time.sleep(WAIT)
  return 128 - code if code < 0 else code


def _unsupervised(words: Sequence[str]) -> Iterator[str]:
  """Yields the words of a command line without --restarts and its value."""
  following = iter(words)
  for word in following:
    name, *value = word.split("=", 1)
    if name not in ("--restarts", "-restarts"):
      yield word
    elif not value:
      next(following)


def newest_step(workdir: str) -> int | None:
  """The newest checkpoint's step, read without JAX; None if there is none.

  On gs://, an unfinished checkpoint counts as well.
  """
  folder = f"{os.path.expanduser(workdir)}/checkpoints"
  try:
    if "://" in folder:
      import fsspec

      names = fsspec.filesystem("gs").ls(folder, detail=False, refresh=True)
    else:
      names = os.listdir(folder)
  except Exception:  # Google's libraries raise errors of all kinds.
    return None
  steps = (name.rstrip("/").rpartition("/")[2] for name in names)
  numbers = (step for step in map(step_of, steps) if step is not None)
  return max(numbers, default=None)


def step_of(name: str) -> int | None:
  """The step in the name of a checkpoint's folder; None for other names.

  A step is an int32 on the devices, and its name has only one form: without
  leading zeros, and without digits of other scripts.
  """
  if not re.fullmatch("0|[1-9][0-9]{,9}", name):
    return None
  step = int(name)
  return step if step < 2**31 else None


def _run(command: Sequence[str]) -> int:
  """Runs a command, passes SIGTERM on to it, and returns its exit code."""
  with subprocess.Popen(command) as process:
    passed = {
      # A terminal sends Ctrl-C to both.
      signal.SIGINT: lambda *_: None,
      signal.SIGTERM: lambda number, _: process.send_signal(number),
    }
    before = {n: signal.signal(n, handler) for n, handler in passed.items()}
    try:
      return process.wait()
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)
