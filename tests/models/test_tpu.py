"""The forms for a TPU, which compute the same on any platform."""

import dataclasses
import itertools
import re
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import equations
from tests.models.tiny_vit import (
  HEADS,
  LAYERS,
  MLP,
  B,
  D,
  images,
  random_params,
  relative_difference,
  tiny,
)
from tests.rows import some_slow
from vit_jax.models import attention, layer, partitioning, tpu, vit
from vit_jax.models.extended_block import ExtendedBlock, ExtendedConfig
from vit_jax.models.rotary import Rope


@pytest.fixture
def for_tpu(monkeypatch):
  """Traces everything as for a TPU."""
  monkeypatch.setattr(partitioning, "platform", lambda: "tpu")


def loss_and_gradients(model, params, x, **options):
  """A loss that weights each output differently; the outputs; gradients."""
  weights = jax.random.normal(jax.random.key(3), (B, 7, D))

  def loss(params, x):
    y = model.apply({"params": params}, x, **options)
    return (weights * y.astype(jnp.float32)).sum(), y

  both = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
  (value, y), gradients = jax.jit(both)(params, x)
  return value, y, gradients


def block_and_params(dtype, q_std=1.0, kind=vit.EncoderBlock, **fields):
  """A block whose queries and keys have a standard deviation near `q_std`."""
  z = jax.random.normal(jax.random.key(0), (B, 7, D))
  rope = {k: fields.pop(k) for k in ("rope",) if k in fields}
  extended = kind is ExtendedBlock
  config_kind = ExtendedConfig if extended else layer.LayerConfig
  block = kind(HEADS, MLP, config_kind(dtype=dtype, **fields), **rope)
  params = jax.tree.map(jnp.asarray, random_params(block, z))
  for name in ("query", "key"):
    params["msa"][name]["kernel"] *= q_std / (0.2 * D**0.5)
  return block, params, z


ROPE = Rope((2, 3), 100.0)
EXTENDED = dict(kind=ExtendedBlock, layer_scale=0.5, gelu="exact")
WIDE = {"attention_dtype": jnp.float32}
KINDS = [
  {},
  EXTENDED | dict(rope=ROPE, qkv_bias="qv"),
  EXTENDED | dict(rope=ROPE, qk_norm=True, gated_mlp=True),
  EXTENDED | dict(qk_norm=True, qkv_bias=""),
  EXTENDED
  | dict(qk_norm=True, qk_norm_whole=True, branch_bias=False, gated_mlp=True),
]


@pytest.mark.parametrize(
  "kind, whole",
  some_slow(itertools.product(KINDS, (True, False)), [(KINDS[0], True)]),
)
def test_a_block_for_tpu_has_the_value_and_gradients_of_any_other(
  monkeypatch, kind, whole
):
  block, params, z = block_and_params(jnp.float32, **kind)
  expected, expected_y, (expected_grads, expected_dz) = loss_and_gradients(
    block, params, z
  )
  monkeypatch.setattr(partitioning, "platform", lambda: "tpu")
  if not whole:
    monkeypatch.setattr(attention, "WHOLE", 6)
    monkeypatch.setattr(tpu, "BLOCK_BYTES", 2 * 4 * 7 * 128)  # Two of 6 pairs.
  traced = str(jax.make_jaxpr(lambda p: block.apply({"params": p}, z))(params))
  assert "custom_vjp_call" in traced
  assert ("while" in traced or "scan" in traced) != whole
  # XLA lays out a pass without gradients, as heads are inside there.
  turns = "rope" in kind or "qk_norm" in kind
  assert ("layout_constraint" in traced) == (turns or not whole)
  y = jax.jit(block.apply)({"params": params}, z)
  assert relative_difference(y, expected_y) < 1e-6
  found, _, (grads, dz) = loss_and_gradients(block, params, z)
  assert float(found) == pytest.approx(float(expected), rel=1e-5)
  assert relative_difference(dz, expected_dz) < 1e-6
  msa, expected_msa = grads["msa"], expected_grads["msa"]
  if not kind:
    # The keys' bias adds the same to all logits of a query: its gradient is 0.
    assert not msa["key"].pop("bias").any()
    assert np.abs(expected_msa["key"].pop("bias")).max() < 1e-4
  if "norm_key" in msa and "rope" not in kind:  # So does that of their norm.
    for one in (msa, expected_msa):
      assert np.abs(one["norm_key"].pop("bias")).max() < 1e-4
  # Without biases of their own, normed queries have gradients in which much
  # cancels: those of the plain form are off from float64 by 8e-7 themselves.
  most = 2e-6 if kind is KINDS[3] else 1e-6
  for a, b in zip(*map(jax.tree.leaves, (grads, expected_grads)), strict=True):
    assert relative_difference(a, b) < most


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_block_for_tpu_has_logits_and_exponentials_of_the_type_of_any_other(
  monkeypatch, kind, whole
):
  """Both forms round to bfloat16 at the same places, but not the same sums."""
  kind = kind | {"attention_dtype": jnp.bfloat16}
  block, params, z = block_and_params(jnp.float32, 4.0, **kind)
  expected, _, (expected_grads, expected_dz) = loss_and_gradients(
    block, params, z
  )
  exact, _, _ = block_and_params(jnp.float32, **kind | WIDE)
  monkeypatch.setattr(partitioning, "platform", lambda: "tpu")
  if not whole:
    monkeypatch.setattr(attention, "WHOLE", 6)

  def passes(block):
    def apply(p):
      return block.apply({"params": p}, z).sum()

    return [str(jax.make_jaxpr(f)(params)) for f in (apply, jax.grad(apply))]

  # All else is float32, so that nothing else is bfloat16.
  exponentials = re.compile(r":bf16\[[^\]]*\] = exp ")
  assert all(map(exponentials.search, passes(block)))
  assert not any("bf16" in one for one in passes(exact))
  found, _, (grads, dz) = loss_and_gradients(block, params, z)
  assert float(found) == pytest.approx(float(expected), rel=0.01)
  # Each logit, of up to 16 here, is off by up to 2^-5, one in a few rows.
  assert relative_difference(dz, expected_dz) < 0.02
  for name in ("value", "out"):
    a, b = (g["msa"][name]["kernel"] for g in (grads, expected_grads))
    assert relative_difference(a, b) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("std, tolerance", [(1.0, 0.01), (4.0, 0.02)])
