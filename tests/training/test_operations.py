"""Operations of models, against counts by hand."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from vit_jax import make_resnet, make_vit
from vit_jax.training.operations import count_operations


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
