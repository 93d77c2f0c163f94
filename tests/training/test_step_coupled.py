"""A loss that couples the examples of a batch, computed in parts."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vit_jax.models.model import unit
from vit_jax.models.partitioning import lay_out
from vit_jax.training import sharding
from vit_jax.training.contrastive import sigmoid_loss, softmax_loss
from vit_jax.training.inputs import ImageInputs
from vit_jax.training.losses import CoupledObjective, Loss
from vit_jax.training.state import TrainState
from vit_jax.training.step import make_train_step

B, SEED = 16, 3
BATCH = {
  "image": np.random.default_rng(0).integers(0, 256, (B, 4, 4, 3), np.uint8),
  "label": np.random.default_rng(1).normal(size=(B, 5)).astype(np.float32),
}


class Towers(nn.Module):
  """Two layers for each side, and a scale and a bias."""

  dropout_rate: float = 0.0

  @nn.compact
  def __call__(self, inputs, *, train=False):
    vectors = []
    for name, x in zip("uv", inputs, strict=True):
      y = nn.tanh(nn.Dense(7, name=f"{name}_in")(x.reshape(len(x), -1)))
      y = nn.Dropout(self.dropout_rate, deterministic=not train)(y)
      y = unit(nn.Dense(6, name=f"{name}_out")(y))
      vectors.append(lay_out(y, ("batch", None)))
    constant = nn.initializers.constant
    numbers = [
      self.param(name, constant(value), ())
      for name, value in (("log_scale", 1.5), ("bias", -2.0))
    ]
    return *vectors, *numbers


@dataclasses.dataclass(frozen=True)
class Pairs(ImageInputs, CoupledObjective):
  kind: str = "sigmoid"
  metric = "own"

  def inputs(self, batch) -> Any:
    return super().inputs(batch), batch["label"]

  def prepare(self, batch, key):
    return self.inputs(batch), jnp.arange(B) % (B - 2)

  def embed(self, apply, inputs, context):
    u, v, *shared = apply(inputs)
    return (u, v), shared

  def couple(self, embeddings, shared, targets):
    u, v = embeddings
    log_scale, bias = shared
    if self.kind == "sigmoid":
      losses = sigmoid_loss(u, v, log_scale, bias, groups=targets)
    else:
      losses = softmax_loss(u, v, log_scale, groups=targets) + 0 * bias
    return Loss(losses, (u * v).sum(axis=1))


def objective(kind="sigmoid"):
  return Pairs((0.5,) * 3, (0.5,) * 3, kind)


@functools.cache
def params():
  inputs = objective().inputs({k: jnp.asarray(v) for k, v in BATCH.items()})
  return jax.jit(Towers().init)(jax.random.key(0), inputs)["params"]


def update(parts, kind="sigmoid", mesh=None, **fields):
  """The metrics, and what a step of SGD subtracts: the gradient."""
  metrics, gradient = _update(parts, kind, mesh, **fields)
  return metrics, dict(gradient)


@functools.cache
def _update(parts, kind, mesh, **fields):
  tx = optax.sgd(1.0)
  step = make_train_step(
    Towers(**fields),
    tx,
    1.0,
    seed=SEED,
    objective=objective(kind),
    accumulation_steps=parts,
  )
  state = TrainState(jnp.int32(0), params(), tx.init(params()))
  if mesh is None:
    after, metrics = jax.jit(step)(state, BATCH)
  else:
    whole = sharding.replicated_sharding(mesh)
    state = jax.device_put(jax.tree.map(jnp.copy, state), whole)
    shapes = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), state
    )
    batch = jax.device_put(BATCH, sharding.batch_sharding(mesh))
    after, metrics = sharding.jit_train_step(step, shapes, mesh)(state, batch)
  gradient = jax.tree.map(
    lambda a, b: a - np.asarray(b), params(), after.params
  )
  return metrics, gradient


def assert_equal(found, expected, atol=1e-6):
  for key in ("loss", "own"):
    value = float(expected[0][key])
    assert float(found[0][key]) == pytest.approx(value, rel=1e-6)
  assert all(np.abs(x).max() > 0.01 for x in jax.tree.leaves(expected[1]))
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=atol),
    *(found[1], expected[1]),
  )


@pytest.mark.parametrize("parts", [2, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
  "kind", ["sigmoid", pytest.param("softmax", marks=pytest.mark.slow)]
)
def test_parts_give_what_the_whole_batch_gives(kind, parts):
  assert isinstance(objective(), CoupledObjective)
  found, expected = update(parts, kind), update(1, kind)
  if kind == "softmax":
    assert expected[1].pop("bias") == found[1].pop("bias") == 0
  assert_equal(found, expected)


@pytest.mark.parametrize("parts", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_eight_devices_do_what_one_does(parts):
  mesh = sharding.make_mesh(devices=jax.devices(), fsdp=2)
  assert_equal(update(parts, mesh=mesh), update(1))


@pytest.mark.slow
def test_each_part_has_a_dropout_that_stays_the_same():
  """The embeddings whose gradient is taken are those that the loss saw."""
  parts, rate = 4, 0.4
  model, pairs = Towers(rate), objective()
  batch = {k: jnp.asarray(v) for k, v in BATCH.items()}
  step_key = jax.random.fold_in(jax.random.key(SEED), 0)
  _, key = jax.random.split(step_key)

  def loss(params):
    images, texts = pairs.inputs(batch)
    vectors, shared = np.empty((2, B), object), []
    for part in range(parts):
      rows = slice(part, None, parts)
      rngs = {"dropout": jax.random.fold_in(key, part)}
      variables, inputs = {"params": params}, (images[rows], texts[rows])
      u, v, *shared = model.apply(variables, inputs, train=True, rngs=rngs)
      for side, values in enumerate((u, v)):
        for row, value in zip(range(B)[rows], values, strict=True):
          vectors[side, row] = value
    u, v = (jnp.stack(list(side)) for side in vectors)
    same = jnp.arange(B) % (B - 2)
    own = (u * v).sum(axis=1).mean()
    return sigmoid_loss(u, v, *shared, groups=same).mean(), own

  value_and_grad = jax.value_and_grad(loss, has_aux=True)
  (value, own), gradient = jax.jit(value_and_grad)(params())
  expected = {"loss": value, "own": own}, gradient
  assert_equal(update(parts, dropout_rate=rate), expected)
