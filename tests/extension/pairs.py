"""A small contrastive model of images and captions, in a file of one's own.

The rows of a CSV file have an image and a caption. A caption becomes a fixed
number of word numbers; one tower embeds images, another one captions, and each
image has to find its caption among those of the batch (arXiv:2103.00020).
"""

import dataclasses
import zlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from vit_jax.models.parts import ENCODER, HEAD, Part, Stack

from vit_jax.data.batch import ArraySpec
from vit_jax.data.reading.labels import Labels
from vit_jax.models.layer import dense, layer_norm
from vit_jax.models.partitioning import named
from vit_jax.models.vit import EncoderBlock, Vit
from vit_jax.runtime.display import Metric, untracked
from vit_jax.tasks.outcome import Outcome, check_readable
from vit_jax.tasks.task import Task
from vit_jax.training import sharding
from vit_jax.training.losses import TakesImages

LENGTH, WORDS, LAYERS, SIZE, SHARED = 6, 64, 2, 16, 8


class Captions(Labels):
  """A label is the numbers of a caption's words, and 0 after the last."""

  def columns(self, names):
    return ["caption"]

  def spec(self, count):
    return ArraySpec((LENGTH,), np.int32)

  def fit(self, columns, rows):
    def numbers(row):
      words = row.values[0].lower().split()[:LENGTH]
      ids = [zlib.crc32(word.encode()) % (WORDS - 1) + 1 for word in words]
      return ids + [0] * (LENGTH - len(ids))

    def encode(rows):
      return np.array([numbers(row) for row in rows], np.int32)

    return tuple(columns), encode


class TextTower(nn.Module):
  """Word numbers (B, T) -> (B, D), the mean over the words."""

  config: object

  @nn.compact
  def __call__(self, ids):
    normal = named(nn.initializers.normal(0.02), (None, "embed"))
    table = self.param("table", normal, (WORDS, SIZE))
    E_pos = self.param("E_pos", normal, (LENGTH, SIZE))
    z, real = table[ids] + E_pos[None], ids > 0
    z = z.astype(self.config.dtype)
    for number in range(LAYERS):
      block = EncoderBlock(2, 2 * SIZE, self.config, name=f"block_{number}")
      z = block(z, mask=real)
    z = layer_norm(self.config, name="norm")(z)
    z = jnp.where(real[..., None], z, 0).sum(1)
    return z / jnp.maximum(real.sum(1), 1)[:, None]


class TwoTowers(Vit):
  """Images and word numbers -> unit vectors (B, 8) of both, and the scale."""

  @property
  def trunk(self):
    return Vit.like(self)

  def parts(self):
    return (
      *super().parts(),
      Part("text", ENCODER, Stack(LAYERS), own_task=True),
      Part("to_text", HEAD, own_task=True),
      Part("to_images", HEAD, own_task=True),
      Part("scale", HEAD, own_task=True),
    )

  def inputs(self, image_shape):
    ids = jax.ShapeDtypeStruct((1, LENGTH), jnp.int32)
    return super().inputs(image_shape), ids

  def __call__(self, inputs, *, train=False):
    images, ids = inputs
    return self.compared(self.encode(images, train=train)[1], ids)

  @nn.compact
  def compared(self, y, ids):
    axes = ("embed", None)
    text = TextTower(self._config, name="text")(ids)
    u = dense(SHARED, axes, self._config, name="to_text")(y)
    v = dense(SHARED, axes, self._config, name="to_images")(text)
    scale = self.param("scale", named(nn.initializers.constant(2.0), ()), ())
    return unit(u), unit(v), jnp.exp(scale)


def unit(x):
  x = x.astype(jnp.float32)
  return x / jnp.linalg.norm(x, axis=1, keepdims=True).clip(1e-6)


@dataclasses.dataclass(frozen=True)
class Contrast(TakesImages):
  """Cross-entropy of images among captions, and of captions among images."""

  mean: tuple
  std: tuple
  metric = "recall"

  def inputs(self, batch):
    return super().inputs(batch), batch["label"]

  def prepare(self, batch, key):
    return self.inputs(batch), jnp.arange(len(batch["label"]))

  def loss(self, apply, inputs, targets, frozen_params=None):
    u, v, scale = apply(inputs)
    logits, own = scale * u @ v.T, targets
    ways = (logits, logits.T)
    cross = optax.losses.softmax_cross_entropy_with_integer_labels
    loss = sum(cross(way, own) for way in ways) / 2
    return loss, logits.argmax(1) == own


class PairsTask(Task):
  """Finding the caption of an image."""

  name, labels, has_answers = "pairs", Captions(), False
  couples_examples = True
  metrics, score = (Metric("recall", "recall@1"),), "recall"
  refuses = ("loss.label_smoothing", "loss.mixup_alpha", "model.num_classes")

  def num_outputs(self, names):
    return 0

  def adapted(self, model):
    return TwoTowers.like(model)

  def objective(self, model, preprocessing):
    return Contrast(**preprocessing.normalization)

  def evaluator(self, model, stream):
    objective = self.objective(model, stream.preprocessing)

    def embed(params, batch):
      found = model.apply({"params": params}, objective.inputs(batch))
      return found, batch["mask"] > 0, batch["skipped"].sum()

    step = sharding.jit_replicated(embed, stream.mesh)

    def evaluate(params, track=untracked, **_):
      us, vs, skipped, scale = [], [], 0, 1.0
      for batch in stream(track):
        (u, v, scale), real, some = jax.device_get(step(params, batch))
        us.append(u[real])
        vs.append(v[real])
        skipped += int(some)
      return Found(np.concatenate(us), np.concatenate(vs), scale, skipped)

    return evaluate


class Found(Outcome):
  """Recall over a whole split; equal captions count as the same."""

  def __init__(self, u, v, scale, skipped):
    check_readable(len(u))
    logits = scale * u @ v.T
    highest = logits.max(1, keepdims=True)
    total = np.log(np.exp(logits - highest).sum(1)) + highest[:, 0]
    own = np.diagonal(logits)
    self.scores = {
      "loss": float((total - own).mean()),
      "recall": float((own >= highest[:, 0] - 1e-6).mean()),
      "examples": len(u),
      "skipped_images": skipped,
    }
