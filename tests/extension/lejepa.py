"""LeJEPA (arXiv:2511.08544) of any encoder, in a file of one's own.

The crops of an image predict the mean of its large ones, and each kind of crop
is kept a standard normal distribution over the batch. There is no teacher, and
no gradient is stopped.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from vit_jax.data.reading.labels import NONE
from vit_jax.data.transforming.multi_crop import MultiCrop
from vit_jax.models.composed import Composed, Needs, held
from vit_jax.models.layer import GELUS, LayerConfig, dense, layer_norm
from vit_jax.models.model import normalize, unit
from vit_jax.models.parts import HEAD, Part
from vit_jax.runtime.display import Metric
from vit_jax.tasks.self_distillation.evaluation import features_measure
from vit_jax.tasks.task import Task
from vit_jax.training.losses import Loss, Objective

SMALL, CROPS, LAMBDA = 16, 2, 0.05
WIDTHS = (128, 128, 32)  # Of the projector; the last is K.
SLICES, KNOTS, FARTHEST = 256, 17, 5.0  # Of the test of normality.
NEEDS = Needs("data.task", patches=False, all_patches=False, two_sizes=True)


class Projected(Composed):
  """Images (B, H, W, C) -> `y`, features (B, D), and projections `z`, (B, K).

  The projector has layer norms, so that an image's answer depends on no other.
  """

  def parts(self):
    return (*super().parts(), Part("projector", HEAD, own_task=True))

  def __call__(self, x, *, train=False):
    y = self.pooled(x, train=train)
    y = self.representation(y.mean(1) if self.distilled else y)
    return {"y": y, "z": self.project(y)}

  @nn.compact
  def project(self, y):
    config = LayerConfig(dtype=self.dtype, param_dtype=self.param_dtype)
    return Projector(config, name="projector")(y).astype(jnp.float32)


class Projector(nn.Module):
  """(B, D) -> (B, K)."""

  config: LayerConfig

  @nn.compact
  def __call__(self, y):
    c, *axes = self.config, "embed", "mlp"
    for layer, width in enumerate(WIDTHS):
      y = dense(width, tuple(axes), c, name=f"layer_{layer}")(y)
      axes.reverse()
      if layer < len(WIDTHS) - 1:
        y = GELUS["exact"](layer_norm(c, name=f"norm_{layer}")(y))
    return y


def normality(z, key):
  """How far projections (B, K) are from a standard normal distribution.

  B times the integral of |c(t) - exp(-t^2 / 2)|^2 exp(-t^2 / 2), where c is the
  characteristic function of the images along a direction (Epps and Pulley,
  1983); the mean over random directions.
  """
  directions = unit(jax.random.normal(key, (z.shape[1], SLICES)), axis=0)
  t = jnp.linspace(-FARTHEST, FARTHEST, KNOTS)
  normal = jnp.exp(-(t**2) / 2)
  ends = jnp.ones(KNOTS).at[jnp.array([0, -1])].set(0.5)  # Trapezoidal rule.
  phases = (z @ directions)[..., None] * t[None, None]  # (B, SLICES, KNOTS)
  real, imaginary = jnp.cos(phases).mean(0), jnp.sin(phases).mean(0)
  error = (real - normal[None]) ** 2 + imaginary**2
  integrals = error @ (normal * ends) * (t[1] - t[0])
  return len(z) * integrals.mean()


@dataclasses.dataclass(frozen=True)
class LeJepa(Objective):
  """The loss of an image's crops; that of a batch couples its images."""

  mean: tuple
  std: tuple
  metric, couples = "prediction", True

  def inputs(self, batch):
    """The images; or the large crops and the small ones, one after another."""
    images = normalize(batch["image"], self.mean, self.std)
    if "second" not in batch:
      return images
    second, small = (
      normalize(x.reshape(-1, *x.shape[-3:]), self.mean, self.std)
      for x in (batch["second"], batch["small"])
    )
    return {"large": jnp.concatenate([images, second]), "small": small}

  def prepare(self, batch, key):
    return self.inputs(batch), key

  def loss(self, apply, inputs, targets, moment):
    large = apply(inputs["large"])["z"]
    large = large.reshape(2, -1, large.shape[-1])  # (2, B, K)
    small = apply(inputs["small"])["z"]
    small = small.reshape(large.shape[1], -1, small.shape[-1])
    crops = jnp.concatenate([large, small.swapaxes(0, 1)])  # (V, B, K)
    distance = ((crops - large.mean(0, keepdims=True)) ** 2).mean((0, 2))
    keys = jax.random.split(targets, len(crops))
    regularity = jnp.stack([*map(normality, crops, keys)]).mean()
    value = (1 - LAMBDA) * distance + LAMBDA * regularity
    return Loss(value, distance, {"normality": regularity})

  def mirrored_loss(self, apply, images):
    """In an evaluation, the distance to the mean of an image and its mirror."""
    z, mirrored = (apply(x)["z"] for x in (images, images[:, :, ::-1]))
    distance = ((z - mirrored) ** 2).mean(1) / 4
    return distance, distance


class LeJepaTask(Task):
  """Learning features in which all crops of an image are alike."""

  name, labels, has_answers = "lejepa", NONE, False
  couples_examples = True
  metrics = (
    Metric("rank", "rank of the features"),
    Metric("prediction", "distance", "{:.4f}", higher_is_better=False),
  )
  score = "rank"
  refuses = ("loss.label_smoothing", "loss.mixup_alpha", "model.num_classes")

  def adapted(self, model):
    return Projected(0, held(model, NEEDS))

  def train_transform(self, preprocessing, settings):
    return MultiCrop(
      preprocessing.image_size,
      (SMALL, SMALL),
      count=CROPS,
      areas=(0.05, 0.3, 1.0),
      flip=settings.flip,
      pixels=preprocessing.spec,
    )

  def objective(self, model, preprocessing):
    return LeJepa(**preprocessing.normalization)

  def measure(self, model, stream):
    objective = self.objective(model, stream.preprocessing)
    return features_measure(model, objective, " or raise LAMBDA")
