"""The grid of patches, and the shapes of parameters for it."""

import math

import flax.linen as nn
import jax
import pytest
from flax import traverse_util

from tests.models.tiny_vit import D, images, tiny
from vit_jax import make_model
from vit_jax.models.grid import grid_of, param_shapes


@pytest.mark.parametrize(
  "variant, stride",
  [
    ("B/16", 16),
    ("H/14", 14),
    ("R50+B/16", 16),
    ("R50+B/32", 32),
    ("R50x1", 32),
  ],
)
def test_the_stride_is_in_pixels_of_the_image(variant, stride):
  model = make_model(variant, 10)
  assert model.stride == stride
  assert grid_of(model, (stride, 3 * stride)) == (1, 3)


@pytest.mark.parametrize("size", [(30, 32), (32, 8), (0, 16)])
def test_images_that_patches_do_not_fill_are_refused(size):
  with pytest.raises(ValueError, match="the model's stride of 16 pixels; "):
    grid_of(make_model("B/16", 10), size)


@pytest.mark.parametrize("position", ["learned", "learned2d", "relative"])
def test_shapes_are_those_of_the_parameters(position):
  model = tiny(position=position, representation_size=7)
  params = nn.unbox(
    jax.eval_shape(model.init, jax.random.key(0), images(8, 12))
  )
  flat = traverse_util.flatten_dict(params["params"], sep="/")
  found = param_shapes(model, (2, 3))
  assert found == {path: leaf.shape for path, leaf in flat.items()}
  count = sum(math.prod(shape) for shape in found.values())
  assert count == sum(leaf.size for leaf in flat.values())


def test_the_table_of_positions_follows_the_grid():
  for grid in ((2, 3), (5, 5)):
    shape = param_shapes(tiny(), grid)["position/E_pos"]
    assert shape == (grid[0] * grid[1] + 1, D)


@pytest.mark.parametrize(
  "fields, message",
  [
    ({"num_layers": 301}, "it would have 301 layers, in 0 stages of a ResNet"),
    ({"resnet_layers": (1,) * 9}, "it would have 11 layers, in 9 stages of a"),
  ],
)
def test_models_too_deep_to_be_real_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    param_shapes(tiny(**fields), (1, 1))
