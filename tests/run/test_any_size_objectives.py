"""Objectives on images of any size: padding changes nothing."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.tiny_vit import random_params
from vit_jax.data.preprocessing import HALF
from vit_jax.models import make_vit
from vit_jax.models.autoencoder import autoencoder
from vit_jax.models.text import TextTower
from vit_jax.models.two_towers import two_towers
from vit_jax.tasks.autoencoder.objective import Reconstruction, draw_of_rows
from vit_jax.tasks.pairs.objective import Contrast
from vit_jax.training.inputs import inputs_of
from vit_jax.training.losses import Classification, StepContext
from vit_jax.training.settings import LossSettings

P, TOKENS = 4, 12
GRIDS = np.array([(3, 3), (2, 6), (6, 2), (1, 9), (7, 1), (3, 4)], np.int32)
B = len(GRIDS)
DRAW = np.random.default_rng(0)
PIXELS = DRAW.integers(0, 256, (B, TOKENS, P * P * 3), np.uint8)
LABELS = np.arange(B) % 3
TEXTS = DRAW.integers(1, 9, (B, 5)).astype(np.int32)
SIZES = dict(num_layers=1, hidden_size=16, mlp_size=32, num_heads=2)
COLOURS: Any = dict(mean=HALF, std=HALF)


def batch(grids=GRIDS, tokens=TOKENS, rows=slice(None)):
  """A batch of patches, those beyond an image of other numbers than 0."""
  return {
    "image": jnp.asarray(PIXELS[rows, :tokens]),
    "size": jnp.asarray(grids[rows, None]),
  }


def vit(num_classes=0, **fields):
  return make_vit("Ti/4", num_classes, **SIZES, pooling="gap", **fields)


def pairs():
  text = TextTower(
    0, 9, 5, hidden_size=16, num_layers=1, mlp_size=16, num_heads=2
  )
  return two_towers(vit(), text)


def classifier(loss):
  return Classification(3, LossSettings(kind=loss), HALF, HALF)


KINDS = {
  "softmax": (lambda: vit(3), classifier("softmax"), {"label": LABELS}),
  "sigmoid": (lambda: vit(3), classifier("sigmoid"), {"label": LABELS}),
  "pairs": (pairs, Contrast("sigmoid", True, **COLOURS), {"text": TEXTS}),
  "clip": (pairs, Contrast("softmax", True, **COLOURS), {"text": TEXTS}),
}


def joined(*rows):
  return jnp.concatenate(rows) if rows[0].ndim else rows[0]


def alone(model, params):
  """Applies a model to one image after the other, without its padding."""

  def of_one(row, patches, *others):
    h, w = GRIDS[row]
    one = jax.tree.map(lambda x: x[row : row + 1], (patches, *others))
    patches = one[0].replace(
      values=one[0].values[:, : h * w],
      place=one[0].place[:, : h * w],
      image=one[0].image[:, : h * w],
    )
    x = (patches, *one[1:]) if others else patches
    return model.apply({"params": params}, x)

  def apply(inputs, **_):
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    answers = [of_one(row, *inputs) for row in range(B)]
    return jax.tree.map(joined, *answers)

  return apply


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_the_loss_of_padded_rows_is_that_of_each_image_alone(name):
  make, objective, targets = KINDS[name]
  model = make()
  data = batch() | jax.tree.map(jnp.asarray, targets)
  inputs, targets = objective.prepare(data, jax.random.key(0))
  example = jnp.zeros((1, 12, 12, 3))
  if isinstance(inputs, tuple):
    example = example, TEXTS[:1]
  params = jax.tree.map(jnp.asarray, random_params(model, example))

  def padded(inputs, **_):
    return model.apply({"params": params}, inputs)

  context = StepContext(step=jnp.int32(0), state=None, frozen={})
  found = objective.loss(padded, inputs, targets, context)
  expected = objective.loss(alone(model, params), inputs, targets, context)
  assert found.value.shape == (B,)
  for one, other in (
    (found.value, expected.value),
    (found.score, expected.score),
  ):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def autoencoder_of(encoder, rate):
  sizes = dict(decoder_size=8, decoder_layers=1, decoder_heads=2)
  model = autoencoder(encoder, **sizes)
  return model, Reconstruction(rate, True, P, HALF, HALF)


@pytest.mark.parametrize("rate", [0.75, 0.4])
def test_an_image_hides_its_own_share_of_its_own_patches(rate):

  @jax.jit
  def drawn(batch):
    patches: Any = inputs_of(batch, HALF, HALF)
    return draw_of_rows(jax.random.key(0), jnp.arange(B), patches.layout, rate)

  draw = jax.device_get(drawn(batch()))
  for row, (h, w) in enumerate(GRIDS):
    n = h * w
    shown = max(1, int(n * (1 - rate)))
    seen, hidden = (draw[k][row] for k in ("seen", "hidden"))
    seen, hidden = seen[seen < n], hidden[hidden < n]
    assert len(seen) == shown and len(hidden) == n - shown
    assert sorted([*seen, *hidden]) == [*range(n)]


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["gap", "token"])
@pytest.mark.parametrize("rate", [0.75, 0.4])
def test_an_autoencoder_fills_in_each_image_as_if_it_were_alone(rate, pooling):
  encoder = make_vit("Ti/4", 0, **SIZES, pooling=pooling, position="sincos2d")
  model, objective = autoencoder_of(encoder, rate)
  example = jnp.zeros((1, 12, 12, 3))
  params = jax.tree.map(jnp.asarray, random_params(model, example))
  images: Any
  images, targets = objective.prepare(batch(), jax.random.key(1))
  context = StepContext(step=jnp.int32(0), state=None, frozen={})

  def apply(inputs, draw):
    return model.apply({"params": params, "draw": draw}, inputs)

  found = objective.loss(apply, images, targets, context).value
  for row, (h, w) in enumerate(GRIDS):
    # The same patches hidden of the image, as one of a single size.
    n = h * w
    kept = {}
    for name, places in targets["draw"].items():
      places = np.asarray(places[row])
      kept[name] = jnp.asarray(places[places < n])[None]
    grid = images.values[row, :n].reshape(h, w, P, P, 3)
    image = grid.swapaxes(1, 2).reshape(1, h * P, w * P, 3)
    alone = {"draw": kept, "pixels": objective.targets(image, kept)}
    expected = objective.loss(apply, image, alone, context).value
    np.testing.assert_allclose(found[row], expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_padding_changes_no_draw_and_no_gradient():
  model, objective = autoencoder_of(vit(position="sincos2d"), 0.75)
  example = jnp.zeros((1, 12, 12, 3))
  params = jax.tree.map(jnp.asarray, random_params(model, example))
  context = StepContext(step=jnp.int32(0), state=None, frozen={})
  short = batch(rows=slice(0, 1), tokens=9)  # Nine patches, and no padding.
  long = batch(rows=slice(0, 1))

  def loss(params, data):
    images, targets = objective.prepare(data, jax.random.key(1))

    def apply(inputs, draw):
      return model.apply({"params": params, "draw": draw}, inputs)

    return objective.loss(apply, images, targets, context).value.mean()

  for one, other in zip(
    jax.tree.leaves(jax.value_and_grad(loss)(params, short)),
    jax.tree.leaves(jax.value_and_grad(loss)(params, long)),
    strict=True,
  ):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_an_autoencoder_takes_rows_of_one_image():
  model, _ = autoencoder_of(vit(position="sincos2d"), 0.75)
  example = jnp.zeros((1, 12, 12, 3))
  params = jax.tree.map(jnp.asarray, random_params(model, example))
  two = {"image": batch()["image"][:1], "size": jnp.ones((1, 2, 2), jnp.int32)}
  with pytest.raises(ValueError, match="up to 2 images, and an autoencoder"):
    model.apply({"params": params}, inputs_of(two, HALF, HALF))
