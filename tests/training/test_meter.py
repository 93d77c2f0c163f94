"""Metrics are averaged between two reads, and images are counted by time."""

import time

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.training.meter import Meter


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
