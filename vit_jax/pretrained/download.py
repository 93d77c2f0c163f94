"""From what a user calls a checkpoint to a file or folder on this machine.

Downloads stay in the cache, `$VIT_JAX_CACHE` or else `~/.cache/vit_jax`
(`$XDG_CACHE_HOME/vit_jax`), each address in a folder of its own; delete that to
fetch it anew.

A file gets its name only once it is complete, of the right size, of the right
checksum where one is known, and on the disk. What came before the connection
was cut stays beside it as `.part`, and this call or a later one goes on from
there, unless the server's file has changed. After any other failure no part
stays. Processes that want the same file wait for the first (an empty `.lock`
stays, which blocks nobody).

A failure is a ValueError or an OSError whose message is one line.
"""

import base64
import contextlib
import dataclasses
import difflib
import hashlib
import http
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from urllib.parse import quote, unquote, urljoin, urlsplit

import filelock
import requests
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

from vit_jax.pretrained.known import KNOWN, PICKLES

BACKOFF_SECONDS = (1, 2, 4, 8)
"""Waits before an attempt is repeated, while none of them gets any further."""

TIMEOUT_SECONDS = (10, 60)
"""For a connection, and for the next bytes of an answer."""

_CHUNK = 2**18
_MAX_REDIRECTS = 10
_ELSEWHERE = "download the file elsewhere and give its path"
_HUB_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
_HUB = re.compile(
  rf"({_HUB_NAME})/({_HUB_NAME})(?:@([A-Za-z0-9_][A-Za-z0-9_./-]{{0,199}}))?"
)
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors")


class _CutError(ConnectionError):
  """The server did not answer, or not to the end; what came can be used.

  Attributes:
    what: The trouble, in words.
    repeat: Whether it may help to ask again at once.
  """

  def __init__(self, url: str, what: str, repeat: bool = True):
    super().__init__(
      f"{_shown(url)}: {what}; try again later, or {_ELSEWHERE}."
    )
    self.what, self.repeat = what, repeat


class _MissingError(ValueError):
  """The server has no such file."""


@dataclasses.dataclass(frozen=True)
class _Remote:
  """What a server says of the file it sends; None where it says nothing.

  Attributes:
    size: Bytes of the whole file.
    sha256: Of the whole file, in hexadecimal.
    md5: The same.
    validator: For If-Range: a text that changes with the file.
    commit: Of the Hugging Face repository.
  """

  size: int | None
  sha256: str | None
  md5: str | None
  validator: str | None
  commit: str | None


def locate(source: str) -> pathlib.Path:
  """The local file or folder of a checkpoint, downloaded if it has to be.

  Args:
    source: A path that exists, https:// or http://, gs://bucket/object,
      hf://owner/name[@revision], or a name in `known.KNOWN`.

  Returns:
    A file, or for hf:// a folder that holds `config.json`, the safetensors and
    `preprocessor_config.json` where there is one, under these names.

  Raises:
    ValueError, OSError: no such checkpoint, a pickle, or a failed download.
  """
  path = os.path.expanduser(source)
  if os.path.exists(path):
    if not os.path.isdir(path):
      _refuse_pickle(path)
    return pathlib.Path(path)
  if "://" in source:
    return _from_address(source, None)
  if known := KNOWN.get(source.lower()):
    return _from_address(known.url, known.sha256)
  near = difflib.get_close_matches(source.lower(), KNOWN, n=3, cutoff=0.4)
  ideas = f"; the nearest names are {', '.join(near)}" if near else ""
  if _HUB.fullmatch(source):
    ideas += f"; on Hugging Face it would be hf://{source}"
  raise ValueError(
    f"{source!r} is neither a file or folder here nor a known checkpoint"
    f"{ideas}; `python -m vit_jax.convert --list` lists all names."
  )


def fetch(
  url: str,
  *,
  folder: str | os.PathLike[str] | None = None,
  size: int | None = None,
  sha256: str | None = None,
) -> pathlib.Path:
  """Downloads one file, unless the cache has it.

  Args:
    url: https:// or http://.
    folder: The cache; None is the user's.
    size: Bytes that it must have, where known.
    sha256: In hexadecimal, where known.

  Raises:
    ValueError, OSError: a failed download, or not the file that was wanted.
  """
  url = _checked(url)
  _refuse_pickle(url)
  sha256 = sha256.lower() if sha256 else None
  target = _place(url, _file_name(url), folder)
  if _is_there(target, size, sha256):
    return target
  with _only_one(target):
    if not _is_there(target, size, sha256):
      with _writing(target):
        target.unlink(missing_ok=True)  # What is there is not what is wanted.
      _download(url, target, size, sha256)
  return target


