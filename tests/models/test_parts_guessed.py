"""The parts of models that list none."""

import numpy as np
from flax.traverse_util import unflatten_dict

from tests.models.towers import (
  AUTOENCODER,
  TOKENS,
  Autoencoder,
  flat_shapes,
  modules_of,
)
from vit_jax.models.model import Model
from vit_jax.models.parts import Parts, guess_parts


def test_a_model_that_lists_no_parts_is_taken_by_its_names():
  """As if the same model listed them, but for the token at the root."""
  shapes = flat_shapes(Autoencoder(), TOKENS)
  parts = Parts.of(Model(num_classes=3), lambda: shapes)
  assert Parts.of(object(), shapes) == parts
  depths = {**AUTOENCODER, "mask_token": 7}
  own = {m for m in AUTOENCODER if not m.startswith("encoder")}
  for path, module in modules_of(shapes, AUTOENCODER).items():
    assert parts.depth(path) == depths[module], path
    assert parts.own_task(path) == (module in own)
  tree = unflatten_dict(shapes, sep="/")
  assert guess_parts(tree) == guess_parts(shapes) == parts
  others = {"Stem_0/kernel": 1, "EncoderBlock_0/a/kernel": 1}
  others["EncoderBlock_1/a/kernel"] = 1
  parts = guess_parts(dict.fromkeys(others, np.ones(2)))
  assert [parts.depth(path) for path in others] == [3, 2, 1]
  assert [parts.in_layer(path) for path in others] == [False, True, True]
