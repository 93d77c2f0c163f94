"""What a Vision Transformer looks at, as arrays (arXiv:2010.11929, Fig. 6, 7).

Attention weights A (Eq. 6) are (L, B, k, S, S), a row for each query: L layers,
B images, k heads, S tokens. Maps over an image are (B, h, w), a value for each
patch. `figures` draws them all.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8

from vit_jax.inspection.embedding_maps import check_vit
from vit_jax.models import ResNet, Vit, scan
from vit_jax.models.grid import grid_of, patch_stride
from vit_jax.models.normalize import normalize

FUSIONS = {"mean": np.mean, "max": np.max, "min": np.min}


@dataclasses.dataclass(frozen=True)
class Attention:
  """A number for each pair of tokens: attention weights, or their gradients.

  Attributes:
    layers: Of the encoder; row q is of query q.
    pool: Of the probe of a MAP head; None of a model without.
    grid: Patches along height and width, (h, w).
    class_token: Whether the first of the S tokens is no patch.
    stride: Pixels from one patch to the next.
  """

  layers: Float[np.ndarray, "L B k S S"]
  pool: Float[np.ndarray, "B k S"] | None
  grid: tuple[int, int]
  class_token: bool
  stride: int

  def maps(
    self, rows: Float[np.ndarray, "*axes S"]
  ) -> Float[np.ndarray, "*axes h w"]:
    """What belongs to the patches, in their places on the image."""
    patches = rows[..., 1:] if self.class_token else rows
    return patches.reshape(*rows.shape[:-1], *self.grid)


def attention_weights(
  model: Vit | ResNet, params: Any, images: Float[Array, "B H W C"]
) -> Attention:
  """The attention weights of every layer and head.

  Args:
    model: Its layers may be scanned.
    params: Its parameters.
    images: As the model takes them, normalised.

  Raises:
    ValueError: if the model has no attention.
  """
  vit, params = _unrolled(model, params)
  return _attention(vit, images, _seen(vit, params, images))


def attention_gradients(
  model: Vit | ResNet,
  params: Any,
  images: Float[Array, "B H W C"],
  classes: Int[np.ndarray, " B"],
) -> tuple[Attention, Attention]:
  """The attention weights, and by them the gradients of a logit of each image.

  Args:
    model: As of `attention_weights`; it has to have classes.
    params: As of `attention_weights`.
    images: As of `attention_weights`.
    classes: Whose logit, one for each image.

  Raises:
    ValueError: if the model has no attention, or not these classes.
  """
  vit, params = _unrolled(model, params)
  if not (0 <= np.min(classes) and np.max(classes) < vit.num_classes):
    raise ValueError(
      f"classes={np.asarray(classes).tolist()} are not all among the model's "
      f"{vit.num_classes}, which count from 0."
    )
  both = _seen_with_gradients(vit, params, images, jnp.asarray(classes))
  seen, gradients = (_attention(vit, images, tree) for tree in both)
  return seen, gradients


def rollout(
  attention: Attention, fusion: str = "mean", discard: float = 0.0
) -> Float[np.ndarray, "B h w"]:
  """How much of each patch reaches the output, by attention rollout (Fig. 6).

  A layer's heads are fused, the identity is added for the residual of Eq. 2,
  rows are scaled to sum to 1, and the layers are multiplied (App. D.8,
  arXiv:2005.00928). The output is the class token; without one, the mean over
  tokens, or what the probe of a MAP head attends to. A map sums to 1 but for
  what stays with the class token.

  Args:
    attention: Weights.
    fusion: Of the heads, one of `FUSIONS`.
    discard: Fraction of a layer's fused weights, the lowest, to leave out. The
      class token's own, by which it attends to itself, stays.

  Raises:
    ValueError: if `fusion` or `discard` is none of these.
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
  """Raises ValueError unless `rollout` takes these."""
  if fusion not in FUSIONS:
    raise ValueError(
      f"fusion={fusion!r} is unknown; choose one of {', '.join(FUSIONS)}."
    )
  if not 0 <= discard < 1:
    raise ValueError(f"discard={discard} must be in [0, 1).")


def image_rollout(
  model: Vit | ResNet,
  params: Any,
  image: UInt8[np.ndarray, "H W 3"],
  *,
  mean: Sequence[float],
  std: Sequence[float],
) -> Float[np.ndarray, "h w"] | None:
  """`rollout` of one image, not yet normalised; None of a ResNet.

  Args:
    model: As of `attention_weights`.
    params: As of `attention_weights`.
    image: Of the model's size.
    mean: Of each channel, in units of full scale.
    std: The same.
  """
  if isinstance(model, ResNet):
    return None
  x = normalize(jnp.asarray(image[None]), mean, std)
  return rollout(attention_weights(model, params, x))[0]


