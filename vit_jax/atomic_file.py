"""A file that appears whole or not at all."""

import contextlib
import io
import os
import pathlib
import secrets
from collections.abc import Iterator


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[io.BufferedWriter]:
  """A file to write that takes the place of `path` once it is complete."""
  path = pathlib.Path(path)
  part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
  try:
    with open(part, "xb") as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(part, path)
  except BaseException as error:
    part.unlink(missing_ok=True)
    if isinstance(error, OSError) and error.errno is not None:
      raise OSError(error.errno, error.strerror, str(path)) from error
    raise
