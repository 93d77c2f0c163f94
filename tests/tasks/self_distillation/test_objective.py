"""Self-distillation over several devices: prototypes, losses, centers."""

import re

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.tasks.made_up import plan, settings
from tests.tiny import SIZES
from vit_jax import make_vit
from vit_jax.run import build
from vit_jax.training import sharding

ROWS, K = 8, 106  # K is twice a prime, and no other size of the model.
CHANGES = dict(
  ema_decay=0.9,
  image_size=(8, 8),
  batch_size=ROWS,
  self_distillation__prototypes=K,
  self_distillation__head_size=16,
  self_distillation__bottleneck=8,
  self_distillation__small_size=4,
  self_distillation__small_crops=3,
  self_distillation__gram_weight=1.0,
  self_distillation__gram_every_steps=2,
  optimizer__weight_decay=0.1,
)
EIGHT = dict(data=2, fsdp=2, tensor=2)


def functions(centering):
  given = settings(**CHANGES, self_distillation__centering=centering)
  task = build.task_of(given)
  vit = make_vit("Ti/4", 0, **SIZES)
  made = plan(given, task, task.adapted(vit), examples=ROWS)
  return made.init, made.train_step, made.batch_spec


def compiled(centering, mesh):
  init, step, spec = functions(centering)
  shapes = sharding.array_shapes(init, mesh)
  jitted = sharding.jit_train_step(step, shapes, mesh)
  make = jax.jit(
    lambda key: nn.unbox(init(key)),
    out_shardings=sharding.shardings_of(shapes),
  )
  rng = np.random.default_rng(0)
  batches = []
  for _ in range(4):
    batch = {
      name: rng.integers(0, 256, one.shape).astype(one.dtype)
      for name, one in spec.items()
    }
    batches.append(jax.device_put(batch, sharding.batch_sharding(mesh)))
  return make, jitted, shapes, batches


@pytest.mark.slow
@pytest.mark.parametrize("centering", ["mean", "sinkhorn"])
def test_eight_devices_do_what_one_does(centering):
  results = []
  for devices, axes in ((1, {}), (8, EIGHT)):
    mesh = sharding.make_mesh(devices=jax.devices()[:devices], **axes)
    make, step, _, batches = compiled(centering, mesh)
    state, losses = make(jax.random.key(0)), []
    for batch in batches:
      state, metrics = step(state, batch)
      losses.append(jax.device_get(metrics))
    results.append((jax.device_get(state), losses))
  (one, losses), (eight, others) = results
  for a, b in zip(losses, others, strict=True):
    assert {k: float(x) for k, x in a.items()} == pytest.approx(
      {k: float(x) for k, x in b.items()}, rel=1e-5, abs=1e-6
    )
  for tree in ("params", "averaged_params", "objective_state"):
    pairs = zip(
      jax.tree_util.tree_leaves_with_path(getattr(one, tree)),
      jax.tree.leaves(getattr(eight, tree)),
      strict=True,
    )
    for (path, a), b in pairs:
      # A softmax does not see what all keys share: their gradient is 0.
      if "['key']['bias']" not in jax.tree_util.keystr(path):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("centering", ["mean", "sinkhorn"])
def test_no_device_has_all_rows_or_all_prototypes(centering):
  """By the shapes of the compiled program, which are those of a device."""
  mesh = sharding.make_mesh(devices=jax.devices(), **EIGHT)
  _, step, shapes, batches = compiled(centering, mesh)
  head = shapes.params["class_head"]
  assert head["direction"].sharding.shard_shape((8, K)) == (4, K // 2)
  assert head["length"].sharding.shard_shape((K,)) == (K // 2,)
  if centering == "mean":
    center = shapes.objective_state["class"].sharding
    assert center.shard_shape((K,)) == (K // 2,)
  text = step.lower(shapes, batches[0]).compile().as_text()
  found = {
    tuple(map(int, shape.split(",")))
    for shape in re.findall(r"\b[a-z]+\d+\[([\d,]+)\]", text)
  }
  part = [shape for shape in found if K // 2 in shape]
  assert max(map(np.prod, part)) >= 2 * ROWS // 4 * (K // 2)
  # The kernel and its gradient are gathered over fsdp, (8, K / 2).
  assert not [shape for shape in found if K in shape]
  rows = [s for s in part if np.prod(s) >= 2 * ROWS * (K // 2)]
  assert not rows, rows
