"""Embedding filters and position embeddings (arXiv:2010.11929, Fig. 7).

Patches' features become colours by their principal components, as for DINO.
All are returned as arrays; `figures` draws them.
"""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import numpy as np
from jaxtyping import Float

from vit_jax.models import Model
from vit_jax.models.grid import grid_of
from vit_jax.models.position import PositionEmbedding
from vit_jax.tasks.finite import check_finite

_NOT_ADDED = ("relative", "none")  # Positions that are not added to the input.


def embedding_filters(
  model: Model, params: Any
) -> Float[np.ndarray, "filters P P C"]:
  """The first filters applied to an image: E of Eq. 1.

  A hybrid cuts its patches from features, so its root convolution is returned.
  """
  model = check_vit(model)
  params = nn.unbox(params)
  if model.resnet_layers:
    kernel = np.asarray(params["resnet"]["conv_root"]["kernel"], np.float32)
  else:
    P = model.patch_size
    kernel = np.asarray(params["patches"]["E"]["kernel"], np.float32)
    kernel = kernel.reshape(P, P, -1, kernel.shape[-1])
  return np.moveaxis(kernel, -1, 0)


def filter_components(
  filters: Float[np.ndarray, "filters P P C"], count: int = 28
) -> Float[np.ndarray, "n P P C"]:
  """The first principal components of filters (Fig. 7, left).

  Each is scaled to [0, 1]. N filters have at most N - 1 components.
  """
  X = filters.reshape(len(filters), -1)
  components = _scale(_principal(X, min(count, len(filters) - 1)))
  components = components.T.reshape(-1, *filters.shape[1:])
  return components.astype(np.float32)


def position_embeddings(
  model: Model, params: Any, image_size: tuple[int, int]
) -> Float[np.ndarray, "h w D"]:
  """The position embedding E_pos (Eq. 1) of every patch.

  If every layer has its own, those of the first layer are returned; if the
  model interpolates its table, those of the table. Raises ValueError if the
  model adds no position embeddings.
  """
  model = check_vit(model)
  params = nn.unbox(params)
  if model.position in _NOT_ADDED:
    raise ValueError(
      f"a model with position={model.position!r} adds no position embeddings."
    )
  h, w = model.position_grid or grid_of(model, image_size)
  at_every_layer = model.position_at == "every_layer"
  name = "position_0" if at_every_layer else "position"
  learned_params = params.get(name, {})
  if "E_pos" in learned_params:
    # One vector for each patch, after those of the other tokens.
    E_pos: Any = learned_params["E_pos"]
  else:
    E_pos = PositionEmbedding(
      model.position, (h, w), model.hidden_size, model.pooling == "token"
    ).apply({"params": learned_params})
  return np.asarray(E_pos, np.float32)[-h * w :].reshape(h, w, -1)


def position_similarity(
  E_pos: Float[np.ndarray, "h w D"],
) -> Float[np.ndarray, "h w h w"]:
  """Cosine similarity of each position with all others (Fig. 7, centre)."""
  norm = np.linalg.norm(E_pos, axis=-1, keepdims=True)
  unit = E_pos / np.maximum(norm, np.finfo(E_pos.dtype).tiny)
  return np.einsum("ijd,mnd->ijmn", unit, unit)


def filters_and_positions(
  model: Model, params: Any, image_size: tuple[int, int]
) -> tuple[Float[np.ndarray, "n P P C"], Float[np.ndarray, "h w h w"] | None]:
  """Components of the filters, and the similarity of positions.

  The latter is None if the model adds no position embedding to the patches.

  Raises:
    ValueError: if the model has no attention, or its filters are not finite.
  """
  model = check_vit(model)
  filters = embedding_filters(model, params)
  check_finite(filters, "the model's filters are not finite")
  components = filter_components(filters)
  if model.position in _NOT_ADDED:
    return components, None
  E_pos = position_embeddings(model, params, image_size)
  return components, position_similarity(E_pos)


def patch_colours(
  maps: Sequence[Float[np.ndarray, "_ _ D"]], foreground: float | None = None
) -> list[Float[np.ndarray, "_ _ 3"]]:
  """The first three principal components over the patches of all images.

  Each is scaled to [0, 1], and the sign of a component is chosen so that the
  largest entry of its direction is positive. Raises ValueError if too few
  patches are kept.

  Args:
    foreground: Share in (0, 1) of the range of the first component. Patches
      above it are kept, and get their next three components as colours; the
      others become black. The sign of the first component is chosen so that
      patches at the edges of the images lie lower.
  """
  grids = [one.shape[:2] for one in maps]
  X = np.concatenate([one.reshape(-1, one.shape[-1]) for one in maps])
  scores = (X - X.mean(axis=0)) @ _principal(X, 4)
  mask = np.ones(len(X), bool)
  first = 0  # The component that becomes red.
  if foreground is not None:
    at_edges = [np.ones(grid, bool) for grid in grids]
    for at_edge in at_edges:
      at_edge[1:-1, 1:-1] = False
    score = scores[:, 0]
    edge = np.concatenate([at_edge.ravel() for at_edge in at_edges])
    if score[edge].mean() > score.mean():
      score = -score
    mask = _scale(score[:, None])[:, 0] > foreground
    first = 1
    if mask.sum() < 2:
      raise ValueError(
        f"--foreground={foreground} keeps {mask.sum()} patches: lower it."
      )
  colours = np.zeros((len(X), 3))
  colours[mask] = _scale(scores[mask, first : first + 3])
  ends = np.cumsum([h * w for h, w in grids])[:-1]
  parts = np.split(colours, ends)
  return [
    part.reshape(*grid, 3) for part, grid in zip(parts, grids, strict=True)
  ]


def check_vit(model: Model) -> Any:
  """Returns the model as it is; raises ValueError if it has no attention."""
  if not model.num_layers:
    raise ValueError(
      "a ResNet has neither attention nor positions to show: give a ViT."
    )
  return model


def _principal(
  X: Float[np.ndarray, "N D"], count: int
) -> Float[np.ndarray, "D count"]:
  """The first principal directions, each with its largest entry positive.

  They are computed from the smaller Gram matrix, many times as fast as an SVD.
  """
  X = X.astype(np.float64)
  X = X - X.mean(axis=0)
  wide = len(X) < X.shape[1]
  _, V = np.linalg.eigh(X @ X.T if wide else X.T @ X)
  V = V[:, ::-1][:, :count]  # The largest first.
  if wide:
    V = X.T @ V
    V = V / np.maximum(np.linalg.norm(V, axis=0), np.finfo(np.float32).tiny)
  return V * np.sign(V[np.abs(V).argmax(axis=0), np.arange(V.shape[1])])


def _scale(values: np.ndarray) -> np.ndarray:
  """Scales each column to [0, 1]."""
  low = values.min(axis=0)
  high = values.max(axis=0)
  return (values - low) / np.maximum(high - low, np.finfo(np.float32).tiny)
