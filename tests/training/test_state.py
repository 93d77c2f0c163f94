"""A model's first parameters."""

import functools
import operator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import vit_jax
from tests import tiny
from vit_jax import TrainState, init_params, make_vit
from vit_jax.runtime import printable
from vit_jax.training import state


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


def test_parameters_are_counted_in_every_form():
  """Ti/4 of one layer, by the paper's formulas; images of 8 x 8 pixels."""
  D, M, K, N = 192, 768, 3, 4
  layer = 4 * (D * D + D) + 2 * D * M + D + M + 2 * 2 * D
  count = 4 * 4 * 3 * D + D + D + (N + 1) * D + layer + 2 * D + D * K + K
  model = make_vit("Ti/4", num_classes=K, num_layers=1)
  shapes = functools.partial(model.init, jax.random.key(0))
  boxed = jax.eval_shape(shapes, jnp.zeros((1, 8, 8, 3)))
  zeros = {"a": np.zeros((2, 3)), "b": {"c": jnp.zeros(4)}}
  for given, expected in (
    (boxed, count),
    (boxed["params"], count),
    (nn.unbox(boxed["params"]), count),
    (zeros, 10),
    (TrainState.create(params=zeros, tx=optax.adam(1.0)), 10),
  ):
    for name in ("count_params", "num_params", "count_parameters"):
      assert getattr(vit_jax, name)(given) == expected


@pytest.mark.parametrize(
  "given, message",
  [
    (make_vit("Ti/4"), r"no parameters: give vit_jax\.init_params\(model, "),
    ({}, "holds no parameters: give a tree of arrays, as vit_jax"),
    (["a"], "holds no parameters: give a tree of arrays, as vit_jax"),
  ],
)
def test_what_has_no_parameters_is_not_counted(given, message):
  with pytest.raises(TypeError, match=message):
    state.count_params(given)


def test_a_call_without_a_model_is_answered_by_an_example():
  call: Any = init_params
  with pytest.raises(TypeError, match=r"; as in .*jax.random.key\(0\), 224\)"):
    call()
  with pytest.raises(ValueError, match="model='S/16' is no model: give"):
    call("S/16")


def test_one_number_is_the_size_of_a_square():
  model = make_vit("Ti/4", num_classes=3, num_layers=1)
  found = jax.eval_shape(lambda: init_params(model, jax.random.key(0), 8))
  assert found["position"]["E_pos"].shape == (5, 192)


SMALL: Any = {"num_classes": 2, "num_layers": 1, "hidden_size": 12}


@functools.cache
def first_parameters():
  """Those of a small model, by its own `init`."""
  model = make_vit("Ti/16", **SMALL, patch_size=32)
  images = jnp.zeros((1, 224, 224, 3))
  params = jax.jit(model.init)(jax.random.key(0), images)["params"]
  return model, nn.unbox(params)


@pytest.mark.parametrize(
  "given, keywords",
  [
    ([], {}),
    ([None, 224], {}),
    ([jax.random.key(0)], {}),
    ([jax.random.PRNGKey(0)], {"img_size": (224, 224)}),
    ([0, 224], {}),
    ([], {"seed": 0, "size": 224}),
    ([], {"rng": jax.random.key(0), "image_size": (1, 224, 224, 3)}),
    ([jax.random.key(0), (224, 224, 3)], {}),
    ([jax.random.key(0), np.zeros((1, 224, 224, 3), np.uint8)], {}),
    ([jax.random.key(0), jax.ShapeDtypeStruct((2, 224, 224, 3), "uint8")], {}),
  ],
)
def test_first_parameters_need_no_more_than_a_model(given, keywords):
  model, expected = first_parameters()
  params = operator.call(init_params, model, *given, **keywords)
  same = functools.partial(np.testing.assert_allclose, atol=1e-6)
  jax.tree.map(same, params, expected)


def test_first_parameters_are_drawn_within_other_functions():
  """Of several keys at once, as for an ensemble, and in a jitted function."""
  model, expected = first_parameters()
  keys = jnp.stack([jax.random.key(1), jax.random.key(0)])
  draw = functools.partial(init_params, model, image_size=224)
  params = jax.jit(jax.vmap(draw))(keys)
  same = functools.partial(np.testing.assert_allclose, atol=1e-6)
  jax.tree.map(lambda x, y: same(x[1], y), params, expected)


