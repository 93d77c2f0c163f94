"""Commands as forks of one process that has imported what nearly all import.

Importing JAX, Flax and Orbax takes most of the time of a command that refuses
its input, and the tests start hundreds. A fork goes on as `python -m MODULE`
would: with the command's own arguments, folder, variables, output and exit.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

PRELOADED = (
  "cv2",
  "flax.linen",
  "jax",
  "optax",
  "orbax.checkpoint",
  "rich.progress",
  "tensorboardX",
  "vit_jax.run.loop",
  "vit_jax.run.saved",
)
# Variables that libraries read when they are imported, by their beginnings.
READ_AT_IMPORT = ("JAX", "LD_", "OMP_", "PYTHON", "TF_", "TPU_", "XLA_")
# Variables of every command. What a library will take away is an error here
# too; the cache is as in pyproject.toml.
COMMON = {
  "JAX_PLATFORMS": "cpu",
  "PYTHONWARNINGS": "error::DeprecationWarning,error::FutureWarning,"
  "error::PendingDeprecationWarning,"
  "ignore:Error reading persistent compilation cache entry:UserWarning",
}
SECONDS = 300


class Server:
  """The process that is forked, once at a time."""

  def __init__(self, environment: Mapping[str, str]):
    self._environment = environment
    self._lock = threading.Lock()
    self._socket, theirs = socket.socketpair()
    with theirs:
      self._process = subprocess.Popen(
        [sys.executable, "-m", "tests.forks", str(theirs.fileno())],
        env=environment,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
      )
    atexit.register(self._close)

  def fits(self, environment: Mapping[str, str]) -> bool:
    """Whether libraries that are imported with these would be the same."""
    return _read_at_import(environment) == _read_at_import(self._environment)

  def run(
    self, module: str, arguments: Sequence[str], environment: Mapping[str, str]
  ) -> subprocess.CompletedProcess[str]:
    """Does as `subprocess.run` does of `python -m MODULE ARGUMENTS`."""
    asked = json.dumps([module, arguments, os.getcwd(), dict(environment)])
    with self._lock, contextlib.ExitStack() as stack:
      (out, write_out), (err, write_err) = os.pipe(), os.pipe()
      out, err = (stack.enter_context(open(read)) for read in (out, err))
      size = len(asked.encode()).to_bytes(8)
      socket.send_fds(self._socket, [size], [write_out, write_err])
      os.close(write_out)
      os.close(write_err)
      self._socket.sendall(asked.encode())
      kill = functools.partial(os.killpg, self._process.pid, signal.SIGKILL)
      limit = threading.Timer(SECONDS, kill)
      limit.start()
      stack.callback(limit.cancel)
      errors: list[str] = []
      reader = threading.Thread(target=lambda: errors.append(err.read()))
      reader.start()
      printed = out.read()
      reader.join()
      code = int.from_bytes(_received(self._socket, 8), signed=True)
    return subprocess.CompletedProcess(
      [module, *arguments], code, printed, *errors
    )

  def _close(self) -> None:
    self._socket.close()
    self._process.wait()


@functools.cache
def server() -> Server:
  """The one of this process, with the variables of the first use."""
  return Server({**os.environ, **COMMON})


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
  return {
    name: value
    for name, value in environment.items()
    if name.startswith(READ_AT_IMPORT)
  }


def _received(connection: socket.socket, size: int) -> bytes:
  found = b""
  while len(found) < size:
    if not (more := connection.recv(size - len(found))):
      raise EOFError
    found += more
  return found


def _asked(connection: socket.socket) -> list:
  """What the next fork is to be: returns in each fork, never in the server."""
  while True:
    size, descriptors, _, _ = socket.recv_fds(connection, 8, 2)
    if not size:
      os._exit(0)
    asked = json.loads(_received(connection, int.from_bytes(size)))
    if not (child := os.fork()):
      for number, descriptor in enumerate(descriptors, 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
      connection.close()
      return asked
    for descriptor in descriptors:
      os.close(descriptor)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    connection.sendall(code.to_bytes(8, signed=True))


def _serve(descriptor: int) -> None:
  for name in PRELOADED:
    importlib.import_module(name)
  gc.collect()
  gc.freeze()  # Collecting would copy the pages that the forks share.
  connection = socket.socket(fileno=descriptor)
  module, arguments, folder, environment = _asked(connection)
  os.chdir(folder)
  sys.path[0] = folder
  os.environ.clear()
  os.environ.update(environment)
  sys.argv[1:] = arguments
  runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
  _serve(int(sys.argv[1]))
