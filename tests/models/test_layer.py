"""The parts that layers share, and the values that parameters start from."""

import dataclasses
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.models.tiny_vit import LAYERS, B, P, apply, images, tiny
from tests.rows import some_slow
from vit_jax import models
from vit_jax.models import masked_vit, partitioning
from vit_jax.models.layer import (
  LayerConfig,
  PatchDropout,
  each_token,
  layer_norm,
)
from vit_jax.models.tokens import Tokens
from vit_jax.training import operations


@pytest.fixture(scope="module")
def initial():
  """Parameters of a model wide enough for statistics, and its images."""
  x = images(32, 32)
  model = tiny(
    hidden_size=96,
    mlp_size=256,
    num_heads=4,
    representation_size=64,
    head_bias=-10.0,
  )
  variables = jax.jit(model.init)(jax.random.key(0), x)
  return model, nn.unbox(variables["params"]), x


@pytest.mark.slow
def test_the_head_starts_at_its_bias(initial):
  model, params, x = initial
  assert not params["head"]["kernel"].any()
  np.testing.assert_array_equal(apply(model, params, x), np.full((B, 5), -10))


@pytest.mark.slow
def test_class_token_and_positions_start_as_published(initial):
  _, params, _ = initial
  assert not params["x_class"].any()
  E_pos = params["position"]["E_pos"]
  assert float(E_pos.std()) == pytest.approx(0.02, rel=0.05)
  assert abs(float(E_pos.mean())) < 1e-3


@pytest.mark.parametrize(
  "path, fan_in, fan_out",
  [
    ("block_0/msa/query", 96, 96),
    ("block_0/msa/key", 96, 96),
    ("block_0/msa/value", 96, 96),
    ("block_0/msa/out", 96, 96),
    ("block_0/mlp/expand", 96, 256),
    ("block_0/mlp/contract", 256, 96),
    ("pre_logits", 96, 64),
  ],
)
def test_kernels_start_xavier_uniform(initial, path, fan_in, fan_out):
  dense = initial[1]
  for name in path.split("/"):
    dense = dense[name]
  kernel, limit = np.asarray(dense["kernel"]), (6 / (fan_in + fan_out)) ** 0.5
  assert 0.995 * limit < np.abs(kernel).max() <= limit
  assert kernel.std() == pytest.approx(limit / 3**0.5, rel=0.03)
  assert np.abs(kernel.mean()) < 0.03 * limit


def test_patches_start_lecun_normal(initial):
  """A normal cut at two deviations, of variance 1 / fan in after the cut."""
  E = initial[1]["patches"]["E"]
  fan_in = P * P * 3
  assert E["kernel"].shape == (fan_in, 96)
  assert float(E["kernel"].std()) == pytest.approx(fan_in**-0.5, rel=0.03)
  limit = 2 / 0.87962566 * fan_in**-0.5
  assert 0.97 * limit < np.abs(E["kernel"]).max() <= limit * 1.0001
  assert not E["bias"].any()


def test_biases_start_near_zero_and_norms_at_one(initial):
  _, params, _ = initial
  biases = [params["pre_logits"]["bias"]]
  for layer in range(LAYERS):
    block = params[f"block_{layer}"]
    biases += [each["bias"] for each in block["mlp"].values()]
    for each in block["msa"].values():
      np.testing.assert_array_equal(each["bias"], 0)
    for name in ("norm_msa", "norm_mlp"):
      np.testing.assert_array_equal(block[name]["scale"], 1)
      np.testing.assert_array_equal(block[name]["bias"], 0)
  for bias in biases:
    assert float(bias.std()) == pytest.approx(1e-6, rel=0.35)


def test_layers_start_different(initial):
  _, params, _ = initial
  first, second = (params[f"block_{layer}"]["msa"] for layer in range(2))
  kernels = [
    leaf["kernel"].reshape(-1)
    for block in (first, second)
    for leaf in block.values()
  ]
  correlation = np.corrcoef(np.stack(kernels)) - np.eye(8)
  assert np.abs(correlation).max() < 0.1


