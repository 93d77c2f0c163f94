"""Images from bytes to the numbers a model takes."""

import jax.numpy as jnp
import numpy as np

from vit_jax.models.normalize import normalize


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
