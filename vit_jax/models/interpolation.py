"""The weights with which points of a new grid are interpolated from an old one.

For images of one size, NumPy computes the weights of all points once. Images of
any size have sizes that are known only when the program runs: for these, JAX
computes the weights of each point.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

Weights = Any  # An array (new, old); with `at` it is (*at.shape, old).


def linear_weights(
  old: int,
  new: Any,
  *,
  antialias: bool,
  corners: bool = False,
  at: Array | None = None,
) -> Weights:
  """Weights of linear interpolation from `old` points to `new`, as in PyTorch.

  New points beyond the first or last old one get its value. With antialiasing
  the kernel is widened when the grid shrinks, and cut off at the border. The
  first point and the last lie half a step from the image's edges, or with
  `corners` in the same places as those of the old grid.

  Args:
    at: The indices of the new points to compute, an array; `new` is then an
      array of the same shape, with the number of points in the grid of each.
      None computes all `new` points.
  """
  xp, centres, scale, points = _geometry(old, new, at)
  if corners:
    steps = (old - 1) / xp.maximum(new - 1, 1)
    steps = steps if at is None else steps[..., None]
    centres = (np.arange(new)[:, None] if at is None else at[..., None]) * steps
  if not antialias:
    scale = 1.0
    centres = centres.clip(0, old - 1)
  distances = xp.abs(points - centres) / xp.maximum(scale, 1.0)
  weights = xp.maximum(1 - distances, 0)
  return weights / weights.sum(axis=-1, keepdims=True)


def bicubic_weights(
  old: int,
  new: Any,
  *,
  antialias: bool,
  corners: bool = False,
  at: Array | None = None,
) -> Weights:
  """Weights of bicubic interpolation from `old` points to `new`, as in PyTorch.

  Cubic convolution (Keys, 1981) with a = -0.75 that repeats the border, or with
  antialiasing a = -0.5, widened when the grid shrinks and cut off at the
  border. The first point and the last lie half a step from the image's edges,
  or with `corners`, which takes no `at`, in the same places as those of the old
  grid. `linear_weights` says what `at` is.
  """
  xp, centres, scale, points = _geometry(old, new, at)
  if corners:
    centres = np.linspace(0, old - 1, new)[:, None]
  if antialias:
    weights = _cubic(xp, (points - centres) / xp.maximum(scale, 1.0), -0.5)
    return weights / weights.sum(axis=-1, keepdims=True)
  first = xp.floor(centres)
  weights: Any = 0
  for step in range(-1, 3):
    tap = first + step
    hit = points == tap.clip(0, old - 1)
    weights = weights + xp.where(hit, _cubic(xp, tap - centres, -0.75), 0)
  return weights


class _Geometry(NamedTuple):
  """The points of both grids, in steps of the old one.

  Attributes:
    xp: NumPy or `jax.numpy`, whichever computes.
    centres: The places of the new points, with a last axis of length 1.
    scale: The step between two new points.
    points: The places of the old points, along the last axis.
  """

  xp: Any
  centres: Any
  scale: Any
  points: Any


def _geometry(old: int, new: Any, at: Array | None) -> _Geometry:
  """The points of both grids; the arguments are those of `linear_weights`."""
  xp: Any = np if at is None else jnp
  index: Any = np.arange(new)[:, None] if at is None else at[..., None]
  scale = old / new if at is None else old / new[..., None]
  points = xp.arange(old).reshape(*[1] * (index.ndim - 1), old)
  return _Geometry(xp, (index + 0.5) * scale - 0.5, scale, points)


def _cubic(xp: Any, x: Any, a: float) -> Any:
  """The kernel of cubic convolution with the parameter a, at distances x."""
  x = xp.abs(x)
  near = (a + 2) * x**3 - (a + 3) * x**2 + 1
  far = a * (x**3 - 5 * x**2 + 8 * x - 4)
  return xp.where(x <= 1, near, xp.where(x < 2, far, 0.0))
