"""Rows and pictures are written to all places that can be written."""

import io
import json
import secrets
import struct
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from etils import epath
from PIL import Image
from tensorboardX.proto import event_pb2

from tests import runs
from tests.commands import run
from tests.workdir.test_rows import room_for
from vit_jax.run.outputs import open_outputs
from vit_jax.run.plan import make_plan
from vit_jax.run.settings import read
from vit_jax.runtime.display import Display
from vit_jax.runtime.meter import Stopwatch
from vit_jax.workdir import bucket
from vit_jax.workdir.checkpoint import Checkpoints
from vit_jax.workdir.records import EventFile, MetricWriter, WandbLog
from vit_jax.workdir.rows import parse_rows, read_rows


@pytest.fixture
def folder(tmp_path):
  return epath.Path(tmp_path)


def _values(step):
  return {"train/loss": float(step), "by_class": {"a": 1.0}}


def _steps(folder):
  """Steps in `metrics.jsonl`, and in TensorBoard's files."""
  rows = [row["step"] for row in read_rows(folder / "metrics.jsonl").rows]
  if not (folder / "tensorboard").is_dir():
    return rows, []
  return rows, [step for step, _, _ in runs.events(folder)]


def test_a_row_goes_everywhere_and_its_dictionaries_to_the_file(folder):
  writer = MetricWriter(folder)
  writer.write(3, _values(3))
  assert read_rows(folder / "metrics.jsonl").rows == [{"step": 3, **_values(3)}]
  ((step, tag, value),) = runs.events(folder)
  assert (step, tag, value.simple_value) == (3, "train/loss", 3.0)
  writer.close()
  assert writer.notes == []


def test_broken_lines_of_earlier_starts_are_dropped_and_said(folder):
  writer = MetricWriter(folder)
  writer.write(1, _values(1))
  writer.close()
  with (folder / "metrics.jsonl").open("a") as file:
    file.write('17\n{"step": 2, "trai')
  writer = MetricWriter(folder, 1)
  assert writer.notes == [
    ("metrics.jsonl held 2 broken lines, which are dropped.")
  ]
  writer.write(2, _values(2))
  found = parse_rows((folder / "metrics.jsonl").read_bytes())
  assert found == ([{"step": s, **_values(s)} for s in (1, 2)], 0)


@pytest.mark.parametrize("broken", ["metrics.jsonl", "tensorboard"])
def test_one_place_that_fails_is_said_once_and_the_other_written(
  folder, broken
):
  writer = MetricWriter(folder)
  writer.write(1, _values(1))
  place, aside = folder / broken, folder / "aside"
  name = {"tensorboard": "TensorBoard"}.get(broken, broken)
  for first in (2, 30):  # Said again after it went well in between.
    place.rename(aside)
    place.touch() if broken == "tensorboard" else place.mkdir()
    with pytest.raises(OSError, match=f"^{name}: ") as info:
      writer.write(first, _values(first))
    assert ";" not in str(info.value)
    for step in range(first + 1, first + 20):
      writer.write(step, _values(step))
    writer.close()
    place.unlink() if broken == "tensorboard" else place.rmdir()
    aside.rename(place)
    writer.write(first + 20, _values(first + 20))
  steps = [1, *range(2, 23), *range(30, 51)]
  assert _steps(folder) == (steps, steps)


def test_a_full_disk_is_said_once_and_loses_nothing(folder):
  writer = MetricWriter(folder)
  image = np.zeros((9, 9, 3), np.uint8)
  writer.write(1, _values(1))
  with room_for(150):
    with pytest.raises(OSError, match="^metrics.jsonl: .*; TensorBoard: .*"):
      for step in (2, 3, 4):
        writer.write(step, _values(step))
    for step in range(5, 50):
      writer.write(step, _values(step))
      writer.write_images(step, {"image": image})
    writer.close()
  writer.close()
  rows, events = _steps(folder)
  assert rows[-1] == 49 and rows == sorted(set(rows))
  assert set(events) == set(rows)


def test_a_store_out_of_reach_is_said_once(store):
  folder = epath.Path(f"gs://bucket/{secrets.token_hex(4)}")
  writer = MetricWriter(folder)
  store.fault = lambda *_: 503
  with pytest.raises(OSError, match="^metrics.jsonl: .*; TensorBoard: "):
    writer.write(1, _values(1))
  store.requests.clear()
  for step in range(2, 9):
    writer.write(step, _values(step))
  assert store.requests == []
  store.no_fault()
  writer.close()
  rows = read_rows(folder / "metrics.jsonl").rows
  assert [row["step"] for row in rows] == list(range(1, 9))


