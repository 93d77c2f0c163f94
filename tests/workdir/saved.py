"""A checkpoint of a few small arrays, saved without training anything."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.training.state import TrainState
from vit_jax.workdir.checkpoint import Checkpoints


def state(step=0, averaged=False):
  """A state whose arrays differ from step to step."""
  draw = np.random.default_rng(step)

  def tree():
    # More than 1 KB each, as Orbax keeps smaller arrays in its index.
    kernel = draw.normal(size=(32, 16)).astype(np.float32)
    return {"head": {"kernel": jnp.asarray(kernel), "bias": jnp.ones(5)}}

  params, momentum = tree(), tree()
  return TrainState(
    jnp.int32(step), params, {"mu": momentum}, tree() if averaged else None
  )


def shapes(of):
  """The same state without its numbers."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), of
  )


def description(step=0):
  return {
    "config": {"seed": 1},
    "model": {"num_layers": 2},
    "class_names": ["a", "b"],
    "step": step,
  }


def begun(folder, config):
  """The folder of a run that began with this configuration."""
  with contextlib.closing(Checkpoints(str(folder))) as checkpoints:
    described = {**description(1), "config": config}
    assert checkpoints.save(state(1), 1, described, None) is None
  return str(folder)


def save(folder, steps, top1=None, **options):
  """Saves a checkpoint for each step; `top1` are the evaluations of some."""
  checkpoints = Checkpoints(str(folder), **options)
  for step in steps:
    metrics = {"eval/top1": top1[step]} if step in (top1 or {}) else None
    assert (
      checkpoints.save(state(step), step, description(step), metrics) is None
    )
  checkpoints.close()
