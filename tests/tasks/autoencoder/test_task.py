"""Masked autoencoding: targets, losses, evaluation and pictures, by NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rows import some_slow
from tests.tasks import made_up
from tests.tasks.made_up import HALF
from tests.tiny import SIZES, random_params
from vit_jax import make_vit
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models import make_model
from vit_jax.tasks.autoencoder.objective import (
  Reconstruction,
  draw_patches,
  normalize_patches,
  num_seen,
)
from vit_jax.tasks.autoencoder.pictures import make_panels
from vit_jax.tasks.autoencoder.task import (
  AutoencoderTask,
  ReconstructionOutcome,
  sums,
)
from vit_jax.tasks.hidden import hidden_measure
from vit_jax.tasks.metrics import evaluate
from vit_jax.tasks.pictures import as_photograph
from vit_jax.training.losses import StepContext

SMALL = dict(
  autoencoder__rate=0.75,
  autoencoder__decoder_size=8,
  autoencoder__decoder_layers=1,
  autoencoder__decoder_heads=2,
)
P, N, K = 4, 16, 4


def batch(B, channels=3, seed=0):
  rng = np.random.default_rng(seed)
  image = rng.integers(0, 256, (B, 16, 16, channels), np.uint8)
  mask = np.ones(B, np.float32)
  return {"image": image, "mask": mask, "skipped": mask == 0}


def patches_of(image):
  """Patches (N, P, P, C) of an image (H, W, C), row by row."""
  rows = np.split(np.asarray(image), 4, axis=0)
  return np.stack([cell for row in rows for cell in np.split(row, 4, axis=1)])


def small_model():
  return made_up.task(**SMALL).adapted(make_vit("Ti/4", 0, **SIZES))


@pytest.mark.parametrize("rate, seen", [(0.75, 49), (0.5, 98), (0.9, 19)])
def test_so_many_patches_are_seen(rate, seen):
  assert num_seen(196, rate) == seen


def test_a_draw_is_of_an_image_and_all_choices_are_alike():
  draw = jax.jit(draw_patches, static_argnums=(2, 3))
  key = jax.random.key(0)
  many = draw(key, jnp.arange(2_000), N, 0.75)
  order = np.concatenate([many["seen"], many["hidden"]], axis=1)
  assert (np.sort(order, axis=1) == np.arange(N)).all()
  counts = np.bincount(np.asarray(many["seen"]).ravel(), minlength=N)
  assert np.abs(counts - 500).max() < 5 * np.sqrt(500 * 0.75)
  some = draw(key, jnp.array([7, 3]), N, 0.75)
  for name, places in some.items():
    np.testing.assert_array_equal(places, np.asarray(many[name])[[7, 3]])


@pytest.mark.parametrize("norm_pixels", some_slow([True, False], [True]))
def test_targets_and_losses_by_numpy(norm_pixels):
  mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
  objective = Reconstruction(0.75, norm_pixels, P, mean, std)
  one = batch(2)
  images, targets = jax.jit(objective.prepare)(one, jax.random.key(3))
  rng = np.random.default_rng(1)
  predicted = rng.normal(size=(2, N - K, P * P * 3)).astype(np.float32)
  on_device = jnp.array(predicted)
  found = jax.jit(
    lambda *given: objective.loss(
      lambda x, draw: on_device, *given, StepContext()
    )
  )(images, targets)
  errors, variances = [], []
  for b in range(2):
    pixels = (np.asarray(one["image"][b]) / 255 - mean) / std
    hidden = np.asarray(targets["draw"]["hidden"][b])
    values = patches_of(pixels)[hidden].reshape(N - K, -1)
    if norm_pixels:
      middle = values.mean(axis=1, keepdims=True)
      count = values.shape[1]
      variance = ((values - middle) ** 2).sum(1, keepdims=True) / (count - 1)
      values = (values - middle) / np.sqrt(variance + 1e-6)
    np.testing.assert_allclose(
      targets["pixels"][b], values, rtol=1e-4, atol=1e-5
    )
    errors.append(((predicted[b] - values) ** 2).mean())
    variances.append(values.var())
  np.testing.assert_allclose(found.value, errors, rtol=1e-5)
  explained = 1 - np.mean(errors) / np.mean(variances)
  assert np.mean(found.score) == pytest.approx(explained, rel=1e-4)


def test_a_headline_is_a_sentence():
  told = AutoencoderTask.scores.headline(
    {"eval/explained": -0.0542, "eval/examples": 50}
  )
  assert (
    told == "-5.4% of the hidden pixels' variance is explained on 50 images"
  )


def test_an_image_of_one_colour_has_a_finite_loss_and_gradient():
  flat = jnp.ones((1, 2, 12))

  def loss(pixels):
    return (normalize_patches(pixels).values ** 2).sum()

  value, slope = jax.jit(jax.value_and_grad(loss))(flat)
  assert value == 0 and jnp.isfinite(slope).all()
  totals = {"loss": 2.0, "variance": 0.0, "examples": 2, "skipped_images": 0}
  assert np.isfinite(ReconstructionOutcome(totals).scores["explained"])
  with pytest.raises(ValueError, match="split has no readable image"):
    _ = ReconstructionOutcome({**totals, "examples": 0}).scores


@pytest.mark.slow
def test_an_evaluation_hides_the_same_whatever_its_batches():
  model = small_model()
  params = random_params(model, (16, 16), 0)
  objective = Reconstruction(0.75, True, P, HALF, HALF)
  measure = hidden_measure(model, objective, sums, ReconstructionOutcome)
  whole = batch(6)
  found = []
  for size in (2, 3):
    parts = [
      jax.tree.map(lambda x: x[first : first + size], whole)  # noqa: B023
      for first in range(0, 6, size)
    ]
    found.append(evaluate(measure, params, parts).result().scores)
  assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.parametrize(
  "channels, norm_pixels",
  [
    (1, True),
    (3, False),
    *(
      pytest.param(*case, marks=pytest.mark.slow)
      for case in [(1, False), (3, True), (5, False), (5, True)]
    ),
  ],
)
def test_pictures_are_what_was_seen_the_prediction_and_the_image(
  channels, norm_pixels
):
  """With a model that predicts the truth, or black and white noise."""
  half = (0.5,) * channels
  objective = Reconstruction(0.75, norm_pixels, P, half, half)
  image = np.array(batch(3, channels)["image"])

  class Truth:
    def apply(self, variables, images):
      return objective.targets(images, variables["draw"])

  sheets = make_panels(Truth(), objective)({}, [(2, image[2], None)])
  (sheet,) = sheets
  times, width = 12, 16 * 12 + 4
  panels = [sheet[::times, k * width :: times][:, :16] for k in range(3)]
  true = as_photograph(image[2])
  assert true.shape == (16, 16, 3)
  if channels == 1:
    np.testing.assert_array_equal(true, image[2].repeat(3, axis=2))
  np.testing.assert_array_equal(panels[1], true)
  np.testing.assert_array_equal(panels[2], true)
  draw = draw_patches(jax.random.key(0), jnp.array([2]), N, 0.75)
  seen = patches_of(panels[0])
  for place in range(N):
    if place in draw["seen"][0]:
      np.testing.assert_array_equal(seen[place], patches_of(true)[place])
    else:
      assert (seen[place] == 128).all()
  assert make_panels(Truth(), objective)({}, []) == []


def test_a_grey_image_of_three_channels_stays_grey():
  """A patch gets one mean and one deviation, of all its channels."""
  objective = Reconstruction(0.75, True, P, HALF, HALF)
  grey = np.array(batch(1, channels=1)["image"]).repeat(3, axis=3)
  rng = np.random.default_rng(0)
  noise = rng.normal(size=(1, N - K, P, P, 1)).repeat(3, axis=4)

  class Grey:
    def apply(self, variables, images):
      return jnp.array(noise.reshape(1, N - K, -1), jnp.float32)

  (sheet,) = make_panels(Grey(), objective)({}, [(0, grey[0], None)])
  assert (sheet == sheet[..., :1]).all()


@pytest.mark.parametrize(
  "rate, side, variant, message",
  [
    (0.99, 32, "Ti/16", "autoencoder.rate=0.99 hides all of the 2 x 2 patch"),
    (0.75, 16, "Ti/16", "hides all of the 1 x 1 patches: set a lower rate, or"),
    (1e-20, 32, "Ti/16", "hides none of the 2 x 2 patches: set a higher"),
    (0.5, 64, "R50x1", "a ResNet has no patches in its layers"),
  ],
)
def test_what_cannot_be_reconstructed_is_refused(rate, side, variant, message):
  task = made_up.task(**SMALL | {"autoencoder__rate": rate})
  with pytest.raises(ValueError, match=message):
    model = task.adapted(make_model(variant, num_classes=0))
    task.objective(model, Preprocessing((side, side)))


def test_two_sections_that_train_without_labels_are_refused():
  with pytest.raises(ValueError, match="masked and autoencoder each choose a"):
    made_up.task(**SMALL, masked__rate=0.5)
