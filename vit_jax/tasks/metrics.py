"""Metrics of batches, and the one loop that adds them up over a split.

A task's `Measure` says what is computed on a batch. The measurement of some
examples is a `Metric`: the metrics of two parts of a split add up to that of
both, whichever batches, devices and hosts the parts were on. Its `result` is
the outcome of an evaluation.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from vit_jax.runtime.display import Track, untracked
from vit_jax.tasks.outcome import Outcome, Stream, check_readable
from vit_jax.training import sharding

Batch = Mapping[str, Any]
Parts = dict[str, Any]
"""Parts of a metric by name: arrays, tuples or objects, which add up by `+`."""


def _as_computed(computed: Any, first: int, **_: bool) -> Parts:
  """The default of `Measure.parts`: the computed arrays."""
  del first
  return computed


def _no_parts(params: Any, track: Track) -> Parts:
  """The default of `Measure.beside`: nothing is measured on another split."""
  del params, track
  return {}


@dataclasses.dataclass(frozen=True, eq=False)
class Measure:
  """A task's way to measure a model: on each batch, and from the sum of all.

  Attributes:
    compute: A function from (params, batch, first, *frozen) to arrays, which is
      compiled; `first` is the place in the split of the batch's first example.
      A batch is one of `EvalBatches`.
    outcome: A function from the parts of a metric to the outcome.
    parts: A function from (computed, first, detail, examples) to the parts of a
      batch's metric; `computed` are the arrays of `compute` on the host. By
      default the parts are these arrays. `Evaluator.__call__` explains `detail`
      and `examples`.
    beside: A function from (params, track) to parts that are measured on
      another split, and stand beside those of this one under other names.
    frozen: Further arguments of `compute`, such as a teacher's parameters.
  """

  compute: Callable[..., Any]
  outcome: Callable[[Parts], Any]
  parts: Callable[..., Parts] = _as_computed
  beside: Callable[[Any, Track], Parts] = _no_parts
  frozen: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class Metric:
  """The measurement of some examples; a sum of metrics measures them all.

  Parts that keep rows of examples have them in the order of the addition.
  """

  measure: Measure
  parts: Parts

  def __add__(self, other: "Metric") -> "Metric":
    parts = {key: x + other.parts[key] for key, x in self.parts.items()}
    return Metric(self.measure, parts)

  def result(self) -> Any:
    """The outcome of an evaluation on these examples.

    Raises ValueError if there are none.
    """
    return self.measure.outcome(self.parts)


def evaluate(
  measure: Measure,
  params: Any,
  batches: Iterable[Any],
  *,
  compute: Callable[..., Any] | None = None,
  first: int = 0,
  detail: bool = False,
  examples: bool = False,
) -> Metric:
  """The metric of parameters on all batches; every evaluation computes it here.

  Raises ValueError if there is no batch.

  Args:
    compute: `measure.compute`, compiled already; None compiles it.
    first: The place in the split of the first example of these batches.
    detail, examples: As in `Evaluator.__call__`.
  """
  step = jax.jit(measure.compute) if compute is None else compute

  def steps() -> Iterator[tuple[np.int32, Any]]:
    """Yields the place of each batch's first example, and what is computed."""
    place = first
    for batch in batches:
      number = np.int32(place)
      yield number, step(params, batch, number, *measure.frozen)
      place += len(jax.tree.leaves(batch)[0])

  def metrics() -> Iterator[Metric]:
    """Yields the metric of each batch."""
    for place, computed in sharding.fetch_results(steps()):
      parts = measure.parts(
        computed, int(place), detail=detail, examples=examples
      )
      yield Metric(measure, parts)

  # Metrics are added one by one: a list would start all steps at once.
  remaining = metrics()
  total = next(remaining, None)
  if total is None:
    raise ValueError("there is no batch to evaluate on: give one or more.")
  return functools.reduce(operator.add, remaining, total)


class Evaluator:
  """Evaluates parameters on a split; it may be called many times."""

  def __init__(self, measure: Measure, stream: Stream):
    self._measure, self._stream = measure, stream
    self._compute = sharding.jit_replicated(measure.compute, stream.mesh)

  def metric(
    self,
    params: Any,
    track: Track = untracked,
    *,
    detail: bool = False,
    examples: bool = False,
  ) -> Metric:
    """Evaluates every example of the split once; returns their metric."""
    metric = evaluate(
      self._measure,
      params,
      self._stream(track),
      compute=self._compute,
      detail=detail,
      examples=examples,
    )
    beside = self._measure.beside(params, track)
    return dataclasses.replace(metric, parts=metric.parts | beside)

  def __call__(
    self,
    params: Any,
    track: Track = untracked,
    *,
    detail: bool = False,
    examples: bool = False,
  ) -> Outcome:
    """Evaluates every example of the split once; returns the outcome.

    Without `detail`, some outcomes have `metrics`, `by_class` and `chance`
    alone; without `examples`, some cannot `write`. Raises ValueError if no
    image can be read.
    """
    return self.metric(params, track, detail=detail, examples=examples).result()


@dataclasses.dataclass(frozen=True)
class Gathered:
  """The arrays of the readable examples of a split, in its order.

  Attributes:
    index: Place of each example in the split.
    arrays: The arrays by name, each with a row for each example. `label` comes
      from the data, and the other arrays from the model.
    skipped: Number of unreadable images.
  """

  index: np.ndarray
  arrays: dict[str, np.ndarray]
  skipped: int

  @property
  def unanswered(self) -> int:
    """The number of examples for which an array of the model is not finite."""
    is_finite = np.ones(len(self.index), bool)
    for name, array in self.arrays.items():
      if name != "label":  # A label may be NaN, as it is unknown.
        is_finite &= np.isfinite(array.reshape(len(array), -1)).all(axis=1)
    return int((~is_finite).sum())


def gathering(
  rows: Callable[[Any, Batch], dict[str, Array]],
  outcome: Callable[..., Any] = lambda gathered: gathered,
  beside: Callable[[Any, Track], Parts] = _no_parts,
) -> Measure:
  """Returns the measure that gathers arrays of all examples on the host.

  Args:
    rows: A function from parameters and a batch to arrays with a row for each
      example; it is compiled.
    outcome: A function from `Gathered`, and the parts of `beside` as keywords,
      to the outcome.
    beside: As in `Measure`.
  """

  def compute(params: Any, batch: Batch, first: Array) -> tuple[Any, ...]:
    del first
    return rows(params, batch), batch["mask"], batch["skipped"].sum()

  def parts(computed: tuple[Any, ...], first: int, **_: bool) -> Parts:
    """The places and the arrays of a batch's readable examples."""
    arrays, mask, skipped = computed
    places = np.flatnonzero(mask > 0)
    each = {name: array[places] for name, array in arrays.items()}
    return {"rows": ((first + places, each),), "skipped": skipped}

  def result(parts: Parts) -> Any:
    """The outcome, from the rows of all batches."""
    others = {**parts}
    pieces = others.pop("rows")
    skipped = others.pop("skipped")
    index = np.concatenate([places for places, _ in pieces])
    check_readable(len(index))
    arrays_of_pieces = [arrays for _, arrays in pieces]
    joined = {
      name: np.concatenate([arrays[name] for arrays in arrays_of_pieces])
      for name in arrays_of_pieces[0]
    }
    return outcome(Gathered(index, joined, int(skipped)), **others)

  return Measure(compute, result, parts, beside)
