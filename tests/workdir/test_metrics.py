"""Metrics are averaged over steps, and written wherever they can be."""

import secrets

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from tests import runs
from tests.workdir.test_append_file import room_for
from vit_jax.workdir import metrics
from vit_jax.workdir.metrics import Meter, MetricWriter, read_rows
from vit_jax.workdir.rows import parse_rows


def _metrics(loss, skipped=0):
  values = {
    "loss": jnp.float32(loss),
    "top1": jnp.float32(loss / 16),
    "gradient_norm": jnp.float32(2 * loss),
    "learning_rate": jnp.float32(loss / 8),
    "skipped_images": jnp.int32(1),
    "skipped_steps": jnp.int32(skipped),
  }
  return jax.device_put(values)


def test_a_read_averages_what_was_added_since_the_last():
  meter = Meter(4, 3)
  for step, loss in enumerate([9.0, 1.0, 2.0, 6.0], 1):
    meter.add(step, _metrics(loss))
    if step == 1:
      assert meter.read()["train/loss"] == 9
  row = meter.read()
  assert row["train/loss"] == 3
  assert row["train/gradient_norm"] == 6
  assert row["train/top1"] == 3 / 16
  assert row["train/learning_rate"] == 6 / 8
  assert row["train/skipped_images"] == 3
  assert row["train/images_per_second"] > 0


def test_steps_that_were_not_applied_are_left_out_and_kept():
  meter = Meter(4, 5)
  for step, loss, skipped in [(1, 2.0, 0), (2, np.nan, 1), (3, np.inf, 1)]:
    meter.add(step, _metrics(loss, skipped))
  row = meter.read()
  assert row["train/loss"] == 2
  assert row["train/skipped_steps"] == 2
  assert [step for step, _ in meter.skipped] == [2, 3]
  meter.add(4, _metrics(1.0))
  meter.read()
  assert meter.skipped == []


def test_if_none_was_applied_the_row_says_so():
  meter = Meter(4, 5)
  meter.add(1, _metrics(np.nan, 1))
  assert np.isnan(meter.read()["train/loss"])


def test_images_per_second_leave_out_the_first_step_and_pauses(monkeypatch):
  now = [0.0]
  monkeypatch.setattr(metrics.time, "perf_counter", lambda: now[0])
  meter = Meter(8, 5)
  now[0] = 100.0  # Compiling.
  meter.add(1, _metrics(1.0))
  assert "train/images_per_second" not in meter.read()
  for step in (2, 3):
    now[0] += 2
    meter.add(step, _metrics(1.0))
  with meter.paused():
    now[0] += 50
  assert meter.read()["train/images_per_second"] == 4


@pytest.fixture
def folder(tmp_path):
  return epath.Path(tmp_path)


def _values(step):
  return {"train/loss": float(step), "by_class": {"a": 1.0}}


def _steps(folder):
  """Steps in `metrics.jsonl`, and in TensorBoard's files."""
  rows = [row["step"] for row in read_rows(folder / "metrics.jsonl")]
  if not (folder / "tensorboard").is_dir():
    return rows, []
  return rows, [step for step, _, _ in runs.events(folder)]


def test_a_row_goes_everywhere_and_its_dictionaries_to_the_file(folder):
  writer = MetricWriter(folder)
  writer.write(3, _values(3))
  assert read_rows(folder / "metrics.jsonl") == [{"step": 3, **_values(3)}]
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
  assert writer.notes == ["metrics.jsonl held 2 broken lines, dropped now."]
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
  rows = read_rows(folder / "metrics.jsonl")
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
