"""Attention maps of a Vision Transformer (arXiv:2010.11929, Fig. 6 and 7).

Attention weights A (Eq. 6) have the shape (L, B, k, S, S), with a row for each
query: L layers, B images, k heads, S tokens. Maps over images have the shape
(B, h, w), with a value for each patch. `figures` draws them.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from vit_jax.inspection.attention_capture import (
  Attention,
  attention_weights,
  capture_with_gradients,
)
from vit_jax.models import Model
from vit_jax.models.loaded_first import takes_loaded
from vit_jax.training.inputs import inputs_of

FUSIONS = {"mean": np.mean, "max": np.max, "min": np.min}
OUTLIER_NORM = 3  # Times the median norm.
OUTLIER_SHARE = 10  # Times an even share of a layer's attention.


@takes_loaded
def attention_gradients(
  model: Model,
  params: Any,
  images: Float[Array, "B H W C"],
  classes: Int[np.ndarray, " B"],
) -> tuple[Attention, Attention]:
  """The attention weights, and a class's gradients with respect to them.

  `classes` has the class of each image whose logit is differentiated. Raises
  ValueError if the model has no attention, or does not have these classes.
  """
  if not (0 <= np.min(classes) and np.max(classes) < model.num_classes):
    raise ValueError(
      f"classes={np.asarray(classes).tolist()} are not all among the model's "
      f"{model.num_classes} classes, which are numbered from 0."
    )
  weights, gradients, _ = capture_with_gradients(
    model, params, images, _ignore_logits, jnp.asarray(classes)
  )
  return weights, gradients


def _ignore_logits(logits: Array, classes: Array) -> tuple[Array, None]:
  """Chooses the given classes, whatever the logits are."""
  return classes, None


def outliers(
  attention: Attention, norms: Float[np.ndarray, "B h w"]
) -> Bool[np.ndarray, "B h w"]:
  """Finds outlier patches, which attract attention regardless of their content.

  Large models without registers, such as DINOv2, store global information in
  some patches of the background: the norm of their tokens after the last layer
  is far above that of others, and the class token attends to them
  (arXiv:2309.16588). In smaller models, a few patches of ordinary norm receive
  much of a layer's attention. A patch is an outlier if its norm exceeds
  `OUTLIER_NORM` times the image's median, or if in some layer it receives more
  than `OUTLIER_SHARE` times an even share of the attention of all heads and
  queries. `norms` has the norm of each patch's token after the last layer,
  before the final layer norm.
  """
  received = attention.layers.mean(axis=(2, 3)).max(axis=0)  # (B, S)
  median = np.median(norms, axis=(1, 2), keepdims=True)
  share = OUTLIER_SHARE * attention.tokens_each / received.shape[-1]
  return (attention.maps(received) > share) | (norms > OUTLIER_NORM * median)


def rollout(
  attention: Attention, fusion: str = "mean", discard: float = 0.0
) -> Float[np.ndarray, "B h w"]:
  """Attention rollout: how much each patch contributes to the output (Fig. 6).

  The heads of each layer are fused, the identity is added for the residual of
  Eq. 2, rows are scaled to sum to 1, and the layers' matrices are multiplied
  (App. D.8, arXiv:2005.00928). The output is that of the class token. A model
  without a class token outputs the mean over tokens, weighted by the attention
  of its pooling if it has any, such as the MAP head's. A map sums to 1, less
  the share of the tokens before the patches.
  Raises ValueError if `fusion` is unknown or `discard` is not in [0, 1).

  Args:
    fusion: How heads are fused, one of `FUSIONS`.
    discard: Fraction of each layer's fused weights to set to zero, lowest
      first. The class token's attention to itself is always kept.
  """
  check_rollout(fusion, discard)
  fuse = partial(FUSIONS[fusion], axis=1)
  rows = _readout(attention, fuse)
  rows = rows / rows.sum(axis=-1, keepdims=True)
  for A in attention.layers[::-1]:
    A = _without_lowest(fuse(A), discard, attention.class_token)
    A = A + np.eye(A.shape[-1], dtype=A.dtype)
    A = A / A.sum(axis=-1, keepdims=True)
    rows = np.einsum("bq,bqs->bs", rows, A)
  return attention.maps(rows)


def check_rollout(fusion: str, discard: float) -> None:
  """Raises ValueError unless `rollout` accepts these arguments."""
  if fusion not in FUSIONS:
    raise ValueError(
      f"fusion={fusion!r} is unknown; choose one of {', '.join(FUSIONS)}."
    )
  if not 0 <= discard < 1:
    raise ValueError(f"discard={discard} must be in [0, 1).")


def image_rollout(
  model: Model,
  params: Any,
  arrays: Mapping[str, np.ndarray],
  *,
  mean: Sequence[float],
  std: Sequence[float],
) -> Float[np.ndarray, "h w"] | None:
  """`rollout` of one image that is not yet normalised; None for a ResNet.

  The image has the arrays of the model's transform, such as `image`, uint8 (H,
  W, C). The mean and the deviation of each channel are in units of full scale.
  """
  if not model.num_layers:
    return None
  batch = {name: jnp.asarray(array)[None] for name, array in arrays.items()}
  x = inputs_of(batch, mean, std)
  found = attention_weights(model, params, x)
  return rollout(found[0] if isinstance(found, list) else found)[0]


def relevance(
  attention: Attention, gradients: Attention
) -> Float[np.ndarray, "B h w"]:
  """Gradient-weighted rollout: the evidence for a class in each patch.

  This follows arXiv:2103.15679, Eq. 5 and 6. Unlike in `rollout`, a layer's
  matrix is the mean over heads of the positive part of gradient times
  attention, so that a weight counts by how much it raises the logit, and rows
  are not rescaled. Under mean pooling every patch has an equal share of the
  output without any attention; that share is subtracted at the end. Both
  arguments are those that `attention_gradients` returns.
  """

  def raised(A: np.ndarray, dA: np.ndarray) -> np.ndarray:
    return np.maximum(A * dA, 0).mean(axis=1)  # Eq. 5

  if attention.pool is not None and gradients.pool is not None:
    rows = raised(attention.pool, gradients.pool)
    without = 0
  else:
    rows = without = _readout(attention, partial(np.mean, axis=1))
  for A, dA in zip(attention.layers[::-1], gradients.layers[::-1], strict=True):
    rows = rows + np.einsum("bq,bqs->bs", rows, raised(A, dA))  # Eq. 6
  return attention.maps(rows - without)


def output_attention(
  attention: Attention, layer: int
) -> Float[np.ndarray, "B heads h w"]:
  """The class token's attention to the patches in a layer, by head.

  Layers count from 0. Without a class token, the attention is averaged over
  all tokens as queries. The heads are those of `Attention.of_layer`.
  """
  A = attention.of_layer(layer)
  return attention.maps(A[:, :, 0] if attention.class_token else A.mean(axis=2))


def mean_attention_distance(
  attention: Attention,
) -> Float[np.ndarray, "L B heads"]:
  """Mean attention distance of each head on each image (Fig. 7, right).

  This is the distance in pixels between the centres of two patches, weighted
  by attention and averaged over queries (App. D.7). The class token has no
  position and is left out; each query's weights on the patches are rescaled to
  sum to 1. All tokens of a patch are at its centre.
  """
  h, w = attention.grid
  places = np.indices((h, w)).reshape(2, -1).T  # (N, 2)
  places = np.tile(places, (attention.tokens_each, 1))
  offsets = places[:, None] - places[None, :]
  pixels = attention.stride * np.sqrt((offsets**2).sum(axis=-1))  # (N, N)
  first = attention.prefix

  def distance(A: Float[np.ndarray, "B k S S"]) -> Float[np.ndarray, "B k"]:
    """The mean distance of each head of a layer, in pixels."""
    A = A[..., first:, first:]  # (B, k, N, N)
    total = np.maximum(A.sum(axis=-1), np.finfo(A.dtype).tiny)
    return (np.einsum("bkqs,qs->bkq", A, pixels) / total).mean(axis=-1)

  layers = range(attention.num_layers)
  return np.stack([distance(attention.of_layer(n)) for n in layers])


def _readout(attention: Attention, fuse: Any) -> Float[np.ndarray, "B S"]:
  """The share that each token of the last layer has in the output."""
  if attention.readout is None:
    return fuse(attention.pool)
  _, B, _, _, S = attention.layers.shape
  return np.broadcast_to(attention.readout, (B, S))


def _without_lowest(
  A: Float[np.ndarray, "B S S"], fraction: float, class_token: bool
) -> Float[np.ndarray, "B S S"]:
  """Sets a fraction of each matrix, its lowest weights, to zero.

  With a `class_token`, its attention to itself is kept.
  """
  if not fraction:
    return A
  flat = A.reshape(len(A), -1)
  lowest = np.argsort(flat, axis=1, kind="stable")
  lowest = lowest[:, : int(fraction * flat.shape[1])]
  cleared = flat.copy()
  np.put_along_axis(cleared, lowest, 0, axis=1)
  if class_token:
    cleared[:, 0] = flat[:, 0]
  return cleared.reshape(A.shape)
