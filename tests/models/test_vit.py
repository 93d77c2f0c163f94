"""The model against the paper's equations."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from vit_jax import make_vit
from vit_jax.models import attention, encoder, scan, tpu, vit

B, D, MLP, HEADS, LAYERS, P = 2, 24, 40, 3, 2, 4


def tiny(num_classes=5, **fields):
  defaults = dict(
    hidden_size=D, num_layers=LAYERS, mlp_size=MLP, num_heads=HEADS
  )
  return make_vit(f"Ti/{P}", num_classes, **(defaults | fields))


def images(height=8, width=12, channels=3):
  rng = np.random.default_rng(0)
  return jnp.asarray(rng.normal(size=(B, height, width, channels)), jnp.float32)


def shapes_of(model, *args):
  """Shapes of a model's parameters, boxed with their logical axes."""
  variables = jax.eval_shape(model.init, jax.random.key(0), *args)
  return variables["params"]


def random_params(model, *args):
  """Parameters among which none is zero, as after training."""
  rng = np.random.default_rng(1)

  def draw(path, shape):
    noise = rng.normal(size=shape.shape).astype(np.float32)
    return 1 + 0.1 * noise if path[-1].key == "scale" else 0.2 * noise

  shapes = nn.unbox(shapes_of(model, *args))
  return jax.tree_util.tree_map_with_path(draw, shapes)


def apply(model, params, *args, **options):
  return jax.jit(lambda p, x: model.apply({"params": p}, x, **options))(
    params, *args
  )


def count(shapes):
  return sum(leaf.size for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
  "variant, num_classes, params",
  [
    ("B/16", 1000, 86_567_656),
    ("B/32", 1000, 88_224_232),
    ("L/16", 1000, 304_326_632),
    ("L/32", 1000, 306_535_400),
    ("H/14", 1000, 632_045_800),
    ("B/16", 3, 85_800_963),
  ],
)
def test_parameter_count(variant, num_classes, params):
  image = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
  assert count(shapes_of(make_vit(variant, num_classes), image)) == params


def test_parameter_count_without_positions_and_class_token():
  model = make_vit("B/16", 3, position="none", pooling="gap")
  image = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
  assert count(shapes_of(model, image)) == 85_648_899


# Eq. 1-8 in NumPy and double precision, written from the paper.


def np_layer_norm(z, params, epsilon):
  mean, variance = z.mean(-1, keepdims=True), z.var(-1, keepdims=True)
  return (z - mean) / np.sqrt(variance + epsilon) * params["scale"] + params[
    "bias"
  ]


def np_dense(z, params):
  return z @ params["kernel"] + params["bias"]


def np_gelu(x, kind):
  if kind == "exact":
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
  inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
  return x * (1 + np.tanh(inner)) / 2


def np_msa(z, params, queries=None):
  queries = z if queries is None else queries
  out = params["out"]["bias"]
  for head in range(HEADS):
    q, k, v = (
      y @ params[name]["kernel"][:, head] + params[name]["bias"][head]
      for name, y in (("query", queries), ("key", z), ("value", z))
    )
    logits = q @ k.T / math.sqrt(D / HEADS)
    A = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    out = out + A @ v @ params["out"]["kernel"][head]
  return out


