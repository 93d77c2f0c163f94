"""Attention maps of a Vision Transformer (arXiv:2010.11929, Fig. 6 and 7).

Attention weights A (Eq. 6) have the shape (L, B, k, S, S), with a row for each
query: L layers, B images, k heads, S tokens. Maps over images have the shape
(B, h, w), with a value for each patch. `figures` draws them.
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
from vit_jax.models import BaseVit, Model, scan
from vit_jax.models.grid import grid_of
from vit_jax.models.normalize import normalize

FUSIONS = {"mean": np.mean, "max": np.max, "min": np.min}


@dataclasses.dataclass(frozen=True)
class Attention:
  """Attention weights, or gradients with respect to them.

  Attributes:
    layers: Values of the encoder's layers; row q belongs to query q. An axial
      block has two, one along rows and one along columns.
    pool: Values of the MAP head's probe; None without a MAP head.
    grid: Number of patches along height and width, (h, w).
    prefix: Number of tokens before the patches; the class token is the first.
    stride: Distance between neighbouring patches in pixels.
    readout: Share of each token in the output; None with a MAP head.
    registers: Number of registers, which are the last of the prefix.
  """

  layers: Float[np.ndarray, "L B k S S"]
  pool: Float[np.ndarray, "B k S"] | None
  grid: tuple[int, int]
  prefix: int
  stride: int
  readout: Float[np.ndarray, " S"] | None = None
  registers: int = 0

  @property
  def class_token(self) -> bool:
    """Whether the first token is the class token."""
    return self.prefix > self.registers

  def maps(
    self, rows: Float[np.ndarray, "*axes S"]
  ) -> Float[np.ndarray, "*axes h w"]:
    """Reshapes rows over tokens into maps over patches, the last of them."""
    patches = rows[..., self.prefix :]
    return patches.reshape(*rows.shape[:-1], *self.grid)


def attention_weights(
  model: Model, params: Any, images: Float[Array, "B H W C"]
) -> Attention:
  """The attention weights of every layer and head on normalised images.

  The model's layers may be scanned.

  Raises:
    ValueError: if the model has no attention.
  """
  vit, params = _unrolled(model, params)
  return _attention(vit, images, _seen(vit, params, images))


def attention_gradients(
  model: Model,
  params: Any,
  images: Float[Array, "B H W C"],
  classes: Int[np.ndarray, " B"],
) -> tuple[Attention, Attention]:
  """The attention weights, and the gradients of a class's logit by them.

  `classes` has the class of each image whose logit is differentiated.

  Raises:
    ValueError: if the model has no attention, or does not have these classes.
  """
  vit, params = _unrolled(model, params)
  if not (0 <= np.min(classes) and np.max(classes) < vit.num_classes):
    raise ValueError(
      f"classes={np.asarray(classes).tolist()} are not all among the model's "
      f"{vit.num_classes} classes, which are numbered from 0."
    )
  both = _seen_with_gradients(vit, params, images, jnp.asarray(classes))
  seen, gradients = (_attention(vit, images, tree) for tree in both)
  return seen, gradients


def rollout(
  attention: Attention, fusion: str = "mean", discard: float = 0.0
) -> Float[np.ndarray, "B h w"]:
  """Attention rollout: how much each patch contributes to the output (Fig. 6).

  The heads of each layer are fused, the identity is added for the residual of
  Eq. 2, rows are scaled to sum to 1, and the layers' matrices are multiplied
  (App. D.8, arXiv:2005.00928). The output is the class token. Without one, it
  is the mean over tokens or the tokens weighted by the MAP head's probe. A map
  sums to 1, less the share that stays with the class token.

  Args:
    fusion: How heads are fused, one of `FUSIONS`.
    discard: Fraction of each layer's fused weights to set to zero, lowest
      first. The class token's attention to itself is always kept.

  Raises:
    ValueError: if `fusion` is unknown or `discard` is not in [0, 1).
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
  image: UInt8[np.ndarray, "H W C"],
  *,
  mean: Sequence[float],
  std: Sequence[float],
) -> Float[np.ndarray, "h w"] | None:
  """`rollout` of one image that is not yet normalised; None for a ResNet.

  The mean and the deviation of each channel are in units of full scale.
  """
  if not model.num_layers:
    return None
  x = normalize(jnp.asarray(image[None]), mean, std)
  return rollout(attention_weights(model, params, x))[0]


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
    rows, without = raised(attention.pool, gradients.pool), 0
  else:
    rows = without = _readout(attention, partial(np.mean, axis=1))
  for A, dA in zip(attention.layers[::-1], gradients.layers[::-1], strict=True):
    rows = rows + np.einsum("bq,bqs->bs", rows, raised(A, dA))  # Eq. 6
  return attention.maps(rows - without)


def output_attention(
  attention: Attention, layer: int
) -> Float[np.ndarray, "B k h w"]:
  """The class token's attention to the patches in a layer, by head.

  Layers count from 0. Without a class token, the attention is averaged over
  all tokens as queries.
  """
  A = attention.layers[layer]
  return attention.maps(A[:, :, 0] if attention.class_token else A.mean(axis=2))


