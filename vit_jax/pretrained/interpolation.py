"""Position embeddings for another grid of patches (arXiv:2010.11929, Sec. 3.2).

The learned vectors are interpolated in 2-D by their place in the image.
"""

import cv2
import numpy as np

from vit_jax.models.grid import Grid
from vit_jax.pretrained.settings import INTERPOLATIONS

# Leaves that hold one vector for each place, and the axes they run along.
TABLES = ("E_pos", "X_pos", "Y_pos")


def resize(
  leaf: str, table: np.ndarray, old: Grid, new: Grid, method: str = "linear"
) -> np.ndarray:
  """A learned table of positions, interpolated from one grid to another.

  Args:
    leaf: Its name, one of `TABLES`: E_pos, (h w, D) or, with the class token's
      vector in front, (h w + 1, D); X_pos, (w, D / 2); or Y_pos, (h, D / 2).
    table: The stored vectors.
    old: Patches along height and width it was learned for.
    new: The same, wanted.
    method: "linear" keeps the corners in place, as the published code does;
      "bicubic" keeps the image's edges in place, as PyTorch's does.

  Raises:
    ValueError: if the method is unknown or the table is not of the old grid.
  """
  check("interpolation", method)
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
      f"{len(table)} positions are not those of {h} x {w} patches, with or "
      "without a class token: give grid=(h, w), the patches they were learned "
      "for."
    )
  grid = table[extra:].reshape(h, w, -1)
  grid = np.einsum("yh,xw,hwd->yxd", rows, columns, grid, optimize=True)
  resized = grid.reshape(-1, table.shape[1]).astype(table.dtype)
  return np.concatenate([table[:extra], resized])


def resized(
  path: str,
  array: np.ndarray,
  old: Grid,
  new: Grid,
  method: str,
) -> np.ndarray:
  """A parameter for another grid of patches; most stay as they are."""
  leaf = path.rsplit("/", 1)[-1]
  if leaf == "R" and old != new:
    raise ValueError(
      "relative positions cannot be resized: use the model at the image size "
      "it was trained with."
    )
  if leaf not in TABLES:
    return array
  return resize(leaf, array, old, new, method)


def check(name: str, method: str) -> str:
  """The method; raises ValueError, with its name, if it is none of ours."""
  if method not in INTERPOLATIONS:
    raise ValueError(
      f"{name}={method!r} is unknown; choose one of "
      f"{', '.join(INTERPOLATIONS)}."
    )
  return method


def _matrix(old: int, new: int, method: str) -> np.ndarray:
  """(new, old): weights of the old points at each new one."""
  points = np.eye(old)
  if method == "bicubic":
    return cv2.resize(points, (old, new), interpolation=cv2.INTER_CUBIC)
  places = np.linspace(0, old - 1, new)
  return np.stack(
    [np.interp(places, np.arange(old), point) for point in points], axis=1
  )
