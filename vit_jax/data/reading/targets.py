"""Numbers as labels: the targets of a regression."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from vit_jax.data.batch import ArraySpec
from vit_jax.data.reading.cells import Encode, Row, has_decimal_comma
from vit_jax.data.reading.columns import in_columns, read_number
from vit_jax.data.reading.labels import USUAL, Labels, Names

# The smallest ratio of a target's standard deviation to its mean that float32
# resolves well.
_LEAST_SPREAD = 1e-5


class Numbers(Labels):
  """Numbers, one for each column."""

  records = ""
  singular = "target"
  heading = "target"
  copies_alike = "twice with the same targets"
  copies_unlike = "there with different targets"

  def spec(self, count: int) -> ArraySpec:
    return ArraySpec((count,), np.float32)

  def columns(self, names: Sequence[str]) -> Sequence[str]:
    return [*names] or USUAL[:1]

  def fit(
    self, columns: Sequence[str], rows: Sequence[Row]
  ) -> tuple[Names, Encode]:
    return tuple(columns), functools.partial(in_columns, columns, read_number)

  def fit_to(
    self, columns: Sequence[str], rows: Sequence[Row], names: Names
  ) -> Encode:
    """As `Labels.fit_to`; a single target may have another name in the file."""
    if len(columns) == len(names) == 1:
      _, encode = self.fit(columns, rows)
      return encode
    return super().fit_to(columns, rows, names)

  def check(self, path: str, names: Sequence[str], labels: np.ndarray) -> None:
    """Raises ValueError for a target that hardly varies."""
    labels = labels.astype(np.float64)
    middle = np.abs(labels.mean(axis=0))
    spread = labels.std(axis=0)
    for name, mean, width in zip(names, middle, spread, strict=True):
      if width <= _LEAST_SPREAD * mean or not width:
        raise ValueError(
          f"{path} has the target {name}, which hardly varies ({width:.3g} "
          f"around {mean:.6g}): subtract a constant, or leave it out."
        )

  def warnings(self, names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """A line on decimal commas, if a number has one."""
    values = (
      value
      for row in rows
      for value in row.values
      if has_decimal_comma(row, value)
    )
    first = next(values, None)
    return [f"numbers such as {first!r} have a decimal comma."] if first else []

  def overview(self, summaries: np.ndarray, names: Names) -> dict[str, str]:
    """The least, the mean and the largest of each target."""
    rows = summaries.astype(np.float64)
    spans = zip(
      names, rows.min(axis=0), rows.mean(axis=0), rows.max(axis=0), strict=True
    )
    return {
      name: f"{least:.6g} to {most:.6g}, mean {mean:.6g}"
      for name, least, mean, most in spans
    }

  def spread(self, summaries: np.ndarray, names: Names) -> str:
    return ""

  def label_text(self, label: np.ndarray, names: Names) -> str:
    del names
    return ", ".join(f"{value:.6g}" for value in label)

  def describe(self, label: Any, names: Sequence[str]) -> str:
    pairs = zip(names, np.asarray(label).tolist(), strict=True)
    return ", ".join(f"{name} {value:.4g}" for name, value in pairs)


NUMBERS = Numbers("targets")
