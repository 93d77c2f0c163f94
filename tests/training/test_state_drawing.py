"""First arrays, drawn part by part, against one program for all."""

import jax
import numpy as np
import pytest

from tests.tiny import compilations
from vit_jax import init_params, make_vit
from vit_jax.training import sharding
from vit_jax.training.optimizer import make_optimizer
from vit_jax.training.settings import LoraSettings, OptimizerSettings
from vit_jax.training.state import Extras, draw, make_init


@pytest.mark.parametrize("fields", [{}, dict(scan=True), dict(lora=True)])
def test_arrays_are_drawn_as_by_one_program(fields):
  """To the bit, each device its part, and no array that is not needed."""
  model = make_vit(
    "Ti/4", num_classes=5, num_layers=2, scan=fields.get("scan", False)
  )
  tx = make_optimizer(OptimizerSettings(), lambda _: 1.0)
  extras = Extras(LoraSettings(rank=2)) if "lora" in fields else Extras()
  init = jax.jit(make_init(model, tx, (8, 8, 3), 0.9, extras))
  shapes = jax.tree.leaves(
    sharding.array_shapes(init, sharding.make_mesh(1, 8))
  )
  asked = [None if place % 7 == 0 else x for place, x in enumerate(shapes)]
  key = jax.random.key(3)
  found = draw(init, key, asked)
  known = [
    (array, shape.sharding)
    for array, shape in zip(jax.tree.leaves(init(key)), asked, strict=True)
    if shape is not None
  ]
  for array, (same, layout) in zip(found, known, strict=True):
    np.testing.assert_array_equal(array, same)
    assert array.dtype == same.dtype and array.sharding == layout


def test_layers_that_are_drawn_alike_share_their_programs():
  """A model of five layers compiles as many programs as one of two."""

  def compiled(num_layers):
    model = make_vit("Ti/4", num_classes=5, num_layers=num_layers, mlp_size=99)
    jax.clear_caches()
    with compilations() as found:
      init_params(model, jax.random.key(0), 8)
    return len(found)

  assert compiled(5) == compiled(2)
