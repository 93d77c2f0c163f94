"""The ResNets of hybrids and baselines."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import ResNet, make_resnet, make_vit
from vit_jax.models import partitioning, resnet

IMAGE = jax.ShapeDtypeStruct((2, 224, 224, 3), jnp.float32)


def shapes(model, image=IMAGE, **options):
  """Shapes of a model's output and of its parameters."""
  output, variables = jax.eval_shape(
    lambda key, x: model.init_with_output(key, x, **options),
    jax.random.key(0),
    image,
  )
  return output, nn.unbox(variables["params"])


def count(params):
  return sum(leaf.size for leaf in jax.tree.leaves(params))


def expected_count(layers, width, num_classes):
  """Counts kernels without biases and two parameters per normalised channel."""
  total, channels = 7 * 7 * 3 * width + 2 * width, width
  for stage, units in enumerate(layers):
    inner = width * 2**stage
    for unit in range(units):
      kernels = channels * inner + 9 * inner**2 + inner * 4 * inner
      norms = 2 * (inner + inner + 4 * inner)
      if unit == 0:
        kernels, norms = kernels + channels * 4 * inner, norms + 8 * inner
      total, channels = total + kernels + norms, 4 * inner
  return total + (channels + 1) * num_classes


@pytest.mark.parametrize(
  "variant, layers, width",
  [
    ("R50x1", (3, 4, 6, 3), 64),
    pytest.param("R50x2", (3, 4, 6, 3), 128, marks=pytest.mark.slow),
    pytest.param("R101x1", (3, 4, 23, 3), 64, marks=pytest.mark.slow),
    pytest.param("R152x1", (3, 8, 36, 3), 64, marks=pytest.mark.slow),
    pytest.param("R152x2", (3, 8, 36, 3), 128, marks=pytest.mark.slow),
  ],
)
def test_parameter_count(variant, layers, width):
  logits, params = shapes(make_resnet(variant, 1000))
  assert logits.shape == (2, 1000)
  assert count(params) == expected_count(layers, width, 1000)
  if variant == "R50x1":  # ResNet-50's: batch norms have as many parameters.
    assert count(params) == 25_557_032


@pytest.mark.parametrize(
  "layers, side, channels",
  [
    ((3, 4, 9), 14, 1024),
    pytest.param((3, 4, 6, 3), 7, 2048, marks=pytest.mark.slow),
  ],
)
def test_feature_maps(layers, side, channels):
  output, params = shapes(ResNet(0, layers), features=True)
  assert output.shape == (2, side, side, channels)
  assert "head" not in params


def test_without_classes_the_features_are_pooled():
  x = jax.random.normal(jax.random.key(0), (2, 16, 16, 3))
  model = ResNet(0, (), width=32)
  variables = jax.jit(model.init)(jax.random.key(0), x)
  features = jax.jit(lambda v, x: model.apply(v, x, features=True))
  np.testing.assert_allclose(
    jax.jit(model.apply)(variables, x),
    features(variables, x).mean((1, 2)),
    rtol=1e-5,
  )


def test_a_stage_without_units_is_refused():
  """Its stride would be counted, though no unit has it."""
  with pytest.raises(ValueError, match=r"^layers=\(1, 0\) .* 1 or more"):
    ResNet(2, (1, 0))


def test_the_head_starts_at_its_bias():
  x = jax.random.normal(jax.random.key(0), (2, 16, 16, 3))
  model = ResNet(3, (), width=32, head_bias=-10.0, dtype=jnp.bfloat16)
  logits, _ = jax.jit(model.init_with_output)(jax.random.key(0), x)
  assert logits.dtype == jnp.float32
  np.testing.assert_array_equal(logits, np.full((2, 3), -10))


@pytest.mark.parametrize(
  "variant, tokens, layers",
  [
    ("R50+B/16", 196, (3, 4, 9)),
    pytest.param("R50+B/32", 49, (3, 4, 6, 3), marks=pytest.mark.slow),
  ],
)
def test_hybrids_see_the_feature_map(variant, tokens, layers):
  model = make_vit(variant, 10)
  _, params = shapes(model)
  assert model.patch_size == 1
  assert params["position"]["E_pos"].shape == (tokens + 1, 768)
  channels = 256 * 2 ** (len(layers) - 1)
  assert params["patches"]["E"]["kernel"].shape == (channels, 768)
  assert count(params["resnet"]) == expected_count(layers, 64, 0)


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("side", [1, 3])
def test_convolutions_are_weight_standardised(side, strides):
  x = jax.random.normal(jax.random.key(0), (2, 8, 7, 4))
  conv = resnet.StdConv(6, (side, side), strides)
  kernel = 3 + 0.1 * jax.random.normal(jax.random.key(1), (side, side, 4, 6))
  found = jax.jit(conv.apply)({"params": {"kernel": kernel}}, x)
  standard = np.asarray(kernel, np.float64)
  for output in range(6):
    weights = standard[..., output]
    deviation = ((weights - weights.mean()) ** 2).mean() ** 0.5
    standard[..., output] = (weights - weights.mean()) / (deviation + 1e-5)
  expected = jax.lax.conv_general_dilated(
    x,
    jnp.asarray(standard, jnp.float32),
    (strides, strides),
    "SAME",
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
  )
  np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_the_stored_kernel_is_the_plain_one():
  x = jnp.zeros((1, 8, 8, 3))
  conv = resnet.StdConv(64, (3, 3))
  params = nn.unbox(jax.jit(conv.init)(jax.random.key(0), x)["params"])
  # LeCun's initialisation: variance 1 / fan in.
  assert np.std(params["kernel"]) == pytest.approx(27**-0.5, rel=0.05)
  assert set(params) == {"kernel"}  # No bias.


