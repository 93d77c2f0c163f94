"""One compiled block for all layers, and rematerialisation."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from tests.models.tiny_vit import images, random_params, shapes_of, tiny
from vit_jax.models.scan import stack, unstack


@pytest.mark.parametrize(
  "scan, remat",
  [
    (True, "dots"),
    pytest.param(True, "none", marks=pytest.mark.slow),
    pytest.param(True, "full", marks=pytest.mark.slow),
    pytest.param(False, "dots", marks=pytest.mark.slow),
    pytest.param(False, "full", marks=pytest.mark.slow),
  ],
)
def test_scanned_and_rematerialised_blocks_compute_the_same(scan, remat):
  x = images()
  params = jax.tree.map(jnp.asarray, random_params(tiny(), x))

  def gradient(model, params):
    def loss(params):
      return jnp.square(model.apply({"params": params}, x)).mean()

    return jax.jit(jax.value_and_grad(loss))(params)

  expected_loss, expected = gradient(tiny(), params)
  model = tiny(scan=scan, remat=remat)
  loss, found = gradient(model, stack(params) if scan else params)
  assert float(loss) == pytest.approx(float(expected_loss), rel=1e-5)
  found = traverse_util.flatten_dict(unstack(found))
  # The gradient of the key biases is 0: what is computed is rounding error.
  atol = 1e-5 * max(float(jnp.abs(a).max()) for a in jax.tree.leaves(expected))
  for name, a in traverse_util.flatten_dict(expected).items():
    np.testing.assert_allclose(found[name], a, rtol=1e-3, atol=atol)


def test_a_scanned_model_has_the_parameters_of_an_unrolled_one():
  unrolled, scanned = (
    nn.unbox(shapes_of(tiny(scan=scan), images())) for scan in (False, True)
  )
  stacked = jax.eval_shape(stack, unrolled)
  assert jax.tree.map(jnp.shape, stacked) == jax.tree.map(jnp.shape, scanned)
  back = jax.eval_shape(unstack, scanned)
  assert jax.tree.map(jnp.shape, back) == jax.tree.map(jnp.shape, unrolled)


@pytest.mark.slow
def test_only_the_layers_of_a_scanned_model_start_otherwise():
  """As `model.scan` says; the rest is drawn as in an unrolled model."""
  unrolled, scanned = (
    nn.unbox(jax.jit(tiny(scan=scan).init)(jax.random.key(0), images()))
    for scan in (False, True)
  )
  same = jax.tree.map(
    lambda a, b: bool((a == b).all()), stack(unrolled), scanned
  )["params"]
  blocks = traverse_util.flatten_dict(same.pop("blocks"), sep="/")
  assert jax.tree.all(same)
  drawn = {path for path, equal in blocks.items() if not equal}
  constant = {p for p in blocks if re.search("norm|msa/.*bias", p)}
  assert drawn == blocks.keys() - constant


def test_layers_stay_in_order_beyond_ten():
  blocks = {f"block_{i}": {"x": np.full(2, i)} for i in range(12)}
  stacked = stack({"head": 1, **blocks})
  np.testing.assert_array_equal(stacked["blocks"]["x"][:, 0], np.arange(12))
  assert unstack(stacked).keys() == {"head", *blocks}
