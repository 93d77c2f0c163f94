"""The features below the head, and fields that make no model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tinted
from tests.models.tiny_vit import images, random_params, tiny
from vit_jax import ResNet
from vit_jax.models import composed, make_resnet, make_vit
from vit_jax.models.masked_vit import masked_vit
from vit_jax.models.model import normalize, represent


def test_the_representation_is_y_of_equation_4_or_the_pre_logits():
  model, params = tinted.model_and_params()
  images, variables = jnp.ones((2, 8, 8, 3)), {"params": params}
  y, pre_logits = jax.jit(
    lambda: [
      represent(model, params, images, pre_logits=kept)
      for kept in (False, True)
    ]
  )()
  assert y.shape == (2, 16)
  layer = params["pre_logits"]
  tanh = np.tanh(np.asarray(y @ layer["kernel"]) + np.asarray(layer["bias"]))
  np.testing.assert_allclose(pre_logits, tanh, rtol=1e-4, atol=1e-6)
  outputs = jax.jit(
    lambda: model.apply(variables, images, capture_intermediates=True)
  )()[1]
  norm = outputs["intermediates"]["norm"]["__call__"][0]
  np.testing.assert_allclose(y, norm, rtol=1e-5, atol=1e-6)


TINY = dict(block="dinov2", representation_size=7, num_layers=1)


@pytest.mark.parametrize(
  "model, pooled_shape",
  [
    (tiny(**TINY, pooling="token_gap"), (48,)),
    *(
      pytest.param(*case, marks=pytest.mark.slow)
      for case in [
        (tiny(pooling="map", representation_size=7, num_layers=1), (24,)),
        (tiny(scan=True, representation_size=7), (24,)),
        (tiny(**TINY, projection=True), (24,)),
        (tiny(block="deit3", distilled=True), (2, 24)),
        (masked_vit(tiny(), 5), (6, 24)),
        (ResNet(5, layers=(1,), width=32), (128,)),
      ]
    ),
  ],
)
def test_a_model_is_its_encoder_and_its_head(model, pooled_shape):
  x = images()
  params = random_params(model, x)

  @jax.jit
  def run(params):
    variables = {"params": params}
    z, pooled = model.apply(variables, x, method="encode")
    head = model.apply(variables, pooled, method="head")
    found = model.apply(variables, pooled, method="representation")
    without = model.clone(num_classes=0).apply(variables, x)
    expected = model.apply(variables, x)
    return z, pooled, head, expected, found, without

  z, pooled, head, expected, found, without = run(params)
  assert z.ndim == (4 if isinstance(model, ResNet) else 3)
  assert pooled.shape == (len(x), *pooled_shape)
  # A call computes of the last layer what is read, in another order.
  np.testing.assert_allclose(head, expected, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(found, without, rtol=1e-5, atol=1e-6)
  assert found.ndim == 2


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
    ({"scan": True, "position": "relative"}, ".* set scan=False"),
    ({"pooling": "max"}, "pooling='max' is unknown; choose one of token, gap"),
    ({"gelu": "erf"}, "gelu='erf' is unknown; choose one of tanh, exact"),
    ({"dropout_rate": 1.0}, r"dropout_rate=1.0 must be in \[0, 1\)"),
    (
      {"block": "axial", "pooling": "gap", "patch_dropout_rate": 0.5},
      "patch_dropout_rate=0.5 leaves out .* with block=AxialBlock each layer",
    ),
    ({"attention_dropout_rate": -0.1}, "attention_dropout_rate=-0.1 must be i"),
    ({"attention_dtype": jnp.float16}, "attention_dtype='float16' is unknown"),
    (
      {"attention_dtype": jnp.bfloat16, "splash": True},
      "attention_dtype=bfloat16 and splash=True: JAX's kernel has float32",
    ),
  ],
)
def test_fields_that_make_no_model_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    tiny(**fields)


@pytest.mark.parametrize(
  "mean, std",
  [
    (127.5, 127.5),
    ((0.0, 0.0, 0.0), (255.0, 255.0, 255.0)),
    (np.array([123.7, 116.3, 103.5]), (0.2, 0.2, 0.2)),
  ],
)
def test_a_mean_or_a_deviation_of_255_levels_is_refused(mean, std):
  pixels = jnp.zeros((1, 2, 2, 3), jnp.uint8)
  with pytest.raises(ValueError, match="^(mean|std)=.* counts 255 levels, and"):
    normalize(pixels, mean, std)
  of_full_scale = np.array(mean) / 255, np.array(std) / 255
  if np.max(std) > 1:
    assert np.isfinite(normalize(pixels, *of_full_scale)).all()


def test_a_mean_of_other_channels_is_refused():
  """Broadcasting would make three channels of one."""
  grey = jnp.zeros((1, 2, 2, 1), jnp.uint8)
  with pytest.raises(ValueError, match="mean has 3 numbers, .* 1 channels"):
    normalize(grey, (0.5,) * 3, (0.5,))
  assert normalize(grey, (0.5,), (0.5,)).shape == grey.shape


def _hybrid():
  return tiny(resnet_layers=(1,), resnet_width=32).clone(patch_size=1)


@pytest.mark.parametrize(
  "make, C, message",
  [
    (tiny, 1, r"which take 3 channel\(s\); jax.numpy.repeat\(images, 3, -1\)"),
    (tiny, 4, r"which take 3 channel\(s\)\.$"),
    (lambda: ResNet(2, layers=(1,), width=32), 2, r"which take 3 channel\(s\)"),
    (_hybrid, 1, "which take 3 channel"),
  ],
)
def test_images_of_other_channels_than_the_parameters_are_one_line(
  make, C, message
):
  model = make()
  params = random_params(model, images())
  other = images()[..., :1].repeat(C, -1)
  with pytest.raises(ValueError, match=message) as caught:
    model.apply({"params": params}, other)
  assert "\n" not in str(caught.value)
  assert str(other.shape) in str(caught.value)


def test_parameters_of_another_model_are_one_line():
  model = tiny()
  params = random_params(model, images())
  other = model.clone(num_classes=31)
  with pytest.raises(ValueError, match="head/kernel has the shape") as caught:
    jax.eval_shape(other.apply, {"params": params}, images())
  text = str(caught.value)
  assert "this model needs (24, 31)" in text and "\n" not in text


def test_a_field_that_a_class_lacks_has_its_plain_value():
  """Generic code asks every model; one that holds an encoder asks that."""
  resnet = make_resnet("R50x1", num_classes=3)
  assert (resnet.registers, resnet.qkv_bias, resnet.block) == (0, "qkv", None)
  vit = make_vit("Ti/16", 0, block="dinov3")
  held = composed.Composed(num_classes=0, encoder=vit)
  fields = ("registers", "qkv_bias", "extended", "resizes_positions", "scan")
  assert [getattr(held, x) for x in fields] == [getattr(vit, x) for x in fields]
  assert (held.registers, held.extended) == (4, True)
  assert not hasattr(held, "norm_of_nothing")
