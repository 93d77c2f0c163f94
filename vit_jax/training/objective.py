"""What a train step feeds and minimises; by default, the class of an image."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array

from vit_jax.models.normalize import normalize
from vit_jax.training import losses
from vit_jax.training.settings import LossSettings


@runtime_checkable
class Objective(Protocol):
  """The objective of a train step.

  Attributes:
    metric: The name of the score that `loss` returns, such as "top1".
  """

  @property
  def metric(self) -> str: ...

  def prepare(self, batch: dict[str, Array], key: Array) -> tuple[Array, Any]:
    """Returns a batch's images, normalised, and its targets.

    Args:
      batch: `image`, uint8 (B, H, W, C), and what the objective learns from.
      key: The random key of this step.
    """
    ...

  def loss(
    self,
    apply: Callable[..., Any],
    images: Array,
    targets: Any,
    frozen_params: Any = None,
  ) -> tuple[Array, Array]:
    """The loss and the score of each example, both (B,).

    Args:
      apply: Maps images, and collections of variables by name, to the model's
        outputs.
      images: The first result of `prepare`.
      targets: The second.
      frozen_params: The parameters that the run uses but does not train.
    """
    ...


@dataclasses.dataclass(frozen=True)
class Classification:
  """The objective of a classifier: an image has one class.

  Attributes:
    num_classes: K, the number of classes.
    settings: The loss and its targets.
    mean: Mean subtracted from each channel, in units of full scale.
    std: Standard deviation that then divides each channel.
    class_weights: A factor for each class's part of the loss.
  """

  num_classes: int
  settings: LossSettings
  mean: Sequence[float]
  std: Sequence[float]
  class_weights: Sequence[float] | None = None
  metric = "top1"

  def prepare(self, batch: dict[str, Array], key: Array) -> tuple[Array, Array]:
    """Returns a batch's images and targets; the key is Mixup's and CutMix's."""
    settings = self.settings
    images = normalize(batch["image"], self.mean, self.std)
    images, targets = losses.mixup_or_cutmix(
      key,
      images,
      self.targets(batch["label"]),
      settings.mixup_alpha,
      settings.cutmix_alpha,
    )
    if settings.binary_targets:
      targets = (targets > 0).astype(targets.dtype)
    return images, targets

  def targets(self, label: Array) -> Array:
    """The targets (B, K) of the labels of a batch."""
    smoothing = self.settings.label_smoothing
    return losses.make_targets(label, self.num_classes, smoothing)

  def loss(
    self,
    apply: Callable[..., Any],
    images: Array,
    targets: Array,
    frozen_params: Any = None,
  ) -> tuple[Array, Array]:
    """The loss and the score of each example; `apply` gives the logits."""
    del frozen_params
    return self.loss_and_score(apply(images), targets)

  def loss_and_score(
    self, logits: Array, targets: Array
  ) -> tuple[Array, Array]:
    """The loss of each example, and whether the answer is correct.

    Of a mixture of two images, the larger part counts as correct.
    """
    correct = logits.argmax(axis=-1) == targets.argmax(axis=-1)
    loss = losses.cross_entropy(
      self.settings.kind, logits, targets, self.class_weights
    )
    return loss, correct

  def for_evaluation(self) -> "Classification":
    """The same loss, without the class weights and without smoothing."""
    settings = LossSettings(kind=self.settings.kind)
    return dataclasses.replace(self, settings=settings, class_weights=None)
