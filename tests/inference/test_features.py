"""Features of chosen layers, against the model's own output."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vit_jax
from tests import tiny
from vit_jax.models.parts import stack

SIZE = (16, 24)
IMAGES = jax.random.normal(jax.random.key(0), (2, *SIZE, 3))


def _model(**fields):
  small = dict(num_layers=3, hidden_size=12, mlp_size=24, num_heads=2)
  return vit_jax.make_vit("Ti/8", num_classes=4, **small | fields)


def _params(model):
  return tiny.random_params(model, SIZE, 0)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["token", "gap"])
def test_pooling_the_last_layer_gives_the_heads_input(pooling):
  model = _model(pooling=pooling)
  params = _params(model)
  y = vit_jax.features(model, params, IMAGES)
  (tokens,) = vit_jax.features(model, params, IMAGES, layers=[3])
  pooled = tokens[:, 0] if pooling == "token" else tokens.mean(1)
  np.testing.assert_allclose(y, pooled, rtol=1e-5, atol=1e-6)
  y, head = np.asarray(y), jax.tree.map(np.asarray, params["head"])
  logits = jax.jit(model.apply)({"params": params}, IMAGES)
  np.testing.assert_allclose(
    y @ head["kernel"] + head["bias"], logits, rtol=1e-5, atol=1e-5
  )


@pytest.mark.slow
def test_the_norm_is_the_final_layers():
  model = _model()
  params = _params(model)
  plain, normed = (
    np.float64(vit_jax.features(model, params, IMAGES, layers=[2], norm=n)[0])
    for n in (False, True)
  )
  centred = plain - plain.mean(-1, keepdims=True)
  expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
  scale, bias = (np.asarray(params["norm"][k]) for k in ("scale", "bias"))
  expected = expected * scale + bias
  np.testing.assert_allclose(normed, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_map_has_each_patch_in_its_place():
  """Without attention, a change of one patch stays in its place."""
  model = _model(position="none", pooling="gap")
  params = jax.tree.map(jnp.asarray, _params(model))
  msa = params["block_0"]["msa"]["out"]
  params["block_0"]["msa"]["out"] = jax.tree.map(jnp.zeros_like, msa)
  changed = IMAGES.at[:, 8:16, 16:24].add(1.0)  # The patch in row 1, column 2.
  before, after = (
    vit_jax.features(model, params, x, layers=(1,), as_maps=True)[0]
    for x in (IMAGES, changed)
  )
  assert before.shape == (2, 2, 3, 12)
  moved = np.abs(np.asarray(after - before)).max((0, 3)) > 1e-6
  np.testing.assert_array_equal(moved, [[False] * 3, [False, False, True]])


def test_class_and_register_tokens_are_in_no_map():
  model = _model(block="dinov2", registers=4)
  params = _params(model)
  tokens, maps = (
    vit_jax.features(model, params, IMAGES, layers=(2,), as_maps=m)[0]
    for m in (False, True)
  )
  assert tokens.shape == (2, 1 + 4 + 6, 12)
  np.testing.assert_array_equal(maps.reshape(2, 6, 12), tokens[:, 5:])


@pytest.mark.slow
def test_scanned_layers_give_the_same():
  model = _model()
  params = _params(model)
  expected = vit_jax.features(model, params, IMAGES, layers=(1, 3))
  found = vit_jax.features(
    model.clone(scan=True), stack(params), IMAGES, layers=(1, 3)
  )
  for one, other in zip(found, expected, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
  "options, message",
  [
    (dict(layers=(0,)), r"layers=\(0,\): the model has layers 1 to 3"),
    (dict(layers=(4,)), r"layers=\(4,\): the model has layers 1 to 3"),
    (dict(as_maps=True), "as_maps=True needs layers"),
  ],
)
def test_layers_that_are_none(options, message):
  with pytest.raises(ValueError, match=message):
    vit_jax.features(_model(), {}, IMAGES, **options)


def test_a_resnet_has_no_layers_of_tokens():
  with pytest.raises(ValueError, match="a ResNet has no layers of tokens"):
    vit_jax.features(vit_jax.make_resnet("R50x1", 2), {}, IMAGES, layers=(1,))