def np_vit(params, x, pooling, gelu, epsilon, representation):
  """Logits of one image."""
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  H, W, _ = x.shape
  patches = [
    x[row : row + P, column : column + P].reshape(-1)
    for row in range(0, H, P)
    for column in range(0, W, P)
  ]
  z = np_dense(np.stack(patches).astype(np.float64), params["patches"]["E"])
  if pooling == "token":
    z = np.concatenate([params["x_class"][None], z])
  z = z + params["position"]["E_pos"]
  for layer in range(LAYERS):
    block = params[f"block_{layer}"]
    z = np_msa(np_layer_norm(z, block["norm_msa"], epsilon), block["msa"]) + z
    y = np_layer_norm(z, block["norm_mlp"], epsilon)
    hidden = np_gelu(np_dense(y, block["mlp"]["expand"]), gelu)
    z = np_dense(hidden, block["mlp"]["contract"]) + z
  y = np_layer_norm(z, params["norm"], epsilon)
  if pooling == "map":
    head = params["map_head"]
    y = np_msa(y, head["msa"], head["probe"])
    normed = np_layer_norm(y, head["norm"], epsilon)
    hidden = np_gelu(np_dense(normed, head["mlp"]["expand"]), gelu)
    y = (y + np_dense(hidden, head["mlp"]["contract"]))[0]
  else:
    y = y[0] if pooling == "token" else y.mean(0)
  if representation:
    y = np.tanh(np_dense(y, params["pre_logits"]))
  return np_dense(y, params["head"])


@pytest.mark.parametrize("pooling", vit.POOLINGS)
@pytest.mark.parametrize(
  "gelu, epsilon, representation, channels",
  [("tanh", 1e-6, None, 3), ("tanh", 1e-6, 7, 4), ("exact", 1e-2, None, 1)],
)
def test_agrees_with_the_equations(
  pooling, gelu, epsilon, representation, channels
):
  x = images(8, 20, channels)
  model = tiny(
    pooling=pooling,
    gelu=gelu,
    layer_norm_epsilon=epsilon,
    representation_size=representation,
  )
  params = random_params(model, x)
  logits = apply(model, params, x)
  for image, found in zip(np.asarray(x), logits, strict=True):
    expected = np_vit(params, image, pooling, gelu, epsilon, representation)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_defaults_are_those_of_the_published_models():
  model = make_vit("B/16", 1000)
  assert (model.gelu, model.layer_norm_epsilon) == ("tanh", 1e-6)
  assert (model.pooling, model.position) == ("token", "learned")
  assert model.representation_size is None


def test_without_classes_the_representation_comes_back():
  x = images()
  model = tiny()
  params = random_params(model, x)
  head = params.pop("head")
  y = np.asarray(apply(tiny(num_classes=0), params, x))
  assert y.shape == (B, D)
  logits = apply(model, params | {"head": head}, x)
  np.testing.assert_allclose(np_dense(y, head), logits, rtol=1e-4, atol=1e-5)


def test_patches_and_a_dense_layer_are_a_convolution():
  x = images(8, 12, 4)
  embedding = vit.PatchEmbedding(P, D)
  params = random_params(embedding, x)
  kernel = params["E"]["kernel"].reshape(P, P, 4, D)
  convolved = jax.lax.conv_general_dilated(
    x, kernel, (P, P), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
  )
  np.testing.assert_allclose(
    apply(embedding, params, x),
    convolved + params["E"]["bias"][None, None, None],
    rtol=1e-5,
    atol=1e-5,
  )


def test_an_encoder_block_commutes_with_permuting_tokens():
  z = jax.random.normal(jax.random.key(0), (B, 7, D))
  block = vit.EncoderBlock(HEADS, MLP)
  params = random_params(block, z)
  order = np.random.default_rng(0).permutation(7)
  np.testing.assert_allclose(
    apply(block, params, z[:, order]),
    apply(block, params, z)[:, order],
    rtol=1e-5,
    atol=1e-5,
  )


def test_tokens_see_each_other_but_images_do_not():
  x = images()
  model = tiny()
  params = random_params(model, x)
  changed = x.at[0, -1, -1].add(1)  # The last patch of the first image.
  before, after = apply(model, params, x), apply(model, params, changed)
  assert np.abs(before[0] - after[0]).max() > 1e-3
  np.testing.assert_array_equal(before[1], after[1])


# Dropout (App. B.1).


