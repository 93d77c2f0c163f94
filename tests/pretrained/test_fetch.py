"""Downloads by http, from a server on this machine."""

import base64
import hashlib
import io
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pooch
import pytest
import requests

from tests.server import files, refusal
from vit_jax.pretrained import fetch as fetching
from vit_jax.pretrained import load
from vit_jax.pretrained.fetch import cached_path, fetch, without_secrets

BODY = np.random.default_rng(0).bytes(3 * 2**18 + 17)
CUT = 2**19 + 5
SHA256 = hashlib.sha256(BODY).hexdigest()

pytestmark = pytest.mark.usefixtures("cache")


def test_a_file_is_downloaded_once(site, cache):
  url = site.add("/a/ViT-B_16.npz", BODY)
  path = fetch(url)
  assert path.read_bytes() == BODY
  assert path.name == "ViT-B_16.npz"
  assert cache in path.parents
  assert fetch(url) == path == cached_path(url)
  assert site.gets("/a/ViT-B_16.npz") == 1
  assert files(cache) == ["ViT-B_16.npz"]


def test_others_may_read_a_download(site):
  """The umask decides who may read, since a cache may be shared."""
  path = fetch(site.add("/x.npz", BODY))
  plain = path.with_name("plain")
  plain.touch()
  assert path.stat().st_mode == plain.stat().st_mode


def test_progress_on_a_terminal_is_a_bar(site, monkeypatch):
  screen = io.StringIO()
  screen.isatty = lambda: True
  monkeypatch.setattr(sys, "stderr", screen)
  fetch(site.add("/x.npz", BODY))
  assert "100%" in screen.getvalue()
  assert "786k/786k" in screen.getvalue()


def test_same_name_in_two_folders_is_two_files(site):
  one = fetch(site.add("/one/ViT-B_16.npz", BODY))
  two = fetch(site.add("/two/ViT-B_16.npz", BODY[::-1]))
  assert one.name == two.name == "ViT-B_16.npz"
  assert (one.read_bytes(), two.read_bytes()) == (BODY, BODY[::-1])


def test_a_cut_download_leaves_nothing(site, cache):
  url = site.add("/x.npz", BODY, cut=CUT)
  message = refusal(fetch, url)
  assert "the connection ended after 524,293 of 786,449 bytes" in message
  assert "try again later, or download it elsewhere" in message
  assert not files(cache)
  site.add("/x.npz", BODY)
  assert fetch(url).read_bytes() == BODY


def test_nothing_has_the_files_name_before_it_is_whole(site, cache):
  hold = threading.Event()
  url = site.add("/x.npz", BODY, hold=hold)
  thread = threading.Thread(target=fetch, args=(url,))
  thread.start()
  assert site.asked.wait(30)
  assert not cached_path(url).exists()
  hold.set()
  thread.join()
  assert files(cache) == ["x.npz"]


@pytest.mark.parametrize(
  "status, words",
  [
    (404, "the server answers 404 Not Found; there is no such file"),
    (410, "the server answers 410 Gone; there is no such file"),
    (401, "401 Unauthorized; it is not public .* yourself and give its path"),
    (403, "403 Forbidden; it is not public or does not exist"),
    (500, "500 Internal Server Error; try again later"),
    (429, "429 Too Many Requests; try again later"),
    (451, "451 Unavailable For Legal Reasons"),
    (204, "204 No Content"),
  ],
)
def test_any_status_but_200_is_an_error(site, cache, status, words):
  url = site.add("/x.npz", BODY, status=status)
  message = refusal(fetch, url)
  assert message.startswith(f"{url}: ")
  assert re.search(words, message)
  assert site.gets("/x.npz") == 1
  assert not files(cache)


def test_wrong_sha256(site, cache):
  url = site.add("/x.npz", BODY)
  message = refusal(fetch, url, sha256="0" * 64)
  assert f"expected {'0' * 64} but got {SHA256}" in message
  assert message.startswith(url)
  assert not files(cache)
  assert fetch(url, sha256=SHA256.upper()).read_bytes() == BODY


def test_cached_file_of_another_checksum_is_not_returned(site, cache):
  url = site.add("/x.npz", BODY)
  fetch(url).write_bytes(b"spoilt")
  assert fetch(url, sha256=SHA256).read_bytes() == BODY
  assert site.gets("/x.npz") == 2
  fetch(url, sha256=SHA256)
  assert site.gets("/x.npz") == 2
  fetch(url).write_bytes(b"spoilt")
  site.pages.clear()
  assert "404" in refusal(fetch, url, sha256=SHA256)


def test_md5_of_google_storage(site, cache):
  def tag(data):
    md5 = base64.b64encode(hashlib.md5(data).digest()).decode()
    return {"x-goog-hash": f"crc32c=n03x6A==, md5={md5}"}

  url = site.add("/x.npz", BODY, headers=tag(BODY[::-1]))
  assert "its md5 is not the server's; try again" in refusal(fetch, url)
  assert not files(cache)
  site.add("/x.npz", BODY, headers=tag(BODY))
  assert fetch(url).read_bytes() == BODY


def test_redirects_are_followed(site, cache):
  there = site.add("/there/x.npz", BODY)
  assert fetch(site.add("/a.npz", location=there)).name == "a.npz"
  assert fetch(site.add("/b.npz", location="/there/x.npz")).exists()
  circle = site.add("/circle.npz", location="/circle.npz")
  assert "it redirects in a circle" in refusal(fetch, circle)
  odd = site.add("/odd.npz", location="file:///etc/passwd")
  assert "to file:///etc/passwd, which is not https" in refusal(fetch, odd)
  assert files(cache) == ["a.npz", "b.npz"]


