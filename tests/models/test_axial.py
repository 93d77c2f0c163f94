"""Axial attention against NumPy, and in all that a layer takes part in."""

import jax
import numpy as np
import pytest

from tests.models import equations
from tests.models.tiny_vit import apply, images, random_params, shapes_of, tiny
from vit_jax import make_vit
from vit_jax.inspection import attention_maps
from vit_jax.models import from_fields, to_fields, variant_of
from vit_jax.models.axial import AxialBlock
from vit_jax.models.parts import stack

AXIAL = dict(block="axial", pooling="gap")
GRID = 2, 3  # Of images of 8 x 12, by patches of 4 x 4.


@pytest.fixture(scope="module")
def made():
  model = tiny(**AXIAL, scan=True)
  x = images()
  params = random_params(model.clone(scan=False), x)
  return model, params, x, apply(model, stack(params), x)


def test_agrees_with_numpy(made):
  _, params, x, found = made
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  for image, logits in zip(np.asarray(x, np.float64), found, strict=True):
    patches = [
      image[4 * y : 4 * y + 4, 4 * x : 4 * x + 4].ravel()
      for y in range(2)
      for x in range(3)
    ]
    z = equations.dense(np.stack(patches), params["patches"]["E"])
    z = (z + params["position"]["E_pos"]).reshape(*GRID, -1)
    for layer in range(2):
      block = params[f"block_{layer}"]
      for y in range(2):
        z[y] = equations.block(z[y], block["row"], 1e-6, "tanh")
      for x in range(3):
        z[:, x] = equations.block(z[:, x], block["column"], 1e-6, "tanh")
    y = equations.layer_norm(z.reshape(6, -1), params["norm"], 1e-6).mean(0)
    expected = equations.dense(y, params["head"])
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["none", "full"])
def test_unrolled_and_rematerialised_it_is_the_same(made, remat):
  model, params, x, expected = made
  found = apply(model.clone(scan=False, remat=remat), params, x)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
  "variant, params", [("B/16", 171_620_584), ("B/32", 173_277_160)]
)
def test_parameter_counts(variant, params):
  model = make_vit(f"Axial-{variant}", 1000, scan=True)
  image = jax.ShapeDtypeStruct((1, 224, 224, 3), np.float32)
  shapes = jax.tree.leaves(shapes_of(model, image))
  assert sum(leaf.size for leaf in shapes) == params
  assert variant_of(model) == f"Axial-{variant}"


def test_a_description_names_it():
  model = tiny(**AXIAL)
  fields = to_fields(model)
  assert fields["block"] == "axial"
  assert from_fields(fields) == model and model.block is AxialBlock


@pytest.mark.parametrize(
  "fields, problem",
  [
    (dict(block="axial"), "a class token lies in neither: set pooling='gap'"),
    (dict(**AXIAL, position="relative"), "relative .*: set another position"),
  ],
)
def test_tokens_without_row_and_column_are_refused(fields, problem):
  with pytest.raises(ValueError, match=f"rows and columns, and {problem}"):
    shapes_of(tiny(**fields), images())


def test_the_map_head_pools_it():
  shapes = shapes_of(tiny(block="axial", pooling="map"), images())
  assert {"row", "column"} == set(shapes["block_0"])
  assert "map_head" in shapes


@pytest.mark.slow
def test_attention_maps_are_along_rows_then_columns(made):
  model, params, x, _ = made
  attention = attention_maps.attention_weights(model, stack(params), x)
  assert attention.layers.shape == (4, 2, 3, 6, 6)
  np.testing.assert_allclose(attention.layers.sum(axis=-1), 1, rtol=1e-5)
  y, column = np.divmod(np.arange(6), 3)
  for layer, place in enumerate([y, column] * 2):
    off = place[:, None] != place[None, :]
    assert not attention.layers[layer][..., off].any()
    assert (attention.layers[layer][..., ~off] > 0).all()
  np.testing.assert_allclose(
    attention_maps.rollout(attention).sum(axis=(1, 2)), 1, rtol=1e-5
  )
  # The weights of a row are those of that row alone.
  z = equations.dense(
    np.asarray(x[1, :4])
    .reshape(4, 3, 4, 3)
    .transpose(1, 0, 2, 3)
    .reshape(3, -1),
    params["patches"]["E"],
  )
  row = params["block_0"]["row"]
  z = equations.layer_norm(
    z + params["position"]["E_pos"][:3], row["norm_msa"], 1e-6
  )
  q, k = (
    z @ row["msa"][name]["kernel"][:, 2] + row["msa"][name]["bias"][2]
    for name in ("query", "key")
  )
  A = equations.softmax(q @ k.T / np.sqrt(8))
  np.testing.assert_allclose(
    attention.layers[0, 1, 2, :3, :3], A, rtol=1e-4, atol=1e-6
  )
