"""Workers change no batch, hide no error, load no JAX, and end in time."""

import contextlib
import json
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import heap

import pytest

from tests import commands
from tests.data.numbered import Numbered, assert_same, noisy, train
from tests.image_files import write_noise
from vit_jax import data
from vit_jax.data.batching import workers

ROOT = pathlib.Path(__file__).parents[3]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_change_nothing(num_workers):
  source = Numbered(20, damaged=(2, 3))
  arguments = {"on_unreadable": "skip", "first_batch": 2}
  assert_same(
    train(source, 9, **arguments),
    train(source, 9, num_workers=num_workers, **arguments),
  )


def test_an_unreadable_image_in_a_worker_is_named_too():
  with pytest.raises(data.UnreadableImageError) as caught:
    train(Numbered(20, damaged=(9,)), 4, num_workers=1)
  assert str(caught.value).startswith("file 9: ")
  assert "\n" not in str(caught.value)


def test_a_place_for_shared_memory_that_is_not_there(tmp_path, monkeypatch):
  """As a container without /dev/shm, where Python looks first."""
  place = str(tmp_path / "absent")
  monkeypatch.setattr(heap.Arena, "_dir_candidates", [place])
  heaps = heap.Heap()  # Another one may have some memory left.
  monkeypatch.setattr(heap.BufferWrapper, "_heap", heaps)
  with pytest.raises(OSError, match=f"share memory in /dev/shm .*{place} can"):
    train(Numbered(9), 4, num_workers=1)


def test_a_closed_iterator_says_so():
  batches = data.Loader().train(Numbered(9), noisy, batch_size=4, seed=0)
  batches.close()
  batches.close()
  with pytest.raises(ValueError, match="these batches are closed"):
    next(batches)


SCRIPT = """
import multiprocessing, os, sys
from vit_jax import data
if __name__ == "__main__":
  settings = data.DataSettings(root=sys.argv[1])
  source = data.open_source("train", settings)
  batches = data.Loader(num_workers=2).train(
    source, data.make_train_transform(4), batch_size=4, seed=0
  )
  for _ in range(3):
    next(batches)
  print(*(p.pid for p in multiprocessing.active_children()), flush=True)
  if sys.argv[2] == "wait":
    next(iter(sys.stdin))
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["exit", "wait"])
def test_no_worker_outlives_its_parent(tmp_path, ending):
  """The parent ends in good order, and then in silence, or is killed."""
  write_noise(tmp_path, "c", "d", count=9, size=(4, 4))
  (tmp_path / "script.py").write_text(SCRIPT)
  with subprocess.Popen(
    [sys.executable, tmp_path / "script.py", tmp_path, ending],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    env=os.environ | {"PYTHONPATH": str(ROOT)},
  ) as process:
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    if ending == "wait":
      process.send_signal(signal.SIGKILL)
    else:
      assert process.communicate()[1] == b""
  for _ in range(100):
    if not any(alive(pid) for pid in pids):
      break
    time.sleep(0.1)
  assert not any(alive(pid) for pid in pids)


def alive(pid: int) -> bool:
  """Whether a process runs; a zombie does not."""
  status = pathlib.Path(f"/proc/{pid}/stat")
  try:
    return status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
  except OSError:
    return False


LIGHT = """
import json, multiprocessing, sys
import numpy as np
import vit_jax.train  # The main module of a run, which workers import again.
from vit_jax import data

def check(encoded, rng):
  heavy = {"flax", "grain", "jax", "jaxlib", "optax", "sklearn", "tensorflow"}
  if multiprocessing.parent_process() and heavy & set(sys.modules):
    raise RuntimeError(f"a worker has loaded {heavy & set(sys.modules)}")
  return np.zeros((4, 4, 3), np.uint8)

if __name__ == "__main__":
  settings = data.DataSettings(**json.loads(sys.argv[1]))
  source = data.open_source("train", settings)
  loader = data.Loader(num_workers=1)
  with loader.train(source, check, batch_size=2, seed=0) as batches:
    assert next(batches)["image"].shape == (2, 4, 4, 3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "TFDS"])
def test_workers_load_no_jax(tmp_path, kind, tfds_dir):
  write_noise(tmp_path, "c", "d", count=3, size=(4, 4))
  arguments = {
    "folder": {"root": str(tmp_path)},
    "TFDS": {"name": "shades", "data_dir": str(tfds_dir)},
  }
  (tmp_path / "script.py").write_text(LIGHT)
  done = subprocess.run(
    [sys.executable, tmp_path / "script.py", json.dumps(arguments[kind])],
    stderr=subprocess.PIPE,
    text=True,
    env=os.environ | {"PYTHONPATH": str(ROOT)},
  )
  assert done.returncode == 0, done.stderr


def test_a_killed_worker_is_reported():
  loader = data.Loader(num_workers=1)
  with loader.train(Numbered(9), noisy, batch_size=4, seed=0) as batches:
    next(batches)
    (worker,) = multiprocessing.active_children()
    worker.kill()
    with pytest.raises(ChildProcessError, match=r"exit code -9 .*num_workers"):
      for _ in range(4):  # Batches that were ready may still come.
        next(batches)