def test_a_unit_starts_as_its_shortcut():
  noise = np.random.default_rng(0).normal(size=(2, 4, 4, 128))
  x = jnp.asarray(np.maximum(noise, 0), jnp.float32)
  unit = resnet.ResidualUnit(32)
  output, _ = jax.jit(unit.init_with_output)(jax.random.key(1), x)
  np.testing.assert_array_equal(output, x)


def test_the_stride_is_on_the_3x3_convolution():
  # This is ResNet v1.5; v1 has the stride on the first 1x1 convolution.
  unit = resnet.ResidualUnit(32, stride=2)
  _, state = jax.eval_shape(
    lambda key: unit.init_with_output(
      key, jnp.ones((1, 8, 8, 64)), capture_intermediates=True
    ),
    jax.random.key(0),
  )
  found = state["intermediates"]
  sides = {
    name: found[name]["__call__"][0].shape[1]
    for name in ("conv1", "conv2", "conv3", "conv_proj")
  }
  assert sides == {"conv1": 8, "conv2": 4, "conv3": 4, "conv_proj": 4}


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("mean, deviation", [(0.5, 2.0), (100.0, 0.015)])
def test_a_group_norm_is_that_of_float64(
  monkeypatch, mean, deviation, platform
):
  monkeypatch.setattr(partitioning, "platform", lambda: platform)
  rng = np.random.default_rng(0)
  x = rng.normal(mean, deviation, (2, 4, 5, 64)).astype(np.float32)
  scale, bias = rng.normal(1, 0.1, 64), rng.normal(size=64)
  params = {"scale": scale.astype(np.float32), "bias": bias.astype(np.float32)}
  y = resnet.group_norm().apply({"params": params}, x)
  groups = x.astype(np.float64).reshape(2, 20, 32, 2)
  away = groups - groups.mean(axis=(1, 3), keepdims=True)
  variance = (away**2).mean(axis=(1, 3), keepdims=True)
  unit = (away / np.sqrt(variance + 1e-6)).reshape(x.shape)
  # Float32 has steps of 7.6e-6 at 100, which are 5e-4 deviations.
  most = 4e-6 if mean < 1 else 4e-3
  assert np.abs(np.asarray(y) - (unit * scale + bias)).max() < most


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_kernel_of_one_pixel_has_the_gradients_of_a_convolution(
  monkeypatch, dtype, stride
):
  keys = jax.random.split(jax.random.key(0), 3)
  x = jax.random.normal(keys[0], (2, 8, 7, 16), dtype)
  kernel = jax.random.normal(keys[1], (1, 1, 16, 24), dtype)

  def gradients():
    y, back = jax.vjp(lambda *of: resnet.convolve(*of, stride), x, kernel)
    return y, *back(jax.random.normal(keys[2], y.shape, dtype))

  ours = gradients()
  monkeypatch.setattr(resnet, "for_cpu", lambda: False)
  for found, expected in zip(ours, gradients(), strict=True):
    most = 4 * jnp.finfo(dtype).eps * jnp.abs(expected).max()
    assert found.dtype == expected.dtype
    assert jnp.abs(found - expected).max() <= most


@pytest.mark.parametrize("sides", [(8, 6), (7, 12), (5, 5), (1, 2)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_form_for_cpus_has_the_values_and_gradients_of_flaxs(sides, dtype):
  """Of the pool and of the norm, on images that are not square."""
  keys = jax.random.split(jax.random.key(0), 3)
  x = jax.random.normal(keys[0], (2, *sides, 64), dtype)
  norm = nn.GroupNorm(32, use_fast_variance=False, dtype=dtype)
  params = norm.init(keys[1], x)
  pool = functools.partial(
    nn.max_pool, window_shape=(3, 3), strides=(2, 2), padding="SAME"
  )

  def result(norm, pool, params, x):
    y = nn.relu(norm.apply(params, x))
    weights = jax.random.normal(keys[2], pool(y).shape, dtype)
    return (pool(y) * weights).sum(dtype=jnp.float32), pool(y)

  derive = jax.value_and_grad(result, argnums=(2, 3), has_aux=True)
  ours = derive(resnet.group_norm(dtype), resnet.max_pool, params, x)
  flaxs = derive(norm, pool, params, x)
  rounding = jnp.finfo(dtype).eps
  for found, expected in zip(*map(jax.tree.leaves, (ours, flaxs)), strict=True):
    most = 40 * rounding * max(1, jnp.abs(expected).max())
    assert found.dtype == expected.dtype
    assert jnp.abs(found - expected).max() < most


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_only_tpus_take_the_fast_variance_of_bfloat16(
  monkeypatch, platform, dtype
):
  monkeypatch.setattr(partitioning, "platform", lambda: platform)
  seen = []

  def watch(call, args, kwargs, context):
    if isinstance(context.module, nn.GroupNorm):
      seen.append(context.module.use_fast_variance)
    if isinstance(context.module, resnet.ChannelGroupNorm):
      seen.append(False)  # It has no other form.
    return call(*args, **kwargs)

  with nn.intercept_methods(watch):
    shapes(resnet.ResNet(num_classes=2, layers=(1,), dtype=dtype))
  # Of the root, its unit's three convolutions and the projection.
  fast = platform == "tpu" and dtype == jnp.bfloat16
  assert seen == [fast] * 5
