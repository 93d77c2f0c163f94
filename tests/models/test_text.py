"""Text towers, against the formulas in NumPy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import equations
from tests.models.tiny_vit import random_params
from vit_jax.models.parts import Parts
from vit_jax.models.text import TextTower, sines_then_cosines

SIZES = dict(
  num_classes=0,
  vocabulary=11,
  length=6,
  hidden_size=8,
  num_layers=2,
  mlp_size=12,
  num_heads=2,
)
IDS = np.array([[3, 4, 9, 1, 9, 0], [5, 9, 2, 0, 0, 0]])
CLIPS = dict(pooling="end", causal=True, end_token=9, representation_size=5)
SIGLIPS = dict(pooling="last", representation_size=5, projection_bias=True)
TIPSS = dict(
  pooling="mean",
  position="sincos1d",
  pad_token=0,
  embedding_scale=math.sqrt(8),
  gelu="relu",
)


def drawn(tower):
  return random_params(tower, jnp.asarray(IDS))


def apply(tower, params, ids):
  return np.asarray(jax.jit(tower.apply)({"params": params}, jnp.asarray(ids)))


def act(x, kind):
  return np.maximum(x, 0) if kind == "relu" else equations.gelu(x, kind)


def expected(tower, params, row):
  """One text's representation, token by token."""
  params = jax.tree.map(np.float64, params)
  keep = [n for n, i in enumerate(row) if i != tower.pad_token]
  E_pos = params.get("E_pos")
  if E_pos is None:
    E_pos = np.float64(sines_then_cosines(tower.length, 8))
  z = params["E"][row] * tower.embedding_scale + E_pos[: len(row)]
  z = z[keep]
  for layer in range(2):
    p = params[f"block_{layer}"]
    x = equations.layer_norm(z, p["norm_msa"], 1e-6)
    q, k, v = (
      np.einsum("sd,dkh->ksh", x, p["msa"][name]["kernel"])
      + p["msa"][name]["bias"][:, None]
      for name in ("query", "key", "value")
    )
    y = np.zeros_like(z)
    for t in range(len(z)):
      seen = t + 1 if tower.causal else len(z)
      logits = np.einsum("kh,ksh->ks", q[:, t], k[:, :seen]) / 2
      A = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
      heads = np.einsum("ks,ksh->kh", A, v[:, :seen])
      y[t] = np.einsum("kh,khd->d", heads, p["msa"]["out"]["kernel"])
    z = z + y + p["msa"]["out"]["bias"]
    x = equations.layer_norm(z, p["norm_mlp"], 1e-6)
    hidden = act(equations.dense(x, p["mlp"]["expand"]), tower.gelu)
    z = z + equations.dense(hidden, p["mlp"]["contract"])
  z = equations.layer_norm(z, params["norm"], 1e-6)
  place = {"last": -1, "end": [*row].index(9) if 9 in row else 0}
  y = z.mean(axis=0) if tower.pooling == "mean" else z[place[tower.pooling]]
  if tower.representation_size is None:
    return y
  projection = params["projection"]
  return y @ projection["kernel"] + projection.get("bias", 0)


@pytest.mark.parametrize(
  "fields",
  [
    CLIPS,
    pytest.param(SIGLIPS, marks=pytest.mark.slow),
    pytest.param(TIPSS, marks=pytest.mark.slow),
  ],
)
def test_each_tower_is_its_formula(fields):
  tower = TextTower(**SIZES, **fields)
  params = drawn(tower)
  for ids in (IDS, IDS[:, :4]):
    for row, found in zip(ids, apply(tower, params, ids), strict=True):
      want = expected(tower, params, row)
      np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_what_follows_the_end_changes_nothing():
  tower = TextTower(**SIZES, **CLIPS)
  params = drawn(tower)
  other = IDS.copy()
  other[0, 3:] = [7, 8, 2]
  other[1, 2:] = 6
  np.testing.assert_allclose(
    apply(tower, params, other), apply(tower, params, IDS), rtol=1e-6
  )


def test_without_an_end_the_largest_id_is_one():
  tower = TextTower(**SIZES, **CLIPS)
  params = drawn(tower)
  largest = apply(tower.clone(end_token=None), params, IDS)
  np.testing.assert_array_equal(largest, apply(tower, params, IDS))


def test_positions_are_sines_then_cosines():
  found = np.asarray(sines_then_cosines(5, 7))
  assert found.shape == (5, 7)
  for t in range(5):
    for i in range(3):
      angle = t / 10_000 ** (i / 2)
      assert found[t, i] == pytest.approx(math.sin(angle), abs=1e-6)
      assert found[t, 3 + i] == pytest.approx(math.cos(angle), abs=1e-6)
    assert found[t, 6] == 0


def test_layer_decay_counts_its_layers_from_the_norm():
  tower = TextTower(**SIZES, **CLIPS)
  parts = Parts.of(tower, drawn(tower))
  depths = {
    path: parts.depth(path)
    for path in ("E", "E_pos", "block_1/msa/out/bias", "norm/scale")
  }
  assert depths == {
    "E": 3,
    "E_pos": 3,
    "block_1/msa/out/bias": 1,
    "norm/scale": 0,
  }


@pytest.mark.parametrize(
  "fields, message",
  [
    (dict(num_heads=3), "hidden_size=8 does not split over num_heads=3"),
    (dict(pooling="first"), "pooling='first' is unknown"),
    (dict(position="none"), "position='none' is unknown"),
    (dict(vocabulary=0), "vocabulary=0 must be 1 or more"),
  ],
)
def test_fields_that_make_no_tower_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    TextTower(**(SIZES | fields))


def test_texts_that_do_not_fit_are_refused():
  tower = TextTower(**SIZES)
  with pytest.raises(ValueError, match="texts of 7 tokens; .* at most 6"):
    jax.eval_shape(tower.init, jax.random.key(0), jnp.zeros((1, 7), int))
  with pytest.raises(ValueError, match="type float32; .* integers .B, T."):
    jax.eval_shape(tower.init, jax.random.key(0), jnp.zeros((1, 6)))
