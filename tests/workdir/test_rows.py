"""Rows in a file, some of whose lines may be broken."""

import json

import pytest
from etils import epath

from tests.workdir.store import Object, Store
from vit_jax.workdir.rows import RowFile, parse_rows, read_rows, to_line

# None of these is a row, though some are JSON.
BROKEN = [
  b"17",
  b"{}",
  b"[1]",
  b"null",
  b'"step"',
  b'{"step": "3"}',
  b'{"step": true}',
  b'{"step": null}',
  b'{"step": 3',
  b'{"step": 3, "tr{"step": 4}',
  b"\xff\xfe",
  b"[" * 100_000,
  bytes(20),
]


def _row(step):
  return {"step": step, "train/loss": step / 2}


@pytest.mark.parametrize("line", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_line_is_skipped_and_counted(line):
  content = to_line(_row(1)) + line + b"\n" + to_line(_row(2))
  assert parse_rows(content) == ([_row(1), _row(2)], 1)
  assert parse_rows(to_line(_row(1)) + line) == ([_row(1)], 1)


def test_empty_lines_are_nothing():
  assert parse_rows(b"") == ([], 0)
  assert parse_rows(b"\n\n" + to_line(_row(1)) + b"\n") == ([_row(1)], 0)


def test_what_is_not_finite_becomes_null():
  row = {"step": 1, "a": float("nan"), "b": float("inf"), "c": {"d": 1.5}}
  found = json.loads(to_line(row), parse_constant=pytest.fail)
  assert found == {"step": 1, "a": None, "b": None, "c": {"d": 1.5}}


@pytest.fixture(params=["local", "store"])
def path(request, tmp_path):
  if request.param == "local":
    return epath.Path(tmp_path / "rows.jsonl")
  return Object(Store(), "run/rows.jsonl")


def test_rows_are_there_at_once(path):
  rows = RowFile(path, 0)
  for step in (1, 2, 3):
    rows.append(_row(step))
    assert read_rows(path) == [_row(s) for s in range(1, step + 1)]
  rows.close()
  assert read_rows(path) == [_row(1), _row(2), _row(3)]


def test_a_run_that_goes_on_drops_later_rows_and_broken_lines(path):
  lines = [to_line(_row(step)) for step in (1, 2, 2, 3)]
  path.write_bytes(lines[0] + b"17\n" + b"".join(lines[1:]) + b'{"step": 4, "t')
  rows = RowFile(path, 2)
  assert rows.skipped == 2
  assert path.read_bytes() == b"".join(lines[:3])
  rows.append(_row(3))
  assert path.read_bytes() == b"".join(lines)
  assert RowFile(path, 3).skipped == 0


def test_rows_that_a_store_refused_are_written_later():
  store = Store()
  path = Object(store, "run/rows.jsonl")
  rows = RowFile(path, 0)
  rows.append(_row(1))
  store.error = OSError(412, "Precondition Failed")
  for step in (2, 3):
    with pytest.raises(OSError, match="Precondition Failed"):
      rows.append(_row(step))
  store.error = None
  rows.close()
  assert read_rows(path) == [_row(1), _row(2), _row(3)]
