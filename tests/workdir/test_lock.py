"""One run a workdir."""

import json
import os
import re
import secrets
import subprocess
import sys
import time

import pytest

from vit_jax.workdir import bucket, lock
from vit_jax.workdir.lock import sole_writer


def test_a_second_run_is_refused_and_told_who_has_it(tmp_path):
  run = tmp_path / "run"
  holder = f"process {os.getpid()} on "
  with sole_writer(str(run)):
    with (
      pytest.raises(ValueError, match=f"{re.escape(holder)}.*: wait for its e"),
      sole_writer(str(run)),
    ):
      pass
    assert (run / "lock").read_text().startswith(holder)
  with sole_writer(str(run)):  # It is free again.
    pass


def test_a_killed_run_leaves_no_lock(tmp_path):
  script = (
    "import os, signal, sys\n"
    "from vit_jax.workdir.lock import sole_writer\n"
    "with sole_writer(sys.argv[1]):\n"
    "  os.kill(os.getpid(), signal.SIGKILL)\n"
  )
  ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)])
  assert ended.returncode == -9
  assert (tmp_path / "lock").exists()
  with sole_writer(str(tmp_path)):
    pass


def test_an_error_inside_frees_the_workdir(tmp_path):
  with pytest.raises(KeyError), sole_writer(str(tmp_path)):
    raise KeyError
  with sole_writer(str(tmp_path)):
    pass


def test_a_folder_that_nothing_was_written_to_is_left_as_it_was(tmp_path):
  """A run whose data are missing must not leave an empty workdir."""
  with pytest.raises(KeyError), sole_writer(str(tmp_path / "new" / "run")):
    assert (tmp_path / "new" / "run" / "lock").exists()
    raise KeyError
  assert not [*tmp_path.iterdir()]
  with sole_writer(str(tmp_path)):
    pass
  assert not [*tmp_path.iterdir()]
  with sole_writer(str(tmp_path / "run")):
    (tmp_path / "run" / "log.txt").write_text("begun")
  assert (tmp_path / "run" / "lock").exists()


@pytest.fixture
def address(store, monkeypatch):
  """A workdir on a store, where hearts beat fast."""
  monkeypatch.setattr(lock, "BEAT", 0.1)
  monkeypatch.setattr(lock, "DEAD", 0.5)
  return f"gs://bucket/{secrets.token_hex(4)}"


def _object(address):
  return bucket.blob(f"{address}/lock")


def _held_by(address, **fields):
  """Puts the lock of a run that no longer beats."""
  _object(address).upload_from_string(json.dumps(fields))


def test_an_address_is_locked_while_its_owner_beats(address):
  holder = f"process {os.getpid()} on "
  with sole_writer(address) as check:
    with (
      pytest.raises(ValueError, match=f"{re.escape(holder)}.*: wait for its e"),
      sole_writer(address, lambda _: None),
    ):
      pass
    check()
  assert not _object(address).exists()
  with sole_writer(address, pytest.fail):
    pass


def test_a_silent_owner_is_waited_for_and_replaced(address):
  _held_by(address, owner="process 7 on elsewhere", system="x", pid=7)
  said, start = [], time.monotonic()
  with sole_writer(address, said.append) as check:
    assert time.monotonic() - start > 0.45
    check()
  (line,) = said
  assert "locked by process 7 on elsewhere: it may have been killed" in line


def test_a_killed_run_on_this_machine_is_replaced_at_once(address):
  child = subprocess.Popen([sys.executable, "-c", ""])
  child.wait()
  with sole_writer(address):
    held = json.loads(_object(address).download_as_bytes())
  _held_by(address, **held | {"pid": child.pid})
  with sole_writer(address, pytest.fail):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"\xff", b'{"pid": 1e400}'])
def test_a_lock_that_says_nothing_is_waited_for(address, content):
  _object(address).upload_from_string(content)
  said = []
  with sole_writer(address, said.append):
    assert len(said) == 1


def test_a_run_that_was_taken_over_hears_of_it(address):
  with sole_writer(address) as check:
    _held_by(address, token="another")
    end = time.monotonic() + 10
    with pytest.raises(OSError, match="another run has taken gs://"):
      while time.monotonic() < end:
        check()
        time.sleep(0.05)
  assert _object(address).exists()  # It is the other's.


def test_a_lost_answer_and_a_lost_network_take_no_lock(address, store):
  store.fault = lambda method, _: "lose" if method == "POST" else None
  with pytest.raises(OSError):  # noqa: PT011
    with sole_writer(address):
      pass
  store.no_fault()
  with sole_writer(address, lambda _: None) as check:
    store.fault = lambda *_: "lose"
    time.sleep(0.5)
    store.no_fault()
    time.sleep(0.5)
    check()


def test_a_deleted_lock_is_made_again(address):
  with sole_writer(address) as check:
    _object(address).delete()
    for _ in range(100):  # The machine may be busy.
      time.sleep(0.1)
      if found := _object(address).exists():
        break
    assert found
    check()
