"""Biases between patches: the formulas, and what class tokens get."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import init_params, make_vit
from vit_jax.models.relative import (
  Relative,
  RelativeBiases,
  bilinear_weights,
  geometric_weights,
  relative_bias,
)

GRID = (2, 3)
compiled_bias = jax.jit(relative_bias, static_argnums=1)
RNG = np.random.default_rng(0)


def relative(kind="table", class_token=True, table=GRID):
  return Relative(kind, GRID, table, class_token, hidden=5, bilinear=False)


@pytest.mark.parametrize("class_token", [False, True])
def test_the_bias_of_two_patches_is_the_entry_of_their_offset(class_token):
  h, w = GRID
  T = (2 * h - 1) * (2 * w - 1)
  B = RNG.normal(size=(T + 3 * class_token, 2)).astype(np.float32)
  bias = np.asarray(compiled_bias(B, relative(class_token=class_token)))
  assert bias.shape == (1, 2, h * w + class_token, h * w + class_token)
  patches = np.asarray(bias[0, :, class_token:, class_token:])
  for q in range(h * w):
    for s in range(h * w):
      y = q // w - s // w
      x = q % w - s % w
      entry = (y + h - 1) * (2 * w - 1) + x + w - 1
      np.testing.assert_array_equal(patches[:, q, s], B[entry])
  if class_token:
    np.testing.assert_array_equal(bias[0, :, 0, 0], B[-1])
    np.testing.assert_array_equal(bias[0, :, 0, 1:], np.tile(B[T], (6, 1)).T)
    np.testing.assert_array_equal(
      bias[0, :, 1:, 0], np.tile(B[T + 1], (6, 1)).T
    )


def test_patches_that_are_taken_keep_their_offsets():
  B = RNG.normal(size=(18, 2)).astype(np.float32)
  whole = compiled_bias(B, relative())
  where = np.array([[4, 0, 5], [1, 2, 3]])
  part = np.asarray(compiled_bias(B, relative(), where))
  for row, places in enumerate(where):
    tokens = np.concatenate([[0], places + 1])
    expected = np.asarray(whole)[0][:, tokens][:, :, tokens]
    np.testing.assert_array_equal(part[row], expected)


def test_the_mlp_reads_logarithms_of_offsets():
  module = RelativeBiases(2, relative("mlp"))
  params = jax.eval_shape(module.init, jax.random.key(0))["params"]
  params = jax.tree.map(
    lambda x: RNG.normal(size=x.shape).astype(np.float32), nn.unbox(params)
  )
  B = np.asarray(jax.jit(module.apply)({"params": params}))
  first, second = params["expand"], params["contract"]
  rows = [
    np.sign([y, x]) * np.log(1 + np.abs([y, x]))
    for y in (-1, 0, 1)
    for x in (-2, -1, 0, 1, 2)
  ]
  hidden = np.maximum(np.stack(rows) @ first["kernel"] + first["bias"], 0)
  expected = hidden @ second["kernel"] + second["bias"]
  np.testing.assert_allclose(B[:15], expected, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(B[15:], np.zeros((3, 2)))


@pytest.mark.parametrize("weights", [bilinear_weights, geometric_weights])
def test_a_table_that_is_resized_keeps_a_constant(weights):
  for old, new in ((5, 9), (9, 5), (7, 7)):
    W = weights(old, new)
    assert W.shape == (new, old)
    np.testing.assert_allclose(W.sum(axis=1), np.ones(new), rtol=1e-12)
  np.testing.assert_allclose(bilinear_weights(7, 7), np.eye(7), atol=1e-12)
  # The offset of 0 stays where it is, and the two sides are alike.
  np.testing.assert_allclose(
    geometric_weights(5, 9)[4], np.eye(5)[2], atol=1e-12
  )
  np.testing.assert_allclose(
    geometric_weights(5, 9), geometric_weights(5, 9)[::-1, ::-1]
  )


def test_a_table_is_resized_along_each_axis():
  """From 3 x 3 offsets to 3 x 5; the entries of a class token stay."""
  two = Relative("table", GRID, (2, 2), True, hidden=5, bilinear=True)
  B = RNG.normal(size=(9 + 3, 2)).astype(np.float32)
  found = RelativeBiases(2, two).apply({"params": {"B": B}})
  points = (np.arange(5) + 0.5) * 3 / 5 - 0.5
  expected = [
    [np.interp(points, range(3), row[:, head]) for head in range(2)]
    for row in B[:9].reshape(3, 3, 2)
  ]
  expected = np.array(expected).transpose(0, 2, 1).reshape(15, 2)
  np.testing.assert_allclose(found[:15], expected, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(found[15:], B[9:])


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_a_bias_that_is_shared_or_not_is_trained(shared):
  fields = dict(num_layers=2, hidden_size=16, mlp_size=32, num_heads=2)
  model = make_vit("Ti/8", 3, block="beit", **fields, relative_shared=shared)
  images = jnp.asarray(RNG.normal(size=(2, 16, 24, 3)), jnp.float32)
  params = init_params(model, jax.random.key(0), (16, 24))
  params["head"]["kernel"] = jnp.asarray(RNG.normal(size=(16, 3)))
  tables = [params] if shared else [params["block_0"], params["block_1"]]
  assert [table["relative"]["B"].shape for table in tables] == (
    [(18, 2)] * len(tables)
  )

  def loss(params):
    return (model.apply({"params": params}, images) ** 2).sum()

  gradients = jax.jit(jax.grad(loss))(params)
  layers = [gradients] if shared else [gradients["block_0"]]
  assert all(np.abs(g["relative"]["B"]).max() > 0 for g in layers)
