"""The weights with which points of a new grid are interpolated from an old one.

Those of all points of a grid are computed once, by NumPy. Images of any size
have sizes that the program learns only when it runs: for these, JAX computes
the weights of each point.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

Weights = Any  # (new, old), or of each point (*points, old).


def linear(
  old: int,
  new: Any,
  *,
  antialias: bool,
  corners: bool = False,
  at: Array | None = None,
) -> Weights:
  """Weights of linear interpolation from `old` points to `new`, as PyTorch's.

  It repeats the border; with antialiasing the weights are widened when it
  shrinks, and cut off at the border. The first point and the last lie half a
  step from the image's edges, or with `corners` in the same places as those of
  the old grid.

  Args:
    at: The numbers of the new points to compute, an array, of each of which
      `new` has the number of points. None computes all of `new` points.
  """
  xp, centres, scale, points = _centres(old, new, at)
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


def bicubic(
  old: int,
  new: Any,
  *,
  antialias: bool,
  corners: bool = False,
  at: Array | None = None,
) -> Weights:
  """Weights of bicubic interpolation from `old` points to `new`, as PyTorch's.

  Cubic convolution (Keys, 1981) with a = -0.75 that repeats the border, or with
  antialiasing a = -0.5, widened when it shrinks and cut off at the border. The
  first point and the last lie half a step from the image's edges, or with
  `corners`, which takes no `at`, in the same places as those of the old grid.
  `linear` says what `at` is.
  """
  xp, centres, scale, points = _centres(old, new, at)
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


def _centres(old: int, new: Any, at: Array | None) -> tuple[Any, ...]:
  """NumPy or JAX, the places of new points, their steps, and the old points."""
  xp: Any = np if at is None else jnp
  number: Any = np.arange(new)[:, None] if at is None else at[..., None]
  scale = old / new if at is None else old / new[..., None]
  points = xp.arange(old).reshape(*[1] * (number.ndim - 1), old)
  return xp, (number + 0.5) * scale - 0.5, scale, points


def _cubic(xp: Any, x: Any, a: float) -> Any:
  x = xp.abs(x)
  near = (a + 2) * x**3 - (a + 3) * x**2 + 1
  far = a * (x**3 - 5 * x**2 + 8 * x - 4)
  return xp.where(x <= 1, near, xp.where(x < 2, far, 0.0))
