"""Downloads, from a server on this machine whose answers are set by a test."""

import base64
import contextlib
import dataclasses
import hashlib
import http.server
import io
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import pytest

from vit_jax.pretrained import answers, download, known, load, progress
from vit_jax.pretrained.cache import cache_folder
from vit_jax.pretrained.hub import REPOSITORY
from vit_jax.pretrained.locate import _storage_url, locate
from vit_jax.pretrained.pickles import TORCH_ADVICE, conversion

BODY = np.random.default_rng(0).bytes(3 * 2**18 + 17)
CUT = 2**19 + 5
SHA256 = hashlib.sha256(BODY).hexdigest()
CHANGED = BODY[::-1]


@dataclasses.dataclass
class Page:
  """What the server has at a path.

  `statuses` are answered first; `cuts` are the bytes after which the next
  answers break off.
  """

  body: bytes = BODY
  headers: dict = dataclasses.field(default_factory=lambda: {"ETag": '"one"'})
  ranges: bool = True
  blind: bool = False  # Whether If-Range is ignored.
  statuses: list = dataclasses.field(default_factory=list)
  cuts: list = dataclasses.field(default_factory=list)
  location: str = ""
  after: object = None  # Called when an answer has ended.
  hold: object = None  # An event to wait for before the body.


class Handler(http.server.BaseHTTPRequestHandler):
  def do_HEAD(self):
    self.do_GET()

  def do_GET(self):
    site = self.server
    site.requests.append((self.command, self.path, dict(self.headers)))
    site.asked.set()
    page = site.pages.get(self.path)
    if page is None or page.statuses:
      self.send_response(page.statuses.pop(0) if page else 404)
      self.send_header("Content-Length", "0")
      self.end_headers()
      return
    with contextlib.suppress(ConnectionError):
      self.answer(page)
    if page.after:
      page.after(page)

  def answer(self, page):
    if page.location:
      self.send_response(302)
      body = b""
    else:
      body = self.part(page)
    headers = {"Content-Length": str(len(body))} | page.headers
    if page.location:
      headers["Location"] = page.location
    for name, value in headers.items():
      if value is not None:
        self.send_header(name, value)
    self.end_headers()
    if page.hold:
      page.hold.wait(30)
    if self.command == "GET":
      self.wfile.write(body[: page.cuts.pop(0)] if page.cuts else body)

  def part(self, page):
    match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
    same = self.headers.get("If-Range") == page.headers.get("ETag")
    if not (match and page.ranges and (same or page.blind)):
      self.send_response(200)
      return page.body
    start = int(match[1])
    if start >= len(page.body):
      self.send_response(416)
      return b""
    self.send_response(206)
    last, size = len(page.body) - 1, len(page.body)
    self.send_header("Content-Range", f"bytes {start}-{last}/{size}")
    return page.body[start:]

  def log_message(self, *_):
    pass


class Site(http.server.ThreadingHTTPServer):
  daemon_threads = True

  def __init__(self):
    super().__init__(("127.0.0.1", 0), Handler)
    self.pages, self.requests = {}, []
    self.asked = threading.Event()
    self.root = f"http://127.0.0.1:{self.server_port}"

  def add(self, path, *args, **fields):
    self.pages[path] = Page(*args, **fields)
    return self.root + path

  def ranges(self, path):
    """The Range header of each GET of `path`."""
    return [
      headers.get("Range")
      for method, where, headers in self.requests
      if (method, where) == ("GET", path)
    ]


@pytest.fixture
def site():
  with Site() as site:
    thread = threading.Thread(target=site.serve_forever, args=(0.01,))
    thread.start()
    yield site
    site.shutdown()
    thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  folder = tmp_path / "cache"
  for name in ("HF_TOKEN", "HF_ENDPOINT", "STORAGE_EMULATOR_HOST"):
    monkeypatch.delenv(name, raising=False)
  for name in ("NO_PROXY", "no_proxy"):
    monkeypatch.setenv(name, "127.0.0.1")
  monkeypatch.setenv("VIT_JAX_CACHE", str(folder))
  monkeypatch.setattr(download, "BACKOFF_SECONDS", (0, 0, 0))
  return folder


