"""Files whose lines may be broken, and whose disk may be full for a while."""

import contextlib
import json
import math
import resource
import secrets
import types

import pytest
from etils import epath

from tests.memory import bounded_memory
from vit_jax.workdir import rows
from vit_jax.workdir.rows import (
  AppendFile,
  RowFile,
  holds_numbers,
  parse_rows,
  read_rows,
  replace,
  to_line,
)

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
  b'{"step": -1}',
  b'{"step": 2147483648}',
  b'{"step": 1%s}' % (b"0" * 400),
]


def _row(step):
  return {"step": step, "train/loss": step / 2}


@pytest.mark.parametrize("line", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_line_is_skipped_and_counted(line):
  content = to_line(_row(1)) + line + b"\n" + to_line(_row(2))
  assert parse_rows(content) == ([_row(1), _row(2)], 1)
  assert parse_rows(to_line(_row(1)) + line) == ([_row(1)], 1)


@pytest.mark.parametrize(
  "value",
  [
    '"x"',
    "[1]",
    "{}",
    "1e999",
    "1e200",
    "-1" + "0" * 400,
    "[" * 400 + "]" * 400,
  ],
)
@pytest.mark.parametrize("key", ["train/loss", "eval/examples"])
def test_what_is_no_number_makes_a_row_of_metrics_broken(key, value):
  line = f'{{"step": 2, "{key}": {value}}}\n'.encode()
  assert parse_rows(to_line(_row(1)) + line, holds_numbers) == ([_row(1)], 1)


@pytest.mark.parametrize("value", ["1", "NaN", "-Infinity", "1e38"])
def test_numbers_are_metrics_and_what_is_not_finite_is_null(value):
  content = f'{{"step": 2, "train/loss": {value}}}\n'.encode()
  (row,), skipped = parse_rows(content, holds_numbers)
  # As to_line would have written it.
  number = float(value)
  wanted = number if math.isfinite(number) else None
  assert (row["train/loss"], skipped) == (wanted, 0)


def test_objects_of_numbers_have_names_that_say_so():
  good = {"step": 1, "time": {"steps": 1.5}, "eval/top1_by_class": {"a": None}}
  odd = [{"step": 2, "time": {"steps": "x"}}, {"step": 3, "time": 4}]
  content = b"".join(map(to_line, [good, *odd]))
  assert parse_rows(content, holds_numbers) == ([good], 2)


def test_a_device_and_a_huge_file_are_refused(tmp_path):
  (tmp_path / "device").symlink_to("/dev/zero")
  with (tmp_path / "sparse").open("wb") as file:
    file.truncate(6 * 2**30)
  for name in ("device", "sparse"):
    with bounded_memory(2**24), pytest.raises(OSError, match=name):
      read_rows(epath.Path(tmp_path / name))


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
  request.getfixturevalue("store")
  return epath.Path(f"gs://bucket/{secrets.token_hex(4)}/rows.jsonl")


def test_rows_are_there_at_the_end(path):
  rows = RowFile(path, 0)
  for step in (1, 2, 3):
    rows.append(to_line(_row(step)))
    assert read_rows(path).rows[0] == _row(1)
  rows.flush()
  assert read_rows(path).rows == [_row(1), _row(2), _row(3)]


def test_a_run_that_goes_on_drops_later_rows_and_broken_lines(path):
  lines = [to_line(_row(step)) for step in (1, 2, 2, 3)]
  path.write_bytes(lines[0] + b"17\n" + b"".join(lines[1:]) + b'{"step": 4, "t')
  rows = RowFile(path, 2)
  assert rows.skipped == 2
  assert path.read_bytes() == b"".join(lines[:3])
  rows.append(to_line(_row(3)))
  assert path.read_bytes() == b"".join(lines)
  assert RowFile(path, 3).skipped == 0


def test_a_store_in_trouble_is_an_oserror(store):
  path = epath.Path(f"gs://bucket/{secrets.token_hex(4)}/rows.jsonl")
  path.write_bytes(to_line(_row(1)))
  store.fault = lambda *_: 401
  for attempt in (
    lambda: RowFile(path, 0),
    lambda: read_rows(path).rows,
    lambda: replace(path, b""),
  ):
    with pytest.raises(OSError) as caught:  # noqa: PT011
      attempt()
    assert len(str(caught.value).splitlines()) == 1


@contextlib.contextmanager
def room_for(size):
  """Lets no file grow beyond `size` bytes: a write stops in the middle."""
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture
def local(tmp_path):
  return epath.Path(tmp_path / "folder" / "file")


def test_everything_is_there_after_each_call(local):
  file = AppendFile(local, b"head,")
  assert not local.exists()
  for number in range(3):
    file.append(b"%d," % number)
    assert local.read_bytes() == b"head,0,1,2,"[: 7 + 2 * number]
  AppendFile(local, b"head,").append(b"3,")
  assert local.read_bytes() == b"head,0,1,2,3,"


@pytest.mark.parametrize("size", [0, 3, 5, 6, 8])
def test_a_write_cut_in_the_middle_is_written_whole_later(local, size):
  file = AppendFile(local, b"head,")
  with room_for(size):
    for _ in range(2):
      with pytest.raises(OSError, match="too large"):
        file.append(b"first,")
  file.append(b"second,")
  assert local.read_bytes() == b"head,first,first,second,"


def test_what_others_wrote_before_stays(local):
  local.parent.mkdir()
  local.write_bytes(b"before,")
  file = AppendFile(local, b"head,")
  with room_for(9), pytest.raises(OSError, match="too large"):
    file.append(b"first,")
  assert local.read_bytes() == b"before,fi"
  file.append(b"second,")
  assert local.read_bytes() == b"before,first,second,"


def test_a_folder_that_vanished_comes_back(local):
  file = AppendFile(local)
  file.append(b"first,")
  local.parent.rmtree()
  local.parent.touch()
  with pytest.raises(FileExistsError):
    file.append(b"second,")
  local.parent.unlink()
  file.append(b"third,")
  assert local.read_bytes() == b"second,third,"


def test_what_waits_is_bounded(local, monkeypatch):
  monkeypatch.setattr(rows, "MOST_WAITING", 10)
  file = AppendFile(local)
  with room_for(0):
    for number in range(9):
      with pytest.raises(OSError, match="too large"):
        file.append(b"%d..." % number)
  file.flush()
  assert local.read_bytes() == b"7...8..."


def test_the_end_writes_what_waits(local):
  file = AppendFile(local)
  with room_for(0), pytest.raises(OSError, match="too large"):
    file.append(b"first,")
  file.flush()
  assert local.read_bytes() == b"first,"
  with room_for(0):
    file.flush()  # Nothing waits.


@pytest.fixture
def uploaded(store, monkeypatch):
  """A clock, and the address of an object that may be added to."""
  now = [100.0]
  monkeypatch.setattr(
    rows, "time", types.SimpleNamespace(monotonic=lambda: now[0])
  )
  return now, epath.Path(f"gs://bucket/{secrets.token_hex(4)}/log")


def test_an_object_is_added_to_once_a_minute(store, uploaded):
  now, path = uploaded
  file = AppendFile(path, b"head,")
  found = []
  for number in range(5):
    file.append(b"%d," % number)
    found.append(path.read_bytes())
    now[0] += 25
  assert found == [b"head,0,"] * 3 + [b"head,0,1,2,3,"] * 2
  file.flush()
  assert path.read_bytes() == b"head,0,1,2,3,4,"
  AppendFile(path, b"head,").append(b"5,")
  assert path.read_bytes() == b"head,0,1,2,3,4,5,"


@pytest.mark.parametrize("fault", [503, 412, 403, "drop"])
def test_a_store_in_trouble_is_asked_once_a_minute(store, uploaded, fault):
  now, path = uploaded
  file = AppendFile(path)
  file.append(b"0,")
  store.fault = lambda method, _: fault if method == "POST" else None
  now[0] += 61
  with pytest.raises(OSError) as first:  # noqa: PT011
    file.append(b"1,")
  assert len(str(first.value).splitlines()) == 1
  store.requests.clear()
  with pytest.raises(OSError) as second:  # noqa: PT011
    file.append(b"2,")
  assert second.value is first.value and store.requests == []
  store.no_fault()
  now[0] += 61
  file.append(b"3,")
  assert path.read_bytes() == b"0,1,2,3,"


@pytest.mark.parametrize("known", [b"", b"0,"])
def test_a_write_whose_answer_was_lost_is_not_repeated(store, uploaded, known):
  now, path = uploaded
  file = AppendFile(path)
  if known:
    file.append(known)
    now[0] += 61
  last = "compose" if known else "upload"
  store.fault = lambda _, page: "lose" if last in page else None
  with pytest.raises(OSError):  # noqa: PT011
    file.append(b"1,")
  store.no_fault()
  now[0] += 61
  file.append(b"2,")
  assert path.read_bytes() == known + b"1,2,"
