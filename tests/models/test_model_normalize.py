"""Images from bytes to the numbers a model takes."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.model import check_images, normalize


def test_normalize_is_the_formula():
  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, (16, 8, 8, 3), np.uint8)
  mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
  expected = (images / 255.0 - np.array(mean)) / np.array(std)
  found = normalize(jnp.asarray(images), mean, std)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_pixels_span_minus_one_to_one_by_default():
  ends = jnp.array([0, 255], jnp.uint8).reshape(1, 1, 2, 1)
  found = normalize(jnp.tile(ends, 3), (0.5,) * 3, (0.5,) * 3)
  np.testing.assert_allclose(found[0, 0, :, 0], [-1, 1])


@pytest.mark.parametrize("dtype", [np.float32, np.uint16, np.int32])
def test_only_pixels_of_bytes_are_normalised(dtype):
  with pytest.raises(ValueError, match=f"of type {dtype.__name__}; .* uint8"):
    normalize(jnp.ones((1, 8, 8, 3), dtype), (0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize(
  "images, message",
  [
    (np.zeros((2, 8, 8, 3), np.uint8), "uint8; .*normalize"),
    (np.zeros((8, 8, 3), np.float32), r"\(8, 8, 3\); .* images\[None\]"),
    (np.zeros((8, 8), np.float32), r"\(8, 8\); the model takes \(B, H, W, C\)"),
    (np.zeros((2, 3, 8, 8), np.float32), r"look like \(B, C, H, W\)"),
    (jnp.zeros((2, 1, 8, 8)), "transpose"),
  ],
)
def test_arrays_that_are_no_batch_of_images(images, message):
  with pytest.raises(ValueError, match=message):
    check_images(images)
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(check_images, images)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_images_of_any_float_and_number_of_channels_are_taken(dtype):
  for channels in (1, 3, 4, 12):
    check_images(jnp.ones((2, 8, 16, channels), dtype))


def test_values_that_are_not_normalised_are_warned_of():
  images = np.full((1, 8, 8, 3), -255.0)
  with pytest.warns(UserWarning, match="values of up to 255, .*normalize"):
    check_images(images)
  jax.jit(lambda x: check_images(x))(images)  # Not known while compiling.
  small = jnp.ones((1, 8, 8, 3))
  jax.jit(lambda: check_images(small))()  # Known, as it is closed over.


@pytest.mark.slow
def test_a_model_checks_its_images():
  """In a process of its own, without the tests' check of shapes."""
  code = """
import numpy as np, vit_jax
for model in (vit_jax.make_vit("Ti/4", 2, num_layers=1),
              vit_jax.make_resnet("R50x1", 2, layers=(1,))):
  try:
    model.apply({}, np.zeros((1, 8, 8, 3), np.uint8))
  except ValueError as error:
    print(error)
"""
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert done.stdout.count("images of type uint8; the model takes floats") == 2