def files(folder):
  """What the cache holds, without the locks."""
  return sorted(
    path.name
    for path in folder.rglob("*")
    if path.is_file() and path.suffix != ".lock"
  )


def refusal(source, get=locate, **fields):
  """The message of a download that fails, which has to be one line."""
  with pytest.raises((ValueError, OSError)) as caught:
    get(source, **fields)
  message = str(caught.value)
  assert len(message.splitlines()) == 1
  return message


def test_a_path_that_exists_wins(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("HOME", str(tmp_path))
  folder = tmp_path / "b16_i21k"
  folder.mkdir()
  (folder / "x.npz").touch()
  assert locate("b16_i21k") == pathlib.Path("b16_i21k")
  assert locate("~/b16_i21k/x.npz") == folder / "x.npz"


def test_plain_download_happens_once(site, cache, capfd):
  url = site.add("/a/ViT-B_16.npz")
  path = locate(url)
  assert path.read_bytes() == BODY
  assert path.name == "ViT-B_16.npz"
  assert cache in path.parents
  assert locate(url) == path
  assert site.ranges("/a/ViT-B_16.npz") == [None]
  assert files(cache) == ["ViT-B_16.npz"]
  output, lines = capfd.readouterr()
  assert not output
  first, last = lines.splitlines()
  assert first == f"downloading {url} (786.4 kB)"
  assert last.startswith("786.4 kB in ")
  assert last.endswith(f": {path}")


def npz(value):
  file = io.BytesIO()
  np.savez(file, array=np.full(100, value, np.float32))
  return file.getvalue()


def test_a_download_that_cannot_be_read_is_fetched_anew(site, cache):
  body = npz(1.0)
  broken = body.replace(np.float32(1).tobytes() * 100, bytes(400))
  for bad in (body[:-60], broken, b"<html>"):
    url = site.add("/a/x.npz", bad)
    with (
      pytest.raises(ValueError, match=r"x.npz.*; the same command fetches it"),
      load._arrays(locate(url)) as arrays,
    ):
      arrays["array"]
    assert files(cache) == []
  site.add("/a/x.npz", body)
  with load._arrays(locate(url)) as arrays:
    assert arrays["array"][0] == 1


def test_a_repository_that_cannot_be_read_is_fetched_anew(hub, cache):
  hub("model.safetensors", b"cut")
  message = refusal("hf://o/n", load.load_pretrained)
  assert message.endswith(
    "The download was removed; the same command fetches it anew."
  )
  assert files(cache) == []


def test_only_downloads_are_removed(tmp_path, cache):
  for path in (tmp_path / "x.npz", cache / "x.npz"):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"<html>")
    with pytest.raises(ValueError, match="was asked for; an .npz or a"):
      load.load_pretrained(str(path))
    assert path.exists()


def test_progress_on_a_terminal_is_a_bar(site, monkeypatch):
  screen = io.StringIO()
  console = progress.Console(file=screen, force_terminal=True, width=100)
  monkeypatch.setattr(progress, "_console", lambda: console)
  download.fetch(site.add("/x.npz"))
  assert "━" in screen.getvalue()
  assert "786.4/786.4 kB" in screen.getvalue()


def test_same_name_in_two_folders_is_two_files(site):
  one = download.fetch(site.add("/one/ViT-B_16.npz"))
  two = download.fetch(site.add("/two/ViT-B_16.npz", CHANGED))
  assert one.name == two.name == "ViT-B_16.npz"
  assert (one.read_bytes(), two.read_bytes()) == (BODY, CHANGED)


def test_a_cut_download_goes_on_where_it_was(site, cache):
  url = site.add("/x.npz", cuts=[CUT])
  assert download.fetch(url).read_bytes() == BODY
  assert site.ranges("/x.npz") == [None, f"bytes={2**19}-"]
  assert site.requests[1][2]["If-Range"] == '"one"'
  assert files(cache) == ["x.npz"]


