"""A small contrastive model of images and captions, in a file of one's own.

Each image has to find its caption in the batch (arXiv:2103.00020).
"""

import zlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data.batch import ArraySpec
from vit_jax.data.reading.labels import Labels
from vit_jax.models.composed import Composed, Needs, encoder_of
from vit_jax.models.layer import LayerConfig, dense, layer_norm
from vit_jax.models.model import unit
from vit_jax.models.partitioning import with_axes
from vit_jax.models.parts import ENCODER, HEAD, Part, Stack
from vit_jax.models.vit import EncoderBlock
from vit_jax.runtime.display import Metric
from vit_jax.tasks.metrics import gathering
from vit_jax.tasks.outcome import Outcome
from vit_jax.tasks.scores import Scores
from vit_jax.tasks.task import Task
from vit_jax.training.inputs import ImageInputs
from vit_jax.training.losses import Loss, Objective

LENGTH, WORDS, LAYERS, SIZE, SHARED = 6, 64, 2, 16, 8


class Captions(Labels):
  """A label is the numbers of a caption's words, and 0 after the last."""

  def columns(self, names):
    return ["caption"]

  def spec(self, count):
    return ArraySpec((LENGTH,), np.int32)

  def fit(self, columns, rows):
    def encode(rows):
      labels = np.zeros((len(rows), LENGTH), np.int32)
      for label, row in zip(labels, rows, strict=True):
        for n, word in enumerate(row.values[0].lower().split()[:LENGTH]):
          label[n] = zlib.crc32(word.encode()) % (WORDS - 1) + 1
      return labels

    return tuple(columns), encode


class TextTower(nn.Module):
  """Word numbers (B, T) -> (B, D), the mean over the words."""

  config: object

  @nn.compact
  def __call__(self, ids):
    normal = with_axes(nn.initializers.normal(0.02), (None, "embed"))
    E = self.param("E", normal, (WORDS, SIZE))
    E_pos = self.param("E_pos", normal, (LENGTH, SIZE))
    z, real = (E[ids] + E_pos[None]).astype(self.config.dtype), ids > 0
    for number in range(LAYERS):
      block = EncoderBlock(2, 2 * SIZE, self.config, name=f"block_{number}")
      z = block(z, mask=real)
    z = layer_norm(self.config, name="norm")(z)
    return z.mean(1, where=real[..., None])


class TwoTowers(Composed):
  """Images and word numbers -> unit vectors (B, 8) of both, times the scale."""

  def parts(self):
    text = Part("text", ENCODER, Stack(LAYERS), own_task=True)
    names = ("to_text", "to_images", "log_scale")
    heads = [Part(name, HEAD, own_task=True) for name in names]
    return (*super().parts(), text, *heads)

  def inputs(self, image_shape):
    ids = jax.ShapeDtypeStruct((1, LENGTH), jnp.int32)
    return super().inputs(image_shape), ids

  def __call__(self, inputs, *, train=False):
    images, ids = inputs
    return self.compared(self.encode(images, train=train)[1], ids)

  @nn.compact
  def compared(self, y, ids):
    c, axes = LayerConfig.of(self.encoder), ("embed", "shared")
    u = dense(SHARED, axes, c, name="to_text")(y)
    v = dense(SHARED, axes, c, name="to_images")(TextTower(c, name="text")(ids))
    log_scale = self.param("log_scale", nn.initializers.constant(2.0), ())
    return jnp.exp(log_scale) * unit(u), unit(v)


class Contrast(ImageInputs, Objective):
  """Cross-entropy of images among captions, and of captions among images."""

  metric, couples = "recall", True

  def inputs(self, batch):
    return super().inputs(batch), batch["label"]

  def prepare(self, batch, key):
    return self.inputs(batch), jnp.eye(len(batch["label"]))

  def loss(self, apply, inputs, targets, context):
    u, v = apply(inputs)
    both = jax.nn.log_softmax(u @ v.T), jax.nn.log_softmax(v @ u.T)
    found = both[0].argmax(1) == targets.argmax(1)
    return Loss(-(sum(both) / 2 * targets).sum(1), found)


class PairsTask(Task):
  """Finding the caption of an image."""

  name, labels = "pairs", Captions("columns")
  scores = Scores((Metric("recall", "recall@1"),))

  def adapted(self, model):
    return TwoTowers(0, encoder_of(model, Needs("data.task", patches=False)))

  def objective(self, model, preprocessing):
    return Contrast(**preprocessing.normalization)

  def measure(self, model, stream):
    inputs = self.objective(model, stream.preprocessing).inputs

    def embed(params, batch):
      u, v = model.apply({"params": params}, inputs(batch))
      return {"u": u, "v": v}

    return gathering(embed, Found)


class Found(Outcome):
  """Recall over a split; equal captions count as the same."""

  def __init__(self, gathered):
    logits = gathered.arrays["u"] @ gathered.arrays["v"].T
    own, best = logits.diagonal(), logits.max(1)
    total = best + np.log(np.exp(logits - best[:, None]).sum(1))
    self.scores = {
      "loss": float((total - own).mean()),
      "recall": float((own >= best - 1e-5).mean()),
      "examples": len(logits),
      "skipped_images": gathered.skipped,
    }
