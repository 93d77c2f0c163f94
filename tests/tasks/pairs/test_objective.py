"""The objective of pairs: a batch in parts, and whole."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vit_jax import make_vit
from vit_jax.data.reading.captions import TEXT
from vit_jax.models.text import TextTower
from vit_jax.models.two_towers import two_towers
from vit_jax.tasks.pairs.objective import Contrast
from vit_jax.training.state import TrainState, init_params
from vit_jax.training.step import make_train_step

B = 8
RNG = np.random.default_rng(0)
BATCH = {
  "image": RNG.integers(0, 256, (B, 8, 8, 3), np.uint8),
  TEXT: RNG.integers(1, 9, (B, 4)).astype(np.int32),
}
BATCH[TEXT][5] = BATCH[TEXT][2]  # Equal captions, in two parts of two.
HALF = (0.5, 0.5, 0.5)


@functools.cache
def towers(kind):
  sizes: Any = dict(num_layers=1, hidden_size=16, mlp_size=32, num_heads=2)
  image = make_vit("Ti/4", 0, **sizes, pooling="gap")
  text = TextTower(
    num_classes=0, vocabulary=9, length=4, pooling="mean", **sizes
  )
  bias = -10.0 if kind == "sigmoid" else None
  return two_towers(image, text, first_bias=bias)


@functools.cache
def first(kind):
  return nn.unbox(init_params(towers(kind), jax.random.key(0), 8))


def gradient(kind, parts):
  """The metrics of a step, and what SGD subtracts."""
  tx, params = optax.sgd(1.0), first(kind)
  step = make_train_step(
    towers(kind),
    tx,
    1.0,
    objective=Contrast(kind, True, HALF, HALF),
    accumulation_steps=parts,
  )
  state = TrainState(jnp.int32(0), params, tx.init(params))
  after, metrics = jax.jit(step)(state, BATCH)
  return metrics, jax.tree.map(jnp.subtract, params, after.params)


@pytest.mark.slow
@pytest.mark.parametrize(
  "kind", ["sigmoid", pytest.param("softmax", marks=pytest.mark.slow)]
)
def test_parts_give_the_gradient_of_the_whole_batch(kind):
  whole, expected = gradient(kind, 1)
  parts, found = gradient(kind, 2)
  for key in ("loss", "cosine"):
    assert float(parts[key]) == pytest.approx(float(whole[key]), rel=1e-6)
  scale = float(optax.tree.norm(expected))
  assert float(jnp.abs(expected["log_scale"])) > 0.01 * scale
  difference = optax.tree.norm(jax.tree.map(jnp.subtract, found, expected))
  assert float(difference) < 1e-6 * scale
