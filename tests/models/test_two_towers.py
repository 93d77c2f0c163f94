"""Two towers: the parameter tree, the formula, and how each is trained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from tests.models.tiny_vit import random_params
from vit_jax import init_params
from vit_jax.models import make_model, make_vit
from vit_jax.models.model import represent
from vit_jax.models.parts import Parts
from vit_jax.models.text import TextTower
from vit_jax.models.two_towers import two_towers

TEXT = TextTower(
  num_classes=0,
  vocabulary=11,
  length=6,
  hidden_size=8,
  num_layers=2,
  mlp_size=12,
  num_heads=2,
  representation_size=16,
)
IDS = np.array([[3, 4, 9, 1, 9, 0], [5, 9, 2, 0, 0, 0], [1, 1, 1, 10, 0, 0]])
SIZES = dict(num_layers=3, hidden_size=16, mlp_size=32, num_heads=2)


def vit(block=None, **fields):
  block = {} if block is None else {"block": block}
  return make_vit("Ti/8", 0, **SIZES | block | fields)


def images(count=3):
  rng = np.random.default_rng(0)
  return jnp.asarray(rng.normal(size=(count, 16, 16, 3)).astype(np.float32))


def drawn(model):
  pair = images(), jnp.asarray(IDS)
  return jax.tree.map(jnp.asarray, random_params(model, pair))


def paths(params):
  return {*traverse_util.flatten_dict(params, sep="/")}


@pytest.mark.parametrize(
  "image",
  [
    pytest.param(vit(num_layers=1), marks=pytest.mark.slow),
    vit("clip", pooling="token", num_layers=1),
    pytest.param(
      make_model("R50x1", 0, layers=(1,), width=32), marks=pytest.mark.slow
    ),
  ],
  ids=["vit", "clip", "resnet"],
)
def test_the_formula_from_the_towers_alone(image):
  width = represent_width(image)
  text = TEXT.clone(representation_size=width, num_layers=1)
  model = two_towers(image, text)
  params = drawn(model)
  of_text = params.pop("text")
  log_scale, bias = params.pop("log_scale"), params.pop("bias")
  # What is left are the parameters of the image tower, by their own paths.
  shapes = jax.eval_shape(lambda: init_params(image, jax.random.key(0), 16))
  assert paths(params) == paths(shapes)
  whole = {**params, "text": of_text, "log_scale": log_scale, "bias": bias}

  @jax.jit
  def answers(whole, ids):
    u = represent(image, {key: whole[key] for key in params}, images())
    v = model.text.apply({"params": whole["text"]}, ids)
    given = [(images(), ids), (None, ids)]
    return u, v, *(model.apply({"params": whole}, one) for one in given)

  u, v, both, one = answers(whole, jnp.asarray(IDS))
  u, v = np.asarray(u, np.float64), np.asarray(v, np.float64)
  cosine = (u @ v.T) / np.outer(
    np.linalg.norm(u, axis=1), np.linalg.norm(v, axis=1)
  )
  expected = np.exp(np.float64(log_scale)) * cosine + np.float64(bias)
  np.testing.assert_allclose(both.logits(), expected, rtol=1e-4, atol=1e-5)
  assert one.image is None
  np.testing.assert_allclose(one.text, both.text, rtol=1e-5, atol=1e-6)


def represent_width(image):
  params = jax.eval_shape(lambda: init_params(image, jax.random.key(0), 16))
  return jax.eval_shape(lambda p: represent(image, p, images()), params).shape[
    1
  ]


@pytest.mark.slow
def test_first_values_are_those_of_the_papers():
  params = init_params(two_towers(vit(), TEXT), jax.random.key(0), 16)
  assert float(params["log_scale"]) == pytest.approx(np.log(10))
  assert float(params["bias"]) == -10
  clip = two_towers(vit(), TEXT, first_log_scale=2.0, first_bias=None)
  params = init_params(clip, jax.random.key(0), 16)
  assert "bias" not in params
  assert float(params["log_scale"]) == 2


def test_depths_are_counted_in_each_tower():
  model = two_towers(vit(), TEXT)
  params = jax.eval_shape(lambda: init_params(model, jax.random.key(0), 16))
  parts = Parts.of(model, params)
  by_hand = {
    "patches/E/kernel": 4,
    "block_0/mlp/expand/kernel": 3,
    "block_2/mlp/expand/kernel": 1,
    "norm/scale": 0,
    "text/E": 3,
    "text/block_0/mlp/expand/kernel": 2,
    "text/block_1/mlp/expand/kernel": 1,
    "text/norm/scale": 0,
    "text/projection/kernel": 0,
    "log_scale": 0,
    "bias": 0,
  }
  assert {path: parts.depth(path) for path in by_hand} == by_hand
  own = {path for path in by_hand if parts.own_task(path)}
  assert own == {k for k in by_hand if k in ("log_scale", "bias")} | {
    k for k in by_hand if k.startswith("text/")
  }


@pytest.mark.slow
def test_scanned_layers_give_the_same():
  model = two_towers(vit(), TEXT)
  pair = images(), jnp.asarray(IDS)
  params = drawn(model)
  scanned = model.clone(scan=True)
  assert scanned.text.scan
  stacked = Parts.of(model, params).stack(params)
  assert "blocks" in stacked["text"]
  one = jax.jit(model.apply)({"params": params}, pair).logits()
  other = jax.jit(scanned.apply)({"params": stacked}, pair).logits()
  np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["image", "text"])
def test_a_frozen_tower_gets_no_gradient(which):
  towers = tuple(
    "frozen" if t == which else "trained" for t in ("image", "text")
  )
  model = two_towers(vit(), TEXT, towers=towers)
  pair = images(), jnp.asarray(IDS)
  params = drawn(model)

  def loss(params):
    return model.apply({"params": params}, pair).logits()[0, 1] ** 2

  grads = jax.jit(jax.grad(loss))(params)
  grads = {
    path: np.asarray(grad)
    for path, grad in traverse_util.flatten_dict(grads, sep="/").items()
  }
  for path, grad in grads.items():
    if model.is_frozen(path):
      assert not grad.any(), path
  moved = [path for path, grad in grads.items() if grad.any()]
  assert {path.startswith("text/") for path in moved if "/" in path} == {
    which == "image"
  }
  assert {"log_scale", "bias"} <= {*moved}


def test_beside_lora_the_other_tower_is_trained_itself():
  model = two_towers(vit(), TEXT, towers=("lora", "trained"))
  params = jax.eval_shape(lambda: init_params(model, jax.random.key(0), 16))
  parts = Parts.of(model, params)
  is_new = {
    path for path in paths(params) if parts.is_trained_beside_lora(path)
  }
  assert is_new == {
    path
    for path in paths(params)
    if path.startswith("text/") or path in ("log_scale", "bias")
  }


def test_different_widths_are_one_line():
  model = two_towers(vit(), TEXT.clone(representation_size=12))
  with pytest.raises(ValueError, match="16 numbers for an image and .* 12 for"):
    init_params(model, jax.random.key(0), 16)


def test_another_kind_of_image_tower_is_refused():
  with pytest.raises(ValueError, match="a TextTower is no encoder of images"):
    two_towers(TEXT, TEXT)