def test_a_later_call_goes_on_with_the_part(site, cache):
  url = site.add("/x.npz", cuts=[CUT, 0, 0, 0])
  message = refusal(url)
  assert "the answer ended" in message or "the connection ended" in message
  assert "524.3 kB of 786.4 kB, 4 times in a row" in message
  assert files(cache) == ["x.npz.part", "x.npz.part.etag"]
  site.requests.clear()
  assert download.fetch(url).read_bytes() == BODY
  assert site.ranges("/x.npz") == [f"bytes={2**19}-"]
  assert files(cache) == ["x.npz"]


def test_each_attempt_that_gets_further_counts_anew(site):
  url = site.add("/x.npz", cuts=[2**18 + 1, 0, 0, 2**18 + 1, 0, 0])
  assert download.fetch(url).read_bytes() == BODY


def test_server_without_ranges_starts_over(site, cache):
  url = site.add("/x.npz", ranges=False, cuts=[CUT])
  assert download.fetch(url).read_bytes() == BODY
  assert site.ranges("/x.npz") == [None, f"bytes={2**19}-"]
  assert files(cache) == ["x.npz"]


def test_parts_of_two_versions_are_not_glued(site):
  def change(page):
    page.body, page.headers = CHANGED, {"ETag": '"two"'}

  url = site.add("/x.npz", cuts=[CUT], after=change)
  assert download.fetch(url).read_bytes() == CHANGED


@pytest.mark.parametrize("body", [CHANGED, CHANGED[:100]])
def test_a_server_that_ignores_if_range_is_noticed(site, body):
  url = site.add("/x.npz", cuts=[CUT, 0, 0, 0])
  refusal(url)
  site.add("/x.npz", body, headers={"ETag": '"two"'}, blind=True)
  assert download.fetch(url).read_bytes() == body
  assert site.ranges("/x.npz")[-2:] == [f"bytes={2**19}-", None]


def test_without_a_validator_nothing_is_continued(site, cache):
  url = site.add("/x.npz", headers={"ETag": 'W/"weak"'}, cuts=[CUT] * 4)
  refusal(url)
  assert site.ranges("/x.npz") == [None] * 4
  assert not files(cache)


def test_file_that_is_short_on_every_attempt(site, cache):
  url = site.add("/x.npz", BODY[:-1000])
  site.pages["/x.npz"].headers["Content-Length"] = str(len(BODY))
  site.pages["/x.npz"].ranges = False
  message = refusal(url)
  assert "524.3 kB of 786.4 kB, 4 times in a row" in message
  assert "x.npz" not in files(cache)


def test_missing_file(site, cache):
  message = refusal(f"{site.root}/none.npz")
  assert "404 Not Found" in message
  assert len(site.requests) == 1
  assert not files(cache)


@pytest.mark.parametrize("status", [401, 403])
def test_private_file(site, cache, status):
  message = refusal(site.add("/x.npz", statuses=[status]))
  assert f"the server answers {status}" in message
  assert "copy the file yourself and give its path" in message
  assert not files(cache)


def test_other_statuses_are_named(site, cache):
  assert "451" in refusal(site.add("/x.npz", statuses=[451]))
  assert "204 No Content" in refusal(site.add("/x.npz", statuses=[204]))
  assert not files(cache)


def test_server_error_that_passes(site):
  url = site.add("/x.npz", statuses=[500, 503, 429])
  assert download.fetch(url).read_bytes() == BODY
  assert len(site.requests) == 4


def test_server_error_that_stays(site, cache):
  message = refusal(site.add("/x.npz", statuses=[500] * 9))
  assert "500 Internal Server Error, 4 times in a row" in message
  assert len(site.requests) == 4
  assert not files(cache)


def test_wrong_sha256(site, cache):
  url = site.add("/x.npz")
  message = refusal(url, download.fetch, sha256="0" * 64)
  assert f"sha256 {SHA256}, {'0' * 64} was needed" in message
  assert not files(cache)
  path = download.fetch(url, sha256=SHA256.upper())
  assert path.read_bytes() == BODY


