"""Exact nearest neighbours among vectors, near-duplicates and clusters.

Vectors are compared by cosine. The search compares blocks of rows with blocks
of rows, so no array has a cell for each pair of images.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

QUERIES, ROWS = 1024, 4096  # Rows in a block of queries, and in one to search.
GROUP = 16  # Columns in a group, whose maximum is compared first.
_ROUNDS = 20  # Updates of the means in k-means.


class Neighbours(NamedTuple):
  """The nearest rows of each query, the nearest first.

  Attributes:
    place: The places of the nearest rows, (Q, k).
    cosine: Their cosines with the query, (Q, k).
  """

  place: Int[np.ndarray, "Q k"]
  cosine: Float[np.ndarray, "Q k"]


class Clusters(NamedTuple):
  """The cluster of each row, and how typical it is.

  Attributes:
    label: The number of the row's cluster, (N,); the largest cluster is 0.
    typical: The row's cosine with the mean of its cluster, (N,).
  """

  label: Int[np.ndarray, " N"]
  typical: Float[np.ndarray, " N"]


def unit(vectors: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
  """The rows, scaled to length 1; a row of zeros stays.

  >>> import numpy as np
  >>> from vit_jax.tasks.probes.nearest import unit
  >>> unit(np.array([[2.0, 0.0]])).tolist()
  [[1.0, 0.0]]
  """
  length = np.linalg.norm(vectors, axis=1, keepdims=True)
  return (vectors / np.maximum(length, 1e-12)).astype(np.float32)


def neighbours(
  rows: Float[np.ndarray, "N D"],
  k: int,
  queries: Float[np.ndarray, "Q D"] | None = None,
) -> Neighbours:
  """The `k` nearest rows of each query.

  Rows and queries have length 1. Equally near rows keep their order. With fewer
  than `k` rows, all are neighbours. Without queries, each row is compared with
  the others; the cosines of two blocks of rows then serve the rows of both.
  """
  size = min(ROWS, -(-len(rows) // GROUP) * GROUP)
  blocks = _blocks(rows, size)
  if queries is None:
    best = _search_rows(blocks, min(k, len(rows) - 1), len(rows))
    return _concatenate(best, len(rows))
  step = min(QUERIES, len(queries))
  search = functools.partial(search_block, k=min(k, len(rows)), count=len(rows))
  best = [search(part, blocks) for part in _blocks(queries, step)]
  return _concatenate(best, len(queries))


Best = tuple[Float[Array, "q k"], Int[Array, "q k"]]
"""The cosines and the places of the nearest rows so far."""


def _blocks(rows: Float[np.ndarray, "N D"], size: int) -> Float[Array, "n b D"]:
  """Blocks of rows on the device; the last is filled up with zeros."""
  padded = np.pad(rows, ((0, -len(rows) % size), (0, 0)))
  return jnp.asarray(padded.reshape(-1, size, rows.shape[1]))


def _concatenate(blocks: Sequence[Best], count: int) -> Neighbours:
  """The neighbours of the first `count` rows of all blocks."""
  cosines, places = zip(*blocks, strict=True)
  return Neighbours(
    place=np.concatenate(places)[:count],
    cosine=np.concatenate(cosines)[:count],
  )


def _no_neighbours(count: int, k: int) -> Best:
  """The start of a search: every cosine to come is higher than these."""
  cosines = jnp.full((count, k), -jnp.inf, jnp.float32)
  return cosines, jnp.zeros((count, k), jnp.int32)


def _search_rows(
  blocks: Float[Array, "n b D"], k: int, count: int
) -> list[Best]:
  """The `k` other rows nearest to each of `count` rows, block by block."""
  parts = [*blocks]
  best = [_no_neighbours(blocks.shape[1], k) for _ in parts]
  for i in range(len(parts)):
    best[i] = _within(parts[i], i, best[i], count)
    for j in range(i + 1, len(parts)):
      best[i], best[j] = compare_blocks(
        parts[i], parts[j], (i, j), best[i], best[j], count
      )
  return best


@jax.jit
def _within(
  rows: Float[Array, "b D"],
  number: Int[Array, ""] | int,
  best: Best,
  count: int,
) -> Best:
  """The nearest rows of each row, updated by the other rows of its block.

  `number` is the block's number, and `count` is the number of all rows.
  """
  cosines = _cosines(rows, rows)
  cosines = jnp.where(jnp.eye(len(rows), dtype=bool), -jnp.inf, cosines)
  return _merge(best, cosines, number, count)


@jax.jit
def compare_blocks(
  rows: Float[Array, "b D"],
  others: Float[Array, "b D"],
  numbers: tuple[int, int],
  best: Best,
  best_of_others: Best,
  count: int,
) -> tuple[Best, Best]:
  """Compares the rows of two blocks, and updates the nearest rows of both.

  `numbers` are the blocks' numbers, and `count` is the number of all rows.
  """
  cosines = _cosines(rows, others)
  first, second = numbers
  return (
    _merge(best, cosines, second, count),
    _merge(best_of_others, cosines.T, first, count),
  )


@functools.partial(jax.jit, static_argnames=("k", "count"))
def search_block(
  queries: Float[Array, "q D"],
  blocks: Float[Array, "n b D"],
  k: int,
  count: int,
) -> Best:
  """The `k` rows nearest to each query, of the `count` rows in `blocks`."""

  def merge(best: Best, block: tuple[Array, Array]) -> tuple[Best, None]:
    rows, number = block
    return _merge(best, _cosines(queries, rows), number, count), None

  numbers = jnp.arange(len(blocks), dtype=jnp.int32)
  best, _ = jax.lax.scan(
    merge, _no_neighbours(len(queries), k), (blocks, numbers)
  )
  return best


def _cosines(
  rows: Float[Array, "q D"], others: Float[Array, "b D"]
) -> Float[Array, "q b"]:
  """The cosines of unit vectors."""
  return jnp.matmul(rows, others.T, precision="highest")


def _merge(
  best: Best,
  cosines: Float[Array, "q b"],
  number: Int[Array, ""] | int,
  count: Int[Array, ""] | int,
) -> Best:
  """The nearest rows so far, merged with those of block `number`.

  The padding beyond the last of `count` rows is left out.
  """
  best_cosines, best_places = best
  k = best_cosines.shape[1]
  size = cosines.shape[1]
  first = number * size
  is_row = first + jnp.arange(size, dtype=jnp.int32) < count
  top, column = _top(jnp.where(is_row[None], cosines, -jnp.inf), min(k, size))
  joined = jnp.concatenate([best_cosines, top], axis=1)
  places = jnp.concatenate([best_places, first + column], axis=1)
  top, column = jax.lax.top_k(joined, k)
  return top, jnp.take_along_axis(places, column, axis=1)


def _top(
  cosines: Float[Array, "q b"], k: int
) -> tuple[Float[Array, "q k"], Int[Array, "q k"]]:
  """The `k` largest cosines of each row, and their columns.

  They lie in the `k` groups of columns with the largest maxima, so only these
  are searched, which is several times as fast as a search of whole rows.
  """
  count, size = cosines.shape
  groups = cosines.reshape(count, size // GROUP, GROUP)
  _, chosen = jax.lax.top_k(groups.max(axis=2), min(k, groups.shape[1]))
  chosen = jnp.sort(chosen, axis=1)  # Equal cosines then keep their order.
  among = jnp.take_along_axis(groups, chosen[..., None], axis=1)
  top, place = jax.lax.top_k(among.reshape(count, -1), k)
  group = jnp.take_along_axis(chosen, place // GROUP, axis=1)
  return top, group * GROUP + place % GROUP


def duplicate_groups(
  nearby: Neighbours,
  least: float,
  confirm: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
) -> list[np.ndarray]:
  """Groups of rows that chains of pairs with a cosine of `least` or more join.

  `nearby` has the neighbours of each row. `confirm` takes the first and the
  second rows of all such pairs and says which pairs to join; by default all
  are joined. The largest groups come first.

  >>> import numpy as np
  >>> from vit_jax.tasks.probes.nearest import Neighbours, duplicate_groups
  >>> place = np.array([[2], [0], [0]])
  >>> cosine = np.array([[0.99], [0.5], [0.99]])
  >>> nearby = Neighbours(place, cosine)
  >>> [group.tolist() for group in duplicate_groups(nearby, 0.9)]
  [[0, 2]]
  """
  count = len(nearby.place)
  row, column = np.nonzero(nearby.cosine >= least)
  other = nearby.place[row, column]
  if confirm is not None:
    is_joined = confirm(row, other)
    row = row[is_joined]
    other = other[is_joined]
  joined = scipy.sparse.coo_matrix(
    (np.ones(len(row), bool), (row, other)), shape=(count, count)
  )
  _, label = scipy.sparse.csgraph.connected_components(joined, directed=False)
  order = np.argsort(label, kind="stable")
  starts = np.flatnonzero(np.diff(label[order], prepend=-1))
  members = np.split(order, starts[1:])
  groups = [group for group in members if len(group) > 1]
  return sorted(groups, key=len, reverse=True)


def clusters(rows: Float[np.ndarray, "N D"], count: int) -> Clusters:
  """Clusters of rows, which are unit vectors, by k-means with seed 0.

  There are at most `count` clusters, as some may be empty.
  """
  means = rows[_spread(rows, count)]
  label = np.zeros(len(rows), np.int32)
  for _ in range(_ROUNDS):
    label = (rows @ means.T).argmax(axis=1)
    filled = np.bincount(label, minlength=count) > 0
    means[filled] = unit(_sums(rows, label, count)[filled])
  sizes = np.bincount(label, minlength=count)
  order = np.argsort(-sizes, kind="stable")
  number = np.empty(count, np.int32)
  number[order] = np.arange(count)
  label = number[label]
  means = unit(_sums(rows, label, count))
  cosines = rows @ means.T
  typical = np.take_along_axis(cosines, label[:, None], axis=1)[:, 0]
  return Clusters(label, typical)


def _sums(
  rows: Float[np.ndarray, "N D"], label: Int[np.ndarray, " N"], count: int
) -> Float[np.ndarray, "C D"]:
  """The sum of the rows of each label; much faster than `np.add.at`."""
  ones = np.ones(len(rows), rows.dtype)
  members = scipy.sparse.csr_matrix(
    (ones, (label, np.arange(len(rows)))), shape=(count, len(rows))
  )
  return members @ rows


def _spread(rows: Float[np.ndarray, "N D"], count: int) -> list[int]:
  """The places of the first means, far from each other (k-means++)."""
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