def mean_attention_distance(attention: Attention) -> Float[np.ndarray, "L B k"]:
  """Mean attention distance of each head on each image (Fig. 7, right).

  This is the distance in pixels between the centres of two patches, weighted
  by attention and averaged over queries (App. D.7). The class token has no
  position and is left out; each query's weights on the patches are rescaled to
  sum to 1.
  """
  h, w = attention.grid
  places = np.indices((h, w)).reshape(2, -1).T  # (N, 2)
  offsets = places[:, None] - places[None, :]
  pixels = attention.stride * np.sqrt((offsets**2).sum(axis=-1))  # (N, N)
  first = attention.prefix

  def distance(A: Float[np.ndarray, "B k S S"]) -> Any:
    A = A[..., first:, first:]  # (B, k, N, N)
    total = np.maximum(A.sum(axis=-1), np.finfo(A.dtype).tiny)
    return (np.einsum("bkqs,qs->bkq", A, pixels) / total).mean(axis=-1)

  return np.stack([distance(A) for A in attention.layers])


def _unrolled(model: Model, params: Any) -> tuple[BaseVit, Any]:
  """An equivalent model without scanned layers, and its parameters."""
  vit = check_vit(model).clone(scan=False, remat="none")
  return vit, scan.unstack(nn.unbox(params))


@partial(jax.jit, static_argnums=0)
def _seen(model: BaseVit, params: Any, images: Array) -> Any:
  """Attention weights, in a tree by the names of their modules."""
  _, seen = model.apply({"params": params}, images, mutable="intermediates")
  return _unwrapped(seen)


@partial(jax.jit, static_argnums=0)
def _seen_with_gradients(
  model: BaseVit, params: Any, images: Array, classes: Array
) -> tuple[Any, Any]:
  """`_seen`, and the gradients of the chosen logits by it."""

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
  """Intermediates, taken out of the tuples that Flax sows them in."""
  return jax.tree.map(
    lambda sown: sown[0],
    seen["intermediates"],
    is_leaf=lambda x: isinstance(x, tuple),
  )


def _attention(model: BaseVit, images: Any, tree: Any) -> Attention:
  """Makes an `Attention` on the host, in float32, from a tree of `_seen`."""
  grid = grid_of(model, images.shape[1:3])
  blocks = [tree.get(f"block_{i}", {}) for i in range(model.num_layers)]
  return Attention(
    np.stack([A for block in blocks for A in _layers(block, grid)]),
    _fetch(tree["map_head"])[:, :, 0] if model.pooling == "map" else None,
    grid,
    model.prefix,
    model.stride,
    _shares(model, grid),
    model.registers,
  )


def _fetch(module: Any) -> np.ndarray:
  return np.asarray(module["msa"]["attention"], np.float32)


def _layers(block: Any, grid: tuple[int, int]) -> list[np.ndarray]:
  """A of a block, (B, k, S, S); an axial block has two, zero off their axis."""
  if "msa" in block:
    return [_fetch(block)]
  if not {"row", "column"} <= set(block):
    raise ValueError(
      "the model's layers are of a class that shows no attention as `msa`; "
      "there are maps of EncoderBlock and of AxialBlock."
    )
  (h, w), (_, k, _, _) = grid, _fetch(block["row"]).shape
  whole = -1, k, h * w, h * w
  along_rows = _fetch(block["row"]).reshape(-1, h, k, w, w)
  along_columns = _fetch(block["column"]).reshape(-1, w, k, h, h)
  along_rows = np.einsum("bykqs,yz->bkyqzs", along_rows, np.eye(h, dtype="f"))
  along_columns = np.einsum(
    "bxkqs,xz->bkqxsz", along_columns, np.eye(w, dtype="f")
  )
  return [along_rows.reshape(whole), along_columns.reshape(whole)]


def _shares(model: BaseVit, grid: tuple[int, int]) -> np.ndarray | None:
  """The share of each token in the output; None if a MAP head decides it."""
  if model.pooling == "map":
    return None
  prefix, N = model.prefix, grid[0] * grid[1]
  x_class, mean = np.zeros((2, prefix + N), np.float32)
  x_class[: 1 + model.distilled] = 1 / (1 + model.distilled)
  mean[prefix:] = 1 / N
  share = {"token": 0.0, "token_gap": 0.5, "gap": 1.0}[model.pooling]
  return (1 - share) * x_class + share * mean


def _readout(attention: Attention, fuse: Any) -> Float[np.ndarray, "B S"]:
  """The share that each token of the last layer has in the output."""
  if attention.readout is None:
    return fuse(attention.pool)
  _, B, _, _, S = attention.layers.shape
  return np.broadcast_to(attention.readout, (B, S))


def _without_lowest(
  A: Float[np.ndarray, "B S S"], fraction: float, class_token: bool
) -> Float[np.ndarray, "B S S"]:
  """Sets a fraction of each matrix, its lowest weights, to zero."""
  flat = A.reshape(len(A), -1)
  lowest = np.argsort(flat, axis=1, kind="stable")
  lowest = lowest[:, : int(fraction * flat.shape[1])]
  kept = flat.copy()
  np.put_along_axis(kept, lowest, 0, axis=1)
  if class_token:
    kept[:, 0] = flat[:, 0]
  return kept.reshape(A.shape)