def test_a_block_for_tpu_is_exact_enough_in_bfloat16(for_tpu, std, tolerance):
  exact, params, z = block_and_params(jnp.float32, std)
  rough, _, _ = block_and_params(jnp.bfloat16)
  expected, _, (expected_grads, _) = loss_and_gradients(exact, params, z)
  found, _, (grads, _) = loss_and_gradients(rough, params, z)
  assert float(found) == pytest.approx(float(expected), rel=0.05)
  for name in ("value", "out"):
    a, b = (g["msa"][name]["kernel"] for g in (grads, expected_grads))
    assert relative_difference(a, b) < tolerance


@pytest.mark.parametrize(
  "form", [tpu.attend, tpu.attend_in_order, tpu.attend_in_blocks]
)
@pytest.mark.parametrize("turns", some_slow([False, True], [True]))
@pytest.mark.parametrize("std", some_slow([1.0, 4.0], [4.0]))
@pytest.mark.parametrize("saves", some_slow([False, True], [True]))
@pytest.mark.parametrize(
  "dtype, most",
  some_slow([(jnp.float32, 0.01), (jnp.bfloat16, 0.04)], [(jnp.float32, 0.01)]),
)
def test_attention_for_tpu_stays_within_percents(
  form, turns, std, saves, dtype, most
):
  """Compares with float64 on the same bfloat16 tokens, at logits of std 16."""
  k, D_h, S = 2, 64, 50
  keys = jax.random.split(jax.random.key(0), 6)
  size = std / (k * D_h) ** 0.5

  @partial(jax.jit, static_argnums=(1, 2))
  def draw(key, shape, size):
    return (size * jax.random.normal(key, shape)).astype(jnp.bfloat16)

  z = draw(keys[0], (B, S, k * D_h), 1.0)
  W_q, W_k, W_v = (
    draw(key, (k * D_h, k, D_h), s)
    for s, key in zip((size / 8, size, size / std), keys[1:4], strict=True)
  )
  identity = np.eye(k * D_h).reshape(k, D_h, k * D_h).astype(jnp.bfloat16)
  angles = 3 * np.random.default_rng(0).normal(size=(D_h // 2, S)) * turns
  turn = np.cos(angles, dtype=np.float32), np.sin(angles, dtype=np.float32)
  none = np.zeros(k * D_h, jnp.bfloat16)

  def attention(z):
    q, key = (
      tpu.project_and_rotate(z, W, None, *turn)
      if turns
      else tpu.project(z, W, None)
      for W in (W_q, W_k)
    )
    return form(q, key, z, W_v, None, identity, none, dtype)

  # The value that `jax.vjp` gives with its function is one that saves.
  value = (lambda z: jax.vjp(attention, z)[0]) if saves else attention
  y = jax.jit(value)(z)

  def rounded(W):
    exact = np.einsum("bnd,dhe->bhne", *(np.float64(x) for x in (z, W)))
    return np.float64(jnp.asarray(exact, jnp.bfloat16))

  def turned(x):
    pairs = x[..., :32] + 1j * x[..., 32:]
    pairs = pairs * np.exp(1j * np.float64(angles).T)
    exact = np.concatenate([pairs.real, pairs.imag], axis=-1)
    return np.asarray(jnp.asarray(exact, jnp.bfloat16), np.float64)

  q, key, v = map(rounded, (W_q, W_k, W_v))
  A = equations.softmax(turned(q) @ turned(key).swapaxes(-1, -2))
  expected = (A @ v).transpose(0, 2, 1, 3).reshape(B, S, -1)
  assert relative_difference(y, expected) < most


@pytest.mark.slow
@pytest.mark.parametrize("S", [197, 640, 1025])
def test_the_splash_kernel_has_the_value_and_gradients_of_attention(
  interpreted, S
):
  """In float32, with and without padding, for one block and for several."""
  k, D_h = 2, 64
  D = k * D_h
  keys = jax.random.split(jax.random.key(0), 4)
  q, key = (jax.random.normal(i, (k, 1, D_h, S)) for i in keys[:2])
  z, weights = (jax.random.normal(i, (1, S, D)) for i in keys[2:])
  identity = jnp.eye(D).reshape(k, D_h, D)
  q /= D_h**0.5

  def splash(q, key, z):
    rest = identity.transpose(2, 0, 1), None, identity, jnp.zeros(D)
    return tpu.attend_in_blocks(q, key, z, *rest, splash=True)

  def plain(q, key, z):
    A = jax.nn.softmax(jnp.einsum("hbeq,hbek->hbqk", q, key))
    v = z.reshape(1, S, k, D_h)
    return jnp.einsum("hbqk,bkhe->bqhe", A, v).reshape(1, S, D)

  # On CPUs, the compiler of jax 0.10 gives wrong gradients where an interpreted
  # kernel follows a constraint of the layout; outside of jit they are right.
  compiled = (
    jax.jit if jax.__version_info__ >= (0, 12) else lambda attend: attend
  )

  def value_and_gradients(attend):
    y, backward = jax.vjp(compiled(attend), q, key, z)
    return y, *backward(weights)

  both = map(value_and_gradients, (splash, plain))
  for found, expected in zip(*both, strict=True):
    assert relative_difference(found, expected) < 1e-6


@pytest.mark.slow
def test_a_block_has_the_splash_kernel_on_tpus_for_many_tokens_alone(
  interpreted, monkeypatch
):
  plain, params, z = block_and_params(jnp.float32, **KINDS[1])
  config = dataclasses.replace(plain.config, splash=True)
  block = plain.clone(config=config)

  def has_kernel():
    traced = jax.make_jaxpr(lambda p: block.apply({"params": p}, z))(params)
    return "pallas_call" in str(traced)

  expected, _, expected_grads = loss_and_gradients(plain, params, z)
  assert not has_kernel()
  monkeypatch.setattr(partitioning, "platform", lambda: "tpu")
  assert not has_kernel()
  monkeypatch.setattr(attention, "WHOLE", 6)
  assert has_kernel()
  found, _, grads = loss_and_gradients(block, params, z)
  assert float(found) == pytest.approx(float(expected), rel=1e-5)
  for a, b in zip(*map(jax.tree.leaves, (grads, expected_grads)), strict=True):
    assert relative_difference(a, b) < 2e-6


@pytest.mark.parametrize(
  "fields, options, forms",
  [
    ({}, {}, 1),  # The class token alone asks in the last layer.
    ({"block": "dinov3"}, {}, 2),
    # These need A, which the form for a TPU never has.
    ({"attention_dropout_rate": 0.1}, {"train": True}, 0),
    ({}, {"mutable": "intermediates"}, 0),
    *(
      pytest.param(*row, marks=pytest.mark.slow)
      for row in [
        ({"pooling": "gap"}, {}, 2),
        ({"attention_dropout_rate": 0.1, "pooling": "gap"}, {}, 2),
        ({"position": "relative"}, {}, 0),
        ({"block": "dinov3", "qk_norm": True}, {"mutable": "intermediates"}, 0),
      ]
    ),
  ],
)
def test_the_form_for_tpu_is_used_where_nothing_needs_the_weights(
  for_tpu, monkeypatch, fields, options, forms
):
  x, model = images(), tiny(**fields)
  params = random_params(model, x)
  calls = []
  for name in ("attend", "attend_in_order"):
    attend = getattr(tpu, name)
    monkeypatch.setattr(
      tpu, name, lambda *a, attend=attend: calls.append(a) or attend(*a)
    )
  jax.eval_shape(
    lambda p: model.apply(
      {"params": p}, x, rngs={"dropout": jax.random.key(0)}, **options
    ),
    params,
  )
  assert len(calls) == forms


FORMS = {form for forms in tpu.FORWARD.values() for form in forms.values()}


@pytest.mark.slow
@pytest.mark.parametrize("form", sorted(FORMS, key=str), ids=str)
def test_a_chip_has_the_answers_of_any_other(for_tpu, monkeypatch, form):
  """In the forms of its own for passes without gradients, and with them."""
  x, model = images(8, 12), tiny(num_layers=1)
  params = random_params(model, x)

  def loss(params, x):
    y = model.apply({"params": params}, x)
    return jnp.square(y).sum(), y

  def gradients():
    return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(params, x)

  with monkeypatch.context() as patch:
    patch.setattr(partitioning, "platform", lambda: "cpu")
    expected_grads, expected = gradients()
  monkeypatch.setattr(tpu, "chip", lambda: "v6e")
  monkeypatch.setattr(tpu, "FORWARD", {"v6e": {D: form}})
  found = jax.jit(lambda p: model.apply({"params": p}, x))(params)
  assert relative_difference(found, expected) < 1e-6
  grads, y = gradients()
  assert relative_difference(y, expected) < 1e-6
  for side in (grads, expected_grads):
    side[0]["block_0"]["msa"]["key"].pop("bias")  # 0, but for rounding.
  for a, b in zip(*map(jax.tree.leaves, (grads, expected_grads)), strict=True):
    assert relative_difference(a, b) < 2e-6


@pytest.mark.parametrize(
  "form, count",
  [
    # One for the MLP of each layer; queries and keys have two.
    pytest.param(tpu.Forward(), LAYERS, marks=pytest.mark.slow),
    (tpu.Forward(apart=True), 3 * LAYERS),
  ],
)
def test_a_form_is_that_of_passes_without_gradients_alone(
  for_tpu, monkeypatch, form, count
):
  x, model = images(), tiny(pooling="gap")
  params = random_params(model, x)
  monkeypatch.setattr(tpu, "chip", lambda: "own")
  monkeypatch.setattr(tpu, "FORWARD", {"own": {D: form}})

  def answers(params):
    return model.apply({"params": params}, x).sum()

  def written(function):
    inlined = jax.jit(function).lower(params).as_text()
    return inlined.count("stablehlo.optimization_barrier")

  assert written(answers) == count
  with monkeypatch.context() as patch:
    patch.setattr(tpu, "FORWARD", {})
    plain = written(jax.grad(answers))
  assert written(jax.grad(answers)) == plain


def test_a_width_between_those_compiled_has_the_form_of_the_nearest(
  monkeypatch,
):
  monkeypatch.setattr(tpu, "chip", lambda: "v6e")
  found = [tpu.forward_form(width).narrow for width in (192, 768, 900, 1280)]
  assert found == [False, False, True, True]
  monkeypatch.setattr(tpu, "chip", lambda: None)
  assert tpu.forward_form(768) == tpu.Forward()


def test_exponentials_may_have_the_type_of_the_tokens(for_tpu, monkeypatch):
  x, model = images(), tiny(dtype=jnp.bfloat16, pooling="gap")
  params = random_params(model, x)
  monkeypatch.setattr(tpu, "chip", lambda: "own")

  def rounded(form):
    monkeypatch.setattr(tpu, "FORWARD", {"own": {D: form}})
    traced = jax.make_jaxpr(lambda p: model.apply({"params": p}, x))(params)
    S = 6  # Patches.
    shape = re.escape(f"bf16[{B},{HEADS},{S},{S}]")
    return len(re.findall(rf":{shape} = convert_element_type", str(traced)))

  # The weights are rounded in any case, for the product with the values.
  assert rounded(tpu.Forward()) == LAYERS
  assert rounded(tpu.Forward(narrow=True)) == 2 * LAYERS


@pytest.mark.parametrize("kind", ["tanh", "exact"])
def test_gelu_for_tpu_has_the_slope_of_gelu(for_tpu, kind):
  x = jnp.array([-40.0, -3.0, -0.1, 0.0, 0.5, 2.0, 40.0])
  gelu = partial(nn.gelu, approximate=kind == "tanh")
  found, expected = (
    jax.jit(jax.vmap(jax.value_and_grad(one)))(x)
    for one in (layer.GELUS[kind], gelu)
  )
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_queries_of_one_head_may_be_too_many(monkeypatch):
  q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 2, 8, 300))

  def loss(one_block, *args):
    monkeypatch.setattr(tpu, "BLOCK_BYTES", 2**25 if one_block else 2**18)
    return jnp.square(tpu.by_queries(*args, dtype=jnp.float32)).sum()

  both = []
  for one_block in (True, False):
    value_and_grad = jax.value_and_grad(loss, argnums=(1, 2, 3))
    traced = str(jax.make_jaxpr(value_and_grad, 0)(one_block, q, k, v))
    assert ("f32[2,2,8,256]" in traced) != one_block  # Of 300 queries.
    both.append(value_and_grad(one_block, q, k, v))
  for a, b in zip(*map(jax.tree.leaves, both), strict=True):
    assert relative_difference(a, b) < 1e-6
