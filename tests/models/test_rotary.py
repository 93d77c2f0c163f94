"""Rotary positions, against loops in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.tiny_vit import random_params, tiny
from vit_jax.models import partitioning
from vit_jax.models.extended_block import ExtendedBlock, ExtendedConfig
from vit_jax.models.rotary import Rope, rotate

GRID, PREFIX, D_H = (2, 3), 1, 8
TOKENS = PREFIX + GRID[0] * GRID[1]
FIRST = np.array([0.5, -1.0, 2.0, 4.0], np.float32)


def frequencies():
  rng = np.random.default_rng(0)
  return rng.normal(size=(2, 2, D_H // 2)).astype(np.float32)


KINDS = {
  "EVA-02": (
    dict(theta=10_000.0, side=16),
    lambda y, x: [
      place * 10_000.0 ** (-4 * j / D_H)
      for place in (y / 2 * 16, x / 3 * 16)
      for j in range(D_H // 4)
    ],
  ),
  "PE": (
    dict(theta=10_000.0, side=24, start=1, x_first=True),
    lambda y, x: [
      place * 10_000.0 ** (-4 * j / D_H)
      for place in ((x + 1) / 3 * 24, (y + 1) / 2 * 24)
      for j in range(D_H // 4)
    ],
  ),
  "RoPE-Axial": (
    dict(theta=100.0, kind="counted", x_first=True),
    lambda y, x: [
      place * 100.0 ** (-4 * j / D_H)
      for place in (x, y)
      for j in range(D_H // 4)
    ],
  ),
  "MLCD": (
    dict(theta=10_000.0, kind="counted", first=FIRST),
    lambda y, x: [
      place * 10_000.0 ** (-4 * j / D_H)
      for place in (y, x)
      for j in range(D_H // 4)
    ],
  ),
  "RoPE-Mixed": (
    dict(theta=10.0, kind="mixed", frequencies=frequencies()),
    lambda y, x: x * frequencies()[0] + y * frequencies()[1],
  ),
}


@pytest.mark.parametrize("left_out", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_each_pair_turns_by_its_angle(name, left_out):
  """Complex numbers a + bi times e^(i angle); those before may have angles."""
  fields, angles = KINDS[name]
  fields = jax.tree.map(
    lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, fields
  )
  where = jnp.array([[4, 0], [1, 5]]) if left_out else None
  places = np.asarray(where) if left_out else np.tile(np.arange(6), (2, 1))
  rng = np.random.default_rng(1)
  x = rng.normal(size=(2, 2, PREFIX + places.shape[1], D_H)).astype(np.float32)
  turn = jax.jit(lambda x: rotate(x, Rope(GRID, **fields), where))
  found = np.asarray(turn(jnp.asarray(x)))
  expected = x.copy()
  for image, of_image in enumerate(places):
    by_each = [np.asarray(angles(*divmod(int(p), GRID[1]))) for p in of_image]
    first = np.asarray(fields.get("first", np.zeros(D_H // 2)))
    for token, by in enumerate([first, *by_each]):
      one = x[image, :, token]
      turned = (one[:, :4] + 1j * one[:, 4:]) * np.exp(1j * by)
      expected[image, :, token] = np.hstack([turned.real, turned.imag])
  np.testing.assert_allclose(found, expected, atol=2e-5)


def test_frequencies_start_in_two_perpendicular_directions_of_each_head():
  """Their sizes fall from 1 to theta^(-1/2), as 10^(-4 j / 8) does."""
  init = Rope(GRID, 10.0, kind="mixed").init
  found = np.asarray(init(jax.random.key(0), (2, 3, 4), jnp.float32))
  sizes = np.hypot(*found)
  np.testing.assert_allclose(sizes, np.tile([1, 10**-0.5], (3, 2)), rtol=1e-5)
  first, other = found[:, :, :2], found[:, :, 2:]
  np.testing.assert_allclose((first * other).sum(0), 0, atol=1e-6)
  directions = np.arctan2(*first[:, :, 0])
  assert len({*directions.round(3)}) == 3


NEW = dict(norm_inner_msa=True, norm_inner_mlp=True, gated_mlp=True)


@pytest.mark.parametrize(
  "fields, form",
  [
    pytest.param(dict(kind="mixed"), "whole", marks=pytest.mark.slow),
    pytest.param(dict(kind="mixed"), "blocks", marks=pytest.mark.slow),
    pytest.param(dict(side=16), "whole", marks=pytest.mark.slow),
  ],
)
def test_a_layer_for_tpus_has_the_value_and_gradients_of_any_other(
  monkeypatch, fields, form
):
  """With learned frequencies and norms inside, for all and for some patches."""
  z = jax.random.normal(jax.random.key(0), (2, TOKENS, 16))
  rope = Rope(GRID, 10.0, **fields)
  config = ExtendedConfig(layer_scale=0.5, **NEW)
  block = ExtendedBlock(2, 24, config, rope=rope)
  params = jax.tree.map(jnp.asarray, random_params(block, z))
  mixed = fields.get("kind") == "mixed"
  assert ("frequencies" in params) == mixed

  def loss(params, z, where):
    y = block.apply({"params": params}, z, where=where)
    return (jnp.sin(jnp.arange(y.size)).reshape(y.shape) * y).sum()

  some = jnp.array([[5, 0, 4], [2, 3, 0]])
  cases = (z, None), (z[:, : PREFIX + 3], some)

  def both():
    grad = jax.value_and_grad(loss, argnums=(0, 1))
    return [jax.jit(grad)(params, *case) for case in cases]

  expected = both()
  if mixed:
    slopes = expected[0][1][0]["frequencies"]
    assert (np.abs(slopes) > 1e-4).all()
  monkeypatch.setattr(partitioning, "platform", lambda: "tpu")
  if form == "blocks":
    monkeypatch.setattr("vit_jax.models.attention.WHOLE", 3)
  traced = str(jax.make_jaxpr(lambda p: loss(p, z, None))(params))
  assert "custom_vjp_call" in traced  # It has the form for TPUs.
  for found, wanted in zip(both(), expected, strict=True):
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
      found,
      wanted,
    )


def test_norms_inside_a_layer_by_the_formula():
  """One over all heads before attention's last product, one in the MLP."""
  z = jax.random.normal(jax.random.key(0), (1, 3, 8))
  block = ExtendedBlock(2, 12, ExtendedConfig(**NEW))
  p = random_params(block, z)
  found = jax.jit(block.apply)({"params": p}, z)

  def norm(x, params):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return x * params["scale"].reshape(-1) + params["bias"].reshape(-1)

  def head(x, name, i):
    kernel, bias = (p["msa"][name][leaf] for leaf in ("kernel", "bias"))
    return x @ kernel[:, i] + bias[i]

  z = np.asarray(z[0], np.float64)
  x = norm(z, p["norm_msa"])
  heads = []
  for i in range(2):
    q, k, v = (head(x, name, i) for name in ("query", "key", "value"))
    A = np.exp(q @ k.T / 2)
    heads.append(A / A.sum(1, keepdims=True) @ v)
  SA = norm(np.hstack(heads), p["msa"]["norm_inner"])
  out = p["msa"]["out"]
  z = z + SA @ out["kernel"].reshape(8, 8) + out["bias"]
  x, mlp = norm(z, p["norm_mlp"]), p["mlp"]
  gate, expand = (
    x @ mlp[n]["kernel"] + mlp[n]["bias"] for n in ("gate", "expand")
  )
  hidden = norm(gate / (1 + np.exp(-gate)) * expand, mlp["norm_inner"])
  z = z + hidden @ mlp["contract"]["kernel"] + mlp["contract"]["bias"]
  np.testing.assert_allclose(found[0], z, atol=1e-4)


@pytest.mark.parametrize(
  "fields, message",
  [
    (dict(rope_kind="spiral"), "rope_kind='spiral' is unknown; choose one of"),
    (
      dict(rope_kind="mixed"),
      "rope_kind='mixed' needs rope_theta, which is No",
    ),
    (
      dict(rope_kind="counted", rope_theta=9.0, rope_side=4),
      "rope_side=4 is for rope_kind='axial', not 'counted'",
    ),
    (dict(rope_first=True), "rope_first=True needs rope_theta and a class tok"),
    (dict(pool_heads=5), "hidden_size=24 does not split over pool_heads=5"),
  ],
)
def test_fields_without_a_meaning_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    tiny(block="dinov2", **fields)
