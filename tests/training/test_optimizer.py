"""The optimizer against its formulas, in NumPy."""

import dataclasses
import functools

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vit_jax.models.parts import ENCODER, Part, Parts, Stack
from vit_jax.runtime.settings import untuned
from vit_jax.training.optimizer import (
  Measured,
  clip_to,
  make_optimizer,
  make_schedule,
  trainable_filter,
)
from vit_jax.training.settings import DECAYS, OPTIMIZERS, OptimizerSettings


@pytest.mark.parametrize("decay", ["cosine", "linear", "constant"])
def test_schedule_is_warm_up_then_decay(decay):
  settings = OptimizerSettings(peak_lr=2e-3, decay=decay, final_lr=1e-4)
  schedule = make_schedule(settings, total_steps=110, warmup_steps=10)
  for t in (0, 1, 5, 10, 11, 60, 109, 110):
    s = max(0.0, (t - 10) / 100)
    shape = {"cosine": (1 + np.cos(np.pi * s)) / 2, "linear": 1 - s}
    after = 1e-4 + (2e-3 - 1e-4) * shape.get(decay, 1.0)
    expected = 2e-3 * t / 10 if t < 10 else after
    assert float(schedule(t)) == pytest.approx(expected, rel=1e-5, abs=1e-9)


def _tree(seed):
  rng = np.random.default_rng(seed)
  return {
    "dense": {
      "kernel": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32),
      "bias": jnp.asarray(rng.normal(size=2), jnp.float32),
    },
    "norm": {"scale": jnp.asarray(rng.normal(size=2), jnp.float32)},
  }


@functools.partial(jax.jit, static_argnums=0)
def _updates(tx, grads, params):
  """The first updates, by one program instead of one for each operation."""
  return tx.update(grads, tx.init(params), params)[0]


def _run(tx, steps):
  params = _tree(0)
  state, update = tx.init(params), jax.jit(tx.update)
  for step in range(steps):
    updates, state = update(_tree(step + 1), state, params)
    params = optax.apply_updates(params, updates)
  return params


def test_adam_with_decoupled_decay_on_kernels_only():
  tx = make_optimizer(
    OptimizerSettings(weight_decay=0.1, clip_norm=0.0), lambda _: 0.01
  )
  params = _run(tx, 3)
  for layer, name in (
    ("dense", "kernel"),
    ("dense", "bias"),
    ("norm", "scale"),
  ):
    w = np.float64(_tree(0)[layer][name])
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t in range(1, 4):
      g = np.float64(_tree(t)[layer][name])
      m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
      direction = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
      decay = 0.1 * w if name == "kernel" else 0.0
      w = w - 0.01 * (direction + decay)
    np.testing.assert_allclose(params[layer][name], w, rtol=1e-5)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("key", ["b1", "b2", "epsilon", "momentum"])
def test_a_key_that_changes_no_step_is_one_that_is_named(kind, key):
  weights = {"block_0": {"mlp": {"kernel": jnp.ones((2, 3)) / 9}}}
  weights["head"] = {"bias": jnp.zeros(2)}  # By Adam, where others are by Muon.

  def step(settings):
    tx = make_optimizer(settings, lambda _: 0.01)
    return jax.make_jaxpr(tx.update)(weights, tx.init(weights), weights)

  other = OptimizerSettings(kind=kind, **{key: 0.25})
  changed = str(step(other)) != str(step(OptimizerSettings(kind=kind)))
  assert changed == (key not in untuned(other))


@pytest.mark.parametrize("decay", DECAYS)
def test_a_final_rate_that_is_not_reached_is_named(decay):
  other = OptimizerSettings(decay=decay, final_lr=1e-4)
  rates = [
    [float(make_schedule(settings, 10)(step)) for step in range(11)]
    for settings in (other, OptimizerSettings(decay=decay))
  ]
  assert (rates[0] != rates[1]) == ("final_lr" not in untuned(other))


def test_weight_decay_goes_along_half_a_cosine():
  options = dict(kind="sgd", momentum=0.0, clip_norm=0.0, weight_decay=0.1)
  settings = OptimizerSettings(final_weight_decay=0.5, **options)
  tx = make_optimizer(settings, lambda _: 0.01, total_steps=4)
  params = _run(tx, 6)
  w = np.float64(_tree(0)["dense"]["kernel"])
  for t in range(6):
    share = min(t / 4, 1)
    decay = 0.5 + (0.1 - 0.5) * (1 + np.cos(np.pi * share)) / 2
    w = w - 0.01 * (np.float64(_tree(t + 1)["dense"]["kernel"]) + decay * w)
  np.testing.assert_allclose(params["dense"]["kernel"], w, rtol=1e-5)


