"""What a server answers to a request, over any number of redirects."""

import base64
import contextlib
import dataclasses
import http
import os
import re
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urljoin, urlsplit

import requests

TIMEOUT_SECONDS = (10, 60)
"""For a connection, and for the next bytes of an answer."""

ELSEWHERE = "download the file elsewhere and give its path"

_MAX_REDIRECTS = 10


class CutError(ConnectionError):
  """The server did not answer, or not to the end; what came can be used.

  Attributes:
    what: The trouble, in words.
    repeat: Whether it may help to ask again at once.
  """

  def __init__(self, url: str, what: str, repeat: bool = True):
    super().__init__(f"{shown(url)}: {what}; try again later, or {ELSEWHERE}.")
    self.what, self.repeat = what, repeat


class MissingError(ValueError):
  """The server has no such file."""


@dataclasses.dataclass(frozen=True)
class Remote:
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


@contextlib.contextmanager
def answer(
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
        raise CutError(url, _trouble(error), repeat=False) from error
      with response:
        for name in ("X-Linked-Etag", "X-Linked-Size", "X-Repo-Commit"):
          if name in response.headers:
            hub.setdefault(name, response.headers[name])
        if not response.is_redirect:
          yield response, hub
          return
        url = _redirected(url, response.headers["Location"])
  raise ValueError(f"{shown(url)} leads in a circle; {ELSEWHERE}.")


def _redirected(url: str, location: str) -> str:
  target = checked(urljoin(url, location))
  if url.startswith("https://") and not target.startswith("https://"):
    raise ValueError(
      f"{shown(url)} leads to {shown(target)}, which is not encrypted; "
      f"{ELSEWHERE}."
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


def hub_url() -> str:
  """Where Hugging Face's repositories are; the user may name a mirror."""
  return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def _is_hub(url: str) -> bool:
  return urlsplit(url)[:2] == urlsplit(checked(f"{hub_url()}/"))[:2]


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


def check_status(url: str, response: requests.Response, wanted: int) -> None:
  """Raises unless the answer has the status `wanted`."""
  code = response.status_code
  if code == wanted:
    return
  phrases = {status.value: status.phrase for status in http.HTTPStatus}
  what = f"the server answers {code} {phrases.get(code, '')}".rstrip()
  if code in (404, 410):
    raise MissingError(
      f"{shown(url)}: {what}; there is no such file, so check the address."
    )
  if code in (401, 403):
    token = ", set HF_TOKEN" if _is_hub(url) else ""
    raise ValueError(
      f"{shown(url)}: {what}; it is not public or does not exist: check the "
      f"address{token}, or copy the file yourself and give its path."
    )
  if code in (408, 429) or code >= 500:
    raise CutError(url, what)
  raise ValueError(f"{shown(url)}: {what}; {ELSEWHERE}.")


def describe(response: requests.Response, hub: dict[str, str]) -> Remote:
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
  return Remote(
    size=int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None,
    sha256=sha256 if re.fullmatch(r"[0-9a-f]{64}", sha256) else None,
    md5=base64.b64decode(md5[1]).hex() if md5 and plain else None,
    validator=_validator(response) if plain else None,
    commit=commit if re.fullmatch(r"[0-9a-f]{40}", commit) else None,
  )


def continues(response: requests.Response, start: int, validator: str) -> bool:
  """Whether an answer goes on at `start` with the file of `validator`."""
  span = response.headers.get("Content-Range", "")
  return (
    response.status_code == 206
    and span.startswith(f"bytes {start}-")
    and _validator(response) in (None, validator)
  )


def _validator(response: requests.Response) -> str | None:
  """A strong ETag, else the date; If-Range allows no weak ETag."""
  etag = response.headers.get("ETag", "")
  if etag.startswith('"'):
    return etag
  return response.headers.get("Last-Modified")


def checked(url: str) -> str:
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


def shown(url: str) -> str:
  """The address without what may be secret: its user and query."""
  parts = urlsplit(url)
  return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
