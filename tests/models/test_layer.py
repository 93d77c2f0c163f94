"""The parts that layers share, and the values that parameters start from."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.tiny_vit import LAYERS, B, P, apply, images, tiny
from vit_jax.models import partitioning
from vit_jax.models.layer import LayerConfig, each_token


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
    dtype=jnp.bfloat16,
    param_dtype=jnp.float16,
  )
  assert dataclasses.asdict(LayerConfig.of(tiny(**changed))) == changed
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
