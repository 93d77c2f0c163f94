"""A small masked autoencoder (arXiv:2111.06377) in a file of one's own.

The encoder sees a quarter of the patches. A decoder of two narrow layers gets
their outputs, and a learned token in place of each patch that was left out, and
predicts the pixels of those patches, normalised by patch.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from vit_jax.data.reading.labels import NONE
from vit_jax.models.composed import Composed, Needs, encoder_of
from vit_jax.models.layer import LayerConfig, dense, layer_norm
from vit_jax.models.partitioning import with_axes
from vit_jax.models.parts import DECODER, Part, Stack
from vit_jax.models.vit import EncoderBlock, patchify
from vit_jax.runtime.display import Metric
from vit_jax.tasks.scores import Scores
from vit_jax.tasks.task import Task
from vit_jax.training.inputs import TakesImages
from vit_jax.training.losses import Loss, Objective

SEEN, LAYERS, SIZE, HEADS = 0.25, 2, 16, 2
NEEDS = Needs("data.task", hides=True, some_patches=True)


class Autoencoder(Composed):
  """Images (B, H, W, C) -> pixels of the hidden patches (B, M, P^2 C).

  The collection "draw" has `order`, integers (B, N): the patches to see first,
  and then those to predict. Without it, they are those of the grid, in order.
  """

  def parts(self):
    stack = Stack(LAYERS, after=("norm", "predict"))
    decoder = Part("decoder", DECODER, stack, own_task=True)
    return (*super().parts(), decoder)

  def __call__(self, x, *, train=False):
    vit = self.encoder
    tokens = vit.embed(x, train=train)
    B, N, _ = tokens.patches.shape
    order = self.get_variable("draw", "order")
    if order is None:
      order = jnp.tile(jnp.arange(N)[None], (B, 1))
    seen = vit.run(tokens.take(order[:, : round(SEEN * N)]), train=train)
    return self.decode(vit.normed(seen), order, x.shape[-1])

  @nn.compact
  def decode(self, seen, order, channels):
    values, config = self.patch_size**2 * channels, LayerConfig.of(self.encoder)
    decoder = Decoder(values, seen.prefix, config, name="decoder")
    return decoder(seen.z, order)


class Decoder(nn.Module):
  """Outputs of the seen tokens, and all patches' order -> hidden patches."""

  values: int
  prefix: int
  config: object

  @nn.compact
  def __call__(self, z, order):
    c, (B, N) = self.config, order.shape
    into, out = ("embed", "decoder"), ("decoder", "embed")
    z = dense(SIZE, into, c, name="embed")(z)
    normal = with_axes(nn.initializers.normal(0.02), (None,) * 3)
    mask = self.param("mask", normal, (1, 1, SIZE))
    E_pos = self.param("E_pos", normal, (1, N, SIZE))
    first, seen = z[:, : self.prefix], z[:, self.prefix :]
    K = seen.shape[1]
    hidden = jnp.broadcast_to(mask, (B, N - K, SIZE))
    patches = jnp.concatenate([seen, hidden.astype(z.dtype)], axis=1)
    patches += jnp.take_along_axis(E_pos, order[..., None], axis=1)
    z = jnp.concatenate([first, patches], axis=1)
    for number in range(LAYERS):
      z = EncoderBlock(HEADS, 4 * SIZE, c, name=f"block_{number}")(z)
    z = layer_norm(c, name="norm")(z[:, self.prefix + K :])
    return dense(self.values, out, c, name="predict")(z)


@dataclasses.dataclass(frozen=True)
class Reconstruction(TakesImages, Objective):
  """Squared error of the hidden patches, in their own standard deviations."""

  patch_size: int
  mean: tuple
  std: tuple
  metric = "explained"

  def prepare(self, batch, key):
    images = self.inputs(batch)
    patches = patchify(images, self.patch_size)
    B, h, w, _ = patches.shape
    keys = jax.random.split(key, B)
    order = jax.vmap(jax.random.permutation, (0, None))(keys, h * w)
    pixels = patches.reshape(B, h * w, -1)
    hidden = order[:, round(SEEN * order.shape[1]) :, None]
    pixels = jnp.take_along_axis(pixels, hidden, axis=1)
    middle = pixels.mean(-1, keepdims=True)
    spread = pixels.var(-1, keepdims=True, ddof=1) + 1e-6
    return images, {"order": order, "pixels": (pixels - middle) / spread**0.5}

  def loss(self, apply, inputs, targets, context):
    predicted = apply(inputs, draw={"order": targets["order"]})
    error = ((predicted - targets["pixels"]) ** 2).mean((1, 2))
    explained = 1 - error / (targets["pixels"] ** 2).mean((1, 2))
    return Loss(error, explained)


class AutoencoderTask(Task):
  """Reconstructing three quarters of the patches from one."""

  name, labels = "autoencoder", NONE
  scores = Scores((Metric("explained", "variance explained"),))
  refuses = ("loss.label_smoothing", "loss.mixup_alpha", "model.num_classes")

  def adapted(self, model):
    return Autoencoder(0, encoder_of(model, NEEDS))

  def objective(self, model, preprocessing):
    normalization = preprocessing.normalization
    return Reconstruction(model.patch_size, **normalization)