def test_cached_file_of_another_checksum_is_not_returned(site, cache):
  url = site.add("/x.npz")
  download.fetch(url).write_bytes(b"spoilt")
  assert download.fetch(url, sha256=SHA256).read_bytes() == BODY
  download.fetch(url).write_bytes(b"spoilt")
  site.pages.clear()
  assert "404" in refusal(url, download.fetch, sha256=SHA256)
  assert not files(cache)


def test_checksum_of_the_table(site, monkeypatch):
  entry = known.Known(site.add("/x.npz"), "B/16", 224, "noise", "0" * 64)
  monkeypatch.setitem(known.KNOWN, "b16_noise", entry)
  assert "was needed" in refusal("b16_noise")
  right = dataclasses.replace(entry, sha256=SHA256)
  monkeypatch.setitem(known.KNOWN, "b16_noise", right)
  assert locate("B16_noise").read_bytes() == BODY


@pytest.mark.parametrize("size", [len(BODY) - 1, len(BODY) + 1])
def test_wrong_size(site, cache, size):
  message = refusal(site.add("/x.npz"), download.fetch, size=size)
  assert f"has 786,449 bytes, {size:,} were needed" in message
  assert not files(cache)


def test_more_than_the_known_size_of_a_file_that_names_none(site, cache):
  url = site.add("/x.npz", headers={"Content-Length": None})
  message = refusal(url, download.fetch, size=len(BODY) - 1)
  assert "sent more than the 786,448 bytes" in message
  assert not files(cache)
  assert download.fetch(url, size=len(BODY)).read_bytes() == BODY


def test_md5_of_google_storage(site, cache):
  def tag(data):
    md5 = base64.b64encode(hashlib.md5(data).digest()).decode()
    return {"x-goog-hash": f"crc32c=n03x6A==, md5={md5}"}

  url = site.add("/x.npz", headers=tag(CHANGED))
  assert f"md5 {hashlib.md5(BODY).hexdigest()}" in refusal(url)
  assert not files(cache)
  site.add("/x.npz", headers=tag(BODY))
  assert download.fetch(url).read_bytes() == BODY


def test_google_storage_address(site, monkeypatch):
  monkeypatch.setenv("STORAGE_EMULATOR_HOST", site.root)
  path = "/vit_models/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz"
  site.add(path)
  name = "vit_models/imagenet21k+imagenet2012/R50+ViT-B_16.npz"
  assert locate(f"gs://{name}").name == "R50+ViT-B_16.npz"
  assert locate("r50_b16_i1k_384").read_bytes() == BODY
  assert site.ranges(path) == [None]
  assert "Authorization" not in site.requests[0][2]
  monkeypatch.setenv("STORAGE_EMULATOR_HOST", site.root.split("//")[1])
  assert locate("r50_b16_i1k_384").read_bytes() == BODY


@pytest.mark.parametrize(
  "name", ["vit_models", "vit_models/", "b/folder/", "b/../x", "-/x", "b//x"]
)
def test_google_storage_names_that_are_none(name):
  assert "names no object" in refusal(f"gs://{name}")


def test_redirects_are_followed(site, cache):
  there = site.add("/there/x.npz")
  assert download.fetch(site.add("/a.npz", location=there)).name == "a.npz"
  assert download.fetch(site.add("/b.npz", location="/there/x.npz")).exists()
  circle = site.add("/circle.npz", location="/circle.npz")
  assert "leads in a circle" in refusal(circle)
  odd = site.add("/odd.npz", location="file:///etc/passwd")
  assert "is not an address" in refusal(odd)
  assert files(cache) == ["a.npz", "b.npz"]


def test_redirects_keep_encryption():
  with pytest.raises(ValueError, match="which is not encrypted"):
    answers._redirected("https://a.org/x", "http://a.org/x")
  assert answers._redirected("https://a.org/x", "/y") == "https://a.org/y"


