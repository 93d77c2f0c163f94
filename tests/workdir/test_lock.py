"""One run a workdir."""

import os
import re
import subprocess
import sys

import pytest

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


def test_an_address_is_not_locked(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with sole_writer("gs://bucket/run"), sole_writer("gs://bucket/run"):
    pass
  assert list(tmp_path.iterdir()) == []