def test_the_embedding_of_patches_has_a_rate_of_its_own():
  options = dict(kind="sgd", momentum=0.0, clip_norm=0.0, layer_decay=0.5)
  ones = {
    "patches": {"E": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}},
    "position": {"E_pos": jnp.ones((2, 2))},
  }
  parts = Parts((Part("", ENCODER, Stack(1), pixels="patches/E/kernel"),))
  settings = OptimizerSettings(patches_lr=0.2, **options)
  tx = make_optimizer(settings, lambda _: 1.0, parts=parts)
  updates = _updates(tx, ones, ones)
  rates = jax.tree.map(lambda x: -float(x.ravel()[0]), updates)
  assert rates["patches"]["E"] == pytest.approx({"kernel": 0.05, "bias": 0.05})
  assert rates["position"] == pytest.approx({"E_pos": 0.25})


def test_lamb_is_optaxs():
  settings = OptimizerSettings(
    kind="lamb", weight_decay=0.1, weight_decay_on="", clip_norm=0.0
  )
  tx = make_optimizer(settings, lambda _: 0.01)
  reference = optax.lamb(0.01, eps=1e-8, weight_decay=0.1)
  rng = np.random.default_rng(0)
  params = {"a": rng.normal(size=(3, 4)), "b": np.zeros(5)}
  params = jax.tree.map(jnp.float32, params)
  state, other = tx.init(params), reference.init(params)
  for _ in range(3):
    grads = jax.tree.map(
      lambda p: jnp.float32(rng.normal(size=p.shape)), params
    )
    updates, state = jax.jit(tx.update)(grads, state, params)
    expected, other = jax.jit(reference.update)(grads, other, params)
    jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5),
      updates,
      expected,
    )
    params = optax.apply_updates(params, updates)


def test_lamb_scales_the_arrays_that_decay_and_no_others():
  """The formula in float64, with gradients clipped by their global norm."""
  settings = OptimizerSettings(
    kind="lamb", weight_decay=0.1, clip_norm=0.5, epsilon=1e-3
  )
  params = _run(make_optimizer(settings, lambda _: 0.01), 3)
  arrays = {"kernel": "dense", "bias": "dense", "scale": "norm"}
  w = {k: np.float64(_tree(0)[layer][k]) for k, layer in arrays.items()}
  m, v = dict.fromkeys(w, 0.0), dict.fromkeys(w, 0.0)
  for t in range(1, 4):
    g = {k: np.float64(_tree(t)[layer][k]) for k, layer in arrays.items()}
    norm = np.sqrt(sum((x**2).sum() for x in g.values()))
    assert norm > 0.5
    for k, x in w.items():
      clipped = g[k] * 0.5 / norm
      m[k] = 0.9 * m[k] + 0.1 * clipped
      v[k] = 0.999 * v[k] + 0.001 * clipped**2
      spread = np.sqrt(v[k] / (1 - 0.999**t))
      update = m[k] / (1 - 0.9**t) / (spread + 1e-3)
      if k == "kernel":
        update = update + 0.1 * x
        update *= np.linalg.norm(x) / np.linalg.norm(update)
      w[k] = x - 0.01 * update
  for k, layer in arrays.items():
    np.testing.assert_allclose(params[layer][k], w[k], rtol=1e-5)


def test_a_sum_over_the_classes_is_a_mean_with_other_settings():
  """As `configs/deit3.py` has it, of a loss that is 1,000 times as large."""
  theirs = dict(kind="lamb", weight_decay=0.05, clip_norm=1.0, epsilon=1e-3)
  ours = theirs | dict(clip_norm=1e3, epsilon=1.0)
  updates = []
  for settings, scale in ((theirs, 1.0), (ours, 1e3)):
    tx = make_optimizer(OptimizerSettings(**settings), lambda _: 0.01)
    params = _tree(0)
    grads = jax.tree.map(lambda x, s=scale: x * s, _tree(1))
    updates.append(_updates(tx, grads, params))
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), *updates
  )