@pytest.mark.parametrize(
  "path",
  [
    "/../../../escape.npz",
    "/%2e%2e/%2e%2e/escape.npz",
    "/..%2f..%2fescape.npz",
    "/%2Fetc%2Fescape.npz",
    "/a\\..\\..\\escape.npz",
    "/.hidden",
    "/",
    "/?../../escape",
    "/" + "long" * 100 + ".npz",
    "/\x1b[31m\n[bold]ä .npz",
  ],
)
def test_hostile_addresses_stay_in_the_cache(site, cache, tmp_path, path):
  sent = answers.checked(site.root + path)
  site.add(sent.removeprefix(site.root))
  target = download.fetch(site.root + path)
  assert target.parent.parent == cache
  assert target.resolve().parent.parent == cache.resolve()
  assert re.fullmatch(r"[\w+-][\w.+-]{0,99}", target.name, re.ASCII)
  assert {p for p in tmp_path.iterdir() if p != cache} == set()


@pytest.mark.parametrize(
  ("source", "words"),
  [
    ("", "neither a file or folder"),
    ("no/such/file.npz", "neither a file or folder"),
    ("https://", "is not an address"),
    ("http://[/x.npz", "is not an address"),
    ("s3://bucket/x.npz", "s3:// cannot be read"),
    ("hf://google", "names no repository"),
    ("hf://google/../x", "names no repository"),
    ("hf://google/vit\n@main", "names no repository"),
    ("hf://google/vit@../../x", "names no repository"),
    ("hf://google/vit@a//b", "names no repository"),
    ("hf://google/vit/tree/main", "names no repository"),
  ],
)
def test_sources_that_are_none(source, words):
  assert words in refusal(source)


def test_host_that_refuses(cache):
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    message = refusal(f"http://127.0.0.1:{taken.getsockname()[1]}/x.npz")
  assert "refuses the connection" in message
  assert "download the file elsewhere and give its path" in message
  assert not files(cache)


def test_no_network(cache, monkeypatch):
  def fail(*_, **__):
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

  monkeypatch.setattr(socket, "getaddrinfo", fail)
  message = refusal("b16_i21k")
  assert "storage.googleapis.com/vit_models/imagenet21k/ViT-B_16" in message
  assert "does not resolve (is there a network?)" in message
  assert "download the file elsewhere and give its path" in message
  assert "huggingface.co/google/vit-base" in refusal("hf_b16_224")
  assert {path.suffix for path in cache.glob("*/*")} == {".lock"}


def test_server_that_falls_silent(site, cache, monkeypatch):
  monkeypatch.setattr(answers, "TIMEOUT_SECONDS", (5, 0.05))
  never = threading.Event()
  message = refusal(site.add("/x.npz", hold=never))
  never.set()
  assert "the connection ended after 0 bytes of 786.4 kB" in message
  assert not files(cache)


def test_cache_that_cannot_be_written(site, tmp_path, monkeypatch):
  (tmp_path / "file").touch()
  monkeypatch.setenv("VIT_JAX_CACHE", str(tmp_path / "file"))
  message = refusal(site.add("/x.npz"))
  assert message.startswith("cannot write ")
  assert "set VIT_JAX_CACHE" in message


def test_disk_that_fills(site, cache, monkeypatch):
  class Full(io.FileIO):
    def write(self, data):
      raise OSError(28, "No space left on device")

  def open_full(path, mode):
    return Full(path, mode.replace("b", ""))

  monkeypatch.setattr(download, "open", open_full, raising=False)
  message = refusal(site.add("/x.npz"))
  assert "No space left on device; make room" in message
  assert not files(cache)


def test_where_the_cache_is(monkeypatch):
  monkeypatch.setenv("HOME", "/home/ann")
  monkeypatch.setenv("VIT_JAX_CACHE", "~/kept")
  assert cache_folder() == pathlib.Path("/home/ann/kept")
  monkeypatch.delenv("VIT_JAX_CACHE")
  monkeypatch.setenv("XDG_CACHE_HOME", "/scratch")
  assert cache_folder() == pathlib.Path("/scratch/vit_jax")
  monkeypatch.setenv("XDG_CACHE_HOME", "relative")
  assert cache_folder() == pathlib.Path("/home/ann/.cache/vit_jax")