def test_layers_take_their_settings_from_the_fields_of_a_vit():
  changed = dict(
    dropout_rate=0.1,
    attention_dropout_rate=0.2,
    gelu="exact",
    layer_norm_epsilon=1e-3,
    splash=True,
    attention="plain",
    dtype=jnp.bfloat16,
    param_dtype=jnp.float16,
    attention_dtype=jnp.float32,
  )
  found = dataclasses.asdict(LayerConfig.of(tiny(**changed)))
  assert found == {**changed, "norm_kind": "layer"}  # The paper's, always.
  assert LayerConfig.of(tiny()) == LayerConfig()


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_a_layer_is_applied_to_each_token(monkeypatch, platform):
  monkeypatch.setattr(partitioning, "platform", lambda: platform)
  z = jnp.arange(24.0).reshape(2, 3, 4)
  shapes = []

  def first_two(z):
    shapes.append(z.shape)
    return z[..., :2]

  np.testing.assert_array_equal(each_token(first_two, z), z[..., :2])
  assert shapes == [(6, 4) if platform == "cpu" else (2, 3, 4)]


TYPES = jnp.float32, jnp.bfloat16
ROWS = {"usual": (0.5, 2.0), "far from 0": (100.0, 0.015)}


@pytest.mark.parametrize(
  "rows, dtype, platform",
  [
    *((rows, dtype, "cpu") for rows in ROWS for dtype in TYPES),
    *((rows, jnp.float32, "tpu") for rows in ROWS),
    ("usual", jnp.bfloat16, "tpu"),
  ],
)
def test_a_norm_and_its_gradients_are_those_of_float64(
  monkeypatch, rows, dtype, platform
):
  """Rows far from 0 are constant in bfloat16, so their norm is the bias."""
  monkeypatch.setattr(partitioning, "platform", lambda: platform)
  rng = np.random.default_rng(0)
  epsilon, sizes = 1e-6, (7, 192)
  x = jnp.asarray(rng.normal(*ROWS[rows], sizes), dtype)
  g = jnp.asarray(rng.normal(size=sizes), dtype)
  scale, bias = rng.normal(1, 0.1, 192), rng.normal(size=192)
  params = {"scale": scale.astype(np.float32), "bias": bias.astype(np.float32)}
  norm = layer_norm(LayerConfig(dtype=dtype), "norm")

  @jax.jit
  def computed(params, x, g):
    y, pull = jax.vjp(lambda p, x: norm.apply({"params": p}, x), params, x)
    return y, pull(g)

  y, (grads, dx) = computed(params, x, g)
  x64, g64 = (np.asarray(a, np.float64) for a in (x, g))
  away = x64 - x64.mean(axis=1, keepdims=True)
  rate = 1 / np.sqrt((away**2).mean(axis=1, keepdims=True) + epsilon)
  unit, dunit = away * rate, g64 * scale
  shift = dunit.mean(axis=1, keepdims=True)
  slope = (dunit * unit).mean(axis=1, keepdims=True)
  expected = [
    (y, unit * scale + bias),
    (dx, rate * (dunit - shift - unit * slope)),
    (grads["scale"], (g64 * unit).sum(axis=0)),
    (grads["bias"], g64.sum(axis=0)),
  ]
  exact = dtype == jnp.float32
  # Float32 has steps of 7.6e-6 at 100, which are 5e-4 deviations.
  most = (2e-6 if rows == "usual" else 2e-3) if exact else 2e-2
  for one, other in expected:
    error = np.abs(np.asarray(one, np.float64) - other).max()
    assert error < most * max(1.0, np.abs(other).max())


@pytest.mark.parametrize("far", [1, 10, 100, 1_000])
def test_a_norm_for_tpus_loses_less_than_bfloat16_did(monkeypatch, far):
  """Beside rows `far` deviations from 0, before they were rounded."""
  monkeypatch.setattr(partitioning, "platform", lambda: "tpu")
  rows = np.random.default_rng(0).normal(far, 1.0, (64, 768))
  x = jnp.asarray(rows, jnp.bfloat16)
  norm = layer_norm(LayerConfig(dtype=jnp.bfloat16), "norm")
  assert norm.use_fast_variance
  one = {"scale": np.ones(768, np.float32), "bias": np.zeros(768, np.float32)}
  y = norm.clone(dtype=jnp.float32).apply({"params": one}, x)

  def unit(x):
    away = x - x.mean(axis=1, keepdims=True)
    return away / np.sqrt((away**2).mean(axis=1, keepdims=True) + 1e-6)

  exact = unit(np.asarray(x, np.float64))
  lost = np.linalg.norm(np.asarray(y) - exact)
  assert lost < np.linalg.norm(exact - unit(rows))


