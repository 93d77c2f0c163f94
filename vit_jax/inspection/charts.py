"""Matplotlib charts of runs: curves, confusion matrices, calibration.

Like those of `figures`, they can be read in black and white, need no display
and leave matplotlib's global state alone.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator, PercentFormatter

from vit_jax.inspection.canvas import (
  SMALL,
  add_legend,
  chart_of,
  figure_of,
  short,
  width_of,
)
from vit_jax.tasks.outcome import Chart

_NUMBERED = 12  # A matrix of more classes does not show its counts.
_POINTS = 500  # Neighbouring points of longer curves are averaged.
_STYLES = ("-", "--", ":", "-.")
# Widths in inches at which text is large enough on half a page and on a phone.
_WIDE, NARROW = 4.0, 2.8
_SQUARE = _WIDE, _WIDE
_RIGHT, _WRONG = np.array(((11, 79, 168), (179, 21, 31))) / 255
PALE = {"color": "0.9", "linewidth": 0.6}  # Lines across a chart.
COLORS = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown")

Curve = tuple[Sequence[float], Sequence[float]]


def curves_figure(
  curves: Mapping[str, Curve],
  title: str,
  *,
  percent: bool = False,
  logarithmic: bool = False,
  thin: Collection[str] = (),
) -> Figure:
  """Draws values by step, with a line in a colour and style for each name.

  Args:
    curves: (steps, values) of each name.
    percent: Whether to show values, which are fractions, as percentages.
    logarithmic: Whether the axis of the values is logarithmic.
    thin: Names whose lines are thin and pale, such as training curves beside
      those of evaluation. Each has the colour and style of the next name that
      is not thin.
  """
  figure, axes = chart_of(_WIDE, 2.4, "step", title=title)
  axes.grid(axis="y", **PALE)
  number = 0
  for name, (steps, values) in curves.items():
    steps, values = _average_neighbours(steps, values)
    pale = name in thin
    axes.plot(
      steps,
      values,
      linestyle=_STYLES[number % len(_STYLES)],
      color=COLORS[number % len(COLORS)],
      linewidth=1 if pale else 1.6,
      alpha=0.6 if pale else 1,
      # A single point would be no line.
      marker="." if len(steps) < (2 if pale else 40) else "",
      clip_on=False,  # A point at the edge is drawn whole.
    )
    number += not pale
  low, high = axes.get_xlim()
  if high - low < 2:  # All labels of a single step would be the same.
    axes.set_xlim(round((low + high) / 2) - 1, round((low + high) / 2) + 1)
  axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
  axes.xaxis.set_major_formatter("{x:,.0f}")
  bottom = axes.get_ylim()[0]
  if not any(np.less(values, 0).any() for _, values in curves.values()):
    bottom = max(bottom, 0) if percent else 0
  if logarithmic:
    axes.set_yscale("log")
  elif percent:
    # Labels get as many decimals as it takes for them to differ.
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    axes.set_ylim(bottom, min(axes.get_ylim()[1], 1.005))
  else:
    axes.set_ylim(bottom=bottom)
  if len(curves) > 1:
    # A thin line looks like one of the others, so its name comes last in the
    # legend, which leaves out the last names if it is full.
    names = sorted(curves, key=lambda name: name in thin)
    line_of = dict(zip(curves, axes.lines, strict=True))
    lines = {name: line_of[name] for name in names}
    add_legend(figure, [*lines.values()], [*lines])
  return figure


def figure_of_chart(chart: Chart) -> Figure:
  """Draws a chart of an evaluation by the function that its kind names."""
  return globals()[f"{chart.kind}_figure"](**chart.arrays)


def range_figure(
  rates: Sequence[float],
  losses: Sequence[float],
  smoothed: Sequence[float],
  suggested: float | None,
) -> Figure:
  """Draws the loss by learning rate, and marks the `suggested` rate."""
  figure, axes = chart_of(5.2, 2.9, "learning rate", "loss")
  axes.grid(axis="y", **PALE)
  axes.plot(rates, losses, color="0.7", linewidth=0.8, label="loss of a step")
  axes.plot(rates, smoothed, color="black", linewidth=1.2, label="its average")
  axes.set_xscale("log")
  if suggested is not None:
    name = f"suggested: {suggested:.2g}"
    axes.axvline(suggested, color=COLORS[0], linestyle=":", label=name)
  add_legend(figure, *axes.get_legend_handles_labels())
  # Divergence is cut off, so that the valley stays visible.
  first = smoothed[0]
  lowest = min(smoothed)
  room = (first - lowest) or 1.0
  axes.set_ylim(lowest - room, first + room)
  return figure


def confusion_figure(
  matrix: Int[np.ndarray, "K K"], class_names: Sequence[str]
) -> Figure:
  """Draws a confusion matrix with a row per class and a column per answer.

  Shades are proportional to shares of the row, from white at 0: blue for right
  answers, red for mistakes. With few classes, counts and shares are written in.
  """
  K = len(matrix)
  figure = figure_of(*_SQUARE)
  axes = figure.add_subplot()
  total = matrix.sum(axis=1)
  parts = matrix / np.maximum(total, 1)[:, None]
  full = np.where(np.eye(K, dtype=bool)[..., None], _RIGHT, _WRONG)
  colors = 1 - parts[..., None] * (1 - full)
  axes.imshow(colors)
  names = [short(name) for name in class_names]
  numbered = [f"{n} ({c:,})" for n, c in zip(names, total, strict=True)]
  axes.set_xticks(range(K), names, fontsize=SMALL)
  axes.set_yticks(range(K), numbered, fontsize=SMALL)
  for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]:
    label.set_parse_math(False)
  axes.set_title("rows: class (examples), columns: answer", fontsize=SMALL)
  axes.set_xticks(np.arange(K + 1) - 0.5, minor=True)
  axes.set_yticks(np.arange(K + 1) - 0.5, minor=True)
  axes.grid(which="minor", color="0.8", linewidth=0.5)
  axes.tick_params(which="both", length=0)
  style: Any = {"fontsize": SMALL, "ha": "center", "va": "center"}
  for (row, column), count in np.ndenumerate(matrix if K <= _NUMBERED else []):
    if count:
      color = "white" if colors[row, column].mean() < 0.55 else "black"
      text = f"{count:,}\n{parts[row, column]:.0%}"
      axes.text(column, row, text, color=color, **style)
  least = narrowest(figure)
  cell = (least - _widest(axes.get_yticklabels())) / K
  if _widest(axes.get_xticklabels()) > 0.9 * cell:
    axes.tick_params(axis="x", rotation=90)
  wide = max(_WIDE, least)
  figure.set_size_inches(wide, wide)
  return figure


def narrowest(figure: Figure) -> float:
  """The least width of a chart in inches; a matrix needs room for its text."""
  axes = figure.axes[0]
  if not axes.images:
    return NARROW
  counts = [len(text.get_text().split("\n")[0]) for text in axes.texts]
  cell = max(0.267, 0.06 * max(counts)) if counts else 0.16
  names = axes.get_yticklabels()
  return max(NARROW, _widest(names) + cell * len(names) + 0.14)


def _widest(labels: Sequence[Text]) -> float:
  """Inches that the longest text takes."""
  return max(map(width_of, labels))


def calibration_figure(bins: Float[np.ndarray, "bins 3"]) -> Figure:
  """Draws accuracy by probability, a reliability diagram (arXiv:1706.04599).

  The area of a bin's dot grows with its number of answers. A row of `bins` has
  this number, the share of right answers and their mean probability, as
  `ConfusionMatrix.calibration` returns them.
  """
  count, right, probability = bins.T
  labels = "probability of the answer", "share of right answers"
  figure, axes = chart_of(*_SQUARE, *labels)
  axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.8, linestyle="--")
  axes.plot(probability, right, color="black", linewidth=0.8)
  sizes = 12 + 120 * count / count.max()
  axes.scatter(probability, right, s=sizes, color="black", clip_on=False)
  _show_percentages(axes)
  return figure


def numbers_figure(
  name: str, true: Float[np.ndarray, " N"], predicted: Float[np.ndarray, " N"]
) -> Figure:
  """Draws the predictions of a number against the true values."""
  figure, axes = chart_of(*_SQUARE, f"true {name}", f"predicted {name}")
  ends = [true.min(), true.max()]
  axes.plot(ends, ends, color="0.6", linewidth=0.8, linestyle="--")
  axes.scatter(true, predicted, s=8, color="black", alpha=0.5, linewidths=0)
  return figure


def precision_figure(
  precision: Float[np.ndarray, " n"], recall: Float[np.ndarray, " n"]
) -> Figure:
  """Draws precision against recall."""
  figure, axes = chart_of(*_SQUARE, "recall", "precision")
  axes.plot(recall, precision, color="black", linewidth=0.8)
  _show_percentages(axes)
  return figure


def _show_percentages(axes: Axes) -> None:
  """Makes both axes of a chart of shares run from 0 to 100 %."""
  axes.set(xlim=(0, 1.02), ylim=(0, 1.02))
  for axis in (axes.xaxis, axes.yaxis):
    axis.set_major_formatter(lambda x, _: f"{x:.0%}")


def _average_neighbours(
  steps: Sequence[float], values: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
  """Averages neighbouring points, so that about `_POINTS` are left at most.

  Returns the steps and the values that are left.
  """
  every = -(-len(steps) // _POINTS)
  # The last mean takes the remaining points too, so that no mean is of fewer
  # than `every` points.
  starts = np.arange(0, max(len(steps) - every + 1, 1), max(every, 1))
  counts = np.diff(starts, append=len(steps))
  both = np.asarray([steps, values], np.float64)
  return tuple(np.add.reduceat(both, starts, axis=1) / counts)
