"""The counts of right answers."""

import jax
import numpy as np

from vit_jax.evaluation.probe_step import Totals, count_right


def test_masked_rows_are_not_counted():
  rng = np.random.default_rng(0)
  y, label = rng.normal(size=(8, 4)).astype(np.float32), np.arange(8) % 3
  W = rng.normal(size=(2, 5, 3)).astype(np.float32)
  mean = rng.normal(size=(2, 4)).astype(np.float32)
  scale = rng.uniform(1, 2, (2, 4)).astype(np.float32)
  mask = np.float32([1, 1, 0, 1, 0, 1, 1, 0])
  batch = {"label": label, "mask": mask, "skipped": mask == 0}
  probes = {"mean": mean, "scale": scale, "W": W}
  totals = Totals.zeros(2)
  for _ in range(2):
    totals = jax.jit(count_right)(totals, probes, y, batch)
  z = (y - mean[:, None]) / scale[:, None]
  right = (z @ W[:, :-1] + W[:, -1:]).argmax(-1) == label
  np.testing.assert_array_equal(totals.right, 2 * (right * mask).sum(1))
  assert (int(totals.examples), int(totals.skipped)) == (10, 6)
