"""Self-attention against Eq. 5-8."""

from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from tests.models import equations
from tests.models.tiny_vit import (
  HEADS,
  LAYERS,
  MLP,
  B,
  D,
  apply,
  images,
  random_params,
  relative_difference,
  tiny,
)
from vit_jax.models import attention
from vit_jax.models.attention import MapHead
from vit_jax.models.layer import LayerConfig
from vit_jax.models.vit import Mlp


@pytest.mark.slow
def test_attention_can_be_seen_and_seeing_changes_nothing():
  x = images()
  model = tiny()
  params = random_params(model, x)
  logits, state = apply(model, params, x, mutable="intermediates")
  # Then the last layer computes all tokens, with sums in another order.
  np.testing.assert_allclose(
    logits, apply(model, params, x), rtol=1e-5, atol=1e-6
  )
  for layer in range(LAYERS):
    (A,) = state["intermediates"][f"block_{layer}"]["msa"]["attention"]
    assert A.shape == (B, HEADS, 7, 7)
    assert (A >= 0).all()
    np.testing.assert_allclose(A.sum(-1), 1, rtol=1e-5)


def test_zeros_as_perturbations_give_the_gradient_of_the_weights():
  z = jax.random.normal(jax.random.key(0), (B, 7, D))
  msa = attention.Msa(HEADS)
  params = jax.tree.map(jnp.asarray, random_params(msa, z))

  @jax.jit
  def output(A):
    variables = {"params": params, "perturbations": {"attention": A}}
    return msa.apply(variables, z).sum()

  zeros = jnp.zeros((B, HEADS, 7, 7))
  gradient = jax.jit(jax.grad(output))(zeros)
  place = 0, 1, 2, 3
  # The output is linear in A.
  change = float(output(zeros.at[place].set(1)) - output(zeros))
  assert float(gradient[place]) == pytest.approx(change, rel=1e-4)
  assert abs(change) > 0.1


def test_queries_attend_in_place_of_the_tokens():
  rng = np.random.default_rng(0)
  z = rng.normal(size=(B, 7, D)).astype(np.float32)
  queries = rng.normal(size=(B, 3, D)).astype(np.float32)
  msa = attention.Msa(HEADS)
  params = random_params(msa, z)
  found = apply(msa, params, z, queries=jnp.asarray(queries))
  for image in range(B):
    expected = equations.msa(z[image], params, queries[image])
    np.testing.assert_allclose(found[image], expected, rtol=1e-4, atol=1e-5)


TYPES = jnp.float32, jnp.bfloat16


def test_softmax_is_taken_in_float32():
  rng = np.random.default_rng(0)
  logits = jnp.asarray(4 * rng.normal(size=(64, 197)), jnp.bfloat16)
  found = attention.softmax(logits)
  assert found.dtype == jnp.bfloat16
  # Rounding the result costs 2^-9; sums in bfloat16 would cost more.
  np.testing.assert_allclose(
    np.asarray(found, np.float64),
    equations.softmax(np.asarray(logits, np.float64)),
    rtol=2**-8,
  )


@pytest.mark.parametrize("logits_dtype", TYPES)
def test_softmax_rounds_logits_and_exponentials_to_its_type(logits_dtype):
  """Against NumPy's formula on ml_dtypes' bfloat16, whose sum is rounded."""
  rng = np.random.default_rng(0)
  logits = jnp.asarray(4 * rng.normal(size=(64, 197)), logits_dtype)
  found = attention.softmax(logits, jnp.bfloat16)
  assert found.dtype == logits_dtype
  x = np.asarray(logits).astype(ml_dtypes.bfloat16)
  E = np.exp(x - x.max(axis=-1, keepdims=True))
  assert E.dtype == ml_dtypes.bfloat16
  total = E.astype(np.float64).sum(axis=-1, keepdims=True)
  A = E / total.astype(ml_dtypes.bfloat16)
  assert A.dtype == ml_dtypes.bfloat16
  A = A.astype(np.float64)
  error = np.abs(np.asarray(found, np.float64) / A - 1)
  # Numbers on both sides of where bfloat16 rounds up are 2^-7 apart; few are.
  assert error.max() < 2**-6 and np.mean(error > 0) < 0.01
  # Float32 would give other weights: a logit of 8 to 16 is off by up to 2^-5.
  exact = equations.softmax(np.asarray(logits, np.float64))
  assert np.abs(A / exact - 1).max() > 2**-6


