"""Interpolates position embeddings to another grid of patches.

As in Section 3.2 of the paper (arXiv:2010.11929), the learned vectors are
interpolated in 2-D according to their location in the image; each library has
a way of its own.
"""

import numpy as np

from vit_jax.models.grid import Grid
from vit_jax.models.interpolation import bicubic_weights

_TABLES = ("E_pos", "X_pos", "Y_pos")


def is_position_table(path: str) -> bool:
  """Whether a parameter is a table of positions that can be interpolated."""
  return path.rsplit("/", 1)[-1] in _TABLES


def resized(
  path: str, array: np.ndarray, old: Grid, new: Grid, method: str = "linear"
) -> np.ndarray:
  """A parameter, fitted to another grid of patches if it is a position table.

  Raises ValueError if the table does not fit the old grid, or is one of
  relative positions.

  Args:
    path: The parameter's path. Tables of positions end in E_pos, (h w, D) or,
      with the class token's vector first, (h w + 1, D); in X_pos, (w, D / 2) or
      (w, D); or in Y_pos, (h, D / 2) or (h, D).
    array: The parameter's value.
    old: The grid (h, w) of patches that the table was learned for.
    new: The grid of patches to interpolate to.
    method: "linear" aligns the corner patches, as vision_transformer and
      big_vision do. "bicubic" aligns the edges of the image, as transformers
      does; "bicubic_antialias" also smooths where it shrinks, as timm does; and
      "bicubic_corners" aligns the corner patches, as torchvision does. The
      caller has to check that it is one of these.
  """
  leaf = path.rsplit("/", 1)[-1]
  if old != new and leaf == "R":
    raise ValueError(
      "relative positions cannot be resized: use the model at the image size "
      "it was trained with."
    )
  if old == new or leaf not in _TABLES:
    return array
  sizes = zip(old, new, strict=True)
  rows, columns = (_matrix(*pair, method) for pair in sizes)
  if leaf == "X_pos":
    return (columns @ array).astype(array.dtype)
  if leaf == "Y_pos":
    return (rows @ array).astype(array.dtype)
  h, w = old
  extra = len(array) - h * w  # Vectors of a class token, which come first.
  if extra not in (0, 1):
    raise ValueError(
      f"{len(array)} positions do not fit {h} x {w} patches, with or without a "
      "class token: give grid=(h, w), the patches they were learned for."
    )
  grid = array[extra:].reshape(h, w, -1)
  grid = np.einsum("yh,xw,hwd->yxd", rows, columns, grid, optimize=True)
  table = grid.reshape(-1, array.shape[1]).astype(array.dtype)
  return np.concatenate([array[:extra], table])


def _matrix(old: int, new: int, method: str) -> np.ndarray:
  """The matrix (new, old) that interpolates `old` points to `new` ones."""
  if method != "linear":
    smooth, corners = (method.endswith(x) for x in ("antialias", "corners"))
    return bicubic_weights(old, new, antialias=smooth, corners=corners)
  places = np.linspace(0, old - 1, new)
  rows = [np.interp(places, np.arange(old), point) for point in np.eye(old)]
  return np.stack(rows, axis=1)