@pytest.mark.parametrize(
  "platform, dtype",
  [
    ("tpu", jnp.bfloat16),
    ("tpu", jnp.float32),
    *(
      pytest.param(platform, dtype, marks=pytest.mark.slow)
      for platform in ("cpu", "gpu")
      for dtype in TYPES
    ),
  ],
)
@pytest.mark.parametrize(
  "encoder, norms",
  some_slow(
    [
      (dict(), 5),
      (dict(pooling="map"), 6),
      (dict(block="axial", pooling="gap"), 9),
      (dict(block="clip"), 6),
      (dict(block="dinov2"), 5),
      (dict(block="dinov3", scan=True), 3),
      (dict(block="dinov2", qk_norm=True), 9),
      ("masked", 5),
    ],
    [(dict(), 5), (dict(block="dinov3", scan=True), 3), ("masked", 5)],
  ),
)
def test_only_tpus_take_the_fast_variance_of_bfloat16(
  monkeypatch, platform, encoder, norms, dtype
):
  """In every norm of every encoder: one is left out nowhere."""
  monkeypatch.setattr(partitioning, "platform", lambda: platform)
  seen = {}

  def watch(call, args, kwargs, context):
    if isinstance(context.module, nn.LayerNorm):
      seen[context.module.path] = context.module.use_fast_variance
    return call(*args, **kwargs)

  fields = {} if encoder == "masked" else encoder
  model = tiny(**fields, dtype=dtype)
  if encoder == "masked":
    model = masked_vit.masked_vit(model, 48)
  with nn.intercept_methods(watch):
    jax.eval_shape(model.init, jax.random.key(0), images())
  assert len(seen) == norms
  fast = platform == "tpu" and dtype == jnp.bfloat16
  assert set(seen.values()) == {fast}


SIDE, N, COUNT = 24, 36, 6


def dropping(rate, block=None, **fields):
  sizes = dict(hidden_size=16, num_layers=2, mlp_size=32, num_heads=2)
  return models.make_vit(
    f"S/{P}", 5, block=block, patch_dropout_rate=rate, **(sizes | fields)
  )


@pytest.fixture(scope="module")
def batch():
  rng = np.random.default_rng(0)
  return jnp.asarray(rng.normal(size=(COUNT, SIDE, SIDE, 3)), jnp.float32)


def params_of(model, batch):
  return jax.jit(model.init)(jax.random.key(0), batch)["params"]


