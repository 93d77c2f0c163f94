"""The DPT head: its parts, and that of transformers of the same parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import libraries
from tests.tasks.test_every_encoder import ENCODERS, SIZE, tiny_encoder
from tests.tiny import random_params
from vit_jax import make_vit
from vit_jax.models.dpt import DptHead, double_resolution, layers_of
from vit_jax.models.layer import LayerConfig
from vit_jax.models.parts import Parts
from vit_jax.models.segmenter import segmenter

D, WIDTH = 24, 256  # transformers' projection has this width alone.
RNG = np.random.default_rng(0)


def encoder(layers=4, **fields):
  sizes = dict(hidden_size=D, mlp_size=32, num_heads=2)
  return make_vit("Ti/4", 0, num_layers=layers, **sizes, **fields)


def test_a_map_is_enlarged_between_its_corners():
  x = RNG.normal(size=(1, 4, 3, 2)).astype(np.float32)
  y = np.asarray(double_resolution(jnp.array(x)))
  assert y.shape == (1, 8, 6, 2)
  np.testing.assert_allclose(y[:, ::7, ::5], x[:, ::3, ::2], rtol=1e-6)
  rows = np.linspace(0, 3, 8)
  expected = [np.interp(r, range(4), x[0, :, 0, 0]) for r in rows]
  np.testing.assert_allclose(y[0, :, 0, 0], expected, rtol=1e-5)
  assert double_resolution(jnp.ones((1, 1, 1, 1))).shape == (1, 2, 2, 1)


def test_four_layers_are_read():
  assert layers_of(encoder(12), (), "segmentation") == (3, 6, 9, 12)
  assert layers_of(encoder(2), (), "segmentation") == (1, 1, 2, 2)
  message = r"segmentation.layers=\(1, 2\): a DPT head reads four layers"
  with pytest.raises(ValueError, match=message):
    segmenter(encoder(), 3, (1, 2), head="dpt")
  with pytest.raises(ValueError, match="set model.scan=False"):
    segmenter(encoder(scan=True), 3, head="dpt")


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["gap", "token"])
def test_the_head_trains_all_its_parameters(pooling):
  """Its outputs start at 0, and all of it is a head of its own task."""
  model = segmenter(encoder(pooling=pooling), 3, head="dpt", head_size=8)
  image = jnp.array(RNG.normal(size=(2, 12, 8, 3)), jnp.float32)
  params = model.init(jax.random.key(0), image)["params"]
  out = model.apply({"params": params}, image)
  assert out.shape == (2, 64, 32, 3) and not out.any()
  params = random_params(model, (12, 8), 1)
  parts = Parts.of(model, params)
  gradient = jax.grad(lambda p: (model.apply({"params": p}, image) ** 2).sum())
  grads = jax.jit(gradient)(params)
  paths, _ = jax.tree_util.tree_flatten_with_path(grads["dpt"])
  for path, leaf in paths:
    name = "dpt/" + "/".join(key.key for key in path)
    assert parts.is_head(name) and parts.own_task(name)
    assert np.abs(leaf).max() > 0, name
  assert ("readout0" in params["dpt"]) == (pooling == "token")
  assert "dpt" not in {p.prefix for p in model.trunk.parts()}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*ENCODERS} - {"resnet"}))
def test_the_head_fits_every_encoder(name):
  model = segmenter(tiny_encoder(name), 3, head="dpt", head_size=8)
  image = jax.ShapeDtypeStruct((2, *SIZE, 3), jnp.float32)
  out, _ = jax.eval_shape(model.init_with_output, jax.random.key(0), image)
  patches = (side // model.stride for side in SIZE)
  assert out.shape == (2, *(16 * (n + n % 2) for n in patches), 3)


def transformers_head(readout):
  """A module of transformers: from tokens of four layers to depth."""
  transformers, torch = libraries.needed("transformers", "torch")
  from transformers.models.dpt import modeling_dpt as theirs

  config = transformers.DPTConfig(
    hidden_size=D,
    num_hidden_layers=4,
    num_attention_heads=2,
    intermediate_size=32,
    neck_hidden_sizes=[D // 8, D // 4, D // 2, D],
    fusion_hidden_size=WIDTH,
    readout_type=readout,
    use_bias_in_fusion_residual=False,
    add_projection=True,
  )
  torch.manual_seed(0)
  return torch, theirs.DPTNeck(config), theirs.DPTDepthEstimationHead(config)


def converted(neck, head, readout):
  """Our parameters from those of transformers."""

  def conv(module):
    found = {"kernel": module.weight.detach().numpy().transpose(2, 3, 1, 0)}
    if module.bias is not None:
      found["bias"] = module.bias.detach().numpy()
    return found

  def unit(module):
    convs = module.convolution1, module.convolution2
    return {f"conv{k + 1}": conv(one) for k, one in enumerate(convs)}

  params = {}
  stage = neck.reassemble_stage
  for i, layer in enumerate(stage.layers):
    if readout == "project":
      linear = stage.readout_projects[i][0]
      kernel, bias = linear.weight.detach().numpy().T, linear.bias
      params[f"readout{i}"] = {"kernel": kernel, "bias": bias.detach().numpy()}
    plain = conv(layer.projection)
    params[f"reassemble{i}"] = {**plain, "kernel": plain["kernel"][0, 0]}
    if i < 2:  # (in, out, side, side) -> (in, side * side * out)
      weight = layer.resize.weight.detach().numpy().transpose(0, 2, 3, 1)
      side = weight.shape[1]
      bias = np.tile(layer.resize.bias.detach().numpy(), side**2)
      kernel = weight.reshape(len(weight), -1)
      params[f"resize{i}"] = {"kernel": kernel, "bias": bias}
    elif i == 3:
      params["resize3"] = conv(layer.resize)
    params[f"conv{i}"] = conv(neck.convs[i])
  for number, layer in enumerate(neck.fusion_stage.layers):
    i = 3 - number
    params[f"fusion{i}"] = unit(layer.residual_layer2)
    params[f"fused{i}"] = conv(layer.projection)
    if number:
      params[f"beside{i}"] = unit(layer.residual_layer1)
  params["project"] = conv(head.projection)
  params["conv_half"] = conv(head.head[0])
  params["conv_last"] = conv(head.head[2])
  params["outputs"] = conv(head.head[4])
  return params


@pytest.mark.slow
@pytest.mark.parametrize("grid", [(4, 6), (5, 7)])
@pytest.mark.parametrize("readout", ["project", "ignore"])
def test_depth_is_that_of_transformers(readout, grid):
  """Of random maps with the same parameters; theirs ends in a ReLU."""
  torch, neck, head = transformers_head(readout)
  h, w = grid
  tokens = RNG.normal(size=(4, 2, 1 + h * w, D)).astype(np.float32)
  with torch.no_grad():
    head.head[4].bias += 1.0  # So that the ReLU at the end cuts nothing.
    states = neck([torch.tensor(x) for x in tokens], h, w)
    expected = head(states).numpy()
  assert (expected > 0).mean() > 0.9
  ours = DptHead(1, WIDTH, D, LayerConfig.of(encoder()))
  classes = list(tokens[:, :, 0]) if readout == "project" else 4 * [None]
  maps = list(tokens[:, :, 1:].reshape(4, 2, h, w, D))
  params = converted(neck, head, readout)
  found = jax.jit(ours.apply)({"params": params}, maps, classes)[..., 0]
  assert found.shape == expected.shape
  error = np.abs(np.maximum(found, 0) - expected).max()
  assert error < 1e-5 * np.abs(expected).max(), error
