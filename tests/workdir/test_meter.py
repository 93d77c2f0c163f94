"""Metrics are averaged, time is counted once, and some steps are traced."""

import contextlib
import secrets
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.workdir import bucket
from vit_jax.workdir.meter import Meter, Stopwatch, Tracer, shares, time_spent


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
  monkeypatch.setattr(time, "perf_counter", lambda: now[0])
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


def _start(step, seconds):
  minutes, seconds = divmod(seconds, 60)
  return {
    "step": step,
    "time": f"2026-01-02T03:{minutes:02}:{seconds:02}+00:00",
  }


def _row(step, **seconds):
  return {"step": step, "train/loss": 1.0} | (
    {"time": seconds} if seconds else {}
  )


def test_what_is_not_measured_is_steps(monkeypatch):
  now = [100.0]
  monkeypatch.setattr(time, "perf_counter", lambda: now[0])

  def wait(seconds):
    now[0] += seconds

  watch = Stopwatch()
  wait(3)
  with watch.on("restoring"):
    wait(4)
  watch.set_up()
  for _ in range(2):
    with watch.on("data"):
      wait(1)
    wait(10)
  with contextlib.suppress(OSError), watch.on("saving"):
    wait(2)
    raise OSError
  assert watch.row()["time"] == {
    "starting": 3,
    "restoring": 4,
    "data": 2,
    "evaluating": 0,
    "saving": 2,
    "steps": 20,
  }


def test_time_of_an_undisturbed_run_is_its_last_row():
  rows = [_row(5, steps=10, data=1), _row(9, steps=18, data=2)]
  spent = time_spent(rows, [_start(0, 0)])
  assert spent is not None
  assert {k: v for k, v in spent.items() if v} == {"steps": 18, "data": 2}
  assert shares(spent) == [("in steps", 0.9), ("waiting for data", 0.1)]


def test_what_a_killed_start_left_behind_is_not_lost():
  """Starts at 0, 30 (from step 5), 50 (again), 60 and 100 s (from step 3).

  The first start's row of step 5 was written anew by the last one.
  """
  starts = [_start(*s) for s in ((0, 0), (5, 30), (5, 50), (5, 60), (3, 100))]
  rows = [_row(3, steps=6), _row(5, steps=7), _row(9, steps=20, starting=4)]
  spent = time_spent(rows, starts)
  assert spent is not None
  assert {k: v for k, v in spent.items() if v} == {
    "steps": 26,
    "starting": 4,
    "lost": 100 - 6,
  }
  now = {"time": {"steps": 30.0, "evaluating": 10.0}}
  again = time_spent(rows, starts, now)
  assert again is not None
  assert (again["steps"], again["evaluating"]) == (36, 10)
  assert again["lost"] == 100 - 6


@pytest.mark.parametrize(
  "rows, starts",
  [
    ([_row(3)], [_start(0, 0)]),
    ([_row(3), _row(5, steps=1)], [_start(0, 0), _start(3, 9)]),
    ([_row(3, steps=1)], []),
    ([_row(3, steps=1)], [{"step": 0, "time": "soon"}]),
    ([_row(3, steps=1)], [{"step": 0}]),
    ([_row(3) | {"time": 5}], [_start(0, 0)]),
  ],
)
def test_a_run_of_an_older_version_has_no_times(rows, starts):
  assert time_spent(rows, starts) is None


def _trace(monkeypatch, tracer, **errors):
  """Runs ten steps; returns the tracer's calls of JAX and its errors."""
  calls = []

  def call(name):
    def called(*_):
      calls.append((name, step))
      if name in errors:
        raise errors[name]

    return called

  for name in ("start_trace", "stop_trace"):
    monkeypatch.setattr(jax.profiler, name, call(name))
  for step in range(1, 11):
    for at in (tracer.before, lambda s: tracer.after(s, jnp.ones(()))):
      try:
        at(step)
      except OSError as error:
        calls.append(str(error))
  return calls


@pytest.mark.parametrize(
  "begin, steps, calls",
  [
    (3, 4, [("start_trace", 3), ("stop_trace", 6)]),
    (8, 40, [("start_trace", 8), ("stop_trace", 10)]),
    (3, 0, []),
    (11, 2, []),
  ],
)
def test_the_steps_that_are_traced(monkeypatch, begin, steps, calls):
  assert _trace(monkeypatch, Tracer("x", begin, steps, 10)) == calls


def test_a_trace_that_cannot_be_written_is_an_oserror(monkeypatch):
  error = RuntimeError("cannot export")
  found = _trace(monkeypatch, Tracer("x", 3, 4, 10), stop_trace=error)
  assert found == [("start_trace", 3), ("stop_trace", 6), "cannot export"]
  found = _trace(monkeypatch, Tracer("x", 3, 4, 10), start_trace=error)
  assert found == [("start_trace", 3), "cannot export"]


@pytest.mark.slow
def test_a_trace_of_a_run_in_a_bucket_is_there_as_well(
  store, tmp_path, monkeypatch
):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  folder = f"gs://bucket/{secrets.token_hex(4)}/profile"
  tracer = Tracer(folder, 1, 1, 10)
  tracer.before(1)
  tracer.after(1, jax.jit(jnp.sin)(jnp.ones(3)))
  target = bucket.blob(folder)
  names = [b.name for b in target.bucket.list_blobs(prefix=target.name)]
  assert any(name.endswith(".xplane.pb") for name in names)
  assert [*tmp_path.iterdir()] == []
