"""Crops of several sizes: each batch has one, and is a batch of it alone."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import dino
from tests.image_files import write_noise
from tests.tasks import made_up
from tests.tiny import SIZES, compilations, random_params
from vit_jax import make_vit
from vit_jax.data.batch import batch_spec, by_share, row_spec
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.labels import NONE
from vit_jax.run import loop
from vit_jax.run.plan import make_plan
from vit_jax.run.settings import read
from vit_jax.run.summary import header
from vit_jax.runtime.settings import check_needs
from vit_jax.training import sharding
from vit_jax.training.losses import StepContext
from vit_jax.training.schedules import RunLength

B = 8  # A run has an image for each device.
# Sides of large, small and detailed crops, and shares: patches have 4 pixels.
ROWS = (8, 4, 12, 0.3), (16, 8, 24, 0.7)
SMALL = dict(
  ema_decay=0.9,
  image_size=(12, 12),
  batch_size=B,
  self_distillation__prototypes=12,
  self_distillation__head_size=16,
  self_distillation__bottleneck=8,
  self_distillation__small_crops=2,
  self_distillation__gram_weight=1.5,
)


def plan_of(block=None, **changes):
  given = made_up.settings(**SMALL | changes)
  task = made_up.task(**SMALL | changes)
  fields = SIZES if block is None else SIZES | {"block": block}
  model = task.adapted(make_vit("Ti/4", 0, **fields))
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  return dataclasses.replace(made_up.plan(given, task, model), mesh=mesh)


def sized(*rows, **changes):
  return plan_of(self_distillation__crop_sizes=rows, **changes)


def batches_of(plan):
  """A batch of noise for each size."""
  found = []
  for transform, _ in by_share(plan.train_transform):
    spec = batch_spec(row_spec(transform, NONE.spec(1)), B)
    rng = np.random.default_rng(0)
    batch = {
      name: rng.integers(0, 256, one.shape).astype(one.dtype)
      for name, one in spec.items()
    }
    batch["skipped"][:] = False
    found.append(jax.device_put(batch, sharding.batch_sharding(plan.mesh)))
  return found


def first_state(plan):
  shardings = sharding.shardings_of(plan.shapes)
  init = jax.jit(lambda key: nn.unbox(plan.init(key)), out_shardings=shardings)
  return init(jax.random.key(0))


def losses(metrics):
  """The parts of the loss, and the gradient's norm."""
  metrics = jax.device_get(metrics)
  names = [k for k in metrics if k.endswith("loss")] + ["gradient_norm"]
  assert np.isfinite([metrics[k] for k in names]).all()
  assert not metrics["skipped_steps"] and metrics["gradient_norm"] > 0
  assert {"class_loss", "patch_loss", "koleo_loss", "gram_loss"} <= {*names}
  return {name: float(metrics[name]) for name in names}


@pytest.mark.slow
def test_a_batch_of_a_size_is_that_of_a_run_of_that_size_alone():
  """To the bit; and each size has one program, compiled before the steps."""
  plan = sized(*ROWS)
  batches = batches_of(plan)
  with sharding.compile_meanwhile(plan.jitted_step, *plan.step_shapes) as ready:
    states = [first_state(plan) for _ in batches]
  assert len(ready.programs) == 2
  found = []
  with compilations() as compiled:
    for k in (0, 1, 0, 1, 1):
      states[k], metrics = plan.jitted_step(states[k], batches[k])
      found.append((k, metrics))
    jax.block_until_ready(states)
  assert compiled == []
  for k, row in enumerate(ROWS):
    alone = sized((*row[:3], 1.0))
    (batch,) = batches_of(alone)
    assert {n: x.shape for n, x in batch.items()} == {
      n: x.shape for n, x in batches[k].items()
    }
    assert batch["detailed"].shape == (B, 2, row[2], row[2], 3)
    state = first_state(alone)
    for metrics in (metrics for n, metrics in found if n == k):
      state, expected = alone.jitted_step(state, batch)
      assert losses(metrics) == losses(expected)
    jax.tree.map(np.testing.assert_array_equal, states[k], state)


@pytest.mark.slow
def test_rotary_positions_of_a_size_are_those_of_a_run_of_that_image_size():
  """Such a run has no sizes of crops; a table of positions would differ."""
  batches = batches_of(sized((8, 4, 16, 0.5), (16, 8, 32, 0.5)))
  plan = sized((8, 4, 16, 0.5), (16, 8, 32, 0.5), block="dinov3")
  for k, (large, small) in enumerate(((8, 4), (16, 8))):
    plain = plan_of(
      "dinov3",
      image_size=(large, large),
      self_distillation__small_size=small,
      self_distillation__gram_scale=2,
    )
    spec = {n: one.shape for n, one in plain.batch_spec.items()}
    assert spec == {n: x.shape for n, x in batches[k].items()}
    results = [
      losses(one.jitted_step(first_state(one), batches[k])[1])
      for one in (plan, plain)
    ]
    assert results[0] == pytest.approx(results[1], rel=1e-6)


