"""A model's first parameters."""

import operator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vit_jax import TrainState, init_params, make_vit


@pytest.mark.slow
def test_first_parameters_are_those_of_init_as_plain_arrays():
  model = make_vit("Ti/4", num_classes=3, num_layers=1)
  key = jax.random.key(3)
  found = init_params(model, key, (8, 12))
  init = jax.jit(model.init)  # Not compiled, it differs in the last bits.
  expected = init(key, jnp.zeros((1, 8, 12, 3)))["params"]
  leaves = jax.tree.leaves(found)
  assert all(isinstance(leaf, jax.Array) for leaf in leaves)
  jax.tree.map(np.testing.assert_array_equal, found, nn.unbox(expected))


def test_a_call_without_a_key_is_answered_by_an_example():
  call: Any = init_params
  with pytest.raises(TypeError, match=r"; as in .*jax.random.key\(0\), 224\)"):
    call(None, 64)


def test_one_number_is_the_size_of_a_square():
  model = make_vit("Ti/4", num_classes=3, num_layers=1)
  found = init_params(model, jax.random.key(0), 8)
  assert found["position"]["E_pos"].shape == (5, 192)


def test_a_number_is_no_key():
  model = make_vit("Ti/16", num_classes=2, num_layers=1)
  with pytest.raises(ValueError, match=r"^key=0 .* give jax\.random\.key\(0\)"):
    init_params(model, 0, 32)


def test_a_first_state_is_made_of_parameters_and_an_optimizer():
  params, tx = {"w": jnp.ones(3)}, optax.adam(1e-3)
  state = TrainState.create(params=params, tx=tx)
  assert state.step == 0 and state.step.dtype == jnp.int32
  assert state.params is params and state.averaged_params is None
  assert jax.tree.structure(state.opt_state) == (
    jax.tree.structure(tx.init(params))
  )


@pytest.mark.parametrize(
  "given, keywords, said",
  [
    (
      [{}, None],
      {},
      r"; as in vit_jax\.TrainState\.create\(params=params",
    ),
    (
      [],
      {"apply_fn": None, "params": {}, "tx": None},
      r"'apply_fn'; .* the model goes to vit_jax\.make_train_step\(",
    ),
    ([], {"params": {}, "optimizer": None}, "'tx'; did you mean tx=tx"),
  ],
)
def test_a_state_that_is_made_otherwise_says_how(given, keywords, said):
  with pytest.raises(TypeError, match=said):
    operator.call(TrainState.create, *given, **keywords)
