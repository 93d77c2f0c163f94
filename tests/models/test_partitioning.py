"""The logical axes by which shardings are chosen."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from tests.models.tiny_vit import shapes_of
from vit_jax import make_vit


@pytest.mark.parametrize(
  "variant, names",
  [
    ("B/16", set()),
    pytest.param(
      "R50+B/16", {"channels_in", "channels_out"}, marks=pytest.mark.slow
    ),
  ],
)
def test_every_dimension_has_a_logical_name(variant, names):
  image = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
  model = make_vit(variant, 1000, representation_size=768, num_layers=1)
  boxes = jax.tree.leaves(
    shapes_of(model, image),
    is_leaf=lambda node: isinstance(node, nn.LogicallyPartitioned),
  )
  seen = set()
  for box in boxes:
    assert isinstance(box, nn.LogicallyPartitioned)
    assert len(box.names) == box.value.ndim
    named = [name for name in box.names if name]
    assert len(set(named)) == len(named)  # A mesh axis splits one dimension.
    seen |= set(named)
  dense = {"patch", "position", "embed", "mlp", "heads", "head_size"}
  assert seen == names | dense | {"representation", "classes"}