def dropout_calls(model, params, x, transform=jax.jit, **options):
  """Where dropout acts: the module's path, its rate and its input."""
  sites = []

  def run(params, x):
    inputs = []

    def record(call, args, kwargs, context):
      dropout = context.module
      if isinstance(dropout, nn.Dropout) and dropout.rate > 0:
        if not dropout.deterministic:
          sites.append(("/".join(dropout.path), dropout.rate))
          inputs.append(args[0])
      return call(*args, **kwargs)

    with nn.intercept_methods(record):
      _, state = model.apply(
        {"params": params},
        x,
        rngs={"dropout": jax.random.key(0)},
        capture_intermediates=True,
        mutable="intermediates",
        **options,
      )
    return inputs, state["intermediates"]

  inputs, intermediates = transform(run)(params, x)
  calls = [(*site, z) for site, z in zip(sites, inputs, strict=True)]
  return calls, intermediates


def only_shapes(function):
  return lambda *args: jax.eval_shape(function, *args)


def test_dropout_is_where_the_paper_puts_it():
  x = images()
  model = tiny(dropout_rate=0.3, attention_dropout_rate=0.2)
  params = random_params(model, x)
  calls, _ = dropout_calls(model, params, x, only_shapes, train=True)
  S = 7
  expected = [("Dropout_0", 0.3, (B, S, D))]
  for layer in range(LAYERS):
    expected += [
      (f"block_{layer}/msa/Dropout_0", 0.2, (B, HEADS, S, S)),
      (f"block_{layer}/Dropout_0", 0.3, (B, S, D)),
      (f"block_{layer}/mlp/Dropout_0", 0.3, (B, S, MLP)),
      (f"block_{layer}/mlp/Dropout_0", 0.3, (B, S, D)),
    ]
  assert [(path, rate, z.shape) for path, rate, z in calls] == expected


def test_dropout_follows_positions_and_dense_layers():
  x = images()
  model = tiny(dropout_rate=0.3, attention_dropout_rate=0.2, num_layers=1)
  params = random_params(model, x)
  calls, found = dropout_calls(model, params, x, train=True)
  embedded = found["patches"]["__call__"][0].reshape(B, -1, D)
  class_token = jnp.tile(params["x_class"], (B, 1, 1))
  block = found["block_0"]
  expected = [
    jnp.concatenate([class_token, embedded], 1)
    + params["position"]["E_pos"][None],
    block["msa"]["attention"][0],
    block["msa"]["out"]["__call__"][0],
    nn.gelu(block["mlp"]["expand"]["__call__"][0]),
    block["mlp"]["contract"]["__call__"][0],
  ]
  for (_, _, z), wanted in zip(calls, expected, strict=True):
    np.testing.assert_allclose(z, wanted.reshape(z.shape), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  "rates, kept",
  [
    ({"dropout_rate": 0.5}, ("query", "key", "value", "out")),
    ({"attention_dropout_rate": 0.5}, ("query", "key", "value")),
  ],
)
def test_what_each_rate_leaves_alone(rates, kept):
  z = jax.random.normal(jax.random.key(0), (B, 7, D))
  block = vit.EncoderBlock(HEADS, MLP, **rates)
  params = random_params(block, z)
  _, dropped = dropout_calls(block, params, z, train=True)
  _, whole = dropout_calls(block, params, z, train=False)
  msa, expected = dropped["msa"], whole["msa"]
  for name in kept:
    np.testing.assert_allclose(
      msa[name]["__call__"][0], expected[name]["__call__"][0], atol=1e-6
    )
  np.testing.assert_allclose(
    msa["attention"][0], expected["attention"][0], atol=1e-6
  )
  assert np.abs(dropped["__call__"][0] - whole["__call__"][0]).max() > 0.01


def test_without_train_nothing_is_dropped():
  x = images()
  params = random_params(tiny(), x)
  model = tiny(dropout_rate=0.5, attention_dropout_rate=0.5)
  calls, _ = dropout_calls(model, params, x, only_shapes)
  assert not calls
  np.testing.assert_array_equal(
    apply(model, params, x), apply(tiny(), params, x)
  )


# Initialisation, as that of the published models.


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


def test_the_head_starts_at_its_bias(initial):
  model, params, x = initial
  assert not params["head"]["kernel"].any()
  np.testing.assert_array_equal(apply(model, params, x), np.full((B, 5), -10))


