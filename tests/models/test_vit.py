"""The model against the paper's equations."""

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
  P,
  apply,
  images,
  random_params,
  shapes_of,
  tiny,
)
from vit_jax import make_vit
from vit_jax.models import vit
from vit_jax.models.layer import LayerConfig


def count(shapes):
  return sum(leaf.size for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
  "variant, num_classes, fields, params",
  [
    ("B/16", 1000, {}, 86_567_656),
    ("B/32", 1000, {}, 88_224_232),
    ("L/16", 1000, {}, 304_326_632),
    ("L/32", 1000, {}, 306_535_400),
    ("H/14", 1000, {}, 632_045_800),
    ("B/16", 3, {}, 85_800_963),
    ("B/16", 3, {"position": "none", "pooling": "gap"}, 85_648_899),
  ],
)
def test_parameter_count(variant, num_classes, fields, params):
  image = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
  # A scan traces one layer, whose parameters it stacks.
  model = make_vit(variant, num_classes, scan=True, **fields)
  assert count(shapes_of(model, image)) == params


VARIATIONS = [
  ("tanh", 1e-6, None, 3),
  ("tanh", 1e-6, 7, 4),
  ("exact", 1e-2, None, 1),
]


# The fast ones have each pooling and each variation once.
@pytest.mark.parametrize(
  "pooling, gelu, epsilon, representation, channels",
  [
    pytest.param(
      pooling, *variation, marks=() if i % 3 == j else pytest.mark.slow
    )
    for i, pooling in enumerate(vit.POOLINGS)
    for j, variation in enumerate(VARIATIONS)
  ],
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
    expected = equations.vit(
      params, image, pooling, gelu, epsilon, representation
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_defaults_are_those_of_the_published_models():
  model = make_vit("B/16", 1000)
  assert (model.gelu, model.layer_norm_epsilon) == ("tanh", 1e-6)
  assert (model.pooling, model.position) == ("token", "learned")
  assert model.representation_size is None


def test_without_classes_the_representation_comes_back():
  x = images()
  model = tiny(num_layers=1)
  params = random_params(model, x)
  head = params.pop("head")

  @jax.jit
  def both(params, head):
    y = model.clone(num_classes=0).apply({"params": params}, x)
    return y, model.apply({"params": params | {"head": head}}, x)

  y, logits = map(np.asarray, both(params, head))
  assert y.shape == (B, D)
  np.testing.assert_allclose(
    equations.dense(y, head), logits, rtol=1e-4, atol=1e-5
  )


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
  model = tiny(num_layers=1)
  params = random_params(model, x)
  changed = np.array(x)
  changed[0, -1, -1] += 1  # The last patch of the first image.
  before, after = apply(model, params, x), apply(model, params, changed)
  assert np.abs(before[0] - after[0]).max() > 1e-3
  np.testing.assert_array_equal(before[1], after[1])


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


def dropout_calls(model, params, x, transform=jax.jit, **options):
  """Every use of dropout: the module's path, its rate and its input."""
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


@pytest.mark.parametrize(
  "embedding, layers", [(0.1, 0.3), (0.0, 0.3), (0.4, 0)]
)
def test_dropout_of_the_embedding_is_apart(embedding, layers):
  x = images()
  model = tiny(dropout_rate=layers, embedding_dropout_rate=embedding)
  params = random_params(model, x)
  calls, _ = dropout_calls(model, params, x, only_shapes, train=True)
  rates = {path: rate for path, rate, _ in calls}
  assert rates.pop("Dropout_0", 0.0) == embedding
  assert set(rates.values()) == ({layers} if layers else set())


@pytest.mark.slow
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
    pytest.param(
      {"dropout_rate": 0.5},
      ("query", "key", "value", "out"),
      marks=pytest.mark.slow,
    ),
    ({"attention_dropout_rate": 0.5}, ("query", "key", "value")),
  ],
)
def test_what_each_rate_leaves_alone(rates, kept):
  z = jax.random.normal(jax.random.key(0), (B, 7, D))
  block = vit.EncoderBlock(HEADS, MLP, LayerConfig(**rates))
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
  plain = tiny(num_layers=1)
  params = random_params(plain, x)
  model = plain.clone(dropout_rate=0.5, attention_dropout_rate=0.5)
  calls, _ = dropout_calls(model, params, x, only_shapes)
  assert not calls
  np.testing.assert_array_equal(
    apply(model, params, x), apply(plain, params, x)
  )


@pytest.mark.parametrize(
  "height, width, fits",
  [(9, 12, "8 x 12"), (8, 15, "8 x 12"), (3, 3, "4 x 4"), (0, 8, "4 x 8")],
)
def test_images_that_do_not_split_are_refused(height, width, fits):
  message = f"{height} x {width} do not split into patches of 4 x 4; {fits} wo"
  with pytest.raises(ValueError, match=message):
    shapes_of(tiny(), jnp.zeros((1, height, width, 3)))


def test_declared_shapes_are_checked_in_tests():
  with pytest.raises(TypeError, match="B H W C"):
    vit.patchify(jnp.zeros((8, 8, 3)), 4)
