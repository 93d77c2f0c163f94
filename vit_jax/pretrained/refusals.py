"""How a file of arrays is refused: in one line that names it and says why."""

import contextlib
from collections.abc import Iterator


class UnreadableFileError(ValueError):
  """A file of arrays that cannot be read; one line says which and why."""


class RefusalError(Exception):
  """Why a file is refused, without its name."""


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
  """Turns whatever goes wrong with a file into one line that names it."""
  try:
    yield
  except UnreadableFileError:  # Of a shard, which is named already.
    raise
  except RefusalError as error:
    raise UnreadableFileError(f"{path!r}: {error}") from None
  except Exception as error:
    if isinstance(error, OSError) and error.errno is not None:
      raise OSError(error.errno, error.strerror, path) from error
    raise UnreadableFileError(
      f"{path!r}: it cannot be read ({type(error).__name__}: {line(error)}); "
      "get it again."
    ) from error


def line(error: Exception) -> str:
  """What a library says, which may quote the file, in a line of fair length."""
  text = "".join(c if c.isprintable() else " " for c in str(error))
  return short(text).rstrip(". ")


def quoted(value: object) -> str:
  """A value from a file, as Python writes it, of fair length."""
  return short(repr(value))


def short(text: object) -> str:
  """The text, or its beginning."""
  text = str(text)
  return text if len(text) <= 120 else f"{text[:117]}..."