STARTING = """
import os, pathlib, signal, sys, threading, time
from tests.data.numbered import Numbered, noisy
from vit_jax import data
from vit_jax.runtime import command

class Large(Numbered):  # As a million names are; a pipe holds 64 KiB.
  names = None
  def __init__(self, count):
    super().__init__(count)
    self.names = bytes(2**20)

def text(path):
  try:
    return path.read_text()
  except FileNotFoundError:  # The thread has ended meanwhile.
    return ""

def stop():
  children = pathlib.Path(f"/proc/{os.getpid()}/task").glob("*/children")
  while True:
    for pid in " ".join(map(text, children)).split():
      if b"spawn_main" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
        time.sleep(0.2)
        print("stopped", flush=True)
        if sys.argv[1] == "kill":
          os.kill(int(pid), signal.SIGKILL)
        else:
          os.killpg(0, int(sys.argv[1]))
        return
    children = pathlib.Path(f"/proc/{os.getpid()}/task").glob("*/children")

def main(_):
  threading.Thread(target=stop, daemon=True).start()
  loader = data.Loader(num_workers=1)
  with loader.train(Large(9), noisy, batch_size=4, seed=0) as batches:
    next(batches)

if __name__ == "__main__":
  command.run(main, takes="[HOW]")
else:
  time.sleep(1)  # A worker that starts imports this module.
"""


@pytest.mark.slow
@pytest.mark.parametrize(
  ("how", "code", "said"),
  [
    ("kill", 75, "error: a data worker ended with exit code -9 "),
    (str(int(signal.SIGINT)), 130, "error: stopped by Ctrl-C."),
    (str(int(signal.SIGTERM)), -signal.SIGTERM, None),
  ],
)
def test_what_happens_while_a_worker_starts(tmp_path, how, code, said):
  """It is killed, or a signal reaches it as well as its parent."""
  (tmp_path / "script.py").write_text(STARTING)
  with subprocess.Popen(
    [sys.executable, tmp_path / "script.py", how],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env=os.environ | {"PYTHONPATH": str(ROOT)},
    start_new_session=True,
  ) as process:
    try:
      out, errors = process.communicate(timeout=60)
    finally:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
  assert (out, process.returncode) == ("stopped\n", code), errors
  lines = errors.splitlines()
  assert len(lines) == (said is not None)
  assert not lines or lines[0].startswith(said)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_that_never_comes_is_given_up(monkeypatch, num_workers):
  monkeypatch.setattr(workers, "LONGEST_WAIT", 0.1)
  with pytest.raises(ChildProcessError, match="no data came for a day: a file"):
    train(Numbered(9), 1, transform=sleeping, num_workers=num_workers)


def sleeping(encoded, rng):
  time.sleep(1)
  return noisy(encoded, rng)


def test_an_error_is_told_after_the_batches_before_it():
  """The worker has ended by then, and takes no free memory any more."""
  source = Numbered(20, damaged=(9,))
  whole = train(Numbered(20), 4)
  bad = next(n for n, batch in enumerate(whole) if 9 in batch["label"])
  assert bad > 0
  loader = data.Loader(num_workers=1)
  with loader.train(source, noisy, batch_size=6, seed=3) as batches:
    (worker,) = multiprocessing.active_children()
    worker.join(60)
    for _ in range(bad):
      next(batches)
    with pytest.raises(data.UnreadableImageError, match="^file 9: "):
      next(batches)


class Unpicklable(Exception):
  def __init__(self, first, second):
    super().__init__(f"{first} {second}")

  def __reduce__(self):
    raise TypeError("not to be pickled")


def failing(encoded, rng):
  if rng.random() < 0.5:
    raise Unpicklable("cannot", "go on")
  return noisy(encoded, rng)


def test_an_error_that_cannot_be_sent_is_told_in_words():
  with pytest.raises(RuntimeError, match="^Unpicklable: cannot go on"):
    train(Numbered(20), 9, transform=failing, num_workers=1)


def test_batches_may_be_kept():
  """Later batches are not written over them."""
  kept = train(Numbered(20), 9, num_workers=1)
  assert_same(kept, train(Numbered(20), 9))
  assert len({batch["image"].ctypes.data for batch in kept}) == 9


def test_batches_may_be_closed_in_the_thread_that_computes_them():
  """As garbage, an iterator may be collected in any thread."""
  closed, started, ended = [], threading.Event(), threading.Event()

  class Batches:
    def compute(self, number):
      try:
        assert started.wait(60)  # An iterator in use is not garbage.
        iterator.close()
        closed.append(number)
      finally:
        ended.set()

  iterator = data.BatchIterator(Batches(), 0, 0, ())
  started.set()
  assert ended.wait(60)
  assert closed == [0]


def test_a_worker_uses_freed_memory_again():
  """Minor page faults, as getrusage(2) counts them, of images read twice."""
  code = """
import resource
from vit_jax.data.batching import workers

def faults():
  return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def read():
  for _ in range(5):
    [bytes(300_000) for _ in range(32)]

def of_reading():
  read()
  before = faults()
  read()
  return faults() - before

first = of_reading()
workers.keep_memory()
print(first, of_reading())
"""
  done = commands.python("-c", code)
  before, after = map(int, done.stdout.split())
  assert before > 4_000 and after < 500
