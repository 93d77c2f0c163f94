"""The grid of patches, and the shapes of parameters for it."""

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
from flax import traverse_util

from tests.models.tiny_vit import D, images, tiny
from vit_jax import make_model
from vit_jax.models.grid import grid_of, param_shapes
from vit_jax.models.vit import EncoderBlock, Vit


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


class SecondIsScaled(EncoderBlock):
  """Layers of which the second has a parameter more than the first."""

  @nn.compact
  def __call__(self, z, R=None, *, train=False):
    if self.name == "block_1":
      z = z * self.param("scale", nn.initializers.ones, (1, 1, D))
    return super().__call__(z, R, train=train)


@pytest.mark.parametrize(
  "fields",
  [
    {"position": "learned", "num_layers": 11},
    {"position": "learned2d"},
    {"position": "relative"},
    {"position_at": "every_layer"},
    {"block": SecondIsScaled},
    {"block": "beit"},
    {"scan": True},
  ],
  ids=str,
)
def test_shapes_are_those_of_the_parameters(fields):
  """And in their order, whether layers have equal parameters or not."""
  model = tiny(representation_size=7, **fields)
  params = nn.unbox(
    jax.eval_shape(model.init, jax.random.key(0), images(8, 12))
  )
  flat = traverse_util.flatten_dict(params["params"], sep="/")
  found = param_shapes(model, (2, 3))
  assert list(found.items()) == [(path, x.shape) for path, x in flat.items()]
  count = sum(math.prod(shape) for shape in found.values())
  assert count == sum(leaf.size for leaf in flat.values())


class Weighted(Vit):
  """A model that cannot be hashed."""

  weights: np.ndarray = dataclasses.field(default_factory=lambda: np.ones(3))


def test_shapes_are_the_callers_own():
  """What is asked again is answered from the first time."""
  fields: Any = dict(hidden_size=8, num_layers=1, mlp_size=8, num_heads=2)
  expected = param_shapes(Vit(5, patch_size=4, **fields), (2, 3))
  expected_head = expected["head/kernel"]
  expected["head/kernel"] = ()
  for make in (Vit, Weighted):
    found = param_shapes(make(5, patch_size=4, **fields), (2, 3))
    assert found == {**expected, "head/kernel": expected_head}


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
