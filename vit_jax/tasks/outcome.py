"""The outcome of an evaluation, and the charts and examples in it."""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from vit_jax.data.example import Source
from vit_jax.runtime.display import Display, Track, untracked

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""The names of the columns, and the rows."""


@dataclasses.dataclass(frozen=True)
class Curves:
  """A chart of metrics by step.

  Attributes:
    title: The chart's title.
    curves: The name of each curve, by the metric, such as "eval/top1".
    percent: Whether the values are shares.
    logarithmic: Whether the vertical axis is logarithmic.
  """

  title: str
  curves: Mapping[str, str]
  percent: bool = False
  logarithmic: bool = False


@dataclasses.dataclass(frozen=True)
class Chart:
  """A chart of an evaluation, as arrays.

  Attributes:
    kind: `inspection.charts.<kind>_figure` draws it.
    arrays: The arguments of that function.
    alt: The chart in words.
    caption: The line below it.
    while_training: Whether a run that asks for pictures draws it at each
      evaluation.
  """

  kind: str
  arrays: Mapping[str, Any]
  alt: str
  caption: str
  while_training: bool = False


@dataclasses.dataclass(frozen=True)
class Example:
  """A telling example: its place in the split, and what was answered."""

  index: int
  caption: str
  alt: str


@dataclasses.dataclass(frozen=True)
class Examples:
  """Telling examples of one kind, the most telling first."""

  title: str
  text: str
  examples: Sequence[Example]


class Outcome:
  """The outcome of an evaluation of a split."""

  @property
  def metrics(self) -> dict[str, Any]:
    """The metrics `eval/...` of the task, as a new dictionary.

    It has `eval/loss`, `eval/examples` and `eval/skipped_images` as well.
    """
    raise NotImplementedError

  @property
  def details(self) -> dict[str, float]:
    """Further metrics by key, if details were asked for."""
    return {}

  @property
  def remark(self) -> str:
    """Text to put after the metrics."""
    return ""

  @property
  def notes(self) -> list[str]:
    """Lines about what was odd."""
    return []

  def by_class(self) -> dict[str, Any]:
    """Metrics of each class or target, as dictionaries by its name."""
    return {}

  def show(self, display: Display) -> None:
    """Prints the scores of each class or target."""

  def write(self, path: pathlib.Path, source: Source) -> None:
    """Writes the answer to every example as CSV, the highest loss first."""
    raise NotImplementedError

  def headline(self) -> str:
    """A phrase to add to the result in words; may be empty."""
    return ""

  def tables(self, counts: Any = None) -> list[tuple[str, Table]]:
    """Captioned tables of a report.

    Args:
      counts: Number of training examples of each class, if known.
    """
    return []

  def charts(self) -> list[Chart]:
    """Charts of a report."""
    return []

  def telling(self) -> list[Examples]:
    """Examples of a report."""
    return []


@runtime_checkable
class Evaluator(Protocol):
  """Evaluates parameters on a split; one may be called many times."""

  def __call__(
    self,
    params: Any,
    track: Track = untracked,
    *,
    detail: bool = False,
    examples: bool = False,
  ) -> Outcome:
    """Evaluates every example of the split once.

    Args:
      params: The model's parameters.
      track: Shows the progress.
      detail: Whether the outcome needs more than `metrics` and `by_class`.
      examples: Whether it will be asked to `write` all answers.

    Raises:
      ValueError: if no image can be read.
    """
    ...


def examples_of(metrics: Mapping[str, Any]) -> str:
  """The number of examples that were evaluated, in words."""
  return f"{metrics['eval/examples']:,} images"


def check_readable(examples: int) -> None:
  """Raises ValueError if a split had no readable image."""
  if not examples:
    raise ValueError("the evaluation split has no readable image.")


def share(value: float) -> str:
  """A share as a percentage, or a dash if it is not defined."""
  return "-" if np.isnan(value) else f"{value:.2%}"


def only(names: Iterable[str], label: np.ndarray) -> list[str]:
  """The names whose entry in a row of flags is true."""
  return [name for name, given in zip(names, label, strict=True) if given]