def places(rate, prefix=0, count=COUNT, seed=1):
  """The places of the tokens that stay, for each of `count` images."""
  rows = jnp.arange(prefix + N, dtype=jnp.float32)[None, :, None]
  z = rows + 1000 * jnp.arange(count, dtype=jnp.float32)[:, None, None]
  tokens = Tokens(z, prefix=prefix)
  key = {"dropout": jax.random.key(seed)}
  tokens = PatchDropout(rate).apply({}, tokens, train=True, rngs=key)
  left = np.asarray(tokens.z)[..., 0]
  assert (left // 1000 == np.arange(count)[:, None]).all()  # Of its own image.
  np.testing.assert_array_equal(left[:, prefix:] % 1000 - prefix, tokens.where)
  return (left % 1000).astype(int)


@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize("rate, left", [(0.5, 18), (0.3, 25), (0.99, 1)])
def test_so_many_patches_stay_and_every_other_token(rate, left, prefix):
  found = places(rate, prefix)
  assert found.shape == (COUNT, prefix + left)
  np.testing.assert_array_equal(found[:, :prefix], [range(prefix)] * COUNT)
  assert (np.diff(found) > 0).all()  # In their order, none twice.


def test_the_draw_is_another_for_each_image_and_step_and_is_uniform():
  rows = [*places(0.5), *places(0.5, seed=2)]
  assert len({tuple(row) for row in rows}) == 2 * COUNT
  counts = np.bincount(places(0.5, count=300).ravel(), minlength=N)
  # Each of 300 draws keeps a patch with probability 1/2: 150 +- 8.7.
  assert abs(counts - 150).max() < 5 * np.sqrt(300 / 4)


def test_devices_draw_for_their_own_images():
  mesh = Mesh(np.array(jax.devices()[:8]), ("data",))
  rows = NamedSharding(mesh, PartitionSpec("data"))
  layer = PatchDropout(0.5)

  def loss(z):
    key = {"dropout": jax.random.key(0)}
    tokens = layer.apply({}, Tokens(z, prefix=1), train=True, rngs=key)
    return jnp.square(tokens.z).sum()

  z = jax.ShapeDtypeStruct((16, 1 + N, 8), jnp.float32, sharding=rows)
  step = jax.jit(jax.grad(loss), out_shardings=rows).lower(z).compile()
  assert not re.search("all-gather|all-to-all|collective", step.as_text())


@pytest.mark.parametrize(
  "fields, prefix, left",
  [
    ({}, 1, 19),
    ({"pooling": "gap", "position": "sincos2d", "scan": True}, 0, 18),
    ({"block": "dinov2", "registers": 3}, 4, 22),
  ],
)
def test_every_layer_gets_the_tokens_that_stay(batch, fields, prefix, left):
  model = dropping(0.5, **fields)
  shapes = []

  def note(call, args, kwargs, context):
    block = type(context.module).__name__ in ("EncoderBlock", "ExtendedBlock")
    if block and context.method_name == "__call__":
      shapes.append(args[0].shape)
    if isinstance(context.module, PatchDropout):
      assert args[0].prefix == prefix
    return call(*args, **kwargs)

  with nn.intercept_methods(note):
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    jax.eval_shape(lambda x: model.init(keys, x, train=True), batch)
  assert set(shapes) == {(COUNT, left, 16)}


@pytest.mark.slow
def test_outside_training_nothing_is_left_out(batch):
  plain, ours = (dropping(rate).clone(num_classes=0) for rate in (0.0, 0.5))
  params = params_of(plain, batch)
  assert jax.tree.structure(params) == jax.tree.structure(
    params_of(ours, batch)
  )
  answer = plain.apply({"params": params}, batch)
  assert jnp.std(answer) > 0.1
  np.testing.assert_array_equal(ours.apply({"params": params}, batch), answer)


@pytest.mark.slow
def test_the_answer_depends_on_the_patches_that_stay_alone(batch):
  """Each patch of an image is changed in turn; n of them make a difference."""
  model = dropping(0.5, num_layers=1).clone(num_classes=0)
  params = params_of(model, batch)
  key = {"dropout": jax.random.key(1)}

  def answer(scales):  # (h, w)
    x = batch * jnp.repeat(jnp.repeat(scales, P, 0), P, 1)[None, ..., None]
    return model.apply({"params": params}, x, train=True, rngs=key)

  changed = jnp.ones((N, N)) + jnp.eye(N)
  answers = jax.jit(jax.vmap(answer))(changed.reshape(N, 6, 6))  # (N, COUNT, K)
  plain = jax.jit(answer)(jnp.ones((6, 6)))
  differs = (
    abs(np.asarray(answers - plain[None])).max(axis=-1) > 1e-4
  )  # (N, COUNT)
  np.testing.assert_array_equal(differs.sum(axis=0), N // 2)
  assert len({tuple(column) for column in differs.T}) == COUNT


def test_the_operations_of_a_training_step_are_fewer():
  model = dropping(0.5, pooling="gap")
  params = jax.eval_shape(
    model.init, jax.random.key(0), jnp.zeros((1, SIDE, SIDE, 3))
  )["params"]
  shape = (SIDE, SIDE, 3)
  whole = operations.forward_gflops(model, params, shape) * 1e9
  part = operations.forward_gflops(model, params, shape, train=True) * 1e9
  D, M, embed, head = 16, 32, 2 * N * P * P * 3 * 16, 2 * 16 * 5

  def encoder(S):
    return 2 * (S * (4 * D * D + 2 * D * M) * 2 + 2 * 2 * S * S * D)

  assert whole == pytest.approx(embed + encoder(N) + head)
  assert part == pytest.approx(embed + encoder(N // 2) + head)


@pytest.mark.parametrize(
  "fields, named",
  [
    ({"block": "axial", "pooling": "gap"}, "block=AxialBlock"),
    ({"rate": 1.0}, r"patch_dropout_rate=1.0 must be in \[0, 1\)"),
  ],
)
def test_models_that_need_all_patches_are_refused(fields, named):
  with pytest.raises(ValueError, match=named):
    dropping(**({"rate": 0.5} | fields))
  with pytest.raises(ValueError, match="objective reads: set it to 0"):
    masked_vit.masked_vit(dropping(0.5), 3)
