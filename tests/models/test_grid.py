"""The grid of patches, the shapes of parameters for it, and operations."""

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from tests.models.tiny_vit import images, tiny
from vit_jax import make_model, make_resnet, make_vit
from vit_jax.models.grid import count_operations, grid_of, param_shapes
from vit_jax.models.vit import Vit


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


def _forward(model, side):
  image = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
  params = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), image))
  return count_operations(model.apply, params, image)


@pytest.mark.parametrize(
  "fields",
  [
    pytest.param({}, marks=pytest.mark.slow),
    {"scan": True},
    pytest.param({"remat": "full"}, marks=pytest.mark.slow),
    {"scan": True, "remat": "dots"},
  ],
)
def test_a_vit_needs_what_its_products_do(fields):
  S, D, M, L = 197, 768, 3072, 12
  layer = 4 * S * D * D + 2 * S * S * D + 2 * S * D * M
  # The class token's query alone, compared with the tokens themselves.
  last = layer
  if not fields.get("scan"):
    last = 4 * D * D + 2 * 12 * S * D + 2 * D * M
  patches = 196 * 16 * 16 * 3 * D
  expected = 2 * ((L - 1) * layer + last + patches + D * 1000)
  assert _forward(make_vit("B/16", 1000, **fields), 224) == expected


def test_axial_attention_needs_two_mlps_and_short_products():
  N, D, M, L, side = 49, 768, 3072, 12, 7
  layer = 4 * N * D * D + 2 * N * side * D + 2 * N * D * M
  expected = 2 * (2 * L * layer + N * 32 * 32 * 3 * D + D * 1000)
  assert _forward(make_vit("Axial-B/32", 1000, scan=True), 224) == expected


def test_a_convolution_needs_each_kernel_entry_at_each_output():
  conv = nn.Conv(8, (3, 3), padding="VALID")
  image = jax.ShapeDtypeStruct((2, 10, 12, 4), jnp.float32)
  params = jax.eval_shape(conv.init, jax.random.key(0), image)
  found = count_operations(conv.apply, params, image)
  assert found == 2 * (2 * 8 * 10 * 8) * (3 * 3 * 4)


@pytest.mark.slow
def test_resnet50_needs_four_billion_multiply_adds():
  # 4.1e9 as published for ResNet-50 v1.5 at 224 (arXiv:2110.00476, Table 1).
  assert _forward(make_resnet("R50x1", 1000), 224) == pytest.approx(
    8.2e9, rel=0.02
  )
