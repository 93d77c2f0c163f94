"""One compiled block for all layers, their two layouts, rematerialisation."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from tests.models.tiny_vit import images, random_params, shapes_of, tiny
from tests.models.towers import TOKENS, Autoencoder, flat_shapes
from vit_jax.models.parts import (
  ENCODER,
  LayerNames,
  Part,
  Parts,
  Stack,
  stack,
  unstack,
)


@pytest.mark.parametrize(
  "scan, remat",
  [
    pytest.param(True, "dots", marks=pytest.mark.slow),
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
  found = flatten_dict(unstack(found))
  # The gradient of the key biases is 0: what is computed is rounding error.
  atol = 1e-5 * max(float(jnp.abs(a).max()) for a in jax.tree.leaves(expected))
  for name, a in flatten_dict(expected).items():
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
  blocks = flatten_dict(same.pop("blocks"), sep="/")
  assert jax.tree.all(same)
  drawn = {path for path, equal in blocks.items() if not equal}
  constant = {p for p in blocks if re.search("norm|msa/.*bias", p)}
  assert drawn == blocks.keys() - constant


def test_layers_stay_in_order_beyond_ten():
  blocks = {f"block_{i}": {"x": np.full(2, i)} for i in range(12)}
  stacked = stack({"head": 1, **blocks})
  np.testing.assert_array_equal(stacked["blocks"]["x"][:, 0], np.arange(12))
  assert unstack(stacked).keys() == {"head", *blocks}


def test_both_stacks_are_stacked_and_unstacked_in_a_state():
  rng = np.random.default_rng(0)
  shapes = flat_shapes(Autoencoder(), TOKENS)
  values = {k: rng.normal(size=x.shape) for k, x in shapes.items()}
  params = unflatten_dict(values, sep="/")
  params["block_0"] = {"a": np.zeros(2)}  # A stack around the others.
  params["block_1"] = {"a": np.ones(2)}
  state = {"params": params, "mu": (params, None)}
  parts = Parts.of(Autoencoder(), None)
  stacked = parts.stack(state)
  own = flatten_dict(stacked["mu"][0], sep="/")
  np.testing.assert_array_equal(own["blocks/a"], [[0, 0], [1, 1]])
  layers = [f"encoder/block_{i}/msa/out/kernel" for i in range(3)]
  expected = np.stack([values[path] for path in layers])
  kernels = own["encoder/blocks/msa/out/kernel"]
  np.testing.assert_array_equal(kernels, expected)
  assert not [path for path in own if "block_" in path]
  jax.tree.map(np.testing.assert_array_equal, parts.unstack(stacked), state)


def test_other_names_of_layers():
  names = LayerNames("layer{}", "layers")
  assert names.of(3) == "layer3" and names.number("layer3") == 3
  others = ("layer", "layer03", "layer_3", "layers", "block_3")
  assert [names.number(name) for name in others] == [None] * 5
  parts = Parts((Part("tower", ENCODER, Stack(2, names)),))
  tree = {"tower": {f"layer{i}": {"a": np.full(2, i)} for i in range(2)}}
  stacked = parts.stack(tree)
  np.testing.assert_array_equal(
    stacked["tower"]["layers"]["a"], [[0, 0], [1, 1]]
  )
  jax.tree.map(np.testing.assert_array_equal, parts.unstack(stacked), tree)
  assert parts.unstacked_paths("tower/layers/a", 1) == ["tower/layer0/a"]