def start(url):
  """A process of its own that downloads `url`."""
  code = "import sys; from vit_jax.pretrained.locate import locate; "
  code += "print(locate(sys.argv[1]))"
  return subprocess.Popen(
    [sys.executable, "-c", code, url],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env=os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[2])},
  )


def test_two_processes_download_once(site, cache):
  go = threading.Event()
  url = site.add("/x.npz", hold=go)
  with start(url) as first:
    assert site.asked.wait(30)
    with start(url) as second:
      assert second.stderr is not None
      line = second.stderr.readline()
      assert line == "waiting for another process that downloads x.npz\n"
      go.set()
      outputs = [process.communicate()[0] for process in (first, second)]
  assert first.returncode == second.returncode == 0
  assert outputs[0] == outputs[1]
  assert pathlib.Path(outputs[0].strip()).read_bytes() == BODY
  assert site.ranges("/x.npz") == [None]
  assert files(cache) == ["x.npz"]


def test_lock_of_a_killed_process_blocks_nobody(site, cache):
  go = threading.Event()
  url = site.add("/x.npz", hold=go)
  with start(url) as process:
    assert site.asked.wait(30)
    process.send_signal(signal.SIGKILL)
    process.communicate()
  assert list(cache.rglob("*.lock"))
  go.set()
  assert download.fetch(url).read_bytes() == BODY


@pytest.fixture
def hub(site, monkeypatch):
  """Adds files of the repository o/n at a revision."""
  monkeypatch.setenv("HF_ENDPOINT", f"{site.root}/")

  def add(name, body, revision="main", **fields):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    site.add(f"/o/n/resolve/{revision}/{name}", body, **fields)

  add("config.json", {"model_type": "vit"})
  return add


def test_hub_repository_of_one_file(site, hub, cache):
  hub("model.safetensors", BODY)
  hub("preprocessor_config.json", {"do_resize": True})
  folder = locate("hf://o/n")
  assert folder.name == "o--n"
  names = ["config.json", "model.safetensors", "preprocessor_config.json"]
  assert sorted(path.name for path in folder.iterdir()) == names
  assert (folder / "model.safetensors").read_bytes() == BODY
  assert files(cache) == names
  count = len(site.requests)
  assert locate("hf://o/n") == folder
  assert len(site.requests) == count


def test_hub_files_are_of_one_commit(site, hub):
  commit = "0123456789abcdef" * 2 + "01234567"
  moved = {"X-Repo-Commit": commit}
  hub("config.json", {"model_type": "vit"}, headers=moved)
  hub("model.safetensors", CHANGED)
  hub("model.safetensors", BODY, revision=commit)
  folder = locate("hf://o/n")
  assert (folder / "model.safetensors").read_bytes() == BODY


@pytest.mark.parametrize("commit", ["../../../escape", "main", "0" * 39])
def test_hub_commit_that_is_none_is_not_used(hub, tmp_path, commit):
  hub("config.json", {}, headers={"X-Repo-Commit": commit})
  hub("model.safetensors", BODY)
  folder = locate("hf://o/n")
  assert (folder / "model.safetensors").read_bytes() == BODY
  assert {path.name for path in tmp_path.iterdir()} == {"cache"}


def test_hub_revision_is_one_part_of_the_address(site, hub):
  revision = "refs%2Fpr%2F1"
  hub("config.json", {}, revision=revision)
  hub("model.safetensors", BODY, revision=revision)
  folder = locate("hf://o/n@refs/pr/1")
  hub("model.safetensors", CHANGED)
  other = locate("hf://o/n")
  assert (folder / "model.safetensors").read_bytes() == BODY
  assert (other / "model.safetensors").read_bytes() == CHANGED


def shard_names(count):
  return [
    f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)
  ]


