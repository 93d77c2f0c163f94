"""Self-distillation: losses, centers, masks and measures, by NumPy."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tasks import made_up
from tests.tasks.made_up import HALF
from tests.tiny import SIZES, random_params
from vit_jax import make_vit
from vit_jax.data.batch import allocate
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.settings import TrainTransformSettings
from vit_jax.models import make_model
from vit_jax.models.parts import Parts
from vit_jax.tasks.features import FeaturesOutcome, Moments
from vit_jax.tasks.self_distillation import losses
from vit_jax.tasks.self_distillation.objective import block_masks, masked_places
from vit_jax.tasks.self_distillation.pictures import as_colours, make_panels
from vit_jax.tasks.self_distillation.task import clip_by_part, last_layers
from vit_jax.training.losses import StepContext
from vit_jax.training.schedules import RunLength

B, K, N = 4, 12, 4
SMALL = dict(
  ema_decay=0.9,
  image_size=(8, 8),
  self_distillation__prototypes=K,
  self_distillation__head_size=16,
  self_distillation__bottleneck=8,
  self_distillation__small_size=4,
  self_distillation__small_crops=3,
)
RNG = np.random.default_rng(0)
# Compiled whole, which takes a tenth of the time of each operation by itself.
sinkhorn_knopp = jax.jit(losses.sinkhorn_knopp, static_argnums=1)
next_center = jax.jit(losses.next_center, static_argnums=2)
class_loss = jax.jit(losses.class_loss, static_argnums=3)


def normal(*shape):
  return RNG.normal(size=shape).astype(np.float32)


def softmax(x, axis=-1):
  e = np.exp(np.float64(x) - np.max(x, axis=axis, keepdims=True))
  return e / e.sum(axis=axis, keepdims=True)


def cross(t, s, temperature):
  return -(t * np.log(softmax(s / temperature))).sum(axis=-1)


def task_and_model(variant="Ti/4", block=None, **changes):
  task = made_up.task(**SMALL | changes)
  fields = SIZES if block is None else SIZES | {"block": block}
  return task, task.adapted(make_vit(variant, 0, **fields))


def batch(seed=0, rows=B):
  task, model = task_and_model()
  given = made_up.settings(**SMALL | {"batch_size": rows})
  spec = made_up.plan(given, task, model).batch_spec
  rng = np.random.default_rng(seed)
  made = allocate(spec)
  for name in ("image", "second", "small"):
    made[name][:] = rng.integers(0, 256, made[name].shape)
  return jax.tree.map(jnp.array, made)


def test_the_teachers_answers_are_centered_and_sharpened():
  answers, center = normal(6, K), normal(K)
  expected = softmax((answers - center) / 0.05)
  found = losses.centered(jnp.array(answers), jnp.array(center), 0.05)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_sinkhorn_knopp_uses_prototypes_alike():
  answers, counts = normal(9, K), np.arange(9) % 3 > 0
  Q = np.exp(np.float64(answers[counts]) / 0.05)
  Q /= Q.sum()
  for _ in range(3):
    Q /= Q.sum(axis=0) * K
    Q /= Q.sum(axis=1, keepdims=True) * counts.sum()
  found = np.asarray(sinkhorn_knopp(answers, 0.05, counts))
  expected = Q * counts.sum()
  np.testing.assert_allclose(found[counts], expected, rtol=1e-4, atol=1e-7)
  assert not found[~counts].any()
  none = sinkhorn_knopp(answers, 0.05, np.zeros(9, bool))
  assert np.isfinite(none).all()


def test_the_center_moves_to_the_mean_of_what_counts():
  center, expected = np.zeros(K, np.float32), np.zeros(K)
  for _ in range(20):
    rows, counts = normal(7, K), RNG.random(7) < 0.5
    center = next_center(center, rows, 0.9, counts)
    mean = rows[counts].mean(axis=0) if counts.any() else expected
    expected = 0.9 * expected + 0.1 * mean
  np.testing.assert_allclose(center, expected, atol=1e-6)


def test_class_and_patch_losses():
  taught = softmax(normal(B, 2, K))
  large, small = normal(B, 2, K), normal(B, 3, K)
  expected = np.zeros(B)
  for s in range(2):
    expected += cross(taught[:, 1 - s], large[:, s], 0.1)
  for s in range(3):
    for t in range(2):
      expected += cross(taught[:, t], small[:, s], 0.1)
  taught = np.float32(taught)
  found = class_loss(taught, large, small, 0.1)
  np.testing.assert_allclose(found, expected / (2 + 6), rtol=1e-5)
  alone = class_loss(taught, large, None, 0.1)
  pairs = cross(taught[:, ::-1], large, 0.1).sum(axis=1)
  np.testing.assert_allclose(alone, pairs / 3, rtol=1e-5)

  taught, answers = softmax(normal(5, 3, K)), normal(5, 3, K)
  counts = np.array([[1, 1, 0], [0, 0, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]]) > 0
  expected = [
    cross(t[c], s[c], 0.1).mean() if c.any() else 0.0
    for t, s, c in zip(taught, answers, counts, strict=True)
  ]
  patch_loss = jax.jit(losses.patch_loss, static_argnums=3)
  found = patch_loss(np.float32(taught), answers, counts, 0.1)
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("apart", [1e-1, 1e-3, 1e-4])
def test_the_nearest_is_found_among_features_that_are_nearly_equal(apart):
  """Beside all distances in float64; cosines in float32 would be 1 there."""
  x = RNG.normal(size=(1, 16)) + apart * RNG.normal(size=(24, 16))
  x = np.float32(x / np.linalg.norm(x, axis=1, keepdims=True))
  distances = np.linalg.norm(np.float64(x)[:, None] - np.float64(x), axis=2)
  np.fill_diagonal(distances, np.inf)
  expected = -np.log(distances.min(axis=1))
  np.testing.assert_allclose(losses.koleo(jnp.asarray(x)), expected, atol=1e-2)


def test_koleo_is_the_distance_to_the_nearest_by_finite_differences():
  x = RNG.normal(size=(6, 5))

  def loss(x):
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    distances = np.linalg.norm(u[:, None] - u[None] + 1e-8, axis=2)
    np.fill_diagonal(distances, np.inf)
    return -np.log(distances.min(axis=1) + 1e-8)

  def ours(x):
    return losses.koleo(x).mean()

  value_and_slope = jax.jit(jax.value_and_grad(ours))
  value, slope = value_and_slope(jnp.array(x, jnp.float32))
  assert float(value) == pytest.approx(loss(x).mean(), rel=1e-5)
  for place in ((0, 0), (3, 2), (5, 4)):
    step = np.zeros_like(x)
    step[place] = 1e-6
    change = (loss(x + step).mean() - loss(x - step).mean()) / 2e-6
    assert float(slope[place]) == pytest.approx(change, rel=1e-3, abs=1e-5)
  _, same = value_and_slope(jnp.ones_like(slope))
  assert np.isfinite(same).all()


def test_a_collapse_is_told_by_entropy_deviation_and_rank():
  uniform = np.full(K, 1 / K, np.float32)
  rows = np.stack([uniform, np.eye(K, dtype=np.float32)[1]])
  entropy = jax.jit(losses.entropy)(rows)
  assert entropy.tolist() == pytest.approx([1, 0], abs=1e-6)
  deviation = jax.jit(losses.deviation)
  same = np.ones((4, 4), np.float32)
  assert float(deviation(same)) == pytest.approx(0, abs=1e-6)
  found = float(deviation(np.eye(4, dtype=np.float32)))
  assert found == pytest.approx(np.sqrt(3 / 4))

  def outcome(features, shift):
    z = np.asarray(features, np.float64) - shift
    moments = Moments(len(z), shift, z.sum(0), z.T @ z)
    totals = {"features": moments, "examples": len(z)}
    totals |= {"loss": 3.0, "entropy": 1.0, "skipped_images": 1}
    totals |= {"unanswered": 0}
    return FeaturesOutcome(totals, "entropy", ", or wait")

  good = outcome(np.eye(4), np.full(4, 0.3))
  assert good.scores["rank"] == pytest.approx(1)
  assert good.scores["deviation"] == pytest.approx(np.sqrt(3 / 4))
  assert not good.warnings and good.metrics["eval/examples"] == 4
  unit = np.ones((6, 4)) / 2 + 1e-3 * RNG.normal(size=(6, 4))
  unit /= np.linalg.norm(unit, axis=1, keepdims=True)
  singular = np.linalg.svd(unit, compute_uv=False)
  shares = singular / singular.sum()
  rank = np.exp(-(shares * np.log(shares)).sum())
  bad = outcome(unit, unit[0])
  assert bad.scores["rank"] == pytest.approx(rank / 4, rel=1e-3)
  (line,) = bad.warnings
  assert "may have collapsed: all images get nearly the same" in line


def test_masks_are_blocks_in_a_share_of_the_crops():
  grid, crops = (8, 8), 64
  masks = jax.jit(block_masks, static_argnums=(1, 2, 3, 4))(
    jax.random.key(0), crops, grid, 0.5, (0.1, 0.5)
  )
  counts = np.asarray(masks).sum(axis=1)
  assert (counts > 0).sum() == 32 and counts.max() <= 32
  assert 0.2 < counts[counts > 0].mean() / 64 < 0.35  # 0.3 is wanted.
  found = masked_places(masks, 32)
  for mask, where, given in zip(
    *map(np.asarray, (masks, found["where"], found["counts"])), strict=True
  ):
    assert where[given].tolist() == np.flatnonzero(mask).tolist()
  # Most masked patches have a masked neighbour to the right or below.
  boxes = np.asarray(masks).reshape(crops, *grid)
  pairs = (boxes[:, 1:] & boxes[:, :-1]).sum() + (
    boxes[..., 1:] & boxes[..., :-1]
  ).sum()
  assert pairs > 1.2 * boxes.sum()


@pytest.mark.parametrize(
  "centering, separate",
  [
    pytest.param("mean", False, marks=pytest.mark.slow),
    pytest.param("sinkhorn", True, marks=pytest.mark.slow),
    pytest.param("mean", True, marks=pytest.mark.slow),
  ],
)
def test_a_step_is_made_of_its_parts(centering, separate):
  """The teacher sees no masks; centers are those before the step."""
  task, model = task_and_model(
    self_distillation__centering=centering,
    self_distillation__separate_head=separate,
    self_distillation__temperature_warmup_steps=5,
  )
  plain = task.objective(model, Preprocessing((8, 8)))
  objective = plain.for_run(model, RunLength(10, B, B))
  student, teacher = (random_params(model, (8, 8), seed) for seed in (0, 1))
  assert ("patch_head" in student) == separate
  one = batch()
  inputs, targets = jax.jit(objective.prepare)(one, jax.random.key(3))
  state = objective.init()
  if centering == "mean":
    names = ("class", "patch")
    state = {k: jnp.array(normal(K)) for k in names}
    assert jax.tree.map(jnp.shape, objective.init()) is not None

  @jax.jit
  def apply(images, **variables):
    return model.apply({"params": student, **variables}, images)

  @jax.jit
  def computed(state, inputs, targets):
    context = StepContext(jnp.int32(2), state, average_of=lambda: teacher)
    return objective.loss(apply, inputs, targets, context)

  found = computed(state, inputs, targets)
  loss, metrics, after = found.value, found.metrics, found.state
  mask, where, counts = (
    np.asarray(targets[k]) for k in ("masks", "where", "counts")
  )
  draw = {"where": targets["where"]}
  taught = jax.jit(model.apply)(
    {"params": teacher, "draw": draw}, inputs["large"]
  )
  draw["masks"] = targets["masks"]
  large = apply(inputs["large"], draw=draw)
  small = np.asarray(apply(inputs["small"])["answers"]).reshape(B, 3, K)
  unmasked = apply(inputs["large"])["answers"]
  rows = mask.any(axis=1)
  differ = np.abs(np.asarray(unmasked) - large["answers"]).max(axis=1) > 1e-4
  assert (differ == rows).all() and 0 < rows.sum() <= B
  temperature = 0.04 + 0.03 * 2 / 4
  told, patches = np.asarray(taught["answers"]), np.asarray(taught["patches"])
  if centering == "mean":
    told = softmax((told - np.asarray(state["class"])) / temperature)
    patches = softmax((patches - np.asarray(state["patch"])) / temperature)
    expected = 0.9 * np.asarray(state["class"])
    expected = expected + 0.1 * np.asarray(taught["answers"]).mean(axis=0)
    np.testing.assert_allclose(after["class"], expected, rtol=1e-4, atol=1e-5)
    kept = np.asarray(taught["patches"])[counts].mean(axis=0)
    expected = 0.9 * np.asarray(state["patch"]) + 0.1 * kept
    np.testing.assert_allclose(after["patch"], expected, rtol=1e-4, atol=1e-5)
  else:
    assert after is None
    told = sinkhorn_knopp(told, temperature)
    flat = sinkhorn_knopp(
      patches.reshape(-1, K), temperature, counts.reshape(-1)
    )
    patches = np.asarray(flat).reshape(patches.shape)
  told = np.asarray(told).reshape(B, 2, K)
  answers = np.asarray(large["answers"]).reshape(B, 2, K)
  by_class = cross(told[:, ::-1], answers, 0.1).sum(axis=1)
  by_class += cross(told.sum(axis=1)[:, None], small, 0.1).sum(axis=1)
  by_patch = cross(patches, np.asarray(large["patches"]), 0.1)
  by_patch = np.where(counts, by_patch, 0).sum(1) / np.maximum(counts.sum(1), 1)
  y = jnp.reshape(large["y"], (B, 2, -1))
  spread = np.asarray(sum(map(jax.jit(losses.koleo), (y[:, 0], y[:, 1]))))
  by_patch = by_patch.reshape(B, 2).mean(axis=1)
  np.testing.assert_allclose(
    loss, by_class / 8 + by_patch + 0.1 * spread, rtol=1e-4
  )
  assert where.shape == (2 * B, 2)
  assert float(metrics["patch_loss"]) == pytest.approx(
    by_patch.mean(), rel=1e-4
  )
  assert float(metrics["teacher_temperature"]) == pytest.approx(temperature)
  momentum = 1 - 0.1 * (1 + np.cos(np.pi * 0.2)) / 2
  assert float(metrics["teacher_momentum"]) == pytest.approx(momentum)


def test_gram_anchoring_compares_the_products_of_patches():
  ours, theirs = normal(3, N, 5), normal(3, N, 5)
  products = [
    np.einsum("rnd,rmd->rnm", x, x)
    for x in (
      x / np.linalg.norm(x, axis=2, keepdims=True)
      for x in (np.float64(ours), np.float64(theirs))
    )
  ]
  expected = ((products[0] - products[1]) ** 2).mean(axis=(1, 2))
  gram = jax.jit(losses.gram)
  found = gram(ours, theirs)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  turned, _ = np.linalg.qr(normal(5, 5))  # Products know no directions.
  same = gram(ours, np.float32(3 * ours @ turned))
  np.testing.assert_allclose(same, np.zeros(3), atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("every", [0, 2])
def test_gram_anchoring_keeps_an_earlier_teacher_and_renews_it(every):
  task, model = task_and_model(
    self_distillation__gram_weight=2.0,
    self_distillation__gram_every_steps=every,
    self_distillation__patch_weight=0.0,
  )
  plain: Any = task.objective(model, Preprocessing((8, 8)))
  objective = plain.for_run(model, RunLength(10, B, B))
  without = dataclasses.replace(
    objective, settings=dataclasses.replace(objective.settings, gram_weight=0.0)
  )
  teachers = [random_params(model, (8, 8), seed) for seed in range(4)]
  student = teachers[3]
  inputs, targets = jax.jit(objective.prepare)(batch(), jax.random.key(0))

  def apply(images, **variables):
    return model.apply({"params": student, **variables}, images)

  @jax.jit
  def computed(step, state, average, kept):
    context = StepContext(step, state, average_of=lambda: average)
    found, rest = (
      one.loss(apply, inputs, targets, context) for one in (objective, without)
    )
    x_p = apply(inputs["large"])["features"]
    anchors = model.apply({"params": kept}, inputs["large"])["features"]
    expected = losses.gram(x_p, anchors).reshape(B, 2).mean(axis=1)
    return found.value - rest.value, found.state, expected

  state = nn.unbox(jax.jit(objective.init)())
  assert not any(
    np.any(x) for x in jax.tree.leaves(jax.device_get(state["gram"]))
  )
  for step, kept in enumerate([0, 0, 2 if every else 0, 2 if every else 0]):
    found, state, expected = computed(
      jnp.int32(step), state, teachers[step], teachers[kept]
    )
    np.testing.assert_allclose(found, 2 * expected, rtol=1e-4, atol=1e-5)
    encoder = {k: teachers[kept][k] for k in state["gram"]}
    own = teachers[kept].keys() - encoder.keys()
    assert own == {"class_head", "mask_token"}
    jax.tree.map(np.testing.assert_array_equal, state["gram"], encoder)


@pytest.mark.slow
def test_gram_anchoring_may_see_crops_at_twice_their_size():
  """By the cubic convolution half-way between points (a = -0.75), in NumPy."""
  task, model = task_and_model(
    self_distillation__gram_weight=1.0, self_distillation__gram_scale=2
  )
  assert task.train_transform(
    Preprocessing((8, 8)), TrainTransformSettings()
  ).spec["detailed"].shape == (2, 16, 16, 3)
  objective: Any = task.objective(model, Preprocessing((8, 8)))
  detailed = RNG.integers(0, 256, (B, 2, 16, 16, 3)).astype(np.uint8)
  inputs = objective.inputs(batch() | {"detailed": jnp.array(detailed)})
  assert inputs["detailed"].shape == (2 * B, 16, 16, 3)
  params = random_params(model, (8, 8), 0)
  features = jax.jit(model.apply, static_argnames="method")(
    {"params": params}, inputs["detailed"], method="patch_features"
  )
  features = np.float64(features).reshape(2 * B, 4, 4, -1)
  weights = np.array([[16, 19, -3, 0], [0, -3, 19, 16]]) / 32
  expected = np.einsum("Hh,Ww,rhwd->rHWd", weights, weights, features)
  anchors = jax.jit(lambda p, x: objective.anchors(p, x, (2, 2)))(
    params, inputs["detailed"]
  )
  np.testing.assert_allclose(
    anchors, expected.reshape(anchors.shape), atol=1e-5
  )
  state = nn.unbox(jax.jit(objective.init)())

  def apply(images, **variables):
    return model.apply({"params": params, **variables}, images)

  @jax.jit
  def computed(batch, state):
    context = StepContext(jnp.int32(0), state, average_of=lambda: params)
    inputs, targets = objective.prepare(batch, jax.random.key(0))
    found = objective.loss(apply, inputs, targets, context)
    x_p = apply(inputs["large"], draw={"masks": targets["masks"]})["features"]
    return found.metrics["gram_loss"], losses.gram(x_p, anchors).mean()

  found, expected = computed(batch() | {"detailed": detailed}, state)
  assert float(found) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.slow
def test_gradients_are_clipped_by_part_and_last_layers_can_be_held():
  task, model = task_and_model()
  params = random_params(model, (8, 8), 0)
  parts = Parts.of(model, params)
  tx = clip_by_part(0.5, parts)
  clipped, _ = jax.jit(tx.update)(params, tx.init(params))
  heads = {"class_head"}
  for names in (heads, params.keys() - heads):
    part = [{k: tree[k] for k in names} for tree in (params, clipped)]
    before, after = (
      np.sqrt(sum((np.float64(x) ** 2).sum() for x in jax.tree.leaves(tree)))
      for tree in part
    )
    assert before > 0.5 and after == pytest.approx(0.5, rel=1e-4)
  held = last_layers(params)
  assert held["class_head"]["direction"] and held["class_head"]["length"]
  assert sum(jax.tree.leaves(held)) == 2
  zero = task.optimizer(
    tx, parts, RunLength(10, B, B)
  )  # No last layer is held by default.
  assert jax.tree.leaves(zero.init(params)) == []
  task, _ = task_and_model(self_distillation__freeze_last_steps=2)
  tx = task.optimizer(clip_by_part(1e9, parts), parts, RunLength(10, B, B))
  state, update = tx.init(params), jax.jit(tx.update)
  for step in range(3):
    updates, state = update(params, state, params)
    moved = np.abs(updates["class_head"]["direction"]).sum() > 0
    assert moved == (step == 2)
    assert np.abs(updates["class_head"]["layer_0"]["kernel"]).sum() > 0


@pytest.mark.parametrize(
  "changes, variant, rows, message",
  [
    (
      {"ema_decay": 0.0},
      "Ti/4",
      4,
      "ema_decay=0.0 leaves self-distillation wi",
    ),
    (
      {"self_distillation__small_size": 6},
      "Ti/4",
      4,
      "small_size=6 does not divide by the model's patches of 4 pixels: set 4",
    ),
    (
      {"self_distillation__small_size": 12},
      "Ti/4",
      4,
      "small_size=12 is more than the large crops' image_size=.8, 8.: set a",
    ),
    ({}, "Ti/4", 1, "batch_size=1: KoLeo compares the images of a batch, so t"),
    ({}, "R50x1", 4, "a ResNet has no patches in its layers"),
    ({"image_size": None}, "Ti/4", 4, "image_size is not set, and the model's"),
    (
      {"self_distillation__min_area": 0.5},
      "Ti/4",
      4,
      "min_area=0.5 leaves no small crop below area=0.32: set min_",
    ),
    (
      {"self_distillation__mask_from": 0.6},
      "Ti/4",
      4,
      "mask_from=0.6 is more than mask_to=0.5: swap them",
    ),
  ],
)
def test_what_cannot_be_distilled_is_refused(changes, variant, rows, message):
  with pytest.raises(ValueError, match=message):
    task = made_up.task(**SMALL | changes)
    fields = SIZES if variant.startswith("Ti") else {}
    model = task.adapted(make_model(variant, 0, **fields))
    objective = task.objective(model, Preprocessing((8, 8)))
    objective.for_run(model, RunLength(10, rows, 9))


def test_a_batch_is_not_computed_in_parts():
  task, model = task_and_model()
  given = made_up.settings(**SMALL | {"accumulation_steps": 2})
  with pytest.raises(
    ValueError, match="^accumulation_steps=2 computes a batch"
  ):
    _ = made_up.plan(given, task, model).train_step


def test_features_are_drawn_as_colours():
  features = np.zeros((2, 3, 5))
  features[0, 1, 2], features[1, 2, 4] = 3.0, -1.0
  colours = as_colours(features)
  assert colours.shape == (2, 3, 3)
  first = colours[..., 0].astype(int)
  assert abs(first[0, 1] - np.median(first)) == 255 or np.ptp(first) == 255
  _, model = task_and_model()
  params = random_params(model, (8, 8), 0)
  draw = make_panels(model, Preprocessing((8, 8), mean=HALF, std=HALF))
  image = np.asarray(batch()["image"][0])
  sheets = draw(params, [(0, image, None), (1, image[::-1], None)])
  assert [sheet.shape for sheet in sheets] == [(192, 388, 3)] * 2
  np.testing.assert_array_equal(sheets[0][::24, :192:24], image)
  assert draw(params, []) == []