def cubic(x):
  """The weight of a point at a distance, by cubic convolution (a = -0.75)."""
  x, a = abs(x), -0.75
  if x <= 1:
    return (a + 2) * x**3 - (a + 3) * x**2 + 1
  return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0


def resized(features, old, new):
  """Features (R, old, old, D) at new x new points, from four of each axis."""
  weights = np.zeros((new, old))
  for row in range(new):
    center = (row + 0.5) * old / new - 0.5
    first = int(np.floor(center)) - 1
    for place in range(first, first + 4):
      # What lies outside has the value of the edge.
      weights[row, np.clip(place, 0, old - 1)] += cubic(center - place)
  return np.einsum("Hh,Ww,rhwd->rHWd", weights, weights, features)


@pytest.mark.slow
def test_gram_anchors_of_each_size_are_those_of_numpy():
  plan: Any = sized(*ROWS)
  objective, model = plan.objective, plan.model
  params = random_params(model, (12, 12), 0)
  state = nn.unbox(jax.jit(objective.init)())

  def apply(images, **variables):
    return model.apply({"params": params, **variables}, images)

  @jax.jit
  def computed(inputs, targets):
    context = StepContext(jnp.int32(0), state, average_of=lambda: params)
    found = objective.loss(apply, inputs, targets, context)
    draw = {"masks": targets["masks"]}
    masked = apply(inputs["large"], draw=draw)["features"]
    return found.metrics["gram_loss"], masked

  for batch, (large, _, detail, _) in zip(batches_of(plan), ROWS, strict=True):
    inputs = objective.inputs(batch)
    assert inputs["detailed"].shape == (2 * B, detail, detail, 3)
    old, new = detail // 4, large // 4
    read_patches = jax.jit(model.apply, static_argnames="method")
    features = read_patches(
      {"params": params}, inputs["detailed"], method="patch_features"
    )
    features = np.float64(features).reshape(2 * B, old, old, -1)
    expected = resized(features, old, new).reshape(2 * B, new * new, -1)
    find = jax.jit(objective.anchors, static_argnums=2)
    found = find(params, inputs["detailed"], (new, new))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # And the loss compares with these.
    _, targets = jax.jit(objective.prepare)(batch, jax.random.key(0))
    gram_loss, masked = computed(inputs, targets)
    x, y = (
      np.float64(z) / np.linalg.norm(z, axis=-1, keepdims=True)
      for z in (masked, expected)
    )
    difference = x @ x.swapaxes(1, 2) - y @ y.swapaxes(1, 2)
    gram = np.square(difference).mean()
    assert float(gram_loss) == pytest.approx(gram, rel=1e-4)


def config_of(folder, **changes):
  """A run of six steps of a tiny model on a folder."""
  write_noise(folder, "a", count=24, size=(20, 20))
  config = dino.get_config()
  config.data.root = str(folder)
  config.self_distillation.update(prototypes=12, head_size=16, bottleneck=8)
  config.self_distillation.update(small_crops=2, gram_weight=1.5)
  config.self_distillation.update(
    crop_sizes=((8, 4, 12, 0.5), (16, 8, 24, 0.5))
  )
  config.self_distillation.update(changes)
  config.update(total_epochs=0.0, total_steps=6, image_size=(12, 12))
  config.update(batch_size=B, eval_every_epochs=0.0, save_every_epochs=0.0)
  config.update(save_every_steps=3, log_every_epochs=0.0, log_every_steps=1)
  config.update(loader=dict(num_workers=0), fewshot=dict(neighbours=0))
  config.optimizer.update(warmup_epochs=0.0)
  fields = dict(num_layers=1, hidden_size=8, mlp_size=16, num_heads=2)
  config.model.update(variant="Ti/4", **fields)
  return config


