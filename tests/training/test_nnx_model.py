"""Models as NNX modules: they compute and learn what linen's do."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from tests import encoders
from tests.models.tiny_vit import apply, images, random_params, tiny
from vit_jax import as_nnx, init_params, load_pretrained
from vit_jax.models.parts import stack

TX = optax.adam(1e-2)
# What qwix asks of Flax has other names now.
of_qwix = pytest.mark.filterwarnings(
  "ignore:'VariableState' was removed", "ignore:The 'm.iter_modules"
)


def _assert_equal(tree, other, atol):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=atol),
    tree,
    other,
  )


def _vit(**fields):
  model = tiny(**fields)
  return model, random_params(model, images())


def _hybrid():
  model = tiny(resnet_layers=(1,), resnet_width=32).clone(patch_size=1)
  return model, random_params(model, images())


def _scanned(name, **fields):
  """An encoder as published, whose layers are then stacked."""
  model, params = load_pretrained(encoders.path(name), **fields)
  return model.clone(scan=True), stack(params)


MODELS = {
  "ViT": _vit,
  "ViT, scanned": lambda: _vit(scan=True, remat="full"),
  "hybrid": _hybrid,
  "DINOv2": lambda: load_pretrained(encoders.path("hf_dinov2_reg")),
  "DINOv3": lambda: _scanned("hf_dinov3", remat="dots"),
  "SigLIP": lambda: _scanned("hf_siglip_head"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_those_of_linen(name):
  model, params = MODELS[name]()
  model = model.clone(dropout_rate=0.2)
  side = model.origin.image_size if model.origin else (8, 12)
  x = images(*side)

  @jax.jit
  def linen(params, x):
    def loss(params):
      key = nnx.Rngs(dropout=3).dropout()
      y = model.apply({"params": params}, x, train=True, rngs={"dropout": key})
      return (y**2).mean(), y

    grads, y = jax.grad(loss, has_aux=True)(params)
    return model.apply({"params": params}, x), y, grads

  @nnx.jit
  def ours(module, x):
    def loss(module):
      y = module(x, train=True)
      return (y**2).mean(), y

    grads, y = nnx.grad(loss, has_aux=True)(module)
    return module(x), y, nnx.to_pure_dict(grads)["params"]

  found = ours(as_nnx(model, params, rngs=nnx.Rngs(dropout=3)), x)
  expected = linen(params, x)
  assert np.abs(found[0] - found[1]).max() > 1e-3  # Dropout was on.
  for part, other in zip(found, expected, strict=True):
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(other))
    _assert_equal(part, other, 1e-6 * max(largest, 1.0))


@pytest.mark.slow
def test_an_nnx_loop_takes_the_steps_of_a_linen_loop():
  """Drawn by its own keys, by `nnx.Optimizer`, then split and merged."""
  model, x, y = tiny(), images(), jnp.arange(2)
  module = as_nnx(model, rngs=nnx.Rngs(5), image_size=(8, 12))
  optimizer = nnx.Optimizer(module, TX, wrt=nnx.Param)
  params = init_params(model, nnx.Rngs(5).params(), (8, 12))
  state = TX.init(params)

  def loss(logits):
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

  @nnx.jit
  def nnx_step(module, optimizer):
    grads = nnx.grad(lambda m: loss(m(x)))(module)
    optimizer.update(module, grads)

  @jax.jit
  def linen_step(params, state):
    grads = jax.grad(lambda p: loss(model.apply({"params": p}, x)))(params)
    updates, state = TX.update(grads, state)
    return optax.apply_updates(params, updates), state

  for _ in range(3):
    nnx_step(module, optimizer)
    params, state = linen_step(params, state)
  found = nnx.merge(*nnx.split(module)).linen_params()
  _assert_equal(found, params, 1e-6)
  assert jax.tree.structure(found) == jax.tree.structure(params)


@pytest.mark.slow
def test_other_methods_and_intermediates_are_those_of_linen():
  # With a class token, a call would compute the last layer for it alone.
  model, params = _vit(pooling="gap")
  module, x = as_nnx(model, params), images()
  _, y = module(x, method="encode")
  np.testing.assert_array_equal(module(y, method="head"), module(x))
  _, seen = module(x, mutable="intermediates")
  assert seen["intermediates"]["block_1"]["msa"]["attention"]


def test_what_is_missing_is_one_line():
  model, params = _vit(dropout_rate=0.1)
  with pytest.raises(ValueError, match="give params, or rngs and image_size"):
    as_nnx(model)
  with pytest.raises(ValueError, match=r"rngs=nnx\.Rngs\(0\)"):
    as_nnx(model, params)(images(), train=True)


@pytest.mark.slow
@pytest.mark.parametrize("scan", [False, True])
@of_qwix
def test_qwix_adapts_a_model_that_is_then_bridged(scan):
  """NNX's own LoRA replaces layers of NNX, of which there are none here."""
  qwix = pytest.importorskip("qwix", reason="qwix is not installed")
  model, x = tiny(scan=scan), images()
  params = random_params(model, x)
  assert len([*nnx.iter_modules(as_nnx(model, params))]) == 1
  rule = qwix.LoraProvider(module_path=".*(query|value)", rank=2, alpha=2.0)
  adapted = qwix.apply_lora_to_model(model, rule)
  drawn = init_params(adapted, jax.random.key(0), (8, 12))
  module = as_nnx(
    adapted, unflatten_dict(flatten_dict(drawn) | flatten_dict(params))
  )
  before = module(x)
  # It has all keys and values of the last layer, as `encode` does.
  _, pooled = apply(model, params, x, method="encode")
  expected = apply(model, params, pooled, method="head")
  np.testing.assert_allclose(before, expected, atol=1e-6)
  optimizer = nnx.Optimizer(module, TX, wrt=nnx.LoRAParam)

  @nnx.jit
  def step(module, optimizer):
    wrt = nnx.DiffState(0, nnx.LoRAParam)
    grads = nnx.grad(lambda m: (m(x) ** 2).mean(), argnums=wrt)(module)
    optimizer.update(module, grads)

  step(module, optimizer)
  new = flatten_dict(module.linen_params(), sep="/")
  old = flatten_dict(params, sep="/")
  adds = {path for path in new if path not in old}
  kernels = 2 if scan else 4  # Stacked, or of two layers.
  assert len(adds) == 2 * kernels and all("_lora_" in path for path in adds)
  for path, array in old.items():
    np.testing.assert_array_equal(new[path], array)
  assert np.abs(module(x) - before).max() > 1e-4


@pytest.mark.slow
@of_qwix
def test_qwix_quantizes_the_products_of_a_bridged_model():
  qwix = pytest.importorskip("qwix", reason="qwix is not installed")
  model, params = _vit()
  module, x = as_nnx(model, params), images()
  rule = qwix.QtRule(module_path=".*", weight_qtype="int8", act_qtype="int8")
  trained = qwix.quantize_model(module, qwix.QtProvider([rule]), x)
  exact, found = module(x), trained(x)
  assert 0 < np.abs(found - exact).max() < 0.1 * np.abs(exact).max()
  grads = nnx.grad(lambda m: (m(x) ** 2).mean())(trained)
  assert all(np.abs(g).max() > 0 for g in jax.tree.leaves(grads))
