"""Which outputs are answers: a model whose outputs are not finite gives none.

NaN is neither below nor above a number, so that `argmax` takes it for the
highest and a rank for the first. All code that scores answers checks them here.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

NO_ANSWER = -1
"""In the place of a class, where there is no answer."""
WHY = "its parameters are damaged, or its training has diverged"


class NotFiniteError(ValueError):
  """A model's outputs, or its parameters, are not finite."""


def is_answer(scores: Any) -> Any:
  """Whether the highest score along the last axis is finite: (..., K) to (...).

  A class that is never answered has the score -inf.
  """
  xp: Any = jnp if isinstance(scores, jax.Array) else np
  return xp.isfinite(scores.max(axis=-1))


def best_class(scores: Any) -> Any:
  """The index of the highest score, (..., K) to (...), or `NO_ANSWER`.

  >>> import numpy as np
  >>> from vit_jax.tasks.finite import best_class
  >>> best_class(np.array([[0.0, 2.0], [np.nan, 2.0], [0.0, np.inf]])).tolist()
  [1, -1, -1]
  """
  xp: Any = jnp if isinstance(scores, jax.Array) else np
  return xp.where(is_answer(scores), scores.argmax(axis=-1), NO_ANSWER)


def comparable(score: float | None) -> float:
  """A score that can be compared with others: -inf in place of NaN or None."""
  return -math.inf if score is None or math.isnan(score) else score


def check_representations(y: Any) -> None:
  """Raises NotFiniteError if representations, (B, ...), are not finite."""
  check_finite(y, "the model represents images by NaN")


def check_finite(arrays: Any, what: str = "the model answers with NaN") -> None:
  """Raises NotFiniteError unless all arrays of a tree are finite."""
  if not all(np.isfinite(x).all() for x in jax.tree.leaves(arrays)):
    raise NotFiniteError(f"{what}: {WHY}.")
