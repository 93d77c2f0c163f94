"""Exact nearest neighbours among vectors, near-duplicates and clusters.

All of it is by cosine. The search compares blocks of rows with blocks of rows,
so no array has a cell for each pair of images.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

_QUERIES, _ROWS = 1024, 4096
_GROUP = 16  # Columns of which the largest is looked at first.
_ROUNDS = 20  # Of k-means.


class Neighbours(NamedTuple):
  """The nearest rows of each query, the nearest first.

  Attributes:
    place: Their places, (Q, k).
    cosine: Their cosines, (Q, k).
  """

  place: Int[np.ndarray, "Q k"]
  cosine: Float[np.ndarray, "Q k"]


class Clusters(NamedTuple):
  """The cluster of each row, and how typical it is.

  Attributes:
    label: The number of its cluster, (N,); the largest cluster is 0.
    typical: Its cosine with the cluster's mean, (N,).
  """

  label: Int[np.ndarray, " N"]
  typical: Float[np.ndarray, " N"]


def unit(vectors: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
  """Rows of length 1; a row of zeros stays.

  >>> import numpy as np
  >>> from vit_jax.inference.nearest import unit
  >>> unit(np.array([[3.0, 4.0]])).round(1).tolist()
  [[0.6, 0.8]]
  """
  length = np.linalg.norm(vectors, axis=1, keepdims=True)
  return (vectors / np.maximum(length, 1e-12)).astype(np.float32)


def neighbours(
  rows: Float[np.ndarray, "N D"],
  k: int,
  queries: Float[np.ndarray, "Q D"] | None = None,
) -> Neighbours:
  """The `k` nearest rows of each query, or of each row but itself.

  Rows and queries have length 1. Of equally near rows the first comes first.
  There are at most as many neighbours as rows.
  """
  without_itself = queries is None
  compared = rows if queries is None else queries
  k = min(k, len(rows) - without_itself)
  size = min(_ROWS, -(-len(rows) // _GROUP) * _GROUP)
  padding = -len(rows) % size
  blocks = np.pad(rows, ((0, padding), (0, 0))).reshape(-1, size, rows.shape[1])
  on_device = jnp.asarray(blocks)
  search = functools.partial(
    _search, k=k, count=len(rows), without_itself=without_itself
  )
  step = min(_QUERIES, len(compared))
  index = np.zeros((len(compared), k), np.int32)
  cosine = np.zeros((len(compared), k), np.float32)
  for first in range(0, len(compared), step):
    part = compared[first : first + step]
    count = len(part)
    part = np.pad(part, ((0, step - count), (0, 0)))
    best, place = search(jnp.asarray(part), on_device, first)
    index[first : first + count] = place[:count]
    cosine[first : first + count] = best[:count]
  return Neighbours(index, cosine)


@functools.partial(jax.jit, static_argnames=("k", "count", "without_itself"))
def _search(
  queries: Float[Array, "q D"],
  blocks: Float[Array, "n b D"],
  first: Int[Array, ""] | int,
  k: int,
  count: int,
  without_itself: bool,
) -> tuple[Float[Array, "q k"], Int[Array, "q k"]]:
  """The cosines and places of the nearest rows of one block of queries."""
  size = blocks.shape[1]
  places = jnp.arange(size, dtype=jnp.int32)[None]
  of_query = first + jnp.arange(len(queries), dtype=jnp.int32)[:, None]

  def merge(best: tuple[Array, Array], block: tuple[Array, Array]):
    rows, number = block
    cosines = jnp.matmul(queries, rows.T, precision="highest")
    place = number * size + places
    left_out = place >= count
    if without_itself:
      left_out = left_out | (place == of_query)
    cosines = jnp.where(left_out, -jnp.inf, cosines)
    top, column = _top(cosines, min(k, size))
    joined = jnp.concatenate([best[0], top], axis=1)
    where = jnp.concatenate([best[1], number * size + column], axis=1)
    top, column = jax.lax.top_k(joined, k)
    return (top, jnp.take_along_axis(where, column, axis=1)), None

  start = (
    jnp.full((len(queries), k), -jnp.inf, jnp.float32),
    jnp.zeros((len(queries), k), jnp.int32),
  )
  numbers = jnp.arange(len(blocks), dtype=jnp.int32)
  best, _ = jax.lax.scan(merge, start, (blocks, numbers))
  return best


def _top(
  cosines: Float[Array, "q b"], k: int
) -> tuple[Float[Array, "q k"], Int[Array, "q k"]]:
  """The `k` largest of each row, which lie in the `k` groups of largest maxima.

  It is several times as fast as a search of whole rows.
  """
  count, size = cosines.shape
  groups = cosines.reshape(count, size // _GROUP, _GROUP)
  _, chosen = jax.lax.top_k(groups.max(axis=2), min(k, groups.shape[1]))
  chosen = jnp.sort(chosen, axis=1)  # So that of equals the first comes first.
  among = jnp.take_along_axis(groups, chosen[..., None], axis=1)
  top, place = jax.lax.top_k(among.reshape(count, -1), k)
  group = jnp.take_along_axis(chosen, place // _GROUP, axis=1)
  return top, group * _GROUP + place % _GROUP


def duplicate_groups(nearby: Neighbours, least: float) -> list[np.ndarray]:
  """Groups of rows that a chain of cosines of at least `least` joins.

  `nearby` are the neighbours of each row. The largest groups come first.

  >>> import numpy as np
  >>> from vit_jax.inference.nearest import Neighbours, duplicate_groups
  >>> place = np.array([[2], [0], [0]])
  >>> cosine = np.array([[0.99], [0.5], [0.99]])
  >>> nearby = Neighbours(place, cosine)
  >>> [group.tolist() for group in duplicate_groups(nearby, 0.9)]
  [[0, 2]]
  """
  count = len(nearby.place)
  row, column = np.nonzero(nearby.cosine >= least)
  other = nearby.place[row, column]
  joined = scipy.sparse.coo_matrix(
    (np.ones(len(row), bool), (row, other)), shape=(count, count)
  )
  _, label = scipy.sparse.csgraph.connected_components(joined, directed=False)
  order = np.argsort(label, kind="stable")
  starts = np.flatnonzero(np.diff(label[order], prepend=-1))
  groups = [g for g in np.split(order, starts[1:]) if len(g) > 1]
  return sorted(groups, key=len, reverse=True)


def clusters(rows: Float[np.ndarray, "N D"], count: int) -> Clusters:
  """Clusters of rows of length 1, by k-means of seed 0.

  There are at most `count`; empty ones are left out.
  """
  means = rows[_spread(rows, count)]
  label = np.zeros(len(rows), np.int32)
  for _ in range(_ROUNDS):
    label = (rows @ means.T).argmax(axis=1)
    sums = np.zeros(means.shape, np.float64)
    np.add.at(sums, label, rows)
    filled = np.bincount(label, minlength=count) > 0
    means[filled] = unit(sums[filled])
  sizes = np.bincount(label, minlength=count)
  order = np.argsort(-sizes, kind="stable")
  number = np.empty(count, np.int32)
  number[order] = np.arange(count)
  label = number[label]
  means = np.zeros((count, rows.shape[1]), np.float64)
  np.add.at(means, label, rows)
  typical = np.einsum("nd,nd->n", rows, unit(means)[label])
  return Clusters(label, typical)


def _spread(rows: Float[np.ndarray, "N D"], count: int) -> list[int]:
  """Places of first means, far from each other: k-means++."""
  rng = np.random.default_rng(0)
  places = [int(rng.integers(len(rows)))]
  distance = np.full(len(rows), np.inf)
  for _ in range(count - 1):
    farther = np.maximum(1 - rows @ rows[places[-1]], 0).astype(np.float64)
    distance = np.minimum(distance, farther)
    distance[places[-1]] = 0
    total = distance.sum()
    share = distance / total if total else None
    places.append(int(rng.choice(len(rows), p=share)))
  return places
