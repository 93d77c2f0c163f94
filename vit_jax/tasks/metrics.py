"""Metrics are sums that add up, and one loop adds those of a split's batches.

A task says by a `Measure` what is computed of a batch. What was found on some
examples is a `Metric`: that of one part of a split and that of another add up
to that of both, whichever batches, devices and hosts the parts were on, and its
`result` is the outcome of an evaluation.
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


def _as_found(found: Any, first: int, **_: bool) -> Parts:
  del first
  return found


def _nothing(params: Any, track: Track) -> Parts:
  del params, track
  return {}


@dataclasses.dataclass(frozen=True, eq=False)
class Measure:
  """A task's way to measure a model: on each batch, and from the sum of all.

  Attributes:
    compute: A function from (params, batch, first, *frozen) to arrays, which is
      compiled; `first` is the place in the split of the batch's first example.
      A batch is one of `EvalBatches`.
    outcome: A function from the parts of a metric to what is made of them.
    parts: A function from (found, first, detail, examples) to the parts of a
      batch's metric, from the arrays of `compute` on the host. By default they
      are these arrays. `detail` and `examples` are those of an `Evaluator`.
    beside: A function from (params, track) to further parts of the whole, which
      are of another split.
    frozen: Further arguments of `compute`, such as a teacher's parameters.
  """

  compute: Callable[..., Any]
  outcome: Callable[[Parts], Any]
  parts: Callable[..., Parts] = _as_found
  beside: Callable[[Any, Track], Parts] = _nothing
  frozen: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class Metric:
  """The measurement of some examples; the sum of two is that of all of them.

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
  """The metric of parameters on all batches, which every evaluation adds here.

  Raises ValueError if there are none.

  Args:
    compute: The compiled `measure.compute`; by default it is compiled.
    first: The place in the split of the first example of these batches.
    detail, examples: As in `Evaluator`.
  """
  step = jax.jit(measure.compute) if compute is None else compute

  def steps() -> Iterator[tuple[np.int32, Any]]:
    place = first
    for batch in batches:
      number = np.int32(place)
      yield number, step(params, batch, number, *measure.frozen)
      place += len(jax.tree.leaves(batch)[0])

  # They are begun as they are summed: a list would have begun them all.
  metrics = (
    Metric(
      measure,
      measure.parts(found, int(place), detail=detail, examples=examples),
    )
    for place, found in sharding.fetch_results(steps())
  )
  metric = next(metrics, None)
  if metric is None:
    raise ValueError("there is no batch to evaluate on: give one or more.")
  return functools.reduce(operator.add, metrics, metric)


class Evaluator:
  """Evaluates parameters on a split; one may be called many times."""

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
    """The metric on every example of the split, once."""
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
    """Evaluates every example of the split once.

    Raises ValueError if no image can be read. The outcome has more than
    `metrics` and `by_class` with `detail`, and can `write` with `examples`.
    """
    return self.metric(params, track, detail=detail, examples=examples).result()


@dataclasses.dataclass(frozen=True)
class Gathered:
  """The arrays of the readable examples of a split, in its order.

  Attributes:
    index: Place of each example in the split.
    arrays: The arrays by name, each with a row for each example. What the data
      say of it is `label`, and the others are the model's.
    skipped: Number of unreadable images.
  """

  index: np.ndarray
  arrays: dict[str, np.ndarray]
  skipped: int

  @property
  def unanswered(self) -> int:
    """The number of examples of which an array of the model is not finite."""
    is_finite = np.ones(len(self.index), bool)
    for name, array in self.arrays.items():
      if name != "label":  # It may be unknown.
        is_finite &= np.isfinite(array.reshape(len(array), -1)).all(axis=1)
    return int((~is_finite).sum())


def gathering(
  rows: Callable[[Any, Batch], dict[str, Array]],
  outcome: Callable[..., Any] = lambda gathered: gathered,
  beside: Callable[[Any, Track], Parts] = _nothing,
) -> Measure:
  """Returns the measure by arrays of all examples, which the host keeps.

  Args:
    rows: A function from parameters and a batch to arrays with a row for each
      example; it is compiled.
    outcome: A function from `Gathered`, with the parts of `beside` as keywords.
  """

  def compute(params: Any, batch: Batch, first: Array) -> tuple[Any, ...]:
    del first
    return rows(params, batch), batch["mask"], batch["skipped"].sum()

  def parts(found: tuple[Any, ...], first: int, **_: bool) -> Parts:
    arrays, mask, skipped = found
    places = np.flatnonzero(mask > 0)
    each = {name: array[places] for name, array in arrays.items()}
    return {"rows": ((first + places, each),), "skipped": skipped}

  def result(parts: Parts) -> Any:
    more = {**parts}
    pieces, skipped = more.pop("rows"), more.pop("skipped")
    index = np.concatenate([places for places, _ in pieces])
    check_readable(len(index))
    joined = {
      name: np.concatenate([each[name] for _, each in pieces])
      for name in pieces[0][1]
    }
    return outcome(Gathered(index, joined, int(skipped)), **more)

  return Measure(compute, result, parts, beside)
