"""Each start of a run is recorded."""

import json
import shlex
import sys

import jax
import numpy as np
import pytest
from etils import epath

from vit_jax.workdir.records import read_starts, record_start


def test_every_start_is_a_line_that_says_on_what(tmp_path):
  folder = epath.Path(tmp_path)
  assert read_starts(folder).rows == []
  record_start(folder, 0)
  record_start(folder, 12)
  starts = read_starts(folder).rows
  lines = (tmp_path / "starts.jsonl").read_text().splitlines()
  assert [json.loads(line) for line in lines] == starts
  assert [start["step"] for start in starts] == [0, 12]
  last = starts[-1]
  assert last["devices"] == "8 x cpu" and last["hosts"] == 1
  assert last["packages"]["jax"] == jax.__version__
  assert last["packages"]["numpy"] == np.__version__
  assert sorted(tmp_path.iterdir()) == [tmp_path / "starts.jsonl"]


@pytest.mark.parametrize("broken", [b"17\n", b"\xff\xfe\n", b'{"step": 3, "ti'])
def test_a_broken_line_stops_no_start_and_stays(tmp_path, broken):
  folder = epath.Path(tmp_path)
  record_start(folder, 0)
  path = folder / "starts.jsonl"
  before = path.read_bytes() + broken
  path.write_bytes(before)
  record_start(folder, 12)
  assert path.read_bytes().startswith(before)
  assert [start["step"] for start in read_starts(folder).rows] == [0, 12]


@pytest.mark.parametrize(
  "typed, is_ours",
  [
    ("/usr/bin/python3 -m vit_jax.train --workdir 'my runs/a'", True),
    ("python -X utf8 -m vit_jax.train --config=c.py", True),
    ("python -m vit_jax train --workdir=a", True),
    ("/usr/bin/python3 /opt/bin/vit_jax train --workdir 'my runs/a'", True),
    ("python /opt/bin/vit_jax study --workdir=a", False),
    ("python -m vit_jax.training", False),
    ("python -m pytest", False),
    ("python my_script.py -m", False),
    ("python", False),
  ],
)
def test_the_command_is_as_it_was_typed(typed, is_ours, tmp_path, monkeypatch):
  before, mark, rest = typed.partition(" -m ")
  shown = f"python -m {rest}" if mark else before.partition("/bin/vit_jax")[2]
  command = (shown if mark else f"vit_jax{shown}") if is_ours else None
  monkeypatch.setattr(sys, "orig_argv", shlex.split(typed))
  record_start(epath.Path(tmp_path), 0)
  (start,) = read_starts(epath.Path(tmp_path)).rows
  assert start["command"] == command


@pytest.mark.parametrize(
  ("key", "value"),
  [
    ("time", ["2026-01-02T03:04:05+00:00"]),
    ("time", "yesterday"),
    ("time", "2026-01-02T03:04:05"),
    ("command", 7),
    ("devices", None),
    ("devices", "half a character: \ud800"),
    ("hosts", "1"),
    ("hosts", 10**400),
    ("cores", {}),
    ("system", []),
    ("python", 3.13),
    ("packages", ["jax"]),
    ("packages", {"jax": 0.1}),
  ],
)
def test_an_odd_start_is_skipped_and_counted(tmp_path, key, value):
  folder = epath.Path(tmp_path)
  record_start(folder, 0)
  (start,), _ = read_starts(folder)
  path = tmp_path / "starts.jsonl"
  lacking = {k: v for k, v in start.items() if k != key}
  odd = [lacking, {**start, key: value}]
  path.write_text("".join(f"{json.dumps(row)}\n" for row in [start, *odd]))
  assert read_starts(folder) == ([start], 2)
