"""Tiny models for tests, with random parameters, none of which are zero."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util

from vit_jax.config import base_config
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models import Origin, Vit, make_vit, to_fields
from vit_jax.models.grid import param_shapes
from vit_jax.pretrained.arrays import save_arrays
from vit_jax.pretrained.formats import google
from vit_jax.pretrained.formats.mapping import axis_sizes
from vit_jax.pretrained.loaded import Loaded
from vit_jax.tasks.classification.task import ClassificationTask
from vit_jax.training.state import TrainState
from vit_jax.workdir.checkpoint import Checkpoints

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
SIZES = dict(num_layers=1, hidden_size=16, mlp_size=32, num_heads=2)


@contextlib.contextmanager
def compilations():
  """Collects an entry for each program that JAX compiles in the block."""
  found = []

  def listen(event, seconds, **_):
    if event == "/jax/core/compile/backend_compile_duration":
      found.append(seconds)

  jax.monitoring.register_event_duration_secs_listener(listen)
  yield found
  jax.monitoring.unregister_event_duration_listener(listen)


def vit(origin):
  return Vit(
    num_classes=5,
    patch_size=8,
    hidden_size=24,
    num_layers=1,
    mlp_size=32,
    num_heads=3,
    origin=origin,
  )


def random_params(model, size, seed, unbox=nn.unbox):
  """Draws every parameter, also the head's, for images of this size."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: jnp.asarray(np.float32(rng.normal(0, 0.3, x.shape))),
    unbox(_shapes(model, size)),
  )


@functools.cache
def _shapes(model, size):
  inputs = model.inputs((*size, 3))
  return jax.eval_shape(model.init, jax.random.key(0), inputs)["params"]


def loaded(model, shapes, read):
  """Makes a `Loaded` without a file."""
  origin = model.origin
  preprocessing = Preprocessing(
    origin.image_size, mean=origin.mean, std=origin.std
  )
  inputs = {"image": preprocessing}
  return Loaded(model, inputs, ClassificationTask, shapes, read)


def random_model(size=(16, 24), num_classes=2, **fields):
  """A tiny model as if loaded, and its random parameters by path."""
  sizes = dict(hidden_size=24, num_layers=2, mlp_size=36, num_heads=3)
  origin = Origin("ours", "test", size, class_names=("a", "b"))
  model = make_vit("Ti/8", num_classes, **(sizes | fields)).clone(origin=origin)
  shapes = param_shapes(model, (size[0] // 8, size[1] // 8))
  rng = np.random.default_rng(0)
  params = {
    path: rng.normal(size=shape).astype(np.float32) / 4
    for path, shape in shapes.items()
  }
  return loaded(model, shapes, lambda: params.items()), params


def save_run(
  folder,
  model,
  params,
  size,
  names,
  *,
  steps=(1,),
  metrics=None,
  mean=MEAN,
  std=STD,
  config=None,
  **described,
):
  """Saves a run's checkpoints as they are after training; gives its folder."""
  config = config or base_config()
  config.image_size = size
  config.normalization.update(mean=mean, std=std)
  description = {
    "config": config.to_dict(),
    "model": to_fields(model),
    "class_names": list(names),
    **described,
  }
  with contextlib.closing(Checkpoints(str(folder))) as checkpoints:
    for step in steps:
      state = TrainState(jnp.int32(step), params, {"count": np.zeros(1)})
      checkpoints.save(state, step, description, metrics)
  return folder


def nested(flat):
  """Parameters by path as the tree that a model takes."""
  tree = traverse_util.unflatten_dict(flat, sep="/")
  return jax.tree.map(jnp.asarray, tree)


def save_google(path, model, params):
  """Saves a model as an .npz file in Google's format."""
  flat = traverse_util.flatten_dict(params, sep="/")
  sizes = axis_sizes(model)
  arrays = {
    rule.theirs: rule.write([flat[name] for name in rule.ours], sizes)
    for rule in google.rules(model)
  }
  save_arrays(path, arrays)
