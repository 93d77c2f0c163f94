"""A file, or a folder of files, that appears whole or not at all."""

import contextlib
import errno
import io
import os
import pathlib
import secrets
import shutil
from collections.abc import Iterator


def local_path(name: str) -> pathlib.Path:
  """Where something is to be written.

  Raises:
    ValueError: if it is empty, or an address.
  """
  if not name:
    raise ValueError("the name of what to write is empty: give a path.")
  if "://" in name:
    raise ValueError(
      f"{name} is an address, and only local files can be written: give a path."
    )
  return pathlib.Path(os.path.expanduser(name))


def local_file(name: str) -> pathlib.Path:
  """Where a file is to be written.

  Raises:
    ValueError: as `local_path`, or if a folder is there.
  """
  path = local_path(name)
  if path.is_dir():
    raise ValueError(f"{name!r} is a folder; name the file to write.")
  return path


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[io.BufferedWriter]:
  """A file to write that takes the place of `path` once it is complete.

  The folders above it are made.
  """
  path = path.resolve()
  with _part(path) as part:
    with open(part, "xb") as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(part, path)


@contextlib.contextmanager
def filling(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """A folder to write to, whose files are in `folder` once all are complete.

  That may be there, and empty; else it is made, and the folders above it.
  """
  folder = folder.resolve()  # As "." has no name.
  with _part(folder) as part:
    part.mkdir()
    yield part
    if folder.exists():  # Not replaced, as a shell may stand in it.
      for file in part.iterdir():
        os.replace(file, folder / file.name)
      part.rmdir()
    else:
      os.replace(part, folder)


@contextlib.contextmanager
def _part(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """A name beside `path` to write to; nothing is left there if that fails.

  Raises:
    OSError: what the system says of that name, in terms of `path`.
  """
  part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    yield part
  except BaseException as error:
    if os.path.isdir(part):
      shutil.rmtree(part, ignore_errors=True)
    elif os.path.lexists(part):
      part.unlink()
    if isinstance(error, OSError) and _is_about(error, part):
      raise _unwritable(path, error) from error
    raise


def _is_about(error: OSError, part: pathlib.Path) -> bool:
  """Whether it is of writing `part`, not of something read meanwhile."""
  if error.filename is None:
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
  name = pathlib.Path(os.fsdecode(error.filename))
  return part in (name, *name.parents) or name in part.parents


def _unwritable(path: pathlib.Path, error: OSError) -> OSError:
  number = error.errno or 0
  if number == errno.EEXIST:  # Where a folder has to be.
    number = errno.ENOTDIR
  found = OSError(
    f"{str(path)!r} cannot be written ({os.strerror(number)}): choose another "
    "place."
  )
  found.errno = number  # Should the file be in a folder of the same kind.
  return found