def test_a_size_that_is_assumed_is_said(capsys):
  for assumed in ([], [jax.random.key(0)]):
    printable.said_once.clear()
    init_params(make_vit("Ti/16", **SMALL, patch_size=32), *assumed)
    assert "224 x 224 is assumed" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
  "given, said",
  [
    ([0], r"^key=0 .* a seed or a size: .* jax\.random\.key\(0\), 224"),
    (["a", 32], r"^key='a' is no key of JAX: give jax\.random\.key\(0\)"),
    ([jnp.zeros((1, 32, 32, 3))], "is no key of JAX"),
    ([jax.random.key(0), "32"], "image_size='32' is no size: give the side"),
    ([jax.random.key(0), (32,)], r"image_size=\(32,\) is no size"),
  ],
)
def test_what_may_be_a_key_or_a_size_is_refused(given, said):
  model = make_vit("Ti/16", num_classes=2, num_layers=1)
  with pytest.raises(ValueError, match=said):
    init_params(model, *given)


def test_a_first_state_is_made_of_parameters_and_an_optimizer():
  params, tx = {"w": jnp.ones(3)}, optax.adam(1e-3)
  state = TrainState.create(params=params, tx=tx)
  assert state.step == 0 and state.step.dtype == jnp.int32
  assert state.params is params and state.averaged_params is None
  assert jax.tree.structure(state.opt_state) == (
    jax.tree.structure(tx.init(params))
  )


@pytest.mark.parametrize(
  "given, keywords",
  [
    (["params", "tx"], {}),
    (["params"], {"optimizer": "tx"}),
    ([], {"params": "params", "opt": "tx"}),
    (["variables", "tx"], {}),
    ([], {"apply_fn": print, "params": "params", "tx": "tx"}),
  ],
)
def test_a_first_state_is_made_as_by_flax(given, keywords, capsys):
  printable.said_once.clear()
  params, tx = {"w": jnp.ones(3)}, optax.adam(1e-3)
  named = {"params": params, "tx": tx, "variables": {"params": params}}
  values = {key: named.get(name, name) for key, name in keywords.items()}
  state = operator.call(TrainState.create, *map(named.get, given), **values)
  expected = TrainState(jnp.int32(0), params, tx.init(params))
  jax.tree.map(np.testing.assert_array_equal, state, expected)
  assert ("apply_fn" in capsys.readouterr().err) == ("apply_fn" in keywords)


def test_a_loaded_model_is_no_tree_of_parameters():
  loaded, _ = tiny.random_model()
  with pytest.raises(TypeError, match=r"loaded model: give loaded\.params"):
    TrainState.create(loaded, optax.sgd(0.1))


def test_images_have_channels():
  with pytest.raises(ValueError, match="channels=0 must be 1 or more"):
    init_params(make_vit("Ti/16"), jax.random.key(0), 16, channels=0)


@pytest.mark.parametrize(
  "given, keywords, said",
  [
    ([{}], {}, r"; as in vit_jax\.TrainState\.create\(params=params"),
    ([], {"params": {}, "tx": "adam"}, r"tx is of type str: .*optax\.adamw"),
    ([{}, 0.1], {}, r"tx is of type float: .*optax\.adamw"),
    (
      [make_vit("Ti/16"), optax.sgd(1)],
      {},
      r"params is a model: give .*init_params\(",
    ),
    (
      [{}, optax.sgd(1)],
      {"model": 1},
      r"the model goes to vit_jax\.make_train_step\(",
    ),
    ([{}, optax.sgd(1)], {"rng": 1}, "random numbers from its seed"),
  ],
)
def test_a_state_that_is_made_otherwise_says_how(given, keywords, said):
  with pytest.raises(TypeError, match=said):
    operator.call(TrainState.create, *given, **keywords)


@pytest.mark.parametrize(
  "name, said",
  [
    ("apply_gradients", r"step\(state, batch\), which computes and applies"),
    ("apply_fn", r"model\.apply\(\{\"params\": state\.params\}, images\)"),
  ],
)
def test_a_state_says_what_it_has_in_place_of_an_attribute_of_flax(name, said):
  state = TrainState.create({"w": jnp.ones(3)}, optax.sgd(1))
  with pytest.raises(AttributeError, match=said):
    getattr(state, name)
