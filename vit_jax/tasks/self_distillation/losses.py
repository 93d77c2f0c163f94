"""The losses of self-distillation: DINO, iBOT, KoLeo, and their centering.

Formulas are those of arXiv:2104.14294 and arXiv:2304.07193. There are K
prototypes; rows are crops or patches. Logits are the outputs of a head, one for
each prototype.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vit_jax.models.model import unit

_LEAST = 1e-8
"""Added to distances, and the least length of a feature, as in KoLeo's code."""
_TINY = 1e-30  # The least divisor.
Logits = Float[Array, "*rows K"]
Probabilities = Float[Array, "*rows K"]


def centered(
  logits: Logits, center: Float[Array, " K"], temperature: Array | float
) -> Probabilities:
  """The teacher's probabilities: softmax((logits - center) / temperature)."""
  center = center.reshape((1,) * (logits.ndim - 1) + (-1,))
  return jax.nn.softmax((logits - center) / temperature, axis=-1)


def next_center(
  center: Float[Array, " K"],
  logits: Float[Array, "R K"],
  momentum: float = 0.9,
  counts: Bool[Array, " R"] | None = None,
) -> Float[Array, " K"]:
  """The center after a batch: it moves to the mean of the teacher's logits.

  `counts` tells which rows count; if none does, the center stays.
  """
  if counts is None:
    counts = jnp.ones(len(logits), bool)
  rows = counts.sum()
  total = jnp.where(counts[:, None], logits, 0).sum(axis=0)
  mean = jnp.where(rows > 0, total / jnp.maximum(rows, 1), center)
  return center * momentum + mean * (1 - momentum)


def sinkhorn_knopp(
  logits: Float[Array, "R K"],
  temperature: Array | float,
  counts: Bool[Array, " R"] | None = None,
  iterations: int = 3,
) -> Float[Array, "R K"]:
  """The teacher's probabilities, such that prototypes are used equally often.

  The columns and the rows of exp(logits / temperature) are scaled in turn,
  `iterations` times: each prototype then has a share of about 1 / K, and each
  row sums to 1. Rows that do not count are zero.
  """
  R, K = logits.shape
  if counts is None:
    counts = jnp.ones(R, bool)
  rows = jnp.maximum(counts.sum(), 1)
  scaled = jnp.where(counts[:, None], logits / temperature, -jnp.inf)
  highest = jnp.where(counts.any(), scaled.max(), 0.0)
  Q = jnp.exp(scaled - highest)  # The sum is divided out.
  Q = Q / jnp.maximum(Q.sum(), _TINY)
  for _ in range(iterations):
    Q = Q / jnp.maximum(Q.sum(axis=0, keepdims=True), _TINY) / K
    Q = Q / jnp.maximum(Q.sum(axis=1, keepdims=True), _TINY) / rows
  return Q * rows


def cross_entropy(
  teacher: Float[Array, "*#rows K"], student: Logits, temperature: float
) -> Float[Array, "*rows"]:
  """-sum_k t_k log softmax(s / temperature)_k of each row.

  t are the teacher's probabilities, and s the student's logits.
  """
  logs = jax.nn.log_softmax(student / temperature, axis=-1)
  return -(teacher * logs).sum(axis=-1)


def class_loss(
  teacher: Float[Array, "B 2 K"],
  large: Float[Array, "B 2 K"],
  small: Float[Array, "B n K"] | None,
  temperature: float,
) -> Float[Array, " B"]:
  """The loss of each image's class tokens.

  The student's answer to a large crop learns the teacher's to the other one,
  and its answer to a small crop learns both. The loss is the sum over these
  pairs, divided by their number; without small crops, by 3, as in DINOv2's
  code.

  Args:
    teacher: The teacher's probabilities for the two large crops.
    large, small: The student's logits for the large and the small crops.
    temperature: Divides the student's logits.
  """
  n = 0 if small is None else small.shape[1]
  pairs = 2 + max(2 * n, 1)
  total = cross_entropy(teacher[:, ::-1], large, temperature).sum(axis=1)
  if small is not None:
    both = teacher.sum(axis=1, keepdims=True)
    total += cross_entropy(both, small, temperature).sum(axis=1)
  return total / pairs


def patch_loss(
  teacher: Float[Array, "R M K"],
  student: Float[Array, "R M K"],
  counts: Bool[Array, "R M"],
  temperature: float,
) -> Float[Array, " R"]:
  """The mean loss of the masked patches of each crop; 0 if there is none.

  `teacher` are probabilities, and `student` logits, as in `cross_entropy`.
  """
  losses = cross_entropy(teacher, student, temperature)
  total = jnp.where(counts, losses, 0).sum(axis=1)
  return total / jnp.maximum(counts.sum(axis=1), 1)


def gram(
  features: Float[Array, "R N D"], anchors: Float[Array, "R N D"]
) -> Float[Array, " R"]:
  """The loss of Gram anchoring (arXiv:2508.10104, Section 4) of each crop.

  Features are scaled to length 1, and the products of all pairs of N patches
  are compared with those of `anchors`, the features of an earlier teacher: the
  loss is the mean squared difference.
  """
  u = unit(features)
  v = unit(anchors)
  return jnp.square(u @ u.mT - v @ v.mT).mean(axis=(1, 2))


def koleo(features: Float[Array, "B D"]) -> Float[Array, " B"]:
  """-log of each feature's distance to its nearest neighbour in the batch.

  Features are scaled to length 1 (arXiv:1806.03198). The loss spreads them out.
  """
  x = unit(features, least=_LEAST)
  nearest = _nearest(jax.lax.stop_gradient(x))
  difference = x - x[nearest] + _LEAST
  squared = jnp.sum(difference**2, axis=1)
  return -jnp.log(jnp.sqrt(squared) + _LEAST)


def _nearest(x: Float[Array, "B D"]) -> Int[Array, " B"]:
  """The number of each row's nearest other row.

  The mean of the rows is subtracted first: the products of rows that are nearly
  equal differ by rounding alone, which would then pick the nearest.
  """
  x = x - x.mean(axis=0, keepdims=True)
  squares = (x**2).sum(axis=1)
  products = jnp.matmul(x, x.T, precision="highest")
  # The squared distance of two rows, less the first row's own square.
  squared = squares[None] - 2 * products
  itself = jnp.eye(len(x), dtype=bool)
  return jnp.argmin(jnp.where(itself, jnp.inf, squared), axis=1)


def entropy(
  probabilities: Probabilities,
) -> Float[Array, "*rows"]:
  """The entropy of each row, divided by that of a uniform one: in [0, 1]."""
  K = probabilities.shape[-1]
  logs = jnp.log(jnp.maximum(probabilities, _TINY))
  return -(probabilities * logs).sum(axis=-1) / jnp.log(max(K, 2))


def deviation(features: Float[Array, "B D"]) -> Float[Array, ""]:
  """The root of the mean squared distance of unit vectors from their mean.

  `features` are scaled to length 1 first. The result is 0 if all are the same,
  and at most 1.
  """
  x = unit(features)
  return jnp.sqrt(((x - x.mean(axis=0, keepdims=True)) ** 2).sum(1).mean())
