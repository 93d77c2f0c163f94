"""One mask for attention: every form of it against NumPy, pair by pair."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.tiny_vit import HEADS, D, random_params
from tests.rows import some_slow
from vit_jax.models import attention, gpu, partitioning, tpu
from vit_jax.models.attention import Msa
from vit_jax.models.layer import LayerConfig
from vit_jax.models.mask import AttentionMask
from vit_jax.models.text import CausalMsa

B, S = 2, 7
COUNTS = np.array([[1, 1, 0, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0, 0]], bool)
IMAGE = np.array([[0, 0, 0, 1, 1, -1, -1], [2, 0, 0, 0, 5, 5, 5]])
LENGTHS = np.array([5, 0])
# What is given, whether a token sees those before it alone, and the pairs.
ALL = np.ones((B, S, S), bool)
BEFORE = np.tril(ALL)
SAME = (IMAGE[:, :, None] == IMAGE[:, None]) & (IMAGE >= 0)[:, None]
SHORT = (np.arange(S) < LENGTHS[:, None])[:, None] & ALL
MASKS = {
  "keys": (dict(counts=COUNTS), False, COUNTS[:, None] & ALL),
  "lengths": (dict(lengths=LENGTHS), False, SHORT),
  "images": (dict(image=IMAGE), False, SAME),
  "causal": ({}, True, BEFORE),
  "both": (
    dict(counts=COUNTS, image=IMAGE),
    False,
    COUNTS[:, None] & SAME,
  ),
  "keys of a text": (dict(counts=COUNTS), True, COUNTS[:, None] & BEFORE),
}
FORMS = ("plain", "whole", "blocks", "splash", "cudnn")


def _numpy(z, params, pairs):
  """Eq. 5-8 with softmax over the pairs that see each other, 0 for none."""
  p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  q, k, v = (
    np.einsum("bsd,dhe->bhse", z, p[name]["kernel"])
    + p[name]["bias"][None, :, None]
    for name in ("query", "key", "value")
  )
  E = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) * pairs[:, None]
  total = E.sum(-1, keepdims=True)
  A = E / np.where(total == 0, 1, total)
  out = np.einsum("bhse,hed->bsd", A @ v, p["out"]["kernel"])
  return out + p["out"]["bias"]


def _results(monkeypatch, form, name, z, params, dtype=jnp.float32):
  """The answer, and the gradients by parameters and tokens, in a form."""
  given, causal, _ = MASKS[name]
  mask = AttentionMask(**jax.tree.map(jnp.asarray, given))
  kind = CausalMsa if causal else Msa
  options = {"splash": form == "splash", "dtype": dtype}
  if form == "cudnn":
    options["attention"] = form
  layer = kind(HEADS, LayerConfig(**options))
  weights = jax.random.normal(jax.random.key(9), z.shape)

  def loss(params, z):
    y = jnp.asarray(layer.apply({"params": params}, z, mask=mask))
    return (weights * y).sum(), y

  with monkeypatch.context() as patch:
    if form == "cudnn":  # By JAX's function, of which XLA has a form here.
      patch.setattr(gpu, "IMPLEMENTATION", "xla")
      patch.setattr(gpu, "TYPES", ("float32",))
      patch.setattr(partitioning, "platform", lambda: "gpu")
    elif form != "plain":
      patch.setattr(partitioning, "platform", lambda: "tpu")
    if form in ("blocks", "splash"):
      patch.setattr(attention, "WHOLE", S - 1)
      patch.setattr(tpu, "BLOCK_BYTES", 2 * 4 * S * 128)
    grad = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    alone = jax.jit(loss)(params, z)[1]
    (_, y), gradients = jax.jit(grad)(params, z)
  return alone, y, gradients


@functools.cache
def _tokens():
  z = jax.random.normal(jax.random.key(0), (B, S, D))
  return z, jax.tree.map(jnp.asarray, random_params(Msa(HEADS), z))


@functools.cache
def _plain(name):
  with pytest.MonkeyPatch.context() as patch:
    return _results(patch, "plain", name, *_tokens())


ROWS = [(form, name) for name in MASKS for form in FORMS]


@pytest.mark.parametrize(
  "form, name", some_slow(ROWS, [("blocks", "keys of a text")])
)
def test_every_form_sees_the_pairs_that_numpy_sees(
  interpreted, monkeypatch, form, name
):
  z, params = _tokens()
  pairs = MASKS[name][2]
  expected = _numpy(np.asarray(z, np.float64), params, pairs)
  *answers, (by_params, by_z) = _results(monkeypatch, form, name, z, params)
  for y in answers:
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
  *_, (plain_params, plain_z) = _plain(name)
  for one in (by_params, plain_params):  # 0, but for rounding.
    assert np.abs(one["key"].pop("bias", np.zeros(1))).max() < 1e-4
  largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(plain_params))
  close = functools.partial(
    np.testing.assert_allclose, rtol=1e-5, atol=1e-5 * largest
  )
  jax.tree.map(close, (by_params, by_z), (plain_params, plain_z))


@pytest.mark.parametrize(
  "form, name",
  some_slow(
    [(form, name) for form in FORMS for name in ("keys", "images")],
    [("whole", "images")],
  ),
)
def test_what_no_query_sees_has_no_gradient_and_changes_nothing(
  interpreted, monkeypatch, form, name
):
  z, params = _tokens()
  seen = MASKS[name][2].any(axis=1)  # By any query of its row.
  other = jnp.where(seen[..., None], z, 50.0)
  *_, y, (by_params, by_z) = _results(monkeypatch, form, name, z, params)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves((by_params, y)))
  *_, again, _ = _results(monkeypatch, form, name, other, params)
  np.testing.assert_allclose(y[seen], again[seen], rtol=1e-5, atol=1e-6)
  nothing = ~MASKS[name][2].any(axis=2)  # Queries that see no key.
  bias = np.broadcast_to(params["out"]["bias"], y[nothing].shape)
  np.testing.assert_allclose(y[nothing], bias, rtol=1e-6)
  # Tokens that see nothing and that nothing sees have no part in the loss.
  assert not np.asarray(by_z)[nothing & ~seen].any()


def test_queries_that_are_no_tokens_see_all_that_counts():
  mask = AttentionMask(image=jnp.asarray(IMAGE), causal=True)
  found = mask.of_keys(S).pairs(1, S)
  assert found is not None
  np.testing.assert_array_equal(found[:, 0], IMAGE >= 0)
  assert AttentionMask().of_keys(S).pairs(1, S) is None


@pytest.mark.parametrize("name", MASKS)
def test_kernels_get_segments_that_mean_the_same_pairs(name):
  given, causal, pairs = MASKS[name]
  mask = AttentionMask(**jax.tree.map(jnp.asarray, given), causal=causal)
  segments = mask.segments(B, S, S)
  assert segments is not None
  found = segments.query[:, :, None] == segments.key[:, None]
  if causal:
    before = np.arange(S)[None] <= np.asarray(segments.order)[:, None]
    found = np.asarray(found) & before
  np.testing.assert_array_equal(np.broadcast_to(found, pairs.shape), pairs)
  both = np.broadcast_to(mask.pairs(S, S), pairs.shape)
  np.testing.assert_array_equal(both, pairs)
  cut = segments.cut(2, 3)
  np.testing.assert_array_equal(cut.query, segments.query[:, 2:5])


def test_nothing_given_masks_nothing():
  mask = AttentionMask.of(None)
  assert not mask.hides and mask.segments(B, S, S) is None
  assert mask.pairs(S, S) is None and mask.sees(S, S) is None
