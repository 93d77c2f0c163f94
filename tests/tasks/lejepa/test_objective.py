"""The loss of LeJEPA against its formula, and what it is least for."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rows import some_slow
from vit_jax.tasks.lejepa.objective import LeJepa, normality
from vit_jax.tasks.lejepa.settings import LeJepaSettings
from vit_jax.training.losses import StepContext

HALF = (0.5,) * 3
B, K = 6, 5


def sigreg(z, key, directions):
  """The test of Epps and Pulley of projections (B, K), in NumPy."""
  t = np.linspace(-5, 5, 17)
  normal = np.exp(-(t**2) / 2)
  along = np.array(jax.random.normal(key, (K, directions)), np.float64)
  along /= np.linalg.norm(along, axis=0)
  c = np.exp(1j * t * (z @ along)[..., None]).mean(0)
  return B * np.trapezoid(abs(c - normal) ** 2 * normal, t).mean()


@pytest.mark.parametrize(
  "small, weight",
  some_slow(itertools.product((0, 2), (0.05, 0.5)), [(2, 0.5)]),
)
def test_the_loss_is_the_papers(small, weight):
  """The mean square of distances over crops and projections, and the test."""
  rng = np.random.default_rng(0)
  crops = rng.normal(size=(2 + small, B, K)).astype(np.float32) * 2
  inputs = {"large": crops[:2].reshape(-1, K)}
  if small:  # Those of an image follow one another.
    inputs["small"] = crops[2:].swapaxes(0, 1).reshape(-1, K)
  settings = LeJepaSettings(weight=weight, directions=64)
  key = jax.random.key(3)
  objective = LeJepa(settings, HALF, HALF)
  found = jax.jit(
    lambda *given: objective.loss(lambda z: {"z": z}, *given, StepContext())
  )(inputs, key)
  keys = jax.random.split(key, len(crops))
  tests = [sigreg(z, k, 64) for z, k in zip(crops, keys, strict=True)]
  distance = ((crops - crops[:2].mean(0)) ** 2).mean((0, 2))
  expected = (1 - weight) * distance + weight * np.mean(tests)
  np.testing.assert_allclose(found.value, expected, rtol=1e-5)
  np.testing.assert_allclose(found.score, distance, rtol=1e-5)
  np.testing.assert_allclose(found.metrics["normality"], np.mean(tests), 1e-5)


def test_no_gradient_is_stopped():
  """Both the large crops and what they are compared with learn."""
  rng = np.random.default_rng(1)
  inputs = {name: rng.normal(size=(2 * B, K)) for name in ("large", "small")}
  objective = LeJepa(LeJepaSettings(weight=0.05, directions=8), HALF, HALF)

  def loss(scales):
    def apply(z):
      return {"z": z * scales[0 if z is inputs["large"] else 1]}

    return objective.loss(
      apply, inputs, jax.random.key(0), StepContext()
    ).value[0]

  gradient = jax.jit(jax.grad(loss))(jnp.ones(2))
  assert np.abs(gradient).min() > 1e-3


def test_a_normal_distribution_has_the_least_distance():
  key, z = jax.random.key(0), np.random.default_rng(1).normal(size=(2000, K))
  measured = jax.jit(lambda z: normality(z, key, 64))
  others = (2 * z, z / 2, z + 1, np.sign(z), 0 * z)
  assert all(measured(other) > 10 * measured(z) for other in others)


def test_batches_have_crops_in_the_order_of_their_images():
  rng = np.random.default_rng(2)
  batch = {
    name: rng.integers(0, 256, (B, *shape)).astype(np.uint8)
    for name, shape in {
      "image": (8, 8, 3),
      "second": (8, 8, 3),
      "small": (2, 4, 4, 3),
    }.items()
  }
  objective = LeJepa(LeJepaSettings(weight=0.05), HALF, HALF)
  crops = jax.jit(objective.inputs)(batch)
  of_image = batch["image"][3] / 127.5 - 1
  np.testing.assert_allclose(crops["large"][3], of_image, atol=1e-6)
  of_second = batch["second"][3] / 127.5 - 1
  np.testing.assert_allclose(crops["large"][B + 3], of_second, atol=1e-6)
  of_small = batch["small"][3, 1] / 127.5 - 1
  np.testing.assert_allclose(crops["small"][2 * 3 + 1], of_small, atol=1e-6)