def cache_folder() -> pathlib.Path:
  """Where downloads are kept."""
  if folder := os.environ.get("VIT_JAX_CACHE"):
    return pathlib.Path(folder).expanduser()
  base = os.environ.get("XDG_CACHE_HOME", "")
  if not os.path.isabs(base):  # The standard says to ignore any other.
    base = os.path.expanduser("~/.cache")
  return pathlib.Path(base, "vit_jax")


def _from_address(address: str, sha256: str | None) -> pathlib.Path:
  scheme, _, rest = address.partition("://")
  match scheme.lower():
    case "http" | "https":
      return fetch(address, sha256=sha256)
    case "gs":
      return fetch(_storage_url(rest), sha256=sha256)
    case "hf":
      return _fetch_repository(rest)
  raise ValueError(
    f"{address!r}: {scheme}:// cannot be read; give https://, "
    "gs://bucket/object, hf://owner/name or a path."
  )


def _storage_url(rest: str) -> str:
  """Google Cloud Storage's public address of `bucket/object`."""
  bucket, _, name = rest.partition("/")
  steps = name.split("/")
  if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", bucket) or (
    {"", ".", ".."} & set(steps)
  ):
    raise ValueError(
      f"{'gs://' + rest!r} names no object; write gs://bucket/folder/file."
    )
  host = os.environ.get("STORAGE_EMULATOR_HOST")
  if not host:
    host = "https://storage.googleapis.com"
  elif "://" not in host:
    host = f"http://{host}"
  return f"{host.rstrip('/')}/{bucket}/{quote(name)}"


def _hub() -> str:
  return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def _fetch_repository(rest: str) -> pathlib.Path:
  """The folder of `owner/name[@revision]`, there only once it is complete."""
  match = _HUB.fullmatch(rest)
  if not match or ".." in rest or "//" in rest or rest.endswith("/"):
    raise ValueError(
      f"{'hf://' + rest!r} names no repository; write hf://owner/name, or "
      "hf://owner/name@revision."
    )
  owner, name, revision = match.groups()
  root = _checked(f"{_hub()}/{owner}/{name}/resolve")
  folder = _place(f"{root}@{revision or 'main'}", f"{owner}--{name}", None)
  if folder.is_dir():
    return folder
  with _only_one(folder):
    if not folder.is_dir():
      _fill(folder, root, revision or "main", f"hf://{rest}")
  return folder


def _fill(folder: pathlib.Path, root: str, revision: str, source: str) -> None:
  """Brings a repository's files to a `.part` folder and gives it its name."""
  work = folder.with_name(f"{folder.name}.part")
  try:
    with _writing(work):
      work.mkdir(exist_ok=True)
    config = work / "config.json"
    commit = _download(
      f"{root}/{_segment(revision)}/config.json", config
    ).commit
    # All files of one commit: a branch may move while it is downloaded.
    inner = work / (commit or "unnamed")
    with _writing(work):
      if commit is None:
        shutil.rmtree(inner, ignore_errors=True)
      inner.mkdir(exist_ok=True)
      os.replace(config, inner / config.name)
    _fetch_weights(inner, f"{root}/{_segment(commit or revision)}", source)
    with _writing(folder):
      os.rename(inner, folder)
    shutil.rmtree(work, ignore_errors=True)
  except _CutError:
    with contextlib.suppress(OSError):
      work.rmdir()  # Only if nothing came.
    raise
  except (OSError, ValueError):
    shutil.rmtree(work, ignore_errors=True)
    raise


def _fetch_weights(folder: pathlib.Path, base: str, source: str) -> None:
  """Everything beside `config.json`."""

  def get(name: str) -> bool:
    if (folder / name).is_file():  # From a call that was cut later.
      return True
    try:
      _download(f"{base}/{name}", folder / name)
    except _MissingError:
      return False
    return True

  get("preprocessor_config.json")
  if get("model.safetensors"):
    return
  index = "model.safetensors.index.json"
  if not get(index):
    pickle = "pytorch_model.bin"
    with _answer(f"{base}/{pickle}", method="HEAD") as (response, hub):
      only_pickle = response.ok or "X-Linked-Etag" in hub
    if only_pickle:
      raise ValueError(
        f"{source} has its weights only as {pickle}, {_conversion(pickle)}, "
        "and give the folder that holds it beside config.json."
      )
    raise ValueError(
      f"{source} has no model.safetensors; choose a repository or a revision "
      "that has one."
    )
  for shard in _shards(folder / index, source):
    if not get(shard):
      raise ValueError(
        f"{source} has no {shard}, which its {index} names; choose another "
        "revision."
      )


