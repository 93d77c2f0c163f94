"""Low-rank products: what they add, to which kernels, and their gradients."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from tests.models.tiny_vit import D, images, random_params, tiny
from vit_jax.models import partitioning
from vit_jax.models.parts import stack, unstack
from vit_jax.training import lora
from vit_jax.training.settings import LoraSettings
from vit_jax.training.state import make_params_init

SETTINGS = LoraSettings(rank=2, alpha=3.0)


@functools.cache
def parts():
  """All parameters, the base among them, and random arrays to train."""
  model = tiny()
  whole = random_params(model, images())
  base = {k: v for k, v in whole.items() if k != "head"}
  init = lora.trained_init(make_params_init(model, (8, 12, 3)), SETTINGS)
  rng = np.random.default_rng(2)
  trained = jax.tree.map(
    lambda x: rng.normal(size=x.shape).astype(np.float32) / 4,
    nn.unbox(jax.eval_shape(init, jax.random.key(0))),
  )
  return whole, base, {**trained, "head": whole["head"]}


def test_the_product_is_that_of_the_formula():
  """By einsum, for each kind of kernel; everything else is the base's."""
  whole, base, trained = parts()
  found = lora.merge(SETTINGS, base, trained)
  block, old = trained["block_1"], whole["block_1"]
  new = found["block_1"]
  for place, axes in [
    (("msa", "value"), "dr,rhe->dhe"),
    (("msa", "out"), "her,rd->hed"),
    (("mlp", "expand"), "dr,rm->dm"),
  ]:
    a, b, before, after = block, block, old, new
    for name in place:
      a = b = a[name]
      before, after = before[name], after[name]
    change = 3.0 / 2 * np.einsum(axes, b["lora_a"], b["lora_b"])
    np.testing.assert_allclose(
      after["kernel"], before["kernel"] + change, rtol=1e-5, atol=1e-5
    )
  others = {"block_0/norm_msa/scale", "patches/E/kernel", "head/kernel"}
  flat, kept = flatten_dict(found, sep="/"), flatten_dict(whole, sep="/")
  assert flat.keys() == kept.keys()
  for path in others:
    np.testing.assert_array_equal(flat[path], kept[path])


def test_stacked_layers_have_the_same_products():
  _, base, trained = parts()
  stacked = lora.merge(SETTINGS, stack(base), stack(trained))
  expected = lora.merge(SETTINGS, base, trained)
  for path, array in flatten_dict(unstack(stacked), sep="/").items():
    other = flatten_dict(expected, sep="/")[path]
    np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-6)
  model = tiny(scan=True)
  init = lora.trained_init(make_params_init(model, (8, 12, 3)), SETTINGS)
  shapes = nn.unbox(jax.eval_shape(init, jax.random.key(0)))
  drawn = jax.tree.map(np.shape, stack(trained))
  assert jax.tree.map(lambda x: x.shape, shapes) == drawn


@pytest.mark.slow
def test_at_first_the_model_is_as_it_was():
  init = lora.trained_init(make_params_init(tiny(), (8, 12, 3)), SETTINGS)
  trained = nn.unbox(jax.jit(init)(jax.random.key(0)))
  _, base, _ = parts()
  found = flatten_dict(lora.merge(SETTINGS, base, trained), sep="/")
  for path, array in flatten_dict(base, sep="/").items():
    np.testing.assert_array_equal(found[path], array)
  # Of variance 1 / inputs, which for these kernels are D.
  drawn = [
    x
    for path, x in flatten_dict(trained, sep="/").items()
    if path.endswith("lora_a") and "contract" not in path
  ]
  values = np.concatenate([x.ravel() for x in drawn])
  assert values.std() == pytest.approx(D**-0.5, rel=0.1)
  assert len({float(x.ravel()[0]) for x in drawn}) == len(drawn)


@pytest.mark.slow
def test_every_array_has_the_gradient_of_its_kernel(monkeypatch):
  """In both forms of attention: dA = s G B^T and dB = s A^T G for dW = G."""
  model, x = tiny(), images()
  _, base, trained = jax.tree.map(jnp.asarray, parts())
  weights = jax.random.normal(jax.random.key(0), (len(x), 5))

  def loss(params):
    return (weights * model.apply({"params": params}, x)).sum()

  merged = lora.merge(SETTINGS, base, trained)
  G = flatten_dict(jax.jit(jax.grad(loss))(merged), sep="/")

  def adapted(trained):
    return loss(lora.merge(SETTINGS, base, trained))

  plain = jax.jit(jax.grad(adapted))(trained)
  monkeypatch.setattr(partitioning, "platform", lambda: "tpu")
  traced = jax.make_jaxpr(adapted)(trained)
  assert "custom_vjp_call" in str(traced)
  for_tpu = jax.jit(jax.grad(adapted))(trained)
  arrays = flatten_dict(trained, sep="/")
  for found in (plain, for_tpu):
    flat = flatten_dict(found, sep="/")
    assert flat.keys() == arrays.keys()
    for path in (p for p in flat if p.endswith("lora_a")):
      place = path.removesuffix("lora_a")
      a, b = (arrays[place + name] for name in ("lora_a", "lora_b"))
      g = 1.5 * np.asarray(G[place + "kernel"]).reshape(-1, b[0].size)
      dA, dB = g @ b.reshape(2, -1).T, a.reshape(-1, 2).T @ g
      assert np.abs(dA).max() > 1e-4 and np.abs(dB).max() > 1e-4
      for name, expected in (("lora_a", dA), ("lora_b", dB)):
        got = np.asarray(flat[place + name]).reshape(expected.shape)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(got, expected, atol=1e-4 * scale)


@functools.cache
def shapes(**fields):
  init = make_params_init(tiny(**fields), (8, 12, 3))
  return flatten_dict(
    nn.unbox(jax.eval_shape(init, jax.random.key(0))), sep="/"
  )


def test_kernels_are_chosen_by_their_paths():
  some = LoraSettings(rank=1, kernels="block_1/msa/(query|value)")
  expected = ["block_1/msa/query/kernel", "block_1/msa/value/kernel"]
  assert lora.chosen_kernels(some, shapes()) == expected
  every = lora.chosen_kernels(LoraSettings(rank=1, kernels="."), shapes())
  assert "patches/E/kernel" in every and "head/kernel" not in every
  assert len(lora.chosen_kernels(SETTINGS, shapes())) == 2 * 6
  assert len(lora.chosen_kernels(SETTINGS, shapes(scan=True))) == 6


@pytest.mark.parametrize(
  "kernels, fields, message",
  [
    (
      "msa/qeury",
      {},
      "'msa/qeury' is found in no kernel's path. .*this: block_1",
    ),
    ("head", {}, "'head' is found in no kernel's path"),
    ("block_1/", {"scan": True}, "only some layers, .* model.scan=False"),
  ],
)
def test_a_choice_of_nothing_is_refused(kernels, fields, message):
  with pytest.raises(ValueError, match=message):
    lora.chosen_kernels(LoraSettings(rank=1, kernels=kernels), shapes(**fields))


def test_a_pattern_that_is_none_is_refused():
  with pytest.raises(ValueError, match=r"kernels='\(' must be a regular"):
    LoraSettings(kernels="(")
