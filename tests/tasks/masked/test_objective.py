"""Masked patches: the draw, the targets and the losses, against NumPy."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rows import some_slow
from tests.tiny import SIZES
from vit_jax.models import make_vit
from vit_jax.models.masked_vit import MASK, masked_vit
from vit_jax.tasks.masked.objective import (
  COLOURS,
  Masking,
  draw_patches,
  mean_colours,
)
from vit_jax.tasks.masked.settings import TARGETS
from vit_jax.training import sharding
from vit_jax.training.losses import StepContext
from vit_jax.training.optimizer import make_optimizer
from vit_jax.training.settings import OptimizerSettings
from vit_jax.training.state import make_init
from vit_jax.training.step import make_train_step

HALF = (0.5, 0.5, 0.5)
KEY = jax.random.key(3)
draw = jax.jit(draw_patches, static_argnums=(2, 3))
colours_of = jax.jit(mean_colours, static_argnums=(1, 2))


def _images(B=3, H=8, W=12, seed=0):
  rng = np.random.default_rng(seed)
  return rng.integers(0, 256, (B, H, W, 3), np.uint8)


@pytest.mark.parametrize(
  "N, rate, M", some_slow([(9, 0.5, 4), (16, 0.15, 2)], [(9, 0.5, 4)])
)
def test_shares_of_the_corrupted_patches(N, rate, M):
  B = 4000
  found = jax.device_get(draw(KEY, np.arange(B), N, rate))
  where, source = found["where"], found["source"]
  assert where.shape == (B, M) and source.shape == (B, N)
  chosen = np.zeros((B, N), bool)
  np.put_along_axis(chosen, where, True, axis=1)
  assert (chosen.sum(axis=1) == M).all()  # All are different.
  np.testing.assert_allclose(chosen.mean(axis=0), M / N, atol=0.04)
  own = np.broadcast_to(np.arange(N), (B, N))
  assert (source == own)[~chosen].all()
  is_mask, stays = source[chosen] == MASK, (source == own)[chosen]
  deviation = 4 * np.sqrt(0.16 / (B * M))
  assert is_mask.mean() == pytest.approx(0.8, abs=deviation)
  assert stays.mean() == pytest.approx(0.1, abs=deviation)
  other = chosen & (source != MASK) & (source != own)
  offsets = (source - own)[other] % N
  shares = np.bincount(offsets, minlength=N)[1:] / offsets.size
  np.testing.assert_allclose(shares, 1 / (N - 1), atol=0.05)
  # The draw of an example depends on the key and on its number alone.
  again = draw(KEY, np.arange(B)[::-1], N, rate)
  np.testing.assert_array_equal(np.asarray(again["source"])[::-1], source)
  others = draw(jax.random.key(4), np.arange(B), N, rate)
  assert (np.asarray(others["source"]) != source).any()


@pytest.mark.slow
def test_eight_devices_draw_as_one():
  masking = Masking(0.5, "colour4x4", 4, HALF, HALF)
  batch = {"image": _images(B=16)}
  one = jax.jit(masking.prepare)(batch, KEY)
  rows = sharding.batch_sharding(sharding.make_mesh(4, 2))
  split = {"image": jax.device_put(batch["image"], rows)}
  eight = jax.jit(masking.prepare, in_shardings=(rows, None))(split, KEY)
  assert len(eight[0].sharding.device_set) == 8
  jax.tree.map(np.testing.assert_array_equal, one, eight)


def test_every_target_has_outputs():
  found = [Masking(0.5, t, 4, HALF, HALF).outputs for t in TARGETS]
  assert found == [512, 16 * 512, 4 * 4 * 3]


@pytest.mark.parametrize("parts", [1, 4])
def test_colours_against_a_loop(parts):
  images = _images(H=16, W=24)
  images[0, :8, :8], images[1, :8, :8] = 31, 32  # The edge of a level.
  images[2, :8, :8] = np.tile([31, 33], (8, 4))[..., None]  # Their mean is 32.
  found = np.array(colours_of(images, 8, parts))
  side = 8 // parts
  for b, image in enumerate(images):
    for n in range(6):
      top, left = n // 3 * 8, n % 3 * 8
      for k in range(parts**2):
        y, x = top + k // parts * side, left + k % parts * side
        part = image[y : y + side, x : x + side].reshape(-1, 3)
        red, green, blue = (int(v) // 32 for v in part.astype(float).mean(0))
        assert found[b, n, k] == 64 * red + 8 * green + blue


def _softmax_loss(logits, colours):
  shifted = logits - logits.max(axis=-1, keepdims=True)
  log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
  return -np.take_along_axis(log_p, colours[..., None], axis=-1)[..., 0]


@pytest.mark.parametrize(
  "target, outputs",
  [("colour", 512), pytest.param("colour4x4", 8192, marks=pytest.mark.slow)],
)
def test_the_loss_of_colours(target, outputs):
  masking = Masking(0.5, target, 4, HALF, HALF)
  prepare = jax.jit(masking.prepare)
  images, targets = prepare({"image": _images()}, KEY)
  predicted = np.random.default_rng(1).normal(size=(3, 3, outputs))
  predicted = predicted.astype(np.float32)
  on_device = jnp.array(predicted)

  def apply(images, corruption):
    return on_device

  found = jax.jit(lambda *given: masking.loss(apply, *given, StepContext()))(
    images, targets
  )
  colours = np.array(targets["colours"])
  whole = np.array(colours_of(_images(), 4, 1 if outputs == 512 else 4))
  where = np.array(targets["draw"]["where"])
  for b in range(3):
    np.testing.assert_array_equal(colours[b], whole[b, where[b]])
  by_part = predicted.reshape(3, 3, -1, COLOURS)
  expected = _softmax_loss(by_part, colours).mean(axis=(1, 2))
  np.testing.assert_allclose(found.value, expected, rtol=1e-5)
  answers = by_part.argmax(axis=-1)
  np.testing.assert_array_equal(jax.jit(masking.colours)(on_device), answers)
  right = (answers == colours).mean(axis=(1, 2))
  np.testing.assert_allclose(found.score, right)


@pytest.mark.slow
def test_the_loss_of_pixels_and_the_colour_they_mean():
  mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
  masking = Masking(0.5, "pixels", 4, mean, std)
  raw = _images()
  images, targets = masking.prepare({"image": jnp.array(raw)}, KEY)
  np.testing.assert_allclose(images, (raw / 255 - mean) / std, atol=1e-5)
  where = np.array(targets["draw"]["where"])
  truth = np.empty((3, 3, 48), np.float32)
  for b in range(3):
    for m, n in enumerate(where[b]):
      y, x = n // 3 * 4, n % 3 * 4
      truth[b, m] = np.array(images)[b, y : y + 4, x : x + 4].ravel()
  predicted = truth + 0.25
  found = masking.loss_of(jnp.array(predicted), targets)
  np.testing.assert_allclose(found, 0.0625, rtol=1e-4)
  colours = masking.colours(jnp.array(truth + 1e-4))
  np.testing.assert_array_equal(colours, targets["colours"])


def test_patches_that_do_not_split_into_sixteen_are_refused():
  with pytest.raises(ValueError, match="have 14 pixels a side: take 'colour'"):
    Masking(0.5, "colour4x4", 14, HALF, HALF)


def _losses(axes, parts):
  """The losses of three steps on a mesh, in parts."""
  model = make_vit("Ti/4", 0, **SIZES)
  masking = Masking(0.5, "colour", 4, HALF, HALF)
  model = masked_vit(model, masking.outputs)
  tx = make_optimizer(OptimizerSettings(), lambda _: 1e-2)
  init = make_init(model, tx, (8, 12, 3))
  step = make_train_step(
    model, tx, lambda _: 1e-2, objective=masking, accumulation_steps=parts
  )
  devices = jax.devices()[: int(np.prod(axes))]
  mesh = sharding.make_mesh(*axes, devices=devices)
  shapes = sharding.array_shapes(init, mesh)
  make = jax.jit(
    lambda key: nn.unbox(init(key)), out_shardings=sharding.shardings_of(shapes)
  )
  state, found = make(jax.random.key(0)), []
  step = sharding.jit_train_step(step, shapes, mesh)
  batches = [{"image": _images(B=16, seed=n)} for n in range(3)]
  rows = sharding.batch_sharding(mesh)
  for batch in sharding.to_device(batches, rows, ahead=1):
    state, metrics = step(state, batch)
    found.append(float(metrics["loss"]))
  return found


@pytest.mark.slow
def test_neither_devices_nor_accumulation_change_a_step():
  expected = _losses((1, 1, 1), 1)
  assert expected[0] == pytest.approx(np.log(512), rel=1e-5)
  np.testing.assert_allclose(_losses((2, 2, 2), 2), expected, rtol=1e-4)