def _shards(index: pathlib.Path, source: str) -> list[str]:
  """The files that an index names, each of which must be a plain name."""
  try:
    names = set(json.loads(index.read_bytes())["weight_map"].values())
    strange = [n for n in names if not _SHARD.fullmatch(n) or ".." in n]
  except (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
  ) as error:
    raise ValueError(
      f"{source}: {index.name} is not an index of safetensors; choose another "
      "revision."
    ) from error
  if strange or not names:
    raise ValueError(
      f"{source}: {index.name} names {sorted(strange)[:1] or 'no file'}; only "
      "plain names of safetensors are read."
    )
  return sorted(names)


def _segment(text: str) -> str:
  return quote(text, safe="")


def _download(
  url: str,
  target: pathlib.Path,
  size: int | None = None,
  sha256: str | None = None,
) -> _Remote:
  """Brings `url` to `target`, in as many attempts as get further."""
  part = target.with_name(f"{target.name}.part")
  failures, furthest = 0, 0
  try:
    with _Report(url, target.name) as report:
      while True:
        try:
          remote = _attempt(url, part, size, sha256, report)
          break
        except _CutError as error:
          if not error.repeat and not failures:
            raise
          if (reached := _left(part)[0]) > furthest:
            failures, furthest = 0, reached
          if failures == len(BACKOFF_SECONDS):
            what = f"{error.what}, {failures + 1} times in a row"
            raise _CutError(url, what) from error
          report.say(f"{error.what}; asking again")
          time.sleep(BACKOFF_SECONDS[failures])
          failures += 1
      _verify(url, part, sha256 or remote.sha256, remote.md5)
      with _writing(target):
        os.replace(part, target)
        _seal(part).unlink(missing_ok=True)
      report.done(target)
  except _CutError:
    if not _left(part)[0]:
      _drop(part)
    raise
  except (OSError, ValueError):
    _drop(part)
    raise
  return remote


def _attempt(
  url: str,
  part: pathlib.Path,
  size: int | None,
  sha256: str | None,
  report: "_Report",
) -> _Remote:
  """Asks for what `part` lacks; returns when it lacks nothing."""
  start, validator = _left(part)
  headers = {}
  if start:
    headers = {"Range": f"bytes={start}-", "If-Range": validator}
  with _answer(url, headers) as (response, hub):
    if start and not _continues(response, start, validator):
      if response.status_code in (206, 416):  # Not what was asked for.
        _drop(part)
        return _attempt(url, part, size, sha256, report)
      start = 0
    _check_status(url, response, 206 if start else 200)
    remote = _describe(response, hub)
    if size is not None and remote.size not in (None, size):
      raise ValueError(
        f"{_shown(url)} has {remote.size:,} bytes, {size:,} were needed; it "
        "is not the file that was wanted."
      )
    size = remote.size if size is None else size
    report.start(start, size)
    with _writing(part), open(part, "ab" if start else "wb") as file:
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
          f"{_shown(url)} sent more than the {size:,} bytes it should have; "
          f"{_ELSEWHERE}."
        )
      yield chunk
  except requests.RequestException as error:
    what = f"the connection ended after {decimal(reached)}{of_size}"
    raise _CutError(url, what) from error
  if size is not None and reached < size:
    raise _CutError(url, f"the answer ended after {decimal(reached)}{of_size}")


def _describe(response: requests.Response, hub: dict[str, str]) -> _Remote:
  """Reads the headers; `hub` are Hugging Face's, which come before a redirect.

  Of an answer that is encoded, though none was asked for, they speak of bytes
  that are not written.
  """
  plain = response.headers.get("Content-Encoding", "identity") == "identity"
  length = response.headers.get("Content-Length", "")
  if response.status_code == 206:
    length = response.headers["Content-Range"].rpartition("/")[2]
  length = hub.get("X-Linked-Size", length if plain else "")
  sha256 = hub.get("X-Linked-Etag", "").strip('"').lower()
  commit = hub.get("X-Repo-Commit", "")
  md5 = re.search(
    r"\bmd5=([\w+/]{22}==)", response.headers.get("x-goog-hash", "")
  )
  return _Remote(
    size=int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None,
    sha256=sha256 if re.fullmatch(r"[0-9a-f]{64}", sha256) else None,
    md5=base64.b64decode(md5[1]).hex() if md5 and plain else None,
    validator=_validator(response) if plain else None,
    commit=commit if re.fullmatch(r"[0-9a-f]{40}", commit) else None,
  )


