"""Makes untrusted names safe to print and to compare, and prints them."""

import os
import sys
import unicodedata
from typing import TextIO


def printable(text: str) -> str:
  """Escapes the characters that cannot be printed, as in \\n.

  Lone surrogates, which JSON can hold and UTF-8 cannot, are escaped as well.
  """
  if text.isprintable():  # This is fast, and true of nearly every text.
    return text
  return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
  """Escapes as `printable`, but keeps the ends of lines."""
  return "\n".join(map(printable, text.split("\n")))


def say(text: str, stream: TextIO | None = None) -> None:
  """Prints one line or several at once, with what is unprintable escaped.

  Everything that a command prints goes through here or `Display.note`. It is
  printed on standard error, or on another `stream`.
  """
  to = sys.stderr if stream is None else stream
  print(printable_lines(text), file=to, flush=True)


def printable_path(path: str | bytes) -> str:
  """Returns a path as text to print, with non-UTF-8 bytes as \\xNN."""
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
  return text if len(text) <= 120 else f"{text[:117]}..."
