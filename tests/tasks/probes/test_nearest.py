"""Exact neighbours, groups and clusters, compared with NumPy."""

import jax
import numpy as np
import pytest

from vit_jax.tasks.probes import nearest


def drawn(count, width=8, seed=0):
  rows = np.random.default_rng(seed).normal(size=(count, width))
  return nearest.unit(rows)


@pytest.mark.parametrize("count", [2, 7, 50])
def test_neighbours_are_those_of_all_cosines(monkeypatch, count):
  """In blocks of 8 rows, of which the last is not full."""
  monkeypatch.setattr(nearest, "ROWS", 8)
  monkeypatch.setattr(nearest, "GROUP", 2)
  rows = drawn(count)
  cosines = np.float64(rows) @ np.float64(rows.T)
  np.fill_diagonal(cosines, -np.inf)
  k = min(5, count - 1)
  order = np.argsort(-cosines, axis=1)[:, :k]
  found = nearest.neighbours(rows, 5)
  np.testing.assert_array_equal(found.place, order)
  np.testing.assert_allclose(
    found.cosine, np.take_along_axis(cosines, order, axis=1), atol=1e-6
  )


def test_of_equally_near_rows_the_first_comes_first(monkeypatch):
  """Also where they lie in several groups of a block, and in several blocks."""
  monkeypatch.setattr(nearest, "ROWS", 8)
  monkeypatch.setattr(nearest, "GROUP", 2)
  rows = np.zeros((20, 4), np.float32)
  rows[:, 0] = 1
  rows[[2, 7, 13]] = [[0, 1, 0, 0]]
  query = np.array([[0.6, 0.8, 0, 0]], np.float32)
  found = nearest.neighbours(rows, 6, query)
  assert found.place.tolist() == [[2, 7, 13, 0, 1, 3]]


def test_queries_may_be_rows_themselves(monkeypatch):
  """In blocks of 2 queries and 8 rows, of which the last are not full."""
  monkeypatch.setattr(nearest, "QUERIES", 2)
  monkeypatch.setattr(nearest, "ROWS", 8)
  monkeypatch.setattr(nearest, "GROUP", 2)
  rows = drawn(20)
  queries = np.concatenate([rows[[3, 11]], drawn(1, seed=1)])
  found = nearest.neighbours(rows, 3, queries)
  assert found.place[:2, 0].tolist() == [3, 11]
  best = (queries[2] @ rows.T).argmax()
  assert found.place[2, 0] == best


def test_no_array_has_a_cell_for_each_pair():
  """10,000 rows; the largest array of a search is that of two blocks."""
  count, k = 10_000, 10
  blocks = jax.ShapeDtypeStruct((3, 4096, 16), np.float32)
  queries = jax.ShapeDtypeStruct((1024, 16), np.float32)
  for_queries = nearest.search_block.trace(queries, blocks, k=k, count=count)
  assert _largest(for_queries.jaxpr.jaxpr) == 1024 * 4096
  block = jax.ShapeDtypeStruct((4096, 16), np.float32)
  best = tuple(
    jax.ShapeDtypeStruct((4096, k), t) for t in (np.float32, np.int32)
  )
  for_rows = nearest.compare_blocks.trace(
    block, block, (0, 1), best, best, count
  )
  assert _largest(for_rows.jaxpr.jaxpr) == 4096 * 4096


def _largest(jaxpr):
  return max(
    variable.aval.size
    for equation in _equations(jaxpr)
    for variable in equation.outvars
  )


def _equations(jaxpr):
  for equation in jaxpr.eqns:
    yield equation
    for value in equation.params.values():
      inner = getattr(value, "jaxpr", None)
      if inner is not None:
        yield from _equations(getattr(inner, "jaxpr", inner))


def test_chains_join_groups_and_the_largest_comes_first():
  angles = np.radians([0, 5, 10, 90, 94, 180])
  rows = nearest.unit(np.stack([np.cos(angles), np.sin(angles)], axis=1))
  found = nearest.neighbours(rows, 2)
  groups = nearest.duplicate_groups(found, np.cos(np.radians(6)))
  assert [group.tolist() for group in groups] == [[0, 1, 2], [3, 4]]
  assert nearest.duplicate_groups(found, 1.0 + 1e-6) == []


def test_clusters_are_those_that_were_made():
  rng = np.random.default_rng(0)
  centres = np.eye(3, 8)
  label = np.repeat([0, 1, 2], [12, 9, 5])
  rows = nearest.unit(centres[label] + 0.05 * rng.normal(size=(26, 8)))
  found = nearest.clusters(rows, 3)
  np.testing.assert_array_equal(found.label, label)
  mean = rows[:12].mean(axis=0)
  expected = rows[:12] @ mean / np.linalg.norm(mean)
  np.testing.assert_allclose(found.typical[:12], expected, rtol=1e-5)