def _validator(response: requests.Response) -> str | None:
  """A strong ETag, else the date; If-Range allows no weak ETag."""
  etag = response.headers.get("ETag", "")
  if etag.startswith('"'):
    return etag
  return response.headers.get("Last-Modified")


def _continues(response: requests.Response, start: int, validator: str) -> bool:
  """Whether an answer goes on at `start` with the file of `validator`."""
  span = response.headers.get("Content-Range", "")
  return (
    response.status_code == 206
    and span.startswith(f"bytes {start}-")
    and _validator(response) in (None, validator)
  )


def _verify(
  url: str, part: pathlib.Path, sha256: str | None, md5: str | None
) -> None:
  kind, wanted = ("sha256", sha256) if sha256 else ("md5", md5)
  if wanted and (came := _digest(part, kind)) != wanted:
    raise ValueError(
      f"{_shown(url)} came with {kind} {came}, {wanted} was needed; it was "
      f"damaged on its way or replaced: try again, or {_ELSEWHERE}."
    )


def _digest(path: pathlib.Path, kind: str) -> str:
  with _writing(path), open(path, "rb") as file:
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


@contextlib.contextmanager
def _answer(
  url: str, headers: dict[str, str] | None = None, method: str = "GET"
) -> Iterator[tuple[requests.Response, dict[str, str]]]:
  """The answer to a request, its body unread, and Hugging Face's headers.

  Redirects are followed here, for the first answer has headers that the last
  one lacks, and the user's token is for one host alone.
  """
  headers = {"Accept-Encoding": "identity"} | (headers or {})
  hub: dict[str, str] = {}
  with requests.Session() as session:
    for _ in range(_MAX_REDIRECTS):
      try:
        response = session.request(
          method,
          url,
          headers=headers,
          auth=_authorize,
          stream=True,
          allow_redirects=False,
          timeout=TIMEOUT_SECONDS,
        )
      except requests.RequestException as error:
        raise _CutError(url, _trouble(error), repeat=False) from error
      with response:
        for name in ("X-Linked-Etag", "X-Linked-Size", "X-Repo-Commit"):
          if name in response.headers:
            hub.setdefault(name, response.headers[name])
        if not response.is_redirect:
          yield response, hub
          return
        url = _redirected(url, response.headers["Location"])
  raise ValueError(f"{_shown(url)} leads in a circle; {_ELSEWHERE}.")


def _redirected(url: str, location: str) -> str:
  target = _checked(urljoin(url, location))
  if url.startswith("https://") and not target.startswith("https://"):
    raise ValueError(
      f"{_shown(url)} leads to {_shown(target)}, which is not encrypted; "
      f"{_ELSEWHERE}."
    )
  return target


def _authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
  """Adds the user's token for Hugging Face, to requests to that host alone.

  That there is such a function also keeps `requests` from reading ~/.netrc.
  """
  token = os.environ.get("HF_TOKEN", "").strip()
  if token and _is_hub(request.url or ""):
    if not re.fullmatch(r"[!-~]+", token):
      raise ValueError("HF_TOKEN holds more than a token; set or unset it.")
    request.headers["Authorization"] = f"Bearer {token}"
  return request


def _is_hub(url: str) -> bool:
  return urlsplit(url)[:2] == urlsplit(_checked(f"{_hub()}/"))[:2]


def _check_status(url: str, response: requests.Response, wanted: int) -> None:
  code = response.status_code
  if code == wanted:
    return
  phrases = {status.value: status.phrase for status in http.HTTPStatus}
  what = f"the server answers {code} {phrases.get(code, '')}".rstrip()
  if code in (404, 410):
    raise _MissingError(
      f"{_shown(url)}: {what}; there is no such file, so check the address."
    )
  if code in (401, 403):
    token = ", set HF_TOKEN" if _is_hub(url) else ""
    raise ValueError(
      f"{_shown(url)}: {what}; it is not public or does not exist: check the "
      f"address{token}, or copy the file yourself and give its path."
    )
  if code in (408, 429) or code >= 500:
    raise _CutError(url, what)
  raise ValueError(f"{_shown(url)}: {what}; {_ELSEWHERE}.")