def test_redirects_keep_encryption(monkeypatch):
  asked = []

  def answer(_, request, **__):
    asked.append(request.url)
    response = requests.Response()
    response.request, response.url = request, request.url
    response.status_code, response.raw = 302, io.BytesIO()
    response.headers["Location"] = "http://a.org/x.npz?token=hush"
    return response

  monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", answer)
  message = refusal(fetch, "https://a.org/x.npz")
  assert "it redirects to http://a.org/x.npz, which is not https" in message
  assert asked == ["https://a.org/x.npz"]


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
def test_hostile_addresses_stay_in_the_cache(cache, path):
  target = cached_path(f"http://127.0.0.1{path}")
  assert target.parent.parent == cache
  assert target.resolve().parent.parent == cache.resolve()
  assert re.fullmatch(r"[\w+-][\w.+-]{0,99}", target.name, re.ASCII)


@pytest.mark.parametrize("url", ["https://", "http://[/x.npz"])
def test_addresses_that_are_none(url):
  assert "is not an address to download from" in refusal(fetch, url)


def test_host_that_refuses(cache):
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    message = refusal(fetch, f"http://127.0.0.1:{taken.getsockname()[1]}/x.npz")
  assert "refuses the connection" in message
  assert "download it elsewhere and give its path" in message
  assert not files(cache)


def test_no_network(cache, monkeypatch):
  def fail(*_, **__):
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

  monkeypatch.setattr(socket, "getaddrinfo", fail)
  message = refusal(fetch, "https://nowhere.org/x.npz")
  assert message.startswith("https://nowhere.org/x.npz: the host's name does ")
  assert "does not resolve (is there a network?)" in message
  assert not files(cache)


def test_server_that_falls_silent(site, cache, monkeypatch):
  monkeypatch.setattr(fetching, "TIMEOUT_SECONDS", (5, 0.05))
  never = threading.Event()
  message = refusal(fetch, site.add("/x.npz", BODY, hold=never))
  never.set()
  assert "the host does not answer in time" in message
  assert not files(cache)


def test_cache_that_cannot_be_written(site, tmp_path, monkeypatch):
  (tmp_path / "file").touch()
  monkeypatch.setenv("VIT_JAX_CACHE", str(tmp_path / "file"))
  message = refusal(fetch, site.add("/x.npz", BODY))
  assert message.startswith("cannot write ")
  assert "set VIT_JAX_CACHE" in message


def test_disk_that_fills(site, cache, monkeypatch):
  def full(*_):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(os, "fsync", full)
  message = refusal(fetch, site.add("/x.npz", BODY))
  assert "No space left on device; make room" in message
  assert not files(cache)


@pytest.mark.parametrize("page", [{}, {"status": 403}, {"cut": CUT}])
def test_secrets_of_an_address_are_not_shown(site, capfd, page):
  site.add("/x.npz", BODY, **page)
  url = site.root.replace("//", "//ann:hush@") + "/x.npz?token=hush"
  # These bytes are not a file of arrays.
  assert "hush" not in refusal(load.load_pretrained, url)
  assert "hush" not in "".join(capfd.readouterr())
  sent = site.requests[0][2]["Authorization"]
  assert base64.b64decode(sent.split()[1]) == b"ann:hush"


def test_what_is_secret_in_an_address():
  url = "https://ann:a@b@host.org:80/a/x.npz?token=@hush#part"
  assert without_secrets(url) == "https://host.org:80/a/x.npz"
  assert without_secrets("a/b?c#d@e") == "a/b?c#d@e"


def start(url):
  """Starts a process that downloads `url`."""
  code = "import sys; from vit_jax.pretrained.locate import locate; "
  code += "print(locate(sys.argv[1]))"
  return subprocess.Popen(
    [sys.executable, "-c", code, url],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env=os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[2])},
  )


@pytest.mark.slow
def test_two_processes_download_once(site, cache):
  hold = threading.Event()
  url = site.add("/x.npz", BODY, hold=hold)
  with start(url) as first:
    assert site.asked.wait(30)
    with start(url) as second:
      assert second.stderr is not None
      line = second.stderr.readline()
      assert line == "waiting for another process that downloads x.npz\n"
      hold.set()
      (one, words), (other, rest) = first.communicate(), second.communicate()
  assert first.returncode == second.returncode == 0
  assert one == other == f"{cached_path(url)}\n"
  assert cached_path(url).read_bytes() == BODY
  where = f"from '{url}' to '{cached_path(url).parent}'."
  assert (words, rest) == (f"Downloading file 'x.npz' {where}\n", "")
  assert site.gets("/x.npz") == 1
  assert files(cache) == ["x.npz"]


@pytest.mark.slow
def test_a_killed_process_blocks_nobody_and_its_part_goes(site, cache):
  hold = threading.Event()
  url = site.add("/x.npz", BODY, hold=hold)
  with start(url) as process:
    assert site.asked.wait(30)
    process.send_signal(signal.SIGKILL)
    process.communicate()
  assert list(cache.rglob("*.lock"))
  assert [name for name in files(cache) if name != "x.npz"]
  hold.set()
  assert fetch(url).read_bytes() == BODY
  assert files(cache) == ["x.npz"]


@pytest.mark.slow
def test_pooch_is_loaded_for_a_download_alone():
  code = "import sys; import vit_jax.pretrained.load; assert "
  code += "not {'pooch', 'huggingface_hub'} & set(sys.modules)"
  subprocess.run([sys.executable, "-c", code], check=True)
  assert pooch.get_logger().level == 0  # Its logger is left unchanged.