def test_hub_shards(hub):
  names = shard_names(2)
  weight_map = {"a": names[0], "b": names[1], "c": names[0]}
  hub("model.safetensors.index.json", {"weight_map": weight_map})
  hub(names[0], BODY)
  hub(names[1], CHANGED)
  folder = locate("hf://o/n")
  assert [(folder / n).read_bytes() for n in names] == [BODY, CHANGED]
  assert (folder / "model.safetensors.index.json").exists()


def test_hub_folder_appears_when_it_is_complete(site, hub, cache):
  commit = "a" * 40
  names = shard_names(2)
  hub("config.json", {}, headers={"X-Repo-Commit": commit})
  index = {"weight_map": dict(zip("ab", names, strict=True))}
  hub("model.safetensors.index.json", index, revision=commit)
  hub(names[0], BODY, revision=commit)
  hub(names[1], CHANGED, revision=commit, cuts=[CUT, 0, 0, 0])
  assert "4 times in a row" in refusal("hf://o/n")
  assert not list(cache.rglob("o--n"))
  assert f"{names[1]}.part" in files(cache)
  site.requests.clear()
  folder = locate("hf://o/n")
  assert [(folder / n).read_bytes() for n in names] == [BODY, CHANGED]
  base = f"/o/n/resolve/{commit}"
  assert site.ranges(f"{base}/{names[0]}") == []
  assert site.ranges(f"{base}/{names[1]}") == [f"bytes={2**19}-"]
  assert len(files(cache)) == 4


@pytest.mark.parametrize(
  "name",
  [
    "../escape.safetensors",
    "a/b.safetensors",
    "..\\escape.safetensors",
    "/etc/escape.safetensors",
    "..safetensors",
    "weights.bin",
    "",
  ],
)
def test_hub_hostile_shard(site, hub, cache, tmp_path, name):
  hub("model.safetensors.index.json", {"weight_map": {"a": name}})
  assert "only plain names of safetensors" in refusal("hf://o/n")
  assert not files(cache)
  assert {path.name for path in tmp_path.iterdir()} == {"cache"}


@pytest.mark.parametrize(
  "index", [b"{", b"[]", b"\xff", b'{"weight_map": {"a": 1}}', b"[" * 10**5]
)
def test_hub_broken_index(hub, cache, index):
  hub("model.safetensors.index.json", index)
  assert "is not an index of safetensors" in refusal("hf://o/n")
  assert not files(cache)


def test_hub_shard_that_is_missing(hub, cache):
  names = shard_names(1)
  hub("model.safetensors.index.json", {"weight_map": {"a": names[0]}})
  assert f"has no {names[0]}" in refusal("hf://o/n")
  assert not files(cache)


def test_hub_pickle_is_not_downloaded(site, hub, cache):
  hub("pytorch_model.bin", BODY)
  message = refusal("hf://o/n")
  assert "has its weights only as pytorch_model.bin" in message
  assert "weights_only=True" in message
  assert site.ranges("/o/n/resolve/main/pytorch_model.bin") == []
  assert not files(cache)


def test_hub_without_weights(hub, cache):
  assert "has no model.safetensors" in refusal("hf://o/n")
  assert "404" in refusal("hf://o/other")
  assert not files(cache)


def test_hub_checksum_and_size_of_large_files(site, hub, cache):
  def linked(data, size):
    return {"X-Linked-Etag": f'"{data}"', "X-Linked-Size": str(size)}

  there = site.add("/cdn/blob")
  weights = dict(body=b"", location=there)
  hub("model.safetensors", headers=linked("0" * 64, len(BODY)), **weights)
  assert f"sha256 {SHA256}, {'0' * 64} was needed" in refusal("hf://o/n")
  hub("model.safetensors", headers=linked(SHA256, len(BODY) - 9), **weights)
  assert "sent more than" in refusal("hf://o/n")
  assert not files(cache)
  hub("model.safetensors", headers=linked(SHA256, len(BODY)), **weights)
  folder = locate("hf://o/n")
  assert (folder / "model.safetensors").read_bytes() == BODY