class Board:
  """Stands in for Weights & Biases."""

  def __init__(self):
    self.calls = []

  def write(self, step, numbers):
    self.calls.append((step, dict(numbers)))

  def write_images(self, step, images):
    self.calls.append((step, list(images)))

  def close(self, failed):
    self.calls.append(failed)
    raise OSError("connection lost")


def test_weights_and_biases_gets_the_same(folder):
  board = Board()
  writer = MetricWriter(folder, 0, board)
  writer.write(1, _values(1))
  writer.write_images(1, {"image": np.zeros((9, 9, 3), np.uint8)})
  with pytest.raises(OSError, match="^Weights & Biases: connection lost$"):
    writer.close(failed=True)
  assert board.calls == [(1, {"train/loss": 1.0}), (1, ["image"]), True]


def test_only_the_first_process_writes(folder, monkeypatch):
  monkeypatch.setattr(jax, "process_index", lambda: 1)
  writer = MetricWriter(folder / "run")
  writer.write(1, _values(1))
  writer.write_images(1, {})
  writer.close()
  assert not (folder / "run").exists()


def crc32c(data):
  """The masked CRC-32C of TFRecord, bit by bit."""
  crc = 0xFFFFFFFF
  for byte in data:
    crc ^= byte
    for _ in range(8):
      crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
  crc ^= 0xFFFFFFFF
  return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_events(content):
  """The events in a file, its checksums compared."""
  events, start = [], 0
  while start < len(content):
    length = content[start : start + 8]
    end = start + 12 + struct.unpack("<Q", length)[0]
    data = content[start + 12 : end]
    checks = content[start + 8 : start + 12] + content[end : end + 4]
    assert checks == struct.pack("<II", crc32c(length), crc32c(data))
    events.append(event_pb2.Event.FromString(data))
    start = end + 4
  return events


def scalars(events):
  return [
    (event.step, value.tag, value.simple_value)
    for event in events
    for value in event.summary.value
  ]


@pytest.fixture
def board(tmp_path):
  return epath.Path(tmp_path / "tensorboard")


def test_a_file_begins_as_tensorboard_wants_it(board):
  """Its version first; then what hides the later events of earlier starts."""
  EventFile(board, 6).write(7, {"train/loss": 0.5, "count": 3})
  (path,) = board.iterdir()
  assert "tfevents" in path.name
  version, purge, *rest = read_events(path.read_bytes())
  assert version.file_version == "brain.Event:2"
  assert (purge.step, purge.session_log.status) == (7, 1)  # START
  assert scalars(rest) == [(7, "train/loss", 0.5), (7, "count", 3.0)]
  assert all(event.wall_time > 1.7e9 for event in rest)


def test_an_image_is_there_pixel_by_pixel(board):
  image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
  EventFile(board, 0).write_images(4, {"eval/worst": image})
  ((step, tag, value),) = runs.events(board.parent)
  assert (step, tag) == (4, "eval/worst")
  assert (value.image.height, value.image.width) == (5, 7)
  decoded = Image.open(io.BytesIO(value.image.encoded_image_string))
  np.testing.assert_array_equal(np.asarray(decoded), image)


def test_a_folder_that_cannot_be_made_is_an_oserror(board):
  board.touch()
  events = EventFile(board, 0)
  for _ in range(50):  # tensorboardX waited for ever at the eleventh.
    with pytest.raises(FileExistsError):
      events.write(1, {"loss": 1.0})
  with pytest.raises(FileExistsError):
    events.flush()


def test_events_on_a_store_are_one_object(store):
  board = epath.Path(f"gs://bucket/{secrets.token_hex(4)}/tensorboard")
  events = EventFile(board, 0)
  for step in (1, 2, 3):
    events.write(step, {"loss": step})
  (path,) = board.iterdir()
  assert scalars(read_events(path.read_bytes())) == [(1, "loss", 1)]
  events.flush()
  content = bucket.blob(path).download_as_bytes()  # gcsfs remembers the size.
  found = scalars(read_events(content))
  assert found == [(step, "loss", step) for step in (1, 2, 3)]