def test_lamb_scales_query_key_and_value_as_one_array():
  """Each scanned block has a norm of its own."""
  rng = np.random.default_rng(0)
  names = ("query", "key", "value")
  first = {k: 0.1 + rng.random((2, 3, 4), np.float32) for k in names}
  grads = {k: rng.normal(size=(2, 3, 4)).astype(np.float32) for k in names}
  settings = OptimizerSettings(kind="lamb", weight_decay=0.1, clip_norm=0.0)
  tx = make_optimizer(settings, lambda _: 0.01)

  def update(place, part):
    params, own = (
      {place: {k: {"kernel": x[part]} for k, x in arrays.items()}}
      for arrays in (first, grads)
    )
    found = _updates(tx, own, params)
    return [found[place][k]["kernel"] for k in names]

  layers = update("msa", 0), update("msa", 1)
  apart = [np.stack(x) for x in zip(*layers, strict=True)]
  for one, both in zip(update("blocks", slice(None)), apart, strict=True):
    np.testing.assert_allclose(one, both, rtol=1e-6)
  for layer in (0, 1):
    g, w = (
      np.stack([np.float64(x[k][layer]) for k in names]) for x in (grads, first)
    )
    step = g / (np.abs(g) + 1e-8) + 0.1 * w
    wanted = -0.01 * step * np.linalg.norm(w) / np.linalg.norm(step)
    np.testing.assert_allclose([x[layer] for x in apart], wanted, rtol=1e-5)


