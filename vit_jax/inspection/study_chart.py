"""The chart of a study: a score by what its rows vary."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from vit_jax.inspection.canvas import SMALL, chart_of, short
from vit_jax.inspection.charts import COLORS, PALE

_MARKERS = "osD^v"


def study_figure(
  rows: Sequence[Mapping[str, Any]],
  paper: Mapping[str, Mapping[Any, float]],
  *,
  x: str,
  y: str,
  lines: str = "",
  log: bool = False,
  title: str = "",
) -> Figure:
  """Draws a score by a column, a line for each value of another column.

  Rows that differ in other columns, such as the seed, become their mean, with
  bars of their sample standard deviation where there are several.

  Args:
    rows: The table, with a score between 0 and 1.
    paper: The paper's points, {line: {x: score}}, drawn in grey behind ours.
    x: Column of the horizontal axis: numbers, or names in the table's order.
    y: Column of the score; rows without it are left out.
    lines: Column whose values are a line each; "" draws one.
    log: Whether the horizontal axis is logarithmic.
  """
  figure, axes = chart_of(5.2, 3.2, x, y, title)
  axes.grid(axis="y", **PALE)
  rows = [row for row in rows if isinstance(row.get(y), int | float)]
  others = [place for points in paper.values() for place in points]
  places = [*dict.fromkeys([*(row[x] for row in rows), *others])]
  named = any(isinstance(place, str) for place in places)
  at = {place: k if named else place for k, place in enumerate(places)}
  for k, (name, points) in enumerate(paper.items()):
    label = f"paper, {name}" if name else "paper"
    xs, ys = [at[place] for place in points], [*points.values()]
    style = {"color": "0.65", "marker": _MARKERS[k % 5], "markersize": 3}
    axes.plot(xs, ys, linestyle="" if named else ":", label=label, **style)
  names = [*dict.fromkeys(str(row.get(lines, "")) for row in rows)]
  for k, name in enumerate(names):
    own = [row for row in rows if str(row.get(lines, "")) == name]
    # Names that several lines share stand beside each other.
    beside = 0.08 * (k + 1) if named else 0
    scores = {at[p] + beside: [r[y] for r in own if r[x] == p] for p in places}
    _draw_line(axes, scores, name, k, "" if named else "-")
  if log:
    axes.set_xscale("log")
  if named or len(places) <= 8:
    shown = [short(p) if named else f"{p:,}" for p in places]
    axes.set_xticks([*at.values()], shown)
    axes.xaxis.set_minor_locator(NullLocator())
  axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
  if len(names) > 1 or paper:
    axes.legend(fontsize=SMALL, frameon=False)
  return figure


def _draw_line(
  axes: Axes,
  scores: Mapping[float, Sequence[float]],
  name: str,
  number: int,
  style: str,
) -> None:
  """Draws the mean and the deviation of the scores at each place."""
  found = {place: values for place, values in scores.items() if values}
  axes.errorbar(
    [*found],
    [np.mean(values) for values in found.values()],
    yerr=np.array([_deviation(values) for values in found.values()]),
    color=COLORS[number % 5],
    marker=_MARKERS[number % 5],
    markersize=4,
    linestyle=style,
    linewidth=1.2,
    capsize=2,
    label=short(name) or "ours",
  )


def _deviation(values: Sequence[float]) -> float:
  return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
