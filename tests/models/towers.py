"""Small models of several parts, with the depth of each of their modules."""

import functools
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from vit_jax.models.layer import make_blocks
from vit_jax.models.parts import DECODER, ENCODER, HEAD, Part, Stack
from vit_jax.models.position import Positions
from vit_jax.models.tokens import Tokens
from vit_jax.models.vit import EncoderBlock

IMAGE = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)


@functools.cache
def flat_shapes(model, *args):
  """The shapes of the parameters of a model, by their paths."""
  boxed = jax.eval_shape(model.init, jax.random.key(0), *(args or (IMAGE,)))
  return flatten_dict(nn.unbox(boxed["params"]), sep="/")


class Layers(nn.Module):
  """An embedding, layers, a norm, and in a decoder what fills the gaps."""

  num_layers: int
  scan: bool = False
  remat = "none"

  @nn.compact
  def __call__(self, z):
    tokens = Tokens(nn.Dense(8, name="embed")(z))
    none = [None] * self.num_layers
    make_block, positions = partial(EncoderBlock, 2, 12), Positions(none, none)
    for layer in make_blocks(self, make_block, positions, train=False):
      tokens = layer(tokens)
    return nn.LayerNorm(name="norm")(tokens.z)


class Autoencoder(nn.Module):
  """An encoder of three layers and a decoder of two; (B, N, C) -> (B, N, C)."""

  scan: bool = False

  @nn.compact
  def __call__(self, x):
    mask = self.param("mask_token", nn.initializers.zeros, (1, 1, 8))
    z = Layers(3, self.scan, name="encoder")(x) + mask
    z = Layers(2, self.scan, name="decoder")(z)
    return nn.Dense(x.shape[-1], name="head")(z)

  def parts(self):
    return (
      Part("encoder", ENCODER, Stack(3)),
      Part("decoder", DECODER, Stack(2), own_task=True),
      Part("mask_token", DECODER, own_task=True),
      Part("head", HEAD, own_task=True),
    )


class TwoTowers(nn.Module):
  """Towers of four and of two layers; two of (B, N, C) -> (B, B)."""

  @nn.compact
  def __call__(self, image, text):
    y = Layers(4, name="image")(image).mean(1)
    t = Layers(2, name="text")(text).mean(1)
    scale = self.param("logit_scale", nn.initializers.ones, ())
    return scale * y @ t.T

  def parts(self):
    return (
      Part("image", ENCODER, Stack(4), pixels="embed/kernel"),
      Part("text", ENCODER, Stack(2)),
      Part("logit_scale", HEAD, own_task=True),
    )


TOKENS = jax.ShapeDtypeStruct((2, 3, 6), jnp.float32)
# From the head: the decoder's layers, what comes before them, which is where
# the encoder ends, the encoder's layers, and what comes before these.
AUTOENCODER = {
  "head": 0,
  "decoder/norm": 0,
  "decoder/block_1": 1,
  "decoder/block_0": 2,
  "decoder/embed": 3,
  "mask_token": 3,
  "encoder/norm": 3,
  "encoder/block_2": 4,
  "encoder/block_1": 5,
  "encoder/block_0": 6,
  "encoder/embed": 7,
}
TOWERS = {
  "logit_scale": 0,
  "image/norm": 0,
  "image/block_3": 1,
  "image/block_2": 2,
  "image/block_1": 3,
  "image/block_0": 4,
  "image/embed": 5,
  "text/norm": 0,
  "text/block_1": 1,
  "text/block_0": 2,
  "text/embed": 3,
}


def modules_of(shapes, table):
  """The module of each path in the table, none of which is left over."""
  modules = {}
  for path in shapes:
    (modules[path],) = [m for m in table if f"{path}/".startswith(f"{m}/")]
  assert set(modules.values()) == set(table)
  return modules
