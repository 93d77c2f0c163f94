"""Distillation: a student learns from a teacher's answers.

Soft answers are those of arXiv:1503.02531, hard ones those of DeiT
(arXiv:2012.12877), whose code has a form of its own for both.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.models.model import Inputs
from vit_jax.models.patches import Patches
from vit_jax.training import losses
from vit_jax.training.inputs import by_image, weights_of
from vit_jax.training.losses import (
  Apply,
  Classification,
  Loss,
  Objective,
  StepContext,
  Targets,
)
from vit_jax.training.settings import DistillSettings

Losses = Float[Array, " B"]


@dataclasses.dataclass(frozen=True)
class Teacher:
  """A teacher without its parameters, and what the student learns from it.

  The model maps images of `image_size`, `mean` and `std` to logits of the
  student's classes; `settings` have the kind of loss and its weight.
  """

  model: nn.Module
  image_size: tuple[int, int]
  mean: tuple[float, ...]
  std: tuple[float, ...]
  settings: DistillSettings

  def logits(self, params: Any, images: Inputs, mean: Any, std: Any) -> Targets:
    """The teacher's logits for the crops that the student sees.

    The crops are mixed, and normalised with `mean` and `std`. No gradient goes
    through the logits. `Patches` give a row for each image, as by `by_image`.
    """
    own_images = self.images(images, mean, std)
    logits: Any = self.model.apply({"params": params}, own_images)
    return by_image(jax.lax.stop_gradient(logits), images)

  def images(
    self,
    images: Inputs,
    mean: Any,
    std: Any,
    size: tuple[int, int] | None = None,
  ) -> Float[Array, "B height width C"] | Patches:
    """The student's images as the teacher takes them.

    `mean` and `std` are those by which `images` are normalised, and the result
    is normalised by the teacher's. It is resized to `size`, or else to the
    teacher's `image_size`; the interpolation is linear, and smooths images that
    shrink. `Patches` keep their size.
    """
    if isinstance(images, Patches):
      B, N, _ = images.values.shape
      grid = images.values.reshape(B, N, -1, len(self.mean))
      values = self._normalized(grid, mean, std).reshape(images.values.shape)
      return images.replace(values=values)
    B, _, _, C = images.shape
    images = self._normalized(images, mean, std)
    size = size or self.image_size
    return jax.image.resize(images, (B, *size, C), "linear")

  def _normalized(
    self, images: Float[Array, "B h w C"], mean: Any, std: Any
  ) -> Float[Array, "B h w C"]:
    """Images normalised by the teacher's values instead of `mean` and `std`."""

    def per_channel(values: Any) -> Array:
      return jnp.array(values).reshape(1, 1, 1, -1)

    m = per_channel(mean)
    s = per_channel(std)
    own_m = per_channel(self.mean)
    own_s = per_channel(self.std)
    return images * (s / own_s) + (m - own_m) / own_s

  def make_objective(self, labelled: Classification) -> "Distilled":
    """The objective of the labels and of this teacher's answers."""
    return Distilled(labelled, self)

  def loss(
    self, kind: str, logits: Targets, teacher_logits: Targets, labelled: Losses
  ) -> Losses:
    """(1 - w) times the loss under the labels, plus w times the teacher's.

    Soft answers give T^2 KL(teacher || student) at temperature T, summed over
    the classes if the loss is sigmoid; DeiT's form divides it by the number of
    classes. Hard answers are used as labels. `logits` are the student's;
    `labelled` is the loss of each example under its labels.
    """
    settings, T = self.settings, self.settings.temperature
    K = teacher_logits.shape[1]
    if settings.kind == "hard":
      if kind == "softmax":
        hard = jax.nn.one_hot(teacher_logits.argmax(axis=1), K)
      else:
        hard = (teacher_logits > 0).astype(float)
      teacher_loss = losses.cross_entropy(kind, logits, hard)
    else:
      soft = losses.probabilities(kind, teacher_logits / T)
      entropy = losses.cross_entropy(kind, teacher_logits / T, soft)
      cross = losses.cross_entropy(kind, logits / T, soft)
      teacher_loss = T**2 * (cross - entropy)
      if settings.form == "deit":
        teacher_loss = teacher_loss / K
    return (1 - settings.weight) * labelled + settings.weight * teacher_loss


@dataclasses.dataclass(frozen=True)
class Distilled(Objective):
  """The objective of a student that learns labels and a teacher's answers.

  In DeiT's form, the labels teach one of two heads, and the teacher the other.
  The teacher's parameters are `StepContext.frozen["teacher"]`.
  """

  labelled: Classification
  teacher: Teacher
  metric: str = dataclasses.field(init=False)  # The score of the labels.

  def __post_init__(self):
    object.__setattr__(self, "metric", self.labelled.metric)

  def inputs(self, batch: Mapping[str, Array]) -> Inputs:
    return self.labelled.inputs(batch)

  def prepare(
    self, batch: Mapping[str, Array], key: Array
  ) -> tuple[Inputs, Array]:
    return self.labelled.prepare(batch, key)

  def loss(
    self, apply: Apply, inputs: Inputs, targets: Any, context: StepContext
  ) -> Loss:
    """The mixed loss of each example, and the score under its labels."""
    labelled = self.labelled
    has_two_heads = self.teacher.settings.form == "deit"
    heads: Any
    if has_two_heads:
      heads = apply(inputs, method="by_head")
    else:
      heads = [apply(inputs)]
    heads = by_image(heads, inputs)
    targets = targets.reshape(-1, targets.shape[-1])
    loss, _ = labelled.loss_and_score(heads[0], targets)
    average = jnp.add(heads[0], heads[-1]) / 2  # With one head, its logits.
    _, score = labelled.loss_and_score(average, targets)
    params = context.frozen["teacher"]
    answers = self.teacher.logits(params, inputs, labelled.mean, labelled.std)
    kind = labelled.settings.kind
    mixed = self.teacher.loss(kind, heads[-1], answers, loss)
    return Loss(mixed, score, weight=weights_of(inputs))
