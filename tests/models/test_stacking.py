"""Layers in the scanned layout and one by one."""

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from tests.models.towers import TOKENS, Autoencoder, flat_shapes
from vit_jax.models.part import ENCODER, Part, Stack
from vit_jax.models.parts import Parts
from vit_jax.models.stacking import LayerNames


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
  assert parts.unstacked("tower/layers/a", 1) == ["tower/layer0/a"]
