"""One file from a server to the cache.

A file gets its name only once it is complete, of the right size, of the right
checksum where one is known, and on the disk. What came before the connection
was cut stays beside it as `.part`, and this call or a later one goes on from
there, unless the server's file has changed. After any other failure no part
stays.

A failure is a ValueError or an OSError whose message is one line.
"""

import contextlib
import hashlib
import os
import pathlib
import re
import shlex
import time
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

import requests
from rich.filesize import decimal

from vit_jax.pretrained.answers import (
  ELSEWHERE,
  CutError,
  Remote,
  answer,
  check_status,
  checked,
  continues,
  describe,
  shown,
)
from vit_jax.pretrained.cache import only_one, place, writing
from vit_jax.pretrained.known import PICKLES
from vit_jax.pretrained.pickles import conversion
from vit_jax.pretrained.progress import Report

BACKOFF_SECONDS = (1, 2, 4, 8)
"""Waits before an attempt is repeated, while none of them gets any further."""

_CHUNK = 2**18


def fetch(
  url: str, *, size: int | None = None, sha256: str | None = None
) -> pathlib.Path:
  """Downloads one file, unless the cache has it.

  Args:
    url: https:// or http://.
    size: Bytes that it must have, where known.
    sha256: In hexadecimal, where known.

  Raises:
    ValueError, OSError: a failed download, or not the file that was wanted.
  """
  url = checked(url)
  _refuse_pickle(url)
  sha256 = sha256.lower() if sha256 else None
  target = place(url, _file_name(url))
  if _is_there(target, size, sha256):
    return target
  with only_one(target):
    if not _is_there(target, size, sha256):
      with writing(target):
        target.unlink(missing_ok=True)  # What is there is not what is wanted.
      download(url, target, size, sha256)
  return target


def _refuse_pickle(url: str) -> None:
  """Raises for an address that ends as pickles do."""
  if unquote(urlsplit(url).path).lower().endswith(PICKLES):
    get = f"curl -LO {shlex.quote(url)} && "
    raise ValueError(
      f"{shown(url)} is a pickle, {conversion(_file_name(url), get)}, and give "
      "that file."
    )


def _file_name(url: str) -> str:
  """The last part of an address, as a harmless file name."""
  last = unquote(urlsplit(url).path).rpartition("/")[2]
  return re.sub(r"[^A-Za-z0-9._+-]", "_", last)[-100:].lstrip(".") or "file"


def _is_there(
  target: pathlib.Path, size: int | None, sha256: str | None
) -> bool:
  return (
    target.is_file()
    and size in (None, target.stat().st_size)
    and (sha256 is None or _digest(target, "sha256") == sha256)
  )


def download(
  url: str,
  target: pathlib.Path,
  size: int | None = None,
  sha256: str | None = None,
) -> Remote:
  """Brings `url` to `target`, in as many attempts as get further."""
  part = target.with_name(f"{target.name}.part")
  try:
    with Report(shown(url), target.name) as report:
      remote = _complete(url, part, size, report)
      _verify(url, part, sha256 or remote.sha256, remote.md5)
      with writing(target):
        os.replace(part, target)
        _seal(part).unlink(missing_ok=True)
      report.done(target)
  except CutError:
    if not _left(part)[0]:
      _drop(part)
    raise
  except (OSError, ValueError):
    _drop(part)
    raise
  return remote


def _complete(
  url: str, part: pathlib.Path, size: int | None, report: Report
) -> Remote:
  """Attempts it until `part` lacks nothing, or too many get no further."""
  failures, furthest = 0, 0
  while True:
    try:
      return _attempt(url, part, size, report)
    except CutError as error:
      if not error.repeat and not failures:
        raise
      if (reached := _left(part)[0]) > furthest:
        failures, furthest = 0, reached
      if failures == len(BACKOFF_SECONDS):
        what = f"{error.what}, {failures + 1} times in a row"
        raise CutError(url, what) from error
      report.say(f"{error.what}; asking again")
      time.sleep(BACKOFF_SECONDS[failures])
      failures += 1


def _attempt(
  url: str, part: pathlib.Path, size: int | None, report: Report
) -> Remote:
  """Asks for what `part` lacks; returns when it lacks nothing."""
  start, validator = _left(part)
  headers = {}
  if start:
    headers = {"Range": f"bytes={start}-", "If-Range": validator}
  with answer(url, headers) as (response, hub):
    if start and not continues(response, start, validator):
      if response.status_code in (206, 416):  # Not what was asked for.
        _drop(part)
        return _attempt(url, part, size, report)
      start = 0
    check_status(url, response, 206 if start else 200)
    remote = describe(response, hub)
    if size is not None and remote.size not in (None, size):
      raise ValueError(
        f"{shown(url)} has {remote.size:,} bytes, {size:,} were needed; it is "
        "not the file that was wanted."
      )
    size = remote.size if size is None else size
    report.start(start, size)
    with writing(part), open(part, "ab" if start else "wb") as file:
      if not start:
        _seal(part).write_text(remote.validator or "", "utf-8")
      for chunk in _chunks(url, response, start, size):
        file.write(chunk)
        report.advance(len(chunk))
      file.flush()
      os.fsync(file.fileno())
  return remote


def _chunks(
  url: str, response: requests.Response, start: int, size: int | None
) -> Iterator[bytes]:
  """The body of an answer, which ends at `size` or raises."""
  reached = start
  of_size = "" if size is None else f" of {decimal(size)}"
  try:
    for chunk in response.iter_content(_CHUNK):
      reached += len(chunk)
      if size is not None and reached > size:
        raise ValueError(
          f"{shown(url)} sent more than the {size:,} bytes it should have; "
          f"{ELSEWHERE}."
        )
      yield chunk
  except requests.RequestException as error:
    what = f"the connection ended after {decimal(reached)}{of_size}"
    raise CutError(url, what) from error
  if size is not None and reached < size:
    raise CutError(url, f"the answer ended after {decimal(reached)}{of_size}")


def _verify(
  url: str, part: pathlib.Path, sha256: str | None, md5: str | None
) -> None:
  kind, wanted = ("sha256", sha256) if sha256 else ("md5", md5)
  if wanted and (came := _digest(part, kind)) != wanted:
    raise ValueError(
      f"{shown(url)} came with {kind} {came}, {wanted} was needed; it was "
      f"damaged on its way or replaced: try again, or {ELSEWHERE}."
    )


def _digest(path: pathlib.Path, kind: str) -> str:
  with writing(path), open(path, "rb") as file:
    return hashlib.file_digest(
      file, lambda: hashlib.new(kind, usedforsecurity=False)
    ).hexdigest()


def _left(part: pathlib.Path) -> tuple[int, str]:
  """Bytes of an earlier attempt that can be used, and their validator."""
  try:
    validator = _seal(part).read_text("utf-8")
    return (part.stat().st_size, validator) if validator else (0, "")
  except (OSError, ValueError):
    return 0, ""


def _seal(part: pathlib.Path) -> pathlib.Path:
  """The file that says which file of the server a part belongs to."""
  return part.with_name(f"{part.name}.etag")


def _drop(part: pathlib.Path) -> None:
  for path in (part, _seal(part)):
    with contextlib.suppress(OSError):
      path.unlink()
