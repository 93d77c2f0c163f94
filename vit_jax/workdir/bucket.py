"""Objects on Google Cloud Storage, for runs whose workdir is gs://bucket/run.

epath reads and writes whole objects. This module adds what it lacks: to append
to an object, to write one only if nobody else has, and to say why access
failed.
"""

import contextlib
import functools
import os
import pathlib
import secrets
from collections.abc import Iterator
from typing import Any

import jax
from etils import epath

from vit_jax.runtime import extras
from vit_jax.runtime.files import Path

PATIENCE = 30  # Seconds during which a failed request is retried.
_ROLES = "Storage Object User (roles/storage.objectUser) and "
_ROLES += "Storage Legacy Bucket Reader (roles/storage.legacyBucketReader)"


def is_address(path: Path) -> bool:
  """Whether a path is an address such as gs://bucket/run, not a local one."""
  return "://" in os.fspath(path)


def blob(address: Path) -> Any:
  """The object at an address, a `Blob` of google-cloud-storage.

  Raises ValueError without the extra `gcs`, and OSError without credentials.
  """
  name, _, key = os.fspath(address).removeprefix("gs://").partition("/")
  return client().bucket(name).blob(key)


@functools.cache
def client() -> Any:
  """The client of Google Cloud Storage; raises as `blob` does."""
  extras.load("gcsfs", "gcs")
  storage = extras.load("google.cloud.storage", "gcs")
  auth = extras.load("google.auth.exceptions", "gcs")
  try:
    return storage.Client()
  except auth.GoogleAuthError as error:
    raise OSError(f"gs:// cannot be used: {reason(error)}") from error


@functools.cache
def retry() -> Any:
  """The retry policy: server errors are retried for half a minute."""
  storage = extras.load("google.cloud.storage.retry", "gcs")
  return storage.DEFAULT_RETRY.with_timeout(PATIENCE)


def status(error: BaseException) -> int | None:
  """The HTTP status that an error of Google's libraries stands for, if any."""
  code = getattr(error, "code", None)
  return int(code) if isinstance(code, int) else None


class LibraryError(Exception):
  """Stands for an error of another library, which is its cause."""


@contextlib.contextmanager
def as_library_error(path: Path) -> Iterator[None]:
  """Raises a `LibraryError` for any error of a store's libraries.

  Callers can then tell it from an error in our own code. Errors on a local
  path, and OSError and ValueError, are raised as they are.
  """
  try:
    yield
  except (OSError, ValueError):
    raise
  except Exception as error:
    if not is_address(path):
      raise
    raise LibraryError(reason(error)) from error


@contextlib.contextmanager
def as_os_error(what: str = "") -> Iterator[None]:
  """Raises an OSError for any error, of one line that begins with `what`."""
  try:
    yield
  except Exception as error:
    raise OSError(f"{what}{reason(error)}") from error


def reason(error: BaseException) -> str:
  """The first line of the error's cause, shortened in the middle if long."""
  root = cause(error)
  is_key = isinstance(root, KeyError) and root.args  # `str` would quote it.
  text = str(root.args[0] if is_key else root)
  text = text.partition(" [tensorstore_spec")[0]
  line = (text.splitlines() or [type(root).__name__])[0]
  return line if len(line) <= 200 else f"{line[:60]} ... {line[-135:]}"


def cause(error: BaseException) -> BaseException:
  """The first error of a chain, as Orbax raises its own from TensorStore's."""
  while error.__cause__ is not None:
    error = error.__cause__
  return error


def names(folder: epath.Path) -> list[str]:
  """The names of what lies in a local folder, or of an address's folders.

  On gs:// the store itself is asked, as epath may be out of date.
  """
  if not is_address(folder):
    return [path.name for path in folder.iterdir()]
  blobs, prefix = _list_below(folder, delimiter="/")
  list(blobs)  # Listing fills in the prefixes.
  return [name.removeprefix(prefix).rstrip("/") for name in blobs.prefixes]