def logged(path):
  """Rows of a .wandb file, whose records are in blocks like LevelDB's log."""
  from wandb.proto.wandb_internal_pb2 import Record

  block, header = 32768, struct.Struct("<IHB")
  data, start, parts = path.read_bytes(), 7, []
  while start < len(data):
    left = block - start % block
    if left < header.size:
      start += left
      continue
    _, size, kind = header.unpack_from(data, start)
    start += header.size
    parts.append(data[start : start + size])
    start += size
    if kind in (1, 4):  # A whole record, or its last part.
      record = Record.FromString(b"".join(parts))
      parts = []
      items = record.history.item
      if items:
        yield {
          i.key or "/".join(i.nested_key): json.loads(i.value_json)
          for i in items
        }


def test_wandb_that_is_missing_is_refused_first(data_dir, monkeypatch):
  monkeypatch.setitem(sys.modules, "wandb", None)
  with pytest.raises(ValueError, match=r"wandb_project needs wandb.*\[wandb\]"):
    make_plan(read(runs.config(data_dir, wandb_project="p")))


def test_an_upload_that_does_not_end_is_an_error(folder, monkeypatch):
  """Without the setting, wandb writes it into its log alone."""

  def init(settings, **given):
    def finish(exit_code):
      assert 0 < settings["finish_timeout"] < 600
      if settings["finish_timeout_raises"]:
        raise TimeoutError("timed out")

    return SimpleNamespace(finish=finish, offline=True, dir=given["dir"])

  fake = SimpleNamespace(init=init, Settings=dict, Error=RuntimeError)
  monkeypatch.setitem(sys.modules, "wandb", fake)
  log = WandbLog(folder, "p", {})
  with pytest.raises(OSError, match="timed out"):
    log.close(False)


@pytest.mark.parametrize("lacking", ["wandb_id", "wandb"])
def test_a_run_goes_on_if_wandb_cannot_write(
  data_dir, tmp_path, monkeypatch, capsys, lacking
):
  """The folder is there, but as a file or a folder it cannot be written."""
  pytest.importorskip("wandb")
  monkeypatch.setenv("WANDB_MODE", "offline")
  (tmp_path / lacking).mkdir()
  if lacking == "wandb":
    (tmp_path / lacking).rmdir()
    (tmp_path / lacking).write_text("")
  plan = make_plan(read(runs.config(data_dir, wandb_project="p")))
  checkpoints = Checkpoints(str(tmp_path))
  display = Display(active=True)
  out = open_outputs(plan, checkpoints, display, Stopwatch(), 0)
  out.write(1, {"train/loss": 1.0})
  out.close(None)
  checkpoints.close()
  said = capsys.readouterr()
  lines = [line for line in said.out.splitlines() if "Weights & Bi" in line]
  assert len(lines) == 1 and lines[0].endswith("; the run goes on.")
  assert said.err == "" and runs.rows(tmp_path)[0]["train/loss"] == 1.0


@pytest.mark.slow
def test_wandb_offline_has_the_same_rows(tmp_path, data_dir):
  pytest.importorskip("wandb")
  workdir = tmp_path / "run"

  def start(steps, **environment):
    return run(
      "vit_jax.train",
      "--config=configs/digits.py",
      f"--workdir={workdir}",
      f"--config.data.data_dir={data_dir}",
      "--config.total_epochs=0",
      f"--config.total_steps={steps}",
      "--config.optimizer.warmup_epochs=0",
      "--config.log_every_steps=5",
      "--config.eval_every_epochs=0",
      "--config.eval_every_steps=10",
      "--config.eval_pictures=1",
      "--config.wandb_project=tests",
      "--allow_changes",
      **environment,
    )

  refused = start(10, WANDB_API_KEY="", HOME=str(tmp_path))
  assert refused.returncode == 2, refused.stderr
  assert refused.stderr.startswith("error: --config.wandb_project='tests': ")
  assert "WANDB_MODE=offline" in refused.stderr
  assert refused.stderr.count("\n") == 1

  for steps in (10, 20):  # The second start resumes the run.
    done = start(steps, WANDB_MODE="offline")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "wandb    offline, in " in done.stdout
  names = sorted(workdir.glob("wandb/offline-run-*/*.wandb"))
  assert len(names) == 2
  run_id = (workdir / "wandb_id").read_text()
  assert {path.name for path in names} == {f"run-{run_id}.wandb"}
  found = [row for path in names for row in logged(path)]
  for row in runs.rows(workdir):
    step = row.pop("step")
    row.pop("time")
    same = [r for r in found if r["_step"] == step and row.items() <= r.items()]
    assert len(same) == 1
  pictures = [row["_step"] for row in found if "eval/confusion/path" in row]
  images = [row["_step"] for row in found if "eval/example_1/path" in row]
  assert pictures == images == [10, 20]
