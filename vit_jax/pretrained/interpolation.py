"""Interpolates position embeddings to another grid of patches.

As in Section 3.2 of the paper (arXiv:2010.11929), the learned vectors are
interpolated in 2-D according to their location in the image.
"""

import cv2
import numpy as np

from vit_jax.models.grid import Grid

# Leaves that hold one vector per position.
TABLES = ("E_pos", "X_pos", "Y_pos")


def resize(
  leaf: str, table: np.ndarray, old: Grid, new: Grid, method: str = "linear"
) -> np.ndarray:
  """Interpolates a learned table of positions from one grid to another.

  Args:
    leaf: Name of the table, one of `TABLES`: E_pos, (h w, D) or, with the class
      token's vector first, (h w + 1, D); X_pos, (w, D / 2); or Y_pos,
      (h, D / 2).
    table: The stored vectors.
    old: The grid (h, w) of patches that the table was learned for.
    new: The grid of patches to interpolate to.
    method: "linear" aligns the corner patches, as the published code does;
      "bicubic" aligns the edges of the image, as PyTorch does. Callers have
      checked it.

  Raises:
    ValueError: if the table does not fit the old grid.
  """
  if old == new:
    return table
  rows, columns = (
    _matrix(*sizes, method) for sizes in zip(old, new, strict=True)
  )
  if leaf == "X_pos":
    return (columns @ table).astype(table.dtype)
  if leaf == "Y_pos":
    return (rows @ table).astype(table.dtype)
  h, w = old
  extra = len(table) - h * w
  if extra not in (0, 1):
    raise ValueError(
      f"{len(table)} positions do not fit {h} x {w} patches, with or without a "
      "class token: give grid=(h, w), the patches they were learned for."
    )
  grid = table[extra:].reshape(h, w, -1)
  grid = np.einsum("yh,xw,hwd->yxd", rows, columns, grid, optimize=True)
  resized = grid.reshape(-1, table.shape[1]).astype(table.dtype)
  return np.concatenate([table[:extra], resized])


def resized(
  path: str, array: np.ndarray, old: Grid, new: Grid, method: str
) -> np.ndarray:
  """Adapts a parameter to another grid of patches; only positions change.

  Raises:
    ValueError: if the parameter is a table of relative positions.
  """
  leaf = path.rsplit("/", 1)[-1]
  if leaf == "R" and old != new:
    raise ValueError(
      "relative positions cannot be resized: use the model at the image size "
      "it was trained with."
    )
  return resize(leaf, array, old, new, method) if leaf in TABLES else array


def _matrix(old: int, new: int, method: str) -> np.ndarray:
  """The matrix (new, old) of the old points' weights at each new point."""
  points = np.eye(old)
  if method == "bicubic":
    return cv2.resize(points, (old, new), interpolation=cv2.INTER_CUBIC)
  places = np.linspace(0, old - 1, new)
  return np.stack(
    [np.interp(places, np.arange(old), point) for point in points], axis=1
  )
