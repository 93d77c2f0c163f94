"""The features below the head, and the counts of right answers."""

import jax
import jax.numpy as jnp
import numpy as np

from tests import tinted
from vit_jax import make_model
from vit_jax.evaluation.probe_step import Totals, count_right, without_head


def test_the_representation_is_y_of_equation_4_or_the_pre_logits():
  model, params = tinted.model_and_params()
  bodies = [without_head(model, pre_logits) for pre_logits in (False, True)]
  variables = {"params": params}
  y, pre_logits = jax.jit(
    lambda: [body.apply(variables, jnp.ones((2, 8, 8, 3))) for body in bodies]
  )()
  assert y.shape == (2, 16)
  layer = params["pre_logits"]
  tanh = np.tanh(np.asarray(y @ layer["kernel"]) + np.asarray(layer["bias"]))
  np.testing.assert_allclose(pre_logits, tanh, rtol=1e-4, atol=1e-6)
  outputs = jax.jit(
    lambda: model.apply(
      variables, jnp.ones((2, 8, 8, 3)), capture_intermediates=True
    )
  )()[1]
  norm = outputs["intermediates"]["norm"]["__call__"][0]
  np.testing.assert_allclose(y, norm, rtol=1e-5, atol=1e-6)
  assert without_head(make_model("R50x1", 3), True).num_classes == 0


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
