"""Losses, their targets and Mixup."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key


def cross_entropy(
  kind: str, logits: Float[Array, "B K"], targets: Float[Array, "B K"]
) -> Float[Array, " B"]:
  """Softmax cross-entropy, or sigmoid cross-entropy summed over classes."""
  if kind == "softmax":
    return optax.losses.softmax_cross_entropy(logits, targets)
  return optax.losses.sigmoid_binary_cross_entropy(logits, targets).sum(-1)


def probabilities(
  kind: str, logits: Float[Array, "B K"]
) -> Float[Array, "B K"]:
  """Class probabilities under this loss; those of sigmoid need not sum to 1."""
  return (jax.nn.softmax if kind == "softmax" else jax.nn.sigmoid)(logits)


def make_targets(
  label: Int[Array, " B"], num_classes: int, label_smoothing: float = 0.0
) -> Float[Array, "B K"]:
  """One-hot rows mixed with the uniform distribution: (1 - e) y + e / K."""
  one_hot = jax.nn.one_hot(label, num_classes)
  return (1 - label_smoothing) * one_hot + label_smoothing / num_classes


def mixup(
  key: Key[Array, ""],
  images: Float[Array, "B H W C"],
  targets: Float[Array, "B K"],
  alpha: float,
) -> tuple[Float[Array, "B H W C"], Float[Array, "B K"]]:
  """Mixes each example with its neighbour in the batch (arXiv:1710.09412).

  The batch shares one lambda, drawn from Beta(alpha, alpha). As in "How to
  train your ViT" (arXiv:2106.10270), an example keeps the larger share of
  itself.
  """
  share = jax.random.beta(key, alpha, alpha)
  share = jnp.maximum(share, 1 - share)

  def mix(values: Array) -> Array:
    return share * values + (1 - share) * jnp.roll(values, 1, axis=0)

  return mix(images), mix(targets)