def sizes(folder: epath.Path) -> dict[str, int]:
  """The bytes of each file in a folder and in those below it, by its path."""
  if not is_address(folder):
    files = (p for p in pathlib.Path(folder).rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): p.stat().st_size for p in files}
  blobs, prefix = _list_below(folder)
  return {
    item.name.removeprefix(prefix): item.size
    for item in blobs
    if not item.name.endswith("/")
  }


def _list_below(folder: epath.Path, **options: Any) -> tuple[Any, str]:
  """The objects below an address, and the prefix of their names."""
  prefix = f"{blob(folder).name.rstrip('/')}/"
  bucket = blob(folder).bucket
  return bucket.list_blobs(prefix=prefix, retry=retry(), **options), prefix


def exists(address: Path) -> bool:
  """Whether there is an object; the store's error is raised if it fails."""
  return blob(address).exists(retry=retry())


def size(address: Path) -> int:
  """The number of bytes of an object; 0 if it is not there."""
  target = blob(address)
  current = target.bucket.get_blob(target.name, retry=retry())
  return current.size if current else 0


def append(address: Path, data: bytes) -> None:
  """Adds bytes to an object, which is made if it is not there.

  The store joins the old object and the new bytes; no old byte is sent again.
  """
  target = blob(address)
  if not target.exists(retry=retry()):
    target.upload_from_string(data, if_generation_match=0, retry=retry())
    return
  target.reload(retry=retry())
  part = blob(f"{os.fspath(address)}.{secrets.token_hex(4)}.part")
  part.upload_from_string(data, if_generation_match=0, retry=retry())
  generation = target.generation
  target.compose([target, part], if_generation_match=generation, retry=retry())
  part.delete(retry=retry())


def check(workdir: str, *, writes: bool, name: str = "workdir") -> None:
  """Checks that a command may use a bucket, or that a path is no file.

  If the command `writes`, an object is written there, read and deleted. `name`
  is the flag or keyword of the workdir, for messages. Raises ValueError if the
  path is empty, or a file in place of the folder to write, the address is not
  gs://bucket/folder, there is no such bucket, or the extra `gcs` is not
  installed, and OSError if a permission is missing or the store cannot be
  reached.
  """
  flag = name.removeprefix("--")
  if not workdir.strip():  # It would be the current folder.
    raise ValueError(f"--{flag} is empty: name a folder, such as runs/digits.")
  if writes and os.path.isfile(os.path.expanduser(workdir)):
    raise ValueError(f"--{flag}={workdir} is a file: name a folder.")
  if is_address(workdir):
    _check_bucket(workdir, writes, name)


def _check_bucket(workdir: str, writes: bool, what: str) -> None:
  """Tries each permission that a run needs at an address.

  Raises ValueError or OSError, as `check` does.
  """
  name, _, key = workdir.removeprefix("gs://").partition("/")
  if not workdir.startswith("gs://") or not name or not key.strip("/"):
    needed = "must be a local folder or gs://bucket/folder."
    raise ValueError(f"{what} {workdir} {needed}")
  probe = blob(f"{workdir.rstrip('/')}/probe_{jax.process_index()}")
  options = {"retry": retry()}
  some = {"prefix": key, "max_results": 1, **options}
  steps = {
    "storage.buckets.get": lambda: probe.bucket.reload(**options),
    "storage.objects.list": lambda: [*probe.bucket.list_blobs(**some)],
  }
  if writes:
    steps |= {
      "storage.objects.create": lambda: probe.upload_from_string("", **options),
      "storage.objects.get": lambda: probe.download_as_bytes(**options),
      "storage.objects.delete": lambda: probe.delete(**options),
    }
  for permission, step in steps.items():
    try:
      step()
    except Exception as error:  # Google's libraries raise errors of all kinds.
      if status(error) == 404:
        why = f"{workdir} cannot be used: there is no bucket {name}."
        raise ValueError(why) from error
      why = f" now: the store does not answer as it should ({reason(error)})"
      if status(error) in (401, 403):
        why = f": the permission {permission} is missing on bucket {name}; "
        why += f"grant {_ROLES}"
      raise OSError(f"{workdir} cannot be used{why}.") from error