@pytest.mark.slow
def test_a_run_that_is_resumed_has_the_same_sizes_and_states(tmp_path):
  settings = read(config_of(tmp_path / "photos"))
  drawn = [
    make_plan(settings).train_transform.of_batch(settings.seed, k).size
    for k in range(6)
  ]
  assert len({*drawn[:3]}) == len({*drawn[3:]}) == 2
  with make_plan(settings).open_batches(3) as batches:
    sizes = [next(batches)["image"].shape[1:3] for _ in range(3)]
  assert sizes == drawn[3:]

  class Crash(Exception):
    pass

  def crash(step, *_):
    if step == 4:
      raise Crash

  whole, _ = loop.train(settings, str(tmp_path / "whole"))
  with pytest.raises(Crash):
    loop.train(settings, str(tmp_path / "run"), on_step=[crash])
  resumed, _ = loop.train(settings, str(tmp_path / "run"))
  jax.tree.map(np.testing.assert_array_equal, whole, resumed)


@pytest.mark.slow
def test_the_header_says_the_sizes_and_their_shares(tmp_path):
  plan = make_plan(read(config_of(tmp_path)))
  rows = dict(header(plan, "runs/x"))
  assert rows["crops"] == (
    "drawn for each batch, 50.0%: 2 crops of 8 x 8 and 2 of 4 x 4, at 12 x 12 "
    "for the Gram teacher; 50.0%: 2 crops of 16 x 16 and 2 of 8 x 8, at 24 x "
    "24 for the Gram teacher"
  )
  one, other = (work.forward for work in plan.operations_by_shape)
  assert 2 < other / one < 8
  mean = f"{(one + other) / 2:.3g} GFLOP per image on average"
  text = f"{mean}; the step is compiled for 2 sizes of crops"
  assert rows["model"].endswith(text)


@pytest.mark.parametrize(
  "rows, changes, message",
  [
    (((10, 4, 12, 1.0),), {}, "has 10, which does not divide by the model's"),
    (((8, 4, 14, 1.0),), {}, "has 14, which .* 4 pixels: set 12 or 16"),
    (((8, 4, 12, 0.3), (8, 4, 8, 0.5)), {}, r"0.3 \+ 0.5 = 0.8, the last num"),
    (((8, 12, 12, 1.0),), {}, "small crops of 12 pixels are larger than large"),
    (((12, 4, 8, 1.0),), {}, "has to see large crops at 12 pixels or more"),
    (((8, 0, 12, 1.0),), {}, "12, and small_crops=2: the second number must"),
    (((8, 4, 0, 1.0),), {}, "4, 0, and gram_weight=1.5: the third number"),
    (((8, 4, 12, 1.0),), {"gram_weight": 0.0}, "gram_weight=0: the third num"),
    (((8, 4, 12, 1.0),), {"gram_scale": 2}, "gram_scale=2 has no effect besi"),
    (((8, 4, 12),), {}, "must be rows of three sides in pixels, up to 4,096"),
    (((8, 4, 12, 1.5), (8, 4, 8, -0.5)), {}, "a share of the batches above 0"),
    (((8_000, 4, 8_000, 1.0),), {}, "must be rows of three sides in pixels"),
    (8, {}, "crop_sizes=8 must be rows of three sides in pixels"),
  ],
)
def test_sizes_that_do_not_fit_are_refused_in_a_line(rows, changes, message):
  given = {f"self_distillation__{k}": v for k, v in changes.items()}
  with pytest.raises(ValueError, match=message) as error:
    _ = plan_of(self_distillation__crop_sizes=rows, **given).objective
  assert len(str(error.value).splitlines()) == 1
  assert "crop_sizes" in str(error.value)


def test_sizes_need_an_objective_with_crops_and_positions_that_fit():
  given = made_up.settings(self_distillation__crop_sizes=((8, 4, 0, 1.0),))
  with pytest.raises(
    ValueError, match="crop_sizes=.* has no effect without .*prototypes: set"
  ):
    check_needs(given)
  changes = dict(SMALL, image_size=None)
  for name, value in (
    ("crop_sizes", ((8, 0, 0, 0.5), (12, 0, 0, 0.5))),
    ("small_crops", 0),
    ("gram_weight", 0.0),
  ):
    changes[f"self_distillation__{name}"] = value
  task = made_up.task(**changes)
  model = task.adapted(make_vit("Ti/4", 0, **SIZES))
  objective = task.objective(model, Preprocessing((8, 8)))
  with pytest.raises(
    ValueError, match="image_size is not set, and the model's"
  ):
    objective.for_run(model, RunLength(10, B, B))


def test_no_small_crops_and_no_gram_teacher():
  plan = sized(
    (8, 0, 0, 0.5),
    (12, 0, 0, 0.5),
    self_distillation__small_crops=0,
    self_distillation__gram_weight=0.0,
  )
  for (transform, share), side in zip(
    by_share(plan.train_transform), (8, 12), strict=True
  ):
    assert share == 0.5 and {*transform.spec} == {"image", "second"}
    assert transform.spec["image"].shape == (side, side, 3)