@pytest.mark.slow
def test_lamb_and_the_schedule_are_timms():
  torch = pytest.importorskip("torch")
  optim = pytest.importorskip("timm.optim.lamb")
  scheduler = pytest.importorskip("timm.scheduler.cosine_lr")
  options = dict(kind="lamb", weight_decay=0.1, decay="deit", peak_lr=0.02)
  settings = OptimizerSettings(final_lr=1e-3, epsilon=1e-6, **options)
  rate = make_schedule(settings, 36, 9, epoch_steps=3.0)
  tx = make_optimizer(settings, rate)
  start = flax.traverse_util.flatten_dict(_tree(0), sep="/")
  theirs = {
    k: torch.nn.Parameter(torch.tensor(np.array(x))) for k, x in start.items()
  }
  groups = [dict(params=[theirs.pop("dense/kernel")], weight_decay=0.1)]
  kernel = groups[0]["params"][0]
  groups.append(dict(params=[*theirs.values()], weight_decay=0.0))
  lamb = optim.Lamb(groups, lr=0.02, eps=1e-6, max_grad_norm=1.0)
  cosine = scheduler.CosineLRScheduler(
    lamb, 12, lr_min=1e-3, warmup_t=3, warmup_lr_init=1e-6
  )
  for epoch in range(12):  # As DeiT's loop: the rate is set after an epoch.
    for step in range(3 * epoch, 3 * epoch + 3):
      grads = flax.traverse_util.flatten_dict(_tree(step + 1), sep="/")
      for name, parameter in {"dense/kernel": kernel, **theirs}.items():
        parameter.grad = torch.tensor(np.array(grads[name]))
      assert lamb.param_groups[0]["lr"] == pytest.approx(float(rate(step)))
      lamb.step()
    cosine.step(epoch)
  ours = flax.traverse_util.flatten_dict(_run(tx, 36), sep="/")
  for name, parameter in {"dense/kernel": kernel, **theirs}.items():
    found = parameter.detach().numpy()
    np.testing.assert_allclose(ours[name], found, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("epoch_steps", [4.0, 2.5])
def test_deits_schedule_is_that_of_its_loop(epoch_steps):
  """Its loop sets the rate after an epoch, by that epoch's number."""
  epochs, w, peak, final = 20, 3, 3e-3, 1e-5
  table, current = [], 1e-6
  for epoch in range(epochs):
    table.append(current)
    share = epoch / epochs
    current = final + 0.5 * (peak - final) * (1 + np.cos(np.pi * share))
    if epoch < w:
      current = 1e-6 + epoch * (peak - 1e-6) / w
  assert table[0] == table[1] == 1e-6 and max(table) < peak
  settings = OptimizerSettings(peak_lr=peak, final_lr=final, decay="deit")
  steps = round(epochs * epoch_steps), round(w * epoch_steps)
  schedule = make_schedule(settings, *steps, epoch_steps)
  for step in range(steps[0]):
    expected = table[int(step // epoch_steps)]
    assert float(schedule(step)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind, decay", [("adam", 0.1), ("lamb", 0.0)])
def test_something_has_to_decay(kind, decay):
  options = dict(kind=kind, weight_decay=decay, weight_decay_on="kernels$")
  tx = make_optimizer(OptimizerSettings(**options), lambda _: 0.1)
  with pytest.raises(
    ValueError, match="'kernels[$]' is found in the path of n"
  ):
    jax.eval_shape(tx.init, _tree(0))
  unused = OptimizerSettings(weight_decay_on="kernels$")
  make_optimizer(unused, lambda _: 0.1).init(_tree(0))


def test_lamb_takes_the_norm_of_each_scanned_block():
  settings = OptimizerSettings(kind="lamb", clip_norm=0.0)
  tx = make_optimizer(settings, lambda _: 1.0)
  kernel = jnp.float32(np.random.default_rng(0).normal(size=(2, 3, 4)))
  kernel *= jnp.array([1.0, 10.0])[:, None, None]
  params = {"blocks": {"kernel": kernel}}
  updates = _updates(tx, params, params)
  for update, block in zip(updates["blocks"]["kernel"], kernel, strict=True):
    # Adam's first update is the gradient's sign, scaled to the block's norm.
    expected = -jnp.sign(block) * jnp.linalg.norm(block) / 12**0.5
    np.testing.assert_allclose(update, expected, rtol=1e-4)


def test_sgd_with_momentum():
  tx = make_optimizer(
    OptimizerSettings(kind="sgd", momentum=0.5, clip_norm=0.0), lambda _: 0.01
  )
  w, trace = np.float64(_tree(0)["dense"]["kernel"]), 0.0
  for t in range(1, 4):
    trace = np.float64(_tree(t)["dense"]["kernel"]) + 0.5 * trace
    w = w - 0.01 * trace
  np.testing.assert_allclose(_run(tx, 3)["dense"]["kernel"], w, rtol=1e-5)


MUON = OptimizerSettings(kind="muon", momentum=0.95, clip_norm=0.0)


@pytest.mark.parametrize(
  "name, shape, inputs",
  [
    ("mlp/expand", (8, 12), 1),
    ("msa/key", (8, 2, 4), 1),
    ("msa/out", (2, 4, 8), 2),
  ],
)
def test_muon_makes_the_momentum_of_a_matrix_orthogonal(name, shape, inputs):
  # A stack of two, and the second of them alone.
  stack = np.random.default_rng(0).normal(size=(2, *shape)).astype("f")
  grads = {f"blocks/{name}/kernel": stack, f"block_1/{name}/kernel": stack[1]}
  grads = flax.traverse_util.unflatten_dict(grads, sep="/")
  tx = make_optimizer(MUON, lambda _: 1.0)
  params = jax.tree.map(jnp.zeros_like, grads)
  updates = _updates(tx, grads, params)
  updates = flax.traverse_util.flatten_dict(updates, sep="/")

  rows = np.prod(shape[:inputs])
  matrix = stack[1].reshape(rows, -1)
  U, singular, V = np.linalg.svd(matrix, full_matrices=False)
  # It keeps the singular vectors; five iterations bring the values towards 1.
  singular = singular / np.sqrt(np.sum(singular**2))
  for _ in range(5):
    singular = 3.4445 * singular - 4.7750 * singular**3 + 2.0315 * singular**5
  expected = -0.2 * max(matrix.shape) ** 0.5 * (U * singular) @ V
  alone = np.asarray(updates[f"block_1/{name}/kernel"])
  found = alone.reshape(rows, -1)
  np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
  stacked = updates[f"blocks/{name}/kernel"][1]
  np.testing.assert_allclose(stacked, alone, rtol=1e-3, atol=1e-5)


def test_muon_takes_a_units_convolution_as_a_matrix_of_windows_and_outputs():
  kernel = np.random.default_rng(0).normal(size=(3, 3, 4, 8)).astype("f")
  unit = {"conv2": {"kernel": kernel}, "norm2": {"scale": np.ones(8, "f")}}
  root = {"conv_root": {"kernel": kernel[..., :2]}}
  grads = {"resnet": {"stage1_unit0": unit, **root}}
  tx = make_optimizer(MUON, lambda _: 1.0)
  updates = _updates(tx, grads, jax.tree.map(np.zeros_like, grads))["resnet"]
  windows = {"block_0": {"mlp": {"kernel": kernel.reshape(36, 8)}}}
  matrix = _updates(tx, windows, jax.tree.map(np.zeros_like, windows))
  np.testing.assert_allclose(
    np.reshape(updates["stage1_unit0"]["conv2"]["kernel"], (36, 8)),
    matrix["block_0"]["mlp"]["kernel"],
    rtol=1e-5,
  )
  # Adam's first update of all else is the sign of the gradient.
  np.testing.assert_allclose(
    updates["stage1_unit0"]["norm2"]["scale"], -1, rtol=1e-4
  )
  found = updates["conv_root"]["kernel"]
  np.testing.assert_allclose(found, -np.sign(kernel[..., :2]), rtol=1e-4)


@pytest.mark.parametrize("correction", [True, False])
def test_muon_has_the_momentum_of_optax_or_of_its_authors(correction):
  """Directions by the formulas, of several steps, in float64."""
  settings = dataclasses.replace(MUON, momentum_correction=correction)
  tx = make_optimizer(settings, lambda _: 1.0)
  path = {"block_0": {"mlp": {"expand": {"kernel": jnp.zeros((4, 6))}}}}
  state, m, b = tx.init(path), np.zeros((4, 6)), MUON.momentum
  update = jax.jit(tx.update)
  rng = np.random.default_rng(0)
  for t in range(4):
    g = rng.normal(size=(4, 6))
    m = b * m + (1 - b) * g
    mean, now = b * m, (1 - b) * g
    if correction:
      mean, now = mean / (1 - b ** (t + 2)), now / (1 - b ** (t + 1))
    U, singular, V = np.linalg.svd(mean + now, full_matrices=False)
    singular = singular / np.sqrt(np.sum(singular**2))
    for _ in range(5):
      singular = 3.4445 * singular - 4.7750 * singular**3 + 2.0315 * singular**5
    grads = jax.tree.map(lambda _: np.float32(g), path)  # noqa: B023
    updates, state = update(grads, state, path)
    found = updates["block_0"]["mlp"]["expand"]["kernel"]
    expected = -0.2 * 6**0.5 * (U * singular) @ V
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_muon_leaves_all_but_the_kernels_of_blocks_to_adam():
  mlp = {"expand": {"bias": jnp.array([2.0, -3.0])}}
  grads = {"block_0": {"mlp": mlp}}
  grads["head"] = {"kernel": jnp.array([[1.0, -2.0], [3.0, 4.0]])}
  mlp["contract"] = {"kernel": jnp.eye(2)}
  tx = make_optimizer(MUON, lambda _: 0.5)
  updates = _updates(tx, grads, grads)
  del mlp["contract"], updates["block_0"]["mlp"]["contract"]
  # Adam's first update is the sign of the gradient.
  jax.tree.map(
    lambda u, g: np.testing.assert_allclose(u, -0.5 * jnp.sign(g), rtol=1e-5),
    *(updates, grads),
  )


def test_muon_is_refused_where_it_would_train_nothing():
  with pytest.raises(ValueError, match="and none is trained here; choose adam"):
    make_optimizer(MUON, lambda _: 0.5).init({"head": {"kernel": jnp.ones(2)}})


def test_decay_follows_the_expression():
  tx = make_optimizer(
    OptimizerSettings(weight_decay=0.5, weight_decay_on="norm/"), lambda _: 1.0
  )
  params = _tree(0)
  zeros = jax.tree.map(jnp.zeros_like, params)
  updates = _updates(tx, zeros, params)
  np.testing.assert_allclose(
    updates["norm"]["scale"], -0.5 * params["norm"]["scale"], rtol=1e-6
  )
  assert not updates["dense"]["kernel"].any()


def test_the_gradient_is_clipped_by_its_global_norm():
  tx = make_optimizer(
    OptimizerSettings(kind="sgd", momentum=0.0, clip_norm=0.25), lambda _: 1.0
  )
  grads = _tree(1)
  updates = _updates(tx, grads, _tree(0))
  squares = sum((np.float64(g) ** 2).sum() for g in jax.tree.leaves(grads))
  scale = 0.25 / np.sqrt(squares)
  np.testing.assert_allclose(
    updates["dense"]["bias"], -scale * grads["dense"]["bias"], rtol=1e-5
  )


@pytest.mark.parametrize("largest", [0.25, 1e3])
def test_a_clip_is_that_of_optax(largest):
  grads = _tree(1)
  found = _updates(clip_to(largest), grads, _tree(0))
  expected = _updates(optax.clip_by_global_norm(largest), grads, _tree(0))
  same = functools.partial(np.testing.assert_allclose, rtol=1e-6)
  jax.tree.map(same, found, expected)


def test_a_clip_takes_the_norm_of_the_gradient_that_was_measured_alone():
  """A transformation before it may have changed the gradient."""
  grads = _tree(1)
  clip = functools.partial(clip_to(1.0).update, state=optax.EmptyState())
  halved = jax.tree.map(lambda x: x / 2, grads)
  measured = Measured(grads, jnp.float32(8.0))
  for given, factor in ((grads, 1 / 8), (halved, 1 / optax.tree.norm(halved))):
    found, _ = clip(given, measured=measured)
    kernel = given["dense"]["kernel"] * min(factor, 1.0)
    np.testing.assert_allclose(found["dense"]["kernel"], kernel, rtol=1e-6)


@pytest.mark.parametrize(
  "fields, message",
  [
    (dict(kind="adamw"), "kind='adamw' is unknown; choose one of adam, lamb"),
    (dict(decay="step"), "decay='step' is unknown; choose one"),
    (dict(layer_decay=1.5), r"layer_decay=1.5 must be in \(0, 1\]"),
    (dict(weight_decay_on="("), "weight_decay_on='\\(' must be a regular"),
  ],
)
def test_bad_optimizers_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    OptimizerSettings(**fields)


@pytest.mark.parametrize("warmup", [10, 11])
def test_a_warm_up_as_long_as_the_run_is_refused(warmup):
  message = f"optimizer.warmup_steps={warmup} leaves none of the run's 10 steps"
  with pytest.raises(ValueError, match=message):
    make_schedule(OptimizerSettings(), total_steps=10, warmup_steps=warmup)


def test_layers_are_counted_from_the_head():
  depths = {
    "head/kernel": 0,
    "norm/scale": 0,
    "pre_logits/bias": 0,
    "map_head/probe": 0,
    "block_11/msa/out/bias": 1,
    "block_0/mlp/expand/kernel": 12,
    "patches/E/kernel": 13,
    "x_class": 13,
    "position/E_pos": 13,
    "resnet/stage0_unit0/conv1/kernel": 13,
  }
  for path, depth in depths.items():
    assert Parts.plain(12).depth(path) == depth


def test_the_learning_rate_falls_from_layer_to_layer():
  params = {
    "head": {"kernel": jnp.ones(2)},
    "block_1": {"kernel": jnp.ones(2)},
    "block_0": {"kernel": jnp.ones(2)},
    "x_class": jnp.ones(2),
  }
  tx = make_optimizer(
    OptimizerSettings(
      kind="sgd", momentum=0.0, clip_norm=0.0, weight_decay=0.5, layer_decay=0.5
    ),
    lambda _: 0.1,
    parts=Parts.plain(2),
  )
  updates = _updates(tx, params, params)
  new = optax.apply_updates(params, updates)
  # A gradient of 1, and a decay of 0.5 where the name is "kernel".
  for name, scale, decay in (
    ("head", 1, 0.5),
    ("block_1", 0.5, 0.5),
    ("block_0", 0.25, 0.5),
  ):
    expected = 1 - 0.1 * scale * (1 + decay)
    np.testing.assert_allclose(new[name]["kernel"], expected, rtol=1e-6)
  np.testing.assert_allclose(new["x_class"], 1 - 0.1 * 0.125, rtol=1e-6)


def test_what_is_trained_follows_from_the_number_of_frozen_layers():
  assert trainable_filter(0, 12) is None
  first_two = trainable_filter(2, 12)
  head = trainable_filter(-1, 12)
  paths = ("x_class", "block_0/a", "block_1/a", "block_2/a", "norm/a", "head/a")
  assert [first_two(path) for path in paths] == [False] * 3 + [True] * 3
  assert [head(path) for path in paths] == [False] * 5 + [True]


@pytest.mark.parametrize("layers", [-2, 13])
def test_layers_that_are_not_there_cannot_be_frozen(layers):
  with pytest.raises(ValueError, match="between 0 and the model's 12 layers"):
    trainable_filter(layers, 12)