def test_class_token_and_positions_start_as_published(initial):
  _, params, _ = initial
  assert not params["x_class"].any()
  E_pos = params["position"]["E_pos"]
  assert float(E_pos.std()) == pytest.approx(0.02, rel=0.05)
  assert abs(float(E_pos.mean())) < 1e-3


@pytest.mark.parametrize(
  "path, fan_in, fan_out",
  [
    ("patches/E", P * P * 3, 96),
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


def test_biases_start_near_zero_and_norms_at_one(initial):
  _, params, _ = initial
  biases = [params["patches"]["E"]["bias"], params["pre_logits"]["bias"]]
  for layer in range(LAYERS):
    block = params[f"block_{layer}"]
    dense = (*block["msa"].values(), *block["mlp"].values())
    biases += [each["bias"] for each in dense]
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


# Intermediates.


def test_attention_can_be_seen_and_seeing_changes_nothing():
  x = images()
  model = tiny()
  params = random_params(model, x)
  logits, state = apply(model, params, x, mutable="intermediates")
  np.testing.assert_array_equal(logits, apply(model, params, x))
  for layer in range(LAYERS):
    (A,) = state["intermediates"][f"block_{layer}"]["msa"]["attention"]
    assert A.shape == (B, HEADS, 7, 7)
    assert (A >= 0).all()
    np.testing.assert_allclose(A.sum(-1), 1, rtol=1e-5)


def test_every_output_can_be_captured():
  x = images()
  model = tiny()
  params = random_params(model, x)
  _, state = apply(
    model, params, x, mutable="intermediates", capture_intermediates=True
  )
  found = state["intermediates"]
  kernel = params["patches"]["E"]["kernel"]
  first = x[0, :P, :P].reshape(-1) @ kernel + params["patches"]["E"]["bias"]
  (embeddings,) = found["patches"]["__call__"]
  assert embeddings.shape == (B, 2, 3, D)
  np.testing.assert_allclose(embeddings[0, 0, 0], first, rtol=1e-4, atol=1e-5)
  for layer in range(LAYERS):
    assert found[f"block_{layer}"]["__call__"][0].shape == (B, 7, D)


# Types.


def test_bfloat16_keeps_float32_parameters_and_logits():
  x = images()
  model = tiny(dtype=jnp.bfloat16)
  shapes = shapes_of(model, x)
  assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("f4")}
  params = random_params(model, x)
  logits, state = apply(
    model, params, x, mutable="intermediates", capture_intermediates=True
  )
  assert logits.dtype == jnp.float32
  for layer in range(LAYERS):
    (z,) = state["intermediates"][f"block_{layer}"]["__call__"]
    assert z.dtype == jnp.bfloat16
  expected = apply(tiny(), params, x)
  difference = np.abs(logits - expected).max()
  assert 0 < difference < 0.03 * np.abs(expected).max()


def test_parameters_take_the_type_asked_for():
  shapes = shapes_of(tiny(param_dtype=jnp.bfloat16), images())
  assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {
    jnp.dtype("bfloat16")
  }


def np_softmax(logits):
  powers = np.exp(logits - logits.max(-1, keepdims=True))
  return powers / powers.sum(-1, keepdims=True)


def test_softmax_is_taken_in_float32():
  rng = np.random.default_rng(0)
  logits = jnp.asarray(4 * rng.normal(size=(64, 197)), jnp.bfloat16)
  found = attention.softmax(logits)
  assert found.dtype == jnp.bfloat16
  # Rounding the result costs 2^-9; sums in bfloat16 would cost more.
  np.testing.assert_allclose(
    np.asarray(found, np.float64),
    np_softmax(np.asarray(logits, np.float64)),
    rtol=2**-8,
  )


def test_softmax_has_the_derivative_of_its_formula():
  rng = np.random.default_rng(0)
  logits, direction, cotangent = rng.normal(size=(3, 5, 7))
  step = 1e-6
  slope = np_softmax(logits + step * direction) - np_softmax(
    logits - step * direction
  )
  slope /= 2 * step

  inputs = [jnp.asarray(a, jnp.float32) for a in (logits, direction)]
  _, forward = jax.jvp(attention.softmax, inputs[:1], inputs[1:])
  np.testing.assert_allclose(forward, slope, atol=1e-6)
  _, pullback = jax.vjp(attention.softmax, inputs[0])
  (backward,) = pullback(jnp.asarray(cotangent, jnp.float32))
  assert float((backward * direction).sum()) == pytest.approx(
    float((cotangent * slope).sum()), rel=1e-4
  )


def test_attention_of_large_queries_in_bfloat16():
  z = jax.random.normal(jax.random.key(0), (B, 50, 96))
  model = attention.Msa(4, dtype=jnp.bfloat16)
  params = random_params(model, z)
  for name in ("query", "key"):  # Entries of std 4: logits of std 16.
    params[name]["kernel"] *= 4 / (0.2 * 96**0.5)
  _, state = apply(
    model, params, z, mutable="intermediates", capture_intermediates=True
  )
  found = state["intermediates"]
  q, k = (
    np.asarray(found[name]["__call__"][0], np.float64).reshape(B, 50, 4, 24)
    for name in ("query", "key")
  )
  assert 3 < q.std() < 5
  exact = np_softmax(np.einsum("bqhd,bshd->bhqs", q, k) / 24**0.5)
  (A,) = found["attention"]
  assert A.dtype == jnp.bfloat16
  assert np.abs(np.asarray(A, np.float64) - exact).max() < 0.01


# The forms that a TPU is given, which compute the same anywhere.


@pytest.fixture
def for_tpu(monkeypatch):
  for module in (attention, encoder):
    monkeypatch.setattr(module, "platform", lambda: "tpu")


def loss_and_gradients(model, params, x, **options):
  """Of a loss in which every output has its own weight."""
  weights = jax.random.normal(jax.random.key(3), (B, 7, D))

  def loss(params, x):
    y = model.apply({"params": params}, x, **options)
    return (weights * y.astype(jnp.float32)).sum()

  return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(params, x)


def relative_difference(one, other):
  one, other = (np.asarray(x, np.float64) for x in (one, other))
  return np.linalg.norm(one - other) / np.linalg.norm(other)


def block_and_params(dtype, q_std=1.0):
  """A block, with logits as large as queries and keys of that size make."""
  z = jax.random.normal(jax.random.key(0), (B, 7, D))
  block = vit.EncoderBlock(HEADS, MLP, dtype=dtype)
  params = jax.tree.map(jnp.asarray, random_params(block, z))
  for name in ("query", "key"):
    params["msa"][name]["kernel"] *= q_std / (0.2 * D**0.5)
  return block, params, z


def test_a_block_for_tpu_has_the_value_and_gradients_of_any_other(monkeypatch):
  block, params, z = block_and_params(jnp.float32)
  expected, (expected_grads, expected_dz) = loss_and_gradients(block, params, z)
  for module in (attention, encoder):
    monkeypatch.setattr(module, "platform", lambda: "tpu")
  assert "custom_vjp_call" in str(
    jax.make_jaxpr(lambda p: block.apply({"params": p}, z))(params)
  )
  found, (grads, dz) = loss_and_gradients(block, params, z)
  assert float(found) == pytest.approx(float(expected), rel=1e-5)
  assert relative_difference(dz, expected_dz) < 1e-5
  assert not grads["msa"]["key"].pop("bias").any()  # 0 by the mathematics.
  assert np.abs(expected_grads["msa"]["key"].pop("bias")).max() < 1e-4
  for a, b in zip(*map(jax.tree.leaves, (grads, expected_grads)), strict=True):
    assert relative_difference(a, b) < 1e-5


@pytest.mark.parametrize("std, tolerance", [(1.0, 0.01), (4.0, 0.02)])
def test_a_block_for_tpu_is_exact_enough_in_bfloat16(for_tpu, std, tolerance):
  exact, params, z = block_and_params(jnp.float32, std)
  rough, _, _ = block_and_params(jnp.bfloat16)
  expected, (expected_grads, _) = loss_and_gradients(exact, params, z)
  found, (grads, _) = loss_and_gradients(rough, params, z)
  assert float(found) == pytest.approx(float(expected), rel=0.05)
  for name in ("value", "out"):
    a, b = (g["msa"][name]["kernel"] for g in (grads, expected_grads))
    assert relative_difference(a, b) < tolerance


@pytest.mark.parametrize("std", [1.0, 4.0])
def test_attention_for_tpu_stays_within_a_percent(std):
  """Of float64 on the same bfloat16 tokens, at logits of std 16 and more."""
  k, D_h, S = 2, 64, 50
  keys = jax.random.split(jax.random.key(0), 6)
  z = jax.random.normal(keys[0], (B, S, k * D_h)).astype(jnp.bfloat16)
  size = std / (k * D_h) ** 0.5
  W_q, W_k, W_v = (
    (s * jax.random.normal(key, (k * D_h, k, D_h))).astype(jnp.bfloat16)
    for s, key in zip((size / 8, size, size / std), keys[1:4], strict=True)
  )
  identity = jnp.eye(k * D_h, dtype=jnp.bfloat16).reshape(k, D_h, k * D_h)
  none = jnp.zeros((k, D_h), jnp.bfloat16)
  y = tpu.msa(z, W_q, none, W_k, none, W_v, none, identity, none.reshape(-1))

  def rounded(W):
    exact = np.einsum("bnd,dhe->bhne", *(np.float64(x) for x in (z, W)))
    return np.float64(jnp.asarray(exact, jnp.bfloat16))

  q, keys_, v = map(rounded, (W_q, W_k, W_v))
  A = np_softmax(q @ keys_.swapaxes(-1, -2))
  expected = (A @ v).transpose(0, 2, 1, 3).reshape(B, S, -1)
  assert relative_difference(y, expected) < 0.01


@pytest.mark.parametrize("x", [-40.0, -3.0, -0.1, 0.0, 0.5, 2.0, 40.0])
def test_gelu_for_tpu_has_the_slope_of_gelu(for_tpu, x):
  found = jax.value_and_grad(encoder.gelu_tanh)(jnp.float32(x))
  expected = jax.value_and_grad(nn.gelu)(jnp.float32(x))
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


# Logical axes, which shardings are chosen by.


@pytest.mark.parametrize(
  "variant, names",
  [
    ("B/16", set()),
    ("R50+B/16", {"channels_in", "channels_out"}),
  ],
)
def test_every_dimension_has_a_logical_name(variant, names):
  image = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
  model = make_vit(variant, 1000, representation_size=768)
  boxes = jax.tree.leaves(
    shapes_of(model, image),
    is_leaf=lambda node: isinstance(node, nn.LogicallyPartitioned),
  )
  seen = set()
  for box in boxes:
    assert isinstance(box, nn.LogicallyPartitioned)
    assert len(box.names) == box.value.ndim
    named = [name for name in box.names if name]
    assert len(set(named)) == len(named)  # One mesh axis shards one dimension.
    seen |= set(named)
  dense = {"patch", "position", "embed", "mlp", "heads", "head_size"}
  assert seen == names | dense | {"representation", "classes"}


# One compiled block, and what is computed again.


@pytest.mark.parametrize(
  "scan, remat",
  [
    (True, "dots"),
    pytest.param(True, "none", marks=pytest.mark.slow),
    pytest.param(True, "full", marks=pytest.mark.slow),
    pytest.param(False, "dots", marks=pytest.mark.slow),
    (False, "full"),
  ],
)
def test_scanned_and_rematerialised_blocks_compute_the_same(scan, remat):
  x = images()
  params = jax.tree.map(jnp.asarray, random_params(tiny(), x))

  def gradient(model, params):
    def loss(params):
      return jnp.square(model.apply({"params": params}, x)).mean()

    return jax.jit(jax.value_and_grad(loss))(params)

  expected_loss, expected = gradient(tiny(), params)
  model = tiny(scan=scan, remat=remat)
  loss, found = gradient(model, scan.stack(params) if scan else params)
  assert float(loss) == pytest.approx(float(expected_loss), rel=1e-5)
  found = traverse_util.flatten_dict(scan.unstack(found))
  # The key biases' gradient is 0, and what is found of it is rounding.
  atol = 1e-5 * max(float(jnp.abs(a).max()) for a in jax.tree.leaves(expected))
  for name, a in traverse_util.flatten_dict(expected).items():
    np.testing.assert_allclose(found[name], a, rtol=1e-3, atol=atol)


def test_a_scanned_model_has_the_parameters_of_an_unrolled_one():
  unrolled, scanned = (
    nn.unbox(shapes_of(tiny(scan=scan), images())) for scan in (False, True)
  )
  stacked = jax.eval_shape(scan.stack, unrolled)
  assert jax.tree.map(jnp.shape, stacked) == jax.tree.map(jnp.shape, scanned)
  back = jax.eval_shape(scan.unstack, scanned)
  assert jax.tree.map(jnp.shape, back) == jax.tree.map(jnp.shape, unrolled)


def test_layers_stay_in_order_beyond_ten():
  blocks = {f"block_{i}": {"x": np.full(2, i)} for i in range(12)}
  stacked = scan.stack({"head": 1, **blocks})
  np.testing.assert_array_equal(stacked["blocks"]["x"][:, 0], np.arange(12))
  assert scan.unstack(stacked).keys() == {"head", *blocks}


# Errors.


@pytest.mark.parametrize(
  "fields, message",
  [
    ({"patch_size": 0}, "patch_size=0 must be 1 or more"),
    ({"hidden_size": 0}, "hidden_size=0 must be 1 or more"),
    ({"num_layers": 0}, "num_layers=0 must be 1 or more"),
    ({"mlp_size": -1}, "mlp_size=-1 must be 1 or more"),
    ({"num_heads": 0}, "num_heads=0 must be 1 or more"),
    ({"num_heads": "1"}, "num_heads='1' must be a whole number"),
    ({"layer_norm_epsilon": 0.0}, "layer_norm_epsilon=0.0 must be more than"),
    ({"num_classes": -1}, "num_classes=-1 must be 0 or more"),
    ({"num_heads": 5}, "does not split over num_heads=5; (4|6) heads"),
    ({"remat": "some"}, "remat='some' is unknown; choose one of none, dots"),
    (
      {"scan": True, "position": "relative"},
      "none may have positions of its own: .* set scan=False",
    ),
    ({"pooling": "max"}, "pooling='max' is unknown; choose one of token, gap"),
    ({"gelu": "erf"}, "gelu='erf' is unknown; choose one of tanh, exact"),
    ({"dropout_rate": 1.0}, r"dropout_rate=1.0 must be in \[0, 1\)"),
    (
      {"attention_dropout_rate": -0.1},
      r"attention_dropout_rate=-0.1 must be in \[0, 1\)",
    ),
  ],
)
def test_fields_that_make_no_model_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    tiny(**fields)


@pytest.mark.parametrize(
  "height, width, fits",
  [(9, 12, "8 x 12"), (8, 15, "8 x 12"), (3, 3, "4 x 4"), (0, 8, "4 x 8")],
)
def test_images_that_do_not_split_are_refused(height, width, fits):
  message = (
    f"images of {height} x {width} do not split into patches of 4 x 4; "
    f"{fits} would"
  )
  with pytest.raises(ValueError, match=message):
    shapes_of(tiny(), jnp.zeros((1, height, width, 3)))


def test_declared_shapes_are_checked_in_tests():
  with pytest.raises(TypeError, match="B H W C"):
    vit.patchify(jnp.zeros((8, 8, 3)), 4)