def test_token_goes_to_the_hub_alone(site, hub, monkeypatch):
  monkeypatch.setenv("HF_TOKEN", "hf_secret\n")
  with Site() as cdn:
    thread = threading.Thread(target=cdn.serve_forever, args=(0.01,))
    thread.start()
    hub("model.safetensors", b"", location=cdn.add("/blob"))
    locate("hf://o/n")
    download.fetch(cdn.add("/x.npz"))
    cdn.shutdown()
    thread.join()
  sent = [headers.get("Authorization") for _, _, headers in site.requests]
  assert set(sent) == {"Bearer hf_secret"}
  assert len(cdn.requests) == 2
  assert all("Authorization" not in headers for _, _, headers in cdn.requests)
  monkeypatch.setenv("HF_TOKEN", "hf_secret\r\nX-Other: 1")
  assert "HF_TOKEN holds more" in refusal("hf://o/other")


def test_hub_private_repository(site, hub):
  hub("config.json", {}, statuses=[401])
  assert "set HF_TOKEN" in refusal("hf://o/n")


@pytest.mark.parametrize("end", [".pth", ".PT", ".bin?x=1", ".ckpt", ".pkl"])
def test_pickles_are_refused_before_the_download(site, tmp_path, end):
  message = refusal(site.add(f"/model{end}"))
  assert "weights_only=True" in message
  assert "save_file" in message
  assert not site.requests
  path = tmp_path / f"model{end}"
  path.touch()
  if "?" not in end:
    assert "weights_only=True" in refusal(str(path))


def test_torchvision_says_how_to_convert():
  message = refusal("torchvision_b16")
  url = "https://download.pytorch.org/models/vit_b_16-c867db91.pth"
  command = re.findall(r"`(.*)`", message)[0]
  fetch, convert = command.split(" && ")
  assert fetch == f"curl -LO {url}"
  program = convert.removeprefix("python -c ").strip('"')
  compile(program, "command", "exec")
  assert (
    "torch.load('vit_b_16-c867db91.pth', map_location='cpu', weights_only=True)"
  ) in program
  assert "'vit_b_16-c867db91.safetensors'" in program
  assert TORCH_ADVICE.endswith(conversion("F.pth").split("`")[1])


@pytest.mark.parametrize("name", known.KNOWN)
def test_known_addresses_are_well_formed(name):
  entry = known.KNOWN[name]
  assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name)
  assert entry.model.split("/")[0] in entry.description
  scheme, _, rest = entry.url.partition("://")
  if scheme == "gs":
    url = _storage_url(rest)
    assert url.startswith("https://storage.googleapis.com/vit_models/")
    assert url.endswith(".npz")
    assert answers.checked(url) == url
  elif scheme == "hf":
    assert name.startswith("hf_")
    assert REPOSITORY.fullmatch(rest)
  else:
    assert entry.url == answers.checked(entry.url)
    assert entry.is_pickle
    assert name.startswith("torchvision_")


def test_known_names_follow_their_models():
  assert max(Counter(e.url for e in known.KNOWN.values()).values()) == 1
  for name, entry in known.KNOWN.items():
    model = entry.model.lower().replace("/", "").replace("+", "_")
    stem = re.sub(r"^(hf|torchvision)_", "", name)
    assert stem == model or stem.startswith(f"{model}_"), name
    if size := re.search(r"_(\d{3})$", name):
      assert entry.image_size == int(size[1])


def test_known_rows():
  rows = known.rows()
  assert [row[0] for row in rows] == list(known.KNOWN)
  assert rows[0][1:3] == ("Ti/16 224", "ImageNet-21k (AugReg)")
  marked = [row[0] for row in rows if "convert it once" in row[3]]
  assert marked == [n for n in known.KNOWN if n.startswith("torchvision_")]


def test_unknown_name_suggests_the_nearest():
  message = refusal("b16_augrep")
  assert "the nearest names are b16_augreg, " in message
  assert "python -m vit_jax.convert --list" in message
  message = refusal("google/vit-base-patch16-224")
  assert "it would be hf://google/vit-base-patch16-224" in message