def _trouble(error: BaseException) -> str:
  """Why there is no answer, found in what led to `error`."""
  cause: BaseException | None = error
  while cause is not None:
    match cause:
      case socket.gaierror():
        return "the host's name does not resolve (is there a network?)"
      case ssl.SSLError():
        return "its certificate is not accepted"
      case ConnectionRefusedError():
        return "the host refuses the connection"
      case TimeoutError() | requests.Timeout():
        return "the host does not answer in time"
    cause = cause.__cause__ or cause.__context__
  return "the host cannot be reached"


def _checked(url: str) -> str:
  """`url` as it is sent, or a ValueError if it is none."""
  try:
    sent = url.partition("#")[0]
    for _ in range(2):  # The first decodes %2e, the second resolves "..".
      sent = requests.Request("GET", sent).prepare().url or ""
  except (requests.RequestException, ValueError) as error:
    raise ValueError(f"{url!r} is not an address to download from.") from error
  if not sent.startswith(("http://", "https://")):
    raise ValueError(
      f"{url!r} is not an address to download from; it needs https://."
    )
  return sent


def _shown(url: str) -> str:
  """The address without what may be secret: its user and query."""
  parts = urlsplit(url)
  return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _place(
  url: str, name: str, folder: str | os.PathLike[str] | None
) -> pathlib.Path:
  """The path in the cache that belongs to `url` and to no other."""
  key = hashlib.sha256(url.encode()).hexdigest()[:16]
  return pathlib.Path(folder or cache_folder(), key, name)


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


@contextlib.contextmanager
def _only_one(target: pathlib.Path) -> Iterator[None]:
  """Lets one process at a time make `target`.

  The system itself frees the lock of a process that is killed.
  """
  lock = filelock.FileLock(target.with_name(f"{target.name}.lock"))
  with _writing(target):
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
      lock.acquire(timeout=0)
    except filelock.Timeout:
      _console().print(
        f"waiting for another process that downloads {target.name}",
        soft_wrap=True,
      )
      lock.acquire()
  try:
    yield
  finally:
    lock.release()


@contextlib.contextmanager
def _writing(path: pathlib.Path) -> Iterator[None]:
  """Puts the system's errors about `path` into words."""
  try:
    yield
  except OSError as error:
    if error.errno is None:  # It is in words already.
      raise
    raise OSError(
      f"cannot write {str(path)!r}: {error.strerror}; make room, or set "
      "VIT_JAX_CACHE to a folder that has room and can be written."
    ) from error


def _refuse_pickle(source: str) -> None:
  """Raises for a path or an address that ends as pickles do."""
  is_url = source.startswith(("http://", "https://"))
  path = urlsplit(source).path if is_url else source
  if unquote(path).lower().endswith(PICKLES):
    first = f"curl -LO {shlex.quote(source)} && " if is_url else ""
    name = _file_name(source) if is_url else path
    shown = _shown(source) if is_url else repr(source)
    raise ValueError(
      f"{shown} is a pickle, {_conversion(name, first)}, and give that file."
    )


def _conversion(name: str, first: str = "") -> str:
  """What to do about a pickle, with a command that converts it."""
  made = f"{name.rpartition('.')[0]}.safetensors"
  program = (
    "import torch; from safetensors.torch import save_file; "
    f"save_file(torch.load({name!r}, weights_only=True), {made!r})"
  )
  return (
    "which can run code when it is loaded; convert it once where PyTorch is at "
    f"hand, `{first}python -c {_double_quoted(program)}`"
  )


def _double_quoted(program: str) -> str:
  return '"' + re.sub(r'(["\\$`])', r"\\\1", program) + '"'


def _console() -> Console:
  return Console(stderr=True, highlight=False, markup=False)


class _Report:
  """Progress on stderr: a bar on a terminal, else a line at start and end."""

  def __init__(self, url: str, name: str):
    self._console = _console()
    self._url, self._name = url, name
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

  def __enter__(self) -> "_Report":
    return self

  def __exit__(self, *_) -> None:
    self._bar.stop()

  def start(self, done: int, size: int | None) -> None:
    """An answer begins, `done` bytes into a file of `size`."""
    if not self._started:
      of_size = "" if size is None else f" ({decimal(size)})"
      self.say(f"downloading {_shown(self._url)}{of_size}")
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
    """A plain line."""
    self._console.print(text, soft_wrap=True)
