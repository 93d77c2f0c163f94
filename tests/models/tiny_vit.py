"""A ViT small enough to compile fast, its images and its parameters."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import make_vit

B, D, MLP, HEADS, LAYERS, P = 2, 24, 40, 3, 2, 4


def tiny(num_classes=5, **fields):
  defaults = dict(
    hidden_size=D, num_layers=LAYERS, mlp_size=MLP, num_heads=HEADS
  )
  return make_vit(f"Ti/{P}", num_classes, **(defaults | fields))


def images(height=8, width=12, channels=3):
  rng = np.random.default_rng(0)
  return jnp.asarray(rng.normal(size=(B, height, width, channels)), jnp.float32)


def shapes_of(model, *args):
  """Shapes of a model's parameters, boxed with their logical axes."""
  return _shapes(model, *jax.eval_shape(lambda *x: x, *args))


@functools.cache
def _shapes(model, *args):
  return jax.eval_shape(model.init, jax.random.key(0), *args)["params"]


def random_params(model, *args):
  """Parameters among which none is zero, as after training."""
  rng = np.random.default_rng(1)

  def draw(path, shape):
    noise = rng.normal(size=shape.shape).astype(np.float32)
    return 1 + 0.1 * noise if path[-1].key == "scale" else 0.2 * noise

  shapes = nn.unbox(shapes_of(model, *args))
  return jax.tree_util.tree_map_with_path(draw, shapes)


def apply(model, params, *args, **options):
  return jax.jit(lambda p, x: model.apply({"params": p}, x, **options))(
    params, *args
  )


def relative_difference(one, other):
  """The norm of the difference, as a share of the other's norm."""
  one, other = (np.asarray(x, np.float64) for x in (one, other))
  return np.linalg.norm(one - other) / np.linalg.norm(other)
