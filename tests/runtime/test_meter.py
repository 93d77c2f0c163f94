"""Metrics are averaged, images counted by time, and each second just once."""

import contextlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.runtime.meter import Meter, Stopwatch, shares, time_spent


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


def test_a_pause_before_the_first_step_is_not_taken_off_the_steps(monkeypatch):
  """As of an evaluation of published weights, before they are trained."""
  now = [0.0]
  monkeypatch.setattr(time, "perf_counter", lambda: now[0])
  meter = Meter(8, 5)
  with meter.paused():
    now[0] += 50
  for step in (1, 2, 3):
    now[0] += 2
    meter.add(step, _metrics(1.0))
  assert meter.read()["train/images_per_second"] == 4


def test_no_more_steps_are_under_way_than_may_be():
  done = []

  class Running(int):
    def __int__(self):  # As of an array, it waits for the step.
      done.append(1)
      return 0

  meter = Meter(8, 9)
  for step in range(1, 6):
    meter.add(step, {"skipped_steps": Running()})
    assert step - len(done) == min(step - 1, 2)
  meter.wait(1)
  assert len(done) == 4


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


@pytest.mark.parametrize("now", [None, {"time": {"restoring": 4.0}}])
def test_a_repeated_command_of_a_complete_run_loses_nothing(now):
  """As told by the run itself, and by the report on it."""
  rows = [_row(5, steps=10, data=1), _row(9, steps=18, data=2)]
  rows.append({"step": 9, "test/loss": 1.0})
  starts = [_start(0, 0), _start(9, 3000), _start(9, 6000)]
  spent = time_spent(rows, starts, now)
  assert spent is not None
  assert {k: v for k, v in spent.items() if v} == {"steps": 18, "data": 2}


@pytest.mark.parametrize("now", [None, {"time": {"evaluating": 9.0}}])
def test_a_start_that_only_measures_does_not_hide_the_training(now):
  """The run was stopped at its last step, and evaluated by the next start."""
  rows = [_row(5, steps=10, data=1), _row(9, steps=18, data=2)]
  rows.append({"step": 9, "time": {"steps": 0.1, "evaluating": 8.0}})
  spent = time_spent(rows, [_start(0, 0), _start(9, 3000)], now)
  assert spent is not None
  assert {k: v for k, v in spent.items() if v} == {"steps": 18, "data": 2}


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


@pytest.mark.parametrize("command, lost", [("train b", 0), ("train a", 3000)])
def test_a_run_of_another_command_that_saved_nothing_is_not_counted(
  command, lost
):
  """The first start ended at once; 3,000 s later, the second began anew."""
  starts = [
    _start(0, 0) | {"command": "train a"},
    _start(0, 3000) | {"command": command},
  ]
  spent = time_spent([_row(9, steps=20)], starts)
  assert spent is not None
  assert (spent["steps"], spent["lost"]) == (20, lost)


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