def relevance(
  attention: Attention, gradients: Attention
) -> Float[np.ndarray, "B h w"]:
  """What of each patch speaks for a class: gradient-weighted rollout.

  As `rollout`, but that each weight counts as much as it raises the logit, and
  rows are not scaled: the mean over heads of the positive part of gradient
  times attention, the identity added (arXiv:2103.15679, Eq. 5 and 6). What a
  mean over tokens would give each patch without any attention, the same to
  all, is taken off in the end.

  Args:
    attention: Weights.
    gradients: Of the logit of a class; both of `attention_gradients`.
  """

  def raised(A: np.ndarray, dA: np.ndarray) -> np.ndarray:
    return np.maximum(A * dA, 0).mean(axis=1)  # Eq. 5

  if attention.pool is not None and gradients.pool is not None:
    rows = raised(attention.pool, gradients.pool)
  else:
    rows = _readout(attention, partial(np.mean, axis=1))
  without = 0 if attention.pool is not None else rows
  pairs = zip(attention.layers[::-1], gradients.layers[::-1], strict=True)
  for A, dA in pairs:
    rows = rows + np.einsum("bq,bqs->bs", rows, raised(A, dA))  # Eq. 6
  return attention.maps(rows - without)


def output_attention(
  attention: Attention, layer: int
) -> Float[np.ndarray, "B k h w"]:
  """What the output token attends to in a layer, counted from 0, by head.

  Without a class token it is the mean over all tokens as queries.
  """
  A = attention.layers[layer]
  return attention.maps(A[:, :, 0] if attention.class_token else A.mean(axis=2))


def mean_attention_distance(
  attention: Attention,
) -> Float[np.ndarray, "L B k"]:
  """How far a layer's heads look on each image, in pixels (Fig. 7, right).

  The distance between the centres of two patches, weighted by attention and
  averaged over queries (App. D.7). The class token has no place and is left
  out; what a patch attends to is scaled to sum to 1 without it.
  """
  h, w = attention.grid
  places = np.indices((h, w)).reshape(2, -1).T  # (N, 2)
  offsets = places[:, None] - places[None, :]
  pixels = attention.stride * np.sqrt((offsets**2).sum(axis=-1))  # (N, N)
  first = int(attention.class_token)

  def distance(A: Float[np.ndarray, "B k S S"]) -> Any:
    A = A[..., first:, first:]  # (B, k, N, N)
    total = np.maximum(A.sum(axis=-1), np.finfo(A.dtype).tiny)
    return (np.einsum("bkqs,qs->bkq", A, pixels) / total).mean(axis=-1)

  return np.stack([distance(A) for A in attention.layers])


def _unrolled(model: Vit | ResNet, params: Any) -> tuple[Vit, Any]:
  """The same model, every layer's parameters its own."""
  vit = check_vit(model).clone(scan=False, remat="none")
  return vit, scan.unstack(nn.unbox(params))


@partial(jax.jit, static_argnums=0)
def _seen(model: Vit, params: Any, images: Array) -> Any:
  """Attention weights by the names of their modules."""
  _, seen = model.apply({"params": params}, images, mutable="intermediates")
  return _unwrapped(seen)


@partial(jax.jit, static_argnums=0)
def _seen_with_gradients(
  model: Vit, params: Any, images: Array, classes: Array
) -> tuple[Any, Any]:
  """`_seen`, and of the logits the gradients by what is seen."""

  def score(changes: Any) -> tuple[Array, Any]:
    variables = {"params": params, "perturbations": changes}
    logits, seen = model.apply(variables, images, mutable="intermediates")
    chosen = jnp.take_along_axis(logits, classes[:, None], axis=1)
    return chosen.sum(), _unwrapped(seen)

  shapes = jax.eval_shape(partial(_seen, model), params, images)
  zeros = jax.tree.map(lambda A: jnp.zeros(A.shape, A.dtype), shapes)
  gradients, seen = jax.grad(score, has_aux=True)(zeros)
  return seen, gradients


def _unwrapped(seen: Any) -> Any:
  """Intermediates without the tuples that they are sown in."""
  return jax.tree.map(
    lambda sown: sown[0],
    seen["intermediates"],
    is_leaf=lambda x: isinstance(x, tuple),
  )


def _attention(model: Vit, images: Any, tree: Any) -> Attention:
  """On the host, in float32."""

  def fetch(name: str) -> np.ndarray:
    return np.asarray(tree[name]["msa"]["attention"], np.float32)

  return Attention(
    np.stack([fetch(f"block_{i}") for i in range(model.num_layers)]),
    fetch("map_head")[:, :, 0] if model.pooling == "map" else None,
    grid_of(model, images.shape[1:3]),
    model.pooling == "token",
    patch_stride(model),
  )


def _readout(attention: Attention, fuse: Any) -> Float[np.ndarray, "B S"]:
  """The share of each of the last layer's tokens in the output."""
  _, B, _, _, S = attention.layers.shape
  if attention.pool is not None:
    return fuse(attention.pool)
  if attention.class_token:
    return np.eye(1, S, dtype=np.float32).repeat(B, axis=0)
  return np.full((B, S), 1 / S, np.float32)


def _without_lowest(
  A: Float[np.ndarray, "B S S"], fraction: float, class_token: bool
) -> Float[np.ndarray, "B S S"]:
  """With that fraction of each matrix, its lowest weights, set to zero."""
  flat = A.reshape(len(A), -1)
  lowest = np.argsort(flat, axis=1, kind="stable")
  lowest = lowest[:, : int(fraction * flat.shape[1])]
  kept = flat.copy()
  np.put_along_axis(kept, lowest, 0, axis=1)
  if class_token:
    kept[:, 0] = flat[:, 0]
  return kept.reshape(A.shape)
