"""The forms for a TPU, which compute the same on any platform."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import equations
from tests.models.tiny_vit import HEADS, MLP, B, D, images, random_params, tiny
from vit_jax.models import layer, partitioning, tpu, vit


@pytest.fixture
def for_tpu(monkeypatch):
  """Traces everything as for a TPU."""
  monkeypatch.setattr(partitioning, "platform", lambda: "tpu")


def loss_and_gradients(model, params, x, **options):
  """Value and gradients of a loss that gives each output its own weight."""
  weights = jax.random.normal(jax.random.key(3), (B, 7, D))

  def loss(params, x):
    y = model.apply({"params": params}, x, **options)
    return (weights * y.astype(jnp.float32)).sum()

  return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(params, x)


def relative_difference(one, other):
  one, other = (np.asarray(x, np.float64) for x in (one, other))
  return np.linalg.norm(one - other) / np.linalg.norm(other)


def block_and_params(dtype, q_std=1.0):
  """A block whose queries and keys have a standard deviation near `q_std`."""
  z = jax.random.normal(jax.random.key(0), (B, 7, D))
  block = vit.EncoderBlock(HEADS, MLP, layer.LayerConfig(dtype=dtype))
  params = jax.tree.map(jnp.asarray, random_params(block, z))
  for name in ("query", "key"):
    params["msa"][name]["kernel"] *= q_std / (0.2 * D**0.5)
  return block, params, z


def test_a_block_for_tpu_has_the_value_and_gradients_of_any_other(monkeypatch):
  block, params, z = block_and_params(jnp.float32)
  expected, (expected_grads, expected_dz) = loss_and_gradients(block, params, z)
  monkeypatch.setattr(partitioning, "platform", lambda: "tpu")
  assert "custom_vjp_call" in str(
    jax.make_jaxpr(lambda p: block.apply({"params": p}, z))(params)
  )
  found, (grads, dz) = loss_and_gradients(block, params, z)
  assert float(found) == pytest.approx(float(expected), rel=1e-5)
  assert relative_difference(dz, expected_dz) < 1e-5
  # The keys' bias adds the same to all logits of a query: its gradient is 0.
  assert not grads["msa"]["key"].pop("bias").any()
  assert np.abs(expected_grads["msa"]["key"].pop("bias")).max() < 1e-4
  for a, b in zip(*map(jax.tree.leaves, (grads, expected_grads)), strict=True):
    assert relative_difference(a, b) < 1e-5


@pytest.mark.parametrize("std, tolerance", [(1.0, 0.01), (4.0, 0.02)])
def test_a_block_for_tpu_is_exact_enough_in_bfloat16(for_tpu, std, tolerance):
  exact, params, z = block_and_params(jnp.float32, std)
  rough, _, _ = block_and_params(jnp.bfloat16)
  expected, (expected_grads, _) = loss_and_gradients(exact, params, z)
  found, (grads, _) = loss_and_gradients(rough, params, z)
  assert float(found) == pytest.approx(float(expected), rel=0.05)
  for name in ("value", "out"):
    a, b = (g["msa"][name]["kernel"] for g in (grads, expected_grads))
    assert relative_difference(a, b) < tolerance


@pytest.mark.parametrize("std", [1.0, 4.0])
def test_attention_for_tpu_stays_within_a_percent(std):
  """Compares with float64 on the same bfloat16 tokens, at logits of std 16."""
  k, D_h, S = 2, 64, 50
  keys = jax.random.split(jax.random.key(0), 6)
  z = jax.random.normal(keys[0], (B, S, k * D_h)).astype(jnp.bfloat16)
  size = std / (k * D_h) ** 0.5
  W_q, W_k, W_v = (
    (s * jax.random.normal(key, (k * D_h, k, D_h))).astype(jnp.bfloat16)
    for s, key in zip((size / 8, size, size / std), keys[1:4], strict=True)
  )
  identity = jnp.eye(k * D_h, dtype=jnp.bfloat16).reshape(k, D_h, k * D_h)
  none = jnp.zeros((k, D_h), jnp.bfloat16)
  y = tpu.msa(z, W_q, none, W_k, none, W_v, none, identity, none.reshape(-1))

  def rounded(W):
    exact = np.einsum("bnd,dhe->bhne", *(np.float64(x) for x in (z, W)))
    return np.float64(jnp.asarray(exact, jnp.bfloat16))

  q, keys_, v = map(rounded, (W_q, W_k, W_v))
  A = equations.softmax(q @ keys_.swapaxes(-1, -2))
  expected = (A @ v).transpose(0, 2, 1, 3).reshape(B, S, -1)
  assert relative_difference(y, expected) < 0.01


@pytest.mark.parametrize(
  "fields, options, forms",
  [
    ({}, {}, 2),
    ({"attention_dropout_rate": 0.1}, {}, 2),
    # These need A, which the form for a TPU never has.
    ({"attention_dropout_rate": 0.1}, {"train": True}, 0),
    ({}, {"mutable": "intermediates"}, 0),
    ({"position": "relative"}, {}, 0),
  ],
)
def test_the_form_for_tpu_is_used_where_nothing_needs_the_weights(
  for_tpu, monkeypatch, fields, options, forms
):
  x, model = images(), tiny(**fields)
  params = random_params(model, x)
  calls = []
  msa = tpu.msa
  monkeypatch.setattr(tpu, "msa", lambda *a: calls.append(a) or msa(*a))
  jax.eval_shape(
    lambda p: model.apply(
      {"params": p}, x, rngs={"dropout": jax.random.key(0)}, **options
    ),
    params,
  )
  assert len(calls) == forms


@pytest.mark.parametrize("x", [-40.0, -3.0, -0.1, 0.0, 0.5, 2.0, 40.0])
def test_gelu_for_tpu_has_the_slope_of_gelu(for_tpu, x):
  found = jax.value_and_grad(layer.gelu_tanh)(jnp.float32(x))
  expected = jax.value_and_grad(nn.gelu)(jnp.float32(x))
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
