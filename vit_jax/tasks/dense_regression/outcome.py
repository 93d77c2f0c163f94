"""The outcome of an evaluation of numbers of pixels, from sums per image."""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.data.example import Source
from vit_jax.runtime.display import Display
from vit_jax.tasks.metrics import Gathered
from vit_jax.tasks.outcome import Example, Examples, Outcome, Table, write_rows

_SHOWN = 6  # Examples of each kind in a report.
_ROUNDING = 1e-6  # Equal answers have at most this share of targets' variance.
_CLOSE = 1.25  # The bound of delta1: y / y* and y* / y are below it.

Each = Float[np.ndarray, " N"]


def sums(
  y: Float[Array, "B H W"],
  targets: Float[Array, "B H W"],
  middle: float,
  spread: float,
) -> dict[str, Float[Array, " B"]]:
  """Sums over the known pixels of each image, from which all metrics follow.

  `middle` and `spread` are roughly the targets' mean and deviation, by which
  numbers are standardised, so that their sums and squares keep their digits.
  """
  known = ~jnp.isnan(targets)
  target = jnp.where(known, targets, 1.0)
  error = jnp.abs(y - target)
  positive = known & (target > 0)
  true = jnp.where(positive, target, 1.0)
  ratio = y / true
  z = (target - middle) / spread
  z_y = (y - middle) / spread
  close = (ratio < _CLOSE) & (ratio > 1 / _CLOSE)
  # By the key of a sum: which pixels count, and their values.
  each = {
    "pixels": (known, jnp.ones_like(target)),
    "positive": (positive, jnp.ones_like(target)),
    "error": (known, error),
    "squared": (known, (error / spread) ** 2),
    "target": (known, z),
    "target_squared": (known, z**2),
    "answer": (known, z_y),
    "answer_squared": (known, z_y**2),
    "relative": (positive, error / true),
    "close": (positive, close.astype(jnp.float32)),
  }
  return {
    key: jnp.where(counts, values, 0).sum(axis=(1, 2))
    for key, (counts, values) in each.items()
  }


@dataclasses.dataclass(frozen=True)
class PixelNumbersOutcome(Outcome):
  """The outcome of an evaluation of a number for each pixel.

  Attributes:
    name, unit: The numbers' name, and their unit or "".
    spread: The `spread` that `sums` was given.
    gathered: The loss of each example, and its `sums`.
  """

  name: str
  unit: str
  spread: float
  gathered: Gathered

  @property
  def unanswered(self) -> int:
    return self.gathered.unanswered

  @functools.cached_property
  def _each(self) -> dict[str, Each]:
    """The loss and the `sums` of each example."""
    return {k: x.astype(np.float64) for k, x in self.gathered.arrays.items()}

  @functools.cached_property
  def _totals(self) -> Mapping[str, float]:
    """The sums over all examples."""
    return {key: float(x.sum()) for key, x in self._each.items()}

  @property
  def constant(self) -> bool:
    """Whether all known pixels get the same number, up to rounding."""
    if self.unanswered:
      return False
    answers = _variance(self._totals, "answer")
    return answers <= _ROUNDING * _variance(self._totals, "target")

  @property
  def scores(self) -> dict[str, Any]:
    """The scores of the split; raises ValueError without a known pixel.

    `abs_rel` and `delta1` are among them if all targets are above 0.
    """
    totals = self._totals
    pixels = totals["pixels"]
    if not pixels:
      raise ValueError(
        "the evaluation split has no readable, known pixel: evaluate on other "
        "images."
      )
    variance = _variance(totals, "target")
    mean_square = _or_worst(totals["squared"] / pixels, np.inf)
    errors = {
      "mae": _or_worst(totals["error"] / pixels, np.inf),
      "rmse": self.spread * float(np.sqrt(mean_square)),
      "r2": 1 - mean_square / variance if variance > 0 else -np.inf,
    }
    if totals["positive"] == pixels:
      errors["abs_rel"] = _or_worst(totals["relative"] / pixels, np.inf)
      errors["delta1"] = _or_worst(totals["close"] / pixels, 0.0)
    return {
      "loss": float(self._each["loss"].mean()),
      **errors,
      "examples": len(self.gathered.index),
      "skipped_images": self.gathered.skipped,
    }

  @property
  def chance(self) -> float:
    """The R2 of answering the mean for all pixels."""
    return 0.0

  def table(self) -> Table:
    """The errors, with their unit."""
    scores = self.scores
    names = {
      "mae": ("mean absolute error", self.unit),
      "rmse": ("root of the mean squared error", self.unit),
      "r2": ("R2", ""),
      "abs_rel": ("error over target", ""),
      "delta1": (f"within a factor of {_CLOSE}", ""),
    }
    rows = [
      [name, f"{scores[key]:.5g} {unit}".rstrip()]
      for key, (name, unit) in names.items()
      if key in scores
    ]
    return (self.name, "of all known pixels"), rows

  def show(self, display: Display) -> None:
    display.table(*self.table())

  def tables(self, counts: Any = None) -> list[tuple[str, Table]]:
    return [("Errors", self.table())]

  @functools.cached_property
  def each_error(self) -> Each:
    """The mean absolute error of each example; 0 without a known pixel."""
    return self._each["error"] / np.maximum(self._each["pixels"], 1)

  def write(self, path: pathlib.Path, source: Source) -> None:
    """Writes the errors of each image, the highest loss first."""
    each = self._each
    order = np.argsort(-each["loss"], kind="stable")
    rmse = self.spread * np.sqrt(
      each["squared"] / np.maximum(each["pixels"], 1)
    )
    columns = (each["pixels"], self.each_error, rmse, each["loss"])
    rows = ([f"{column[row]:.8g}" for column in columns] for row in order)
    names = ("known_pixels", "mae", "rmse", "loss")
    write_rows(path, source, names, self.gathered.index[order], rows)

  def telling(self) -> list[Examples]:
    """The images with the highest and the lowest mean absolute error."""
    order = np.argsort(-self.each_error, kind="stable")
    worst = [*order[:_SHOWN]]
    best = [row for row in order[::-1][:_SHOWN] if row not in worst]
    text = "The image, its target, and the model's answer."
    return [
      Examples(f"{kind} images", text, [*map(self._example, rows)])
      for kind, rows in (("Worst", worst), ("Best", best))
      if rows
    ]

  def _example(self, row: int) -> Example:
    """The image at a row, with its mean absolute error as caption."""
    unit = f" {self.unit}" if self.unit else ""
    caption = f"mean absolute error {self.each_error[row]:.4g}{unit}"
    alt = f"An image, its target, and the model's answer, {caption}"
    return Example(int(self.gathered.index[row]), caption, alt)


def _variance(totals: Mapping[str, float], key: str) -> float:
  """The variance over all known pixels of standardised numbers."""
  mean, square = (totals[k] / totals["pixels"] for k in (key, f"{key}_squared"))
  return square - mean**2


def _or_worst(score: float, worst: float) -> float:
  """The score, or the worst one if it is not finite."""
  return score if np.isfinite(score) else worst
