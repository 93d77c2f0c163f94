"""Makes text safe to print and to compare, fits it to a terminal, prints it."""

import contextlib
import os
import re
import sys
import unicodedata
from collections.abc import Sequence
from typing import TextIO

_WIDTH = 80  # Columns, if a terminal does not tell its own.
_FIRST_COLUMN = re.compile(r" *\S+ {2,}")
_CELL = re.compile(r"( *)(\S+(?: \S+)*)")
# Code in backquotes and a command at the end stay whole, to be copied.
_WORD = re.compile(r"( *)(`[^`]*`\S*|(?<=: )vit_jax .*|\S+)")


def printable(text: str) -> str:
  """Escapes the characters that cannot be printed, as in \\n.

  Lone surrogates, which JSON can hold and UTF-8 cannot, are escaped as well.
  """
  if text.isprintable():  # This is fast, and true of nearly every text.
    return text
  return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def counted(count: int, one: str, several: str = "") -> str:
  """A number with its noun, as in "1 target" and "2 targets".

  >>> from vit_jax.runtime.printable import counted
  >>> counted(1, "target"), counted(1_200, "class", "classes")
  ('1 target', '1,200 classes')
  """
  return f"{count:,} {one if count == 1 else several or one + 's'}"


def printable_lines(text: str) -> str:
  """Escapes as `printable`, but keeps the ends of lines."""
  return "\n".join(map(printable, text.split("\n")))


def first_of(texts: Sequence[str], most: int) -> str:
  """The first `most` texts, joined by commas, and how many more there are.

  >>> from vit_jax.runtime.printable import first_of
  >>> first_of(["cat", "dog", "eel"], most=2)
  'cat, dog and 1 more'
  """
  shown = ", ".join(texts[:most])
  more = len(texts) - most
  return f"{shown} and {more:,} more" if more > 0 else shown


def say(text: str, stream: TextIO | None = None, whole: bool = False) -> None:
  """Prints one line or several at once, with unprintable characters escaped.

  Everything that a command prints goes through here or `Display.note`. The text
  is printed on standard error, or on another `stream`. On a terminal, lines
  that are too wide are wrapped, unless they have to stay `whole`, as code does.
  """
  target = sys.stderr if stream is None else stream
  text = printable_lines(text)
  print(text if whole else fit(text, target), file=target, flush=True)


said_once: set[str] = set()  # The texts that `say_once` has printed.


def say_once(text: str) -> None:
  """Prints as `say`, unless this process has printed the same text before."""
  if text not in said_once:
    said_once.add(text)
    say(text)


def fit(text: str, stream: TextIO) -> str:
  """The lines wrapped to the width of a terminal; unchanged for a pipe."""
  if not stream.isatty():
    return text
  width = int(os.environ.get("COLUMNS", "").strip() or 0)
  with contextlib.suppress(OSError):
    width = width or os.get_terminal_size(stream.fileno()).columns
  return wrap(text, width or _WIDTH)


def wrap(text: str, width: int) -> str:
  """The text with its lines broken between words to at most `width` columns.

  Continuation lines are indented: to the second column if the first word of the
  line is followed by several spaces, such as "model    B/16", and else by two
  spaces. Words that are longer, such as paths, and code and commands stay
  whole.
  """
  return "\n".join(_wrap_line(line, width) for line in text.split("\n"))


def _wrap_line(line: str, width: int) -> str:
  """`wrap` for one line."""
  if len(line) <= width and line.isascii():  # Nearly every line.
    return line
  indent = len(line) - len(line.lstrip()) + 2
  column = _FIRST_COLUMN.match(line)
  if column and column.end() <= width // 3:
    indent = column.end()
  broken = [""]
  for spaces, word in _pieces(line, width // 2):
    if broken[-1].strip() and _cells(broken[-1] + spaces + word) > width:
      broken.append(" " * indent + word)
    else:
      broken[-1] += spaces + word
  return "\n".join(broken)


def _pieces(line: str, short: int) -> list[tuple[str, str]]:
  """The unbreakable pieces of a line, each with the spaces before it.

  Pieces are words and, in a line with columns, cells of up to `short` letters.
  """
  pieces = []
  for cell in _CELL.finditer(line):
    is_short = len(cell[2]) <= short and cell[2] != line.strip()
    pieces += [cell.groups()] if is_short else _WORD.findall(cell[0])
  return pieces


def _cells(text: str) -> int:
  """Columns of a terminal that a text takes; some letters take two."""
  if text.isascii():
    return len(text)
  from rich.cells import cell_len

  return cell_len(text)


def printable_path(path: str | bytes) -> str:
  """A path as text to print, with bytes that are not UTF-8 as \\xNN."""
  return printable(os.fsencode(path).decode("utf-8", "backslashreplace"))


def composed(name: str) -> str:
  """A name with its accents composed (NFC), which macOS decomposes."""
  return unicodedata.normalize("NFC", name)


def quoted(value: object) -> str:
  """The value as Python writes it, cut to a reasonable length."""
  return _cut(repr(value))


def one_line(error: Exception) -> str:
  """The error's message in one line, cut to a reasonable length."""
  text = "".join(c if c.isprintable() else " " for c in str(error))
  return _cut(text.rstrip(". "))


def _cut(text: str) -> str:
  """A text of at most 120 characters, with dots if it was cut."""
  return text if len(text) <= 120 else f"{text[:117]}..."
