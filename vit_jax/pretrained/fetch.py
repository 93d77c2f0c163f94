"""Downloads files by https:// or http:// into the cache, each once.

pooch writes a temporary file and renames it when it is complete, so no file in
the cache is half written. Processes that want the same file wait for the first.
A failure is a ValueError or an OSError whose message is one line and shows no
user, password or query of the address.
"""

import base64
import contextlib
import functools
import hashlib
import http.client
import logging
import os
import pathlib
import re
import socket
import ssl
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import filelock
import requests

from vit_jax.runtime.command import cache_folder
from vit_jax.runtime.printable import say

# Longest waits for a connection, and for the next bytes of an answer.
TIMEOUT_SECONDS = (10, 60)
_DAY = 86_400  # Longest wait for another process's download, in seconds.
_OR_ELSEWHERE = "try again later, or download it elsewhere and give its path"
_PRIVATE = (
  "it is not public or does not exist: check the address, or copy the file "
  "yourself and give its path"
)
_MISSING = "there is no such file, so check the address"
_ADVICE = {401: _PRIVATE, 403: _PRIVATE, 404: _MISSING, 410: _MISSING}


def fetch(url: str, sha256: str | None = None) -> pathlib.Path:
  """The path of a file in the cache, to which it is downloaded if needed.

  `url` is an https:// or http:// address, and `sha256` the file's checksum in
  hexadecimal, if it is known. Raises ValueError or OSError if the download
  fails, or the checksum differs.
  """
  target = cached_path(url)
  name = without_secrets(url)
  if sha256 is None and target.is_file():
    return target
  try:
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(f"{target}.lock")
    try:
      guard = lock.acquire(timeout=0)
    except filelock.Timeout:
      say(f"waiting for another process that downloads {target.name}")
      guard = lock.acquire(timeout=_DAY)
    with guard:
      _download(url, target, sha256)
  except requests.RequestException as error:
    message = f"{name}: {explain(error)}; {_OR_ELSEWHERE}."
    raise ConnectionError(message) from error
  except ValueError as error:
    raise ValueError(f"{name}: {error}") from error
  except OSError as error:
    raise OSError(
      f"cannot write {str(target)!r}: {error.strerror or error}; make room, or "
      "set VIT_JAX_CACHE to a folder that has room and can be written."
    ) from error
  return target


def _download(url: str, target: pathlib.Path, sha256: str | None) -> None:
  """Has pooch download `url`, unless `target` exists with the right checksum.

  Without a checksum, a `target` that exists is taken as it is.
  """
  import pooch

  if not target.exists():  # A killed process may have left a partial file.
    for partial in target.parent.iterdir():
      if partial.name != f"{target.name}.lock":
        partial.unlink()
  md5 = ""

  def check_and_take_md5(response: requests.Response, **_: Any) -> None:
    nonlocal md5
    _check_answer(response)
    hashes = response.headers.get("x-goog-hash", "")
    md5 = hashes.partition("md5=")[2].partition(",")[0]

  get = pooch.HTTPDownloader(
    progressbar=sys.stderr.isatty(),
    chunk_size=2**20,
    timeout=TIMEOUT_SECONDS,
    headers={"Accept-Encoding": "identity"},
    hooks={"response": check_and_take_md5},
  )

  def download(_: str, part: str, __: Any) -> None:
    # pooch's own file is for its owner alone, but others may share the cache.
    os.remove(part)
    get(url, part, None)
    with open(part, "rb") as file:
      os.fsync(file.fileno())
      new_md5 = functools.partial(hashlib.md5, usedforsecurity=False)
      checksum = hashlib.file_digest(file, new_md5)
    if md5 and md5 != base64.b64encode(checksum.digest()).decode():
      raise ValueError(f"its md5 is not the server's; {_OR_ELSEWHERE}.")

  registry: Any = {target.name: sha256}
  shown = {target.name: without_secrets(url)}  # pooch prints it.
  store: Any = pooch.Pooch(target.parent, "", registry, shown)
  with _print_log_lines(pooch.get_logger()):
    store.fetch(target.name, downloader=download)


@contextlib.contextmanager
def _print_log_lines(logger: logging.Logger) -> Iterator[None]:
  """Prints a logger's lines by `say`, which fits them to the terminal."""

  def print_record(record: logging.LogRecord) -> bool:
    say(record.getMessage())
    return False

  logger.addFilter(print_record)
  try:
    yield
  finally:
    logger.removeFilter(print_record)


def _check_answer(response: requests.Response) -> None:
  """Raises ValueError unless the status is 200 or an allowed redirect.

  A redirect may lead to https, or keep the scheme of the address.
  """
  if response.is_redirect:
    target = urljoin(response.url, response.headers["Location"])
    if urlsplit(target).scheme not in ("https", urlsplit(response.url).scheme):
      response.close()
      name = without_secrets(target)
      raise ValueError(f"it redirects to {name}, which is not https.")
  elif (status := response.status_code) != 200:
    response.close()
    phrase = http.client.responses.get(status, "")
    advice = _ADVICE.get(status, _OR_ELSEWHERE)
    raise ValueError(f"the server answers {status} {phrase}; {advice}.")


def cached_path(url: str) -> pathlib.Path:
  """The path in the cache that belongs to `url` alone, downloaded or not.

  Raises ValueError if `url` is not an address.
  """
  try:
    request = requests.Request("GET", url.partition("#")[0]).prepare()
    full_url = request.url or ""
    last = unquote(urlsplit(full_url).path).rpartition("/")[2]
  except (requests.RequestException, ValueError) as error:
    name = without_secrets(url)
    raise ValueError(f"{name!r} is not an address to download from.") from error
  key = hashlib.sha256(full_url.encode()).hexdigest()[:16]
  name = re.sub(r"[^A-Za-z0-9._+-]", "_", last)[-100:].lstrip(".") or "file"
  return cache_folder() / key / name


def drop(path: pathlib.Path) -> bool:
  """Removes a download from the cache; False if `path` is not one."""
  if path.parent.parent != cache_folder():
    return False
  path.unlink(missing_ok=True)
  return True


def without_secrets(source: str) -> str:
  """An address without its user, password and query; a path as it is."""
  if "://" not in source:
    return source
  return re.sub(r"//[^/]*@", "//", re.split(r"[?#]", source)[0])


def explain(error: Exception) -> str:
  """Says why a connection failed, from the errors that led to `error`."""
  for cause in causes(error):
    match cause:
      case socket.gaierror():
        return "the host's name does not resolve (is there a network?)"
      case ssl.SSLError():
        return "its certificate is not accepted"
      case ConnectionRefusedError():
        return "the host refuses the connection"
      case TimeoutError() | requests.Timeout():
        return "the host does not answer in time"
      case requests.TooManyRedirects():
        return "it redirects in a circle"
      case http.client.IncompleteRead(partial=int(read), expected=int(missing)):
        total = read + missing
        return f"the connection ended after {read:,} of {total:,} bytes"
  return f"the download failed or was cut ({type(error).__name__})"


def causes(error: BaseException | None) -> Iterator[BaseException]:
  """The error and those that led to it, the newest first."""
  while error is not None:
    yield error
    error = error.__cause__ or error.__context__
