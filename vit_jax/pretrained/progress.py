"""How far a download is, told on stderr."""

import pathlib
import sys
import time

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
  BarColumn,
  DownloadColumn,
  Progress,
  TextColumn,
  TimeRemainingColumn,
  TransferSpeedColumn,
)


def say(text: str) -> None:
  """A plain line."""
  _console().print(text, soft_wrap=True)


def _console() -> Console:
  return Console(
    stderr=True,
    highlight=False,
    markup=False,
    # In a notebook plain lines, though its kernel asks for colours.
    force_terminal=sys.stderr.isatty(),
    force_jupyter=False,
  )


class Report:
  """Progress on stderr: a bar on a terminal, else a line at start and end."""

  def __init__(self, address: str, name: str):
    self._console = _console()
    self._address = address
    self._begin = time.perf_counter()
    self._received = 0
    self._started = False
    self._bar = Progress(
      TextColumn("{task.description}"),
      BarColumn(),
      DownloadColumn(),
      TransferSpeedColumn(),
      TimeRemainingColumn(),
      console=self._console,
      disable=not self._console.is_terminal,
    )
    self._task = self._bar.add_task(name, total=None)

  def __enter__(self) -> "Report":
    return self

  def __exit__(self, *_) -> None:
    self._bar.stop()

  def start(self, done: int, size: int | None) -> None:
    """An answer begins, `done` bytes into a file of `size`."""
    if not self._started:
      of_size = "" if size is None else f" ({decimal(size)})"
      self.say(f"downloading {self._address}{of_size}")
      self._bar.start()
      self._started = True
    if done:
      self.say(f"going on after {decimal(done)}")
    self._bar.reset(self._task, total=size, completed=done)

  def advance(self, count: int) -> None:
    """More bytes have come."""
    self._received += count
    self._bar.advance(self._task, count)

  def done(self, target: pathlib.Path) -> None:
    """The file is there."""
    self._bar.stop()
    seconds = time.perf_counter() - self._begin
    self.say(f"{decimal(self._received)} in {seconds:.1f} s: {target}")

  def say(self, text: str) -> None:
    """A plain line, above the bar if there is one."""
    self._console.print(text, soft_wrap=True)
