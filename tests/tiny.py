"""A ViT that computes in no time, with parameters none of which is zero."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models import Vit
from vit_jax.pretrained.array_writer import save_arrays
from vit_jax.pretrained.formats import google
from vit_jax.pretrained.formats.mapping import axis_sizes
from vit_jax.pretrained.loaded import Loaded

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


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
  """Every parameter drawn, the head's too, for images of that size."""
  rng = np.random.default_rng(seed)
  image = jnp.zeros((1, *size, 3))
  shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(0, 0.3, x.shape), jnp.float32),
    unbox(shapes),
  )


def loaded(model, shapes, read):
  """A `Loaded` of a model that was read from nowhere."""
  origin = model.origin
  preprocessing = Preprocessing(
    origin.image_size, mean=origin.mean, std=origin.std
  )
  return Loaded(model, preprocessing, "softmax", shapes, read)


def save_google(path, model, params):
  """As Google publishes it, in one .npz."""
  flat = traverse_util.flatten_dict(params, sep="/")
  sizes = axis_sizes(model)
  arrays = {
    rule.theirs: rule.write([flat[name] for name in rule.ours], sizes)
    for rule in google.rules(model)
  }
  save_arrays(path, arrays)
