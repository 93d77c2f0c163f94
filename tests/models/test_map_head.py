"""The attention-pooling head against its definition."""

import jax
import numpy as np

from tests.models import equations
from tests.models.tiny_vit import HEADS, MLP, B, D, apply, random_params
from vit_jax.models.map_head import MapHead
from vit_jax.models.vit import Mlp


def head_and_params(z):
  head = MapHead(HEADS, lambda name: Mlp(MLP, name=name))
  return head, random_params(head, z)


def test_a_probe_attends_and_an_mlp_follows():
  z = jax.random.normal(jax.random.key(0), (B, 7, D))
  head, params = head_and_params(z)
  found, z = apply(head, params, z), np.asarray(z)
  assert found.shape == (B, D)
  for image in range(B):
    y = equations.msa(z[image], params["msa"], params["probe"])
    normed = equations.layer_norm(y, params["norm"], 1e-6)
    hidden = equations.dense(normed, params["mlp"]["expand"])
    hidden = equations.gelu(hidden, "tanh")
    y = y + equations.dense(hidden, params["mlp"]["contract"])
    np.testing.assert_allclose(found[image], y[0], rtol=1e-4, atol=1e-5)


def test_the_order_of_tokens_does_not_matter():
  z = jax.random.normal(jax.random.key(0), (B, 7, D))
  head, params = head_and_params(z)
  order = np.random.default_rng(0).permutation(7)
  np.testing.assert_allclose(
    apply(head, params, z[:, order]),
    apply(head, params, z),
    rtol=1e-4,
    atol=1e-5,
  )


def test_it_shows_its_attention_and_nothing_is_dropped():
  z = jax.random.normal(jax.random.key(0), (B, 7, D))
  head, params = head_and_params(z)
  _, state = apply(head, params, z, mutable="intermediates")
  (A,) = state["intermediates"]["msa"]["attention"]
  assert A.shape == (B, HEADS, 1, 7)
  np.testing.assert_allclose(A.sum(-1), 1, rtol=1e-5)
