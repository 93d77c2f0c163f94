"""Objectives of labels that are no single class: several, or numbers."""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.training import losses
from vit_jax.training.step import Labels


@dataclasses.dataclass(frozen=True)
class SeveralLabels(Labels):
  """The objective of several labels: 0 or 1 for each, in (B, K)."""

  score = "labels_right"

  def targets(self, label: Float[Array, "B K"]) -> Array:
    """The labels as they are."""
    return label

  def judge(self, logits: Array, targets: Array) -> tuple[Array, Array]:
    """The loss of each example, and the share of right labels at p = 0.5."""
    right = (logits > 0) == (targets > 0.5)
    loss = losses.cross_entropy("sigmoid", logits, targets, self.class_weights)
    return loss, right.mean(axis=-1)


@dataclasses.dataclass(frozen=True)
class Numbers(Labels):
  """The objective of regression: the outputs are standardised targets.

  Attributes:
    target_mean: Mean of each target over the training images.
    target_std: Standard deviation of each, likewise.
  """

  target_mean: Sequence[float] = ()
  target_std: Sequence[float] = ()
  score = "mae"

  def targets(self, label: Float[Array, "B K"]) -> Array:
    """The standardised numbers."""
    mean, std = map(jnp.asarray, (self.target_mean, self.target_std))
    return (label - mean[None]) / std[None]

  def judge(self, logits: Array, targets: Array) -> tuple[Array, Array]:
    """The squared error of each example, and its absolute error in the unit.

    Both are means over the targets.
    """
    error = logits - targets
    absolute = jnp.abs(error) * jnp.asarray(self.target_std)[None]
    return (error**2).mean(axis=-1), absolute.mean(axis=-1)
