"""Every second of a run is counted once, also over several starts."""

import contextlib
import time

import pytest

from vit_jax.runtime.goodput import Stopwatch, shares, time_spent


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