@pytest.mark.parametrize("dtype", TYPES)
def test_softmax_of_either_type_is_near_that_of_float64(dtype):
  """Compiled, where XLA may leave roundings out, within what they all cost."""
  rng = np.random.default_rng(0)
  logits = jnp.asarray(4 * rng.normal(size=(64, 197)), jnp.float32)
  found = jax.jit(attention.softmax, static_argnums=1)(logits, dtype)
  x = np.asarray(logits, np.float64)
  top = x.max(axis=-1, keepdims=True)
  unit = 2.0**-8 if dtype == jnp.bfloat16 else 2.0**-20  # XLA's exp's, too.
  # Of the logit, the maximum, their difference, the exponential, the sum and
  # the quotient; and the same of the sum's terms, as far as they count.
  each = unit * (np.abs(x) + np.abs(top) + np.abs(x - top) + 3)
  exact = equations.softmax(x)
  of_sum = (exact * each).sum(axis=-1, keepdims=True)
  away = np.abs(np.log(np.asarray(found, np.float64) / exact))
  assert (away < 1.1 * (each + of_sum)).all()


@pytest.mark.parametrize("logits_dtype", TYPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_a_mask_leaves_weights_of_zero_and_no_gradient(logits_dtype, dtype):
  """Not compiled, so that each type rounds: no key of the last row counts."""
  logits = jnp.asarray(np.random.default_rng(0).normal(size=(3, 1, 2, 5)))
  logits = logits.at[..., 2:].set(1e30).astype(logits_dtype)
  mask = jnp.arange(5)[None] < jnp.array([[2], [1], [0]])
  masked = partial(attention.masked_softmax, mask=mask, dtype=dtype)
  with jax.debug_nans(True):  # Nowhere, not even where it is replaced.
    A, pullback = jax.vjp(masked, logits)
    (gradient,) = pullback(jnp.arange(30).reshape(A.shape).astype(A.dtype))
  left_out = np.broadcast_to(~mask[:, None, None], A.shape)
  for array in (A, gradient):
    assert np.isfinite(array).all() and not np.asarray(array)[left_out].any()
  np.testing.assert_allclose(A[:2].astype(jnp.float32).sum(-1), 1, rtol=2**-8)
  assert np.asarray(gradient[0]).any()


@pytest.mark.parametrize("dtype", TYPES)
def test_softmax_has_the_derivative_of_its_formula(dtype):
  rng = np.random.default_rng(0)
  logits, direction, cotangent = rng.normal(size=(3, 5, 7))
  step = 1e-6
  slope = equations.softmax(logits + step * direction) - equations.softmax(
    logits - step * direction
  )
  slope /= 2 * step

  softmax = partial(attention.softmax, dtype=dtype)
  inputs = [jnp.asarray(a, jnp.float32) for a in (logits, direction)]
  A, forward = jax.jvp(softmax, inputs[:1], inputs[1:])
  if dtype == jnp.bfloat16:  # Its weights are other ones.
    A = np.asarray(A, np.float64)
    assert relative_difference(A, equations.softmax(logits)) > 1e-4
    slope = A * (direction - (A * direction).sum(axis=-1, keepdims=True))
  np.testing.assert_allclose(forward, slope, atol=1e-6)
  _, pullback = jax.vjp(softmax, inputs[0])
  (backward,) = pullback(jnp.asarray(cotangent, jnp.float32))
  assert float((backward * direction).sum()) == pytest.approx(
    float((cotangent * slope).sum()), rel=1e-4
  )


def test_attention_of_large_queries_in_bfloat16():
  z = jax.random.normal(jax.random.key(0), (B, 50, 96))
  model = attention.Msa(4, LayerConfig(dtype=jnp.bfloat16))
  params = random_params(model, z)
  for name in ("query", "key"):  # Entries of std 4: logits of std 16.
    params[name]["kernel"] *= 4 / (0.2 * 96**0.5)
  _, state = apply(
    model, params, z, mutable="intermediates", capture_intermediates=True
  )
  found = state["intermediates"]
  q, k = (
    np.asarray(found[name]["__call__"][0], np.float64).reshape(B, 50, 4, 24)
    for name in ("query", "key")
  )
  assert 3 < q.std() < 5
  exact = equations.softmax(np.einsum("bqhd,bshd->bhqs", q, k) / 24**0.5)
  (A,) = found["attention"]
  assert A.dtype == jnp.bfloat16
  assert np.abs(np.asarray(A, np.float64) - exact).max() < 0.01


def test_a_probe_attends_and_an_mlp_follows():
  z = jax.random.normal(jax.random.key(0), (B, 7, D))
  head = MapHead(HEADS, lambda name: Mlp(MLP, name=name))
  params = random_params(head, z)
  found, state = apply(head, params, z, mutable="intermediates")
  (A,) = state["intermediates"]["msa"]["attention"]
  assert A.shape == (B, HEADS, 1, 7) and found.shape == (B, D)
  np.testing.assert_allclose(A.sum(-1), 1, rtol=1e-5)
  z = np.asarray(z)
  for image in range(B):
    y = equations.msa(z[image], params["msa"], params["probe"])
    normed = equations.layer_norm(y, params["norm"], 1e-6)
    hidden = equations.dense(normed, params["mlp"]["expand"])
    hidden = equations.gelu(hidden, "tanh")
    y = y + equations.dense(hidden, params["mlp"]["contract"])
    np.testing.assert_allclose(found[image], y[0], rtol=1e-4, atol=1e-5)
