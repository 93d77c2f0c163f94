"""The chart of a study: a score by what its rows vary."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from vit_jax.inspection.canvas import add_legend, figure_of, label, short
from vit_jax.inspection.charts import COLORS, PALE

_MARKERS = "osD^v"
_TITLE = 66  # The most characters in a line of the title.
# Distance of lines that share a name on the horizontal axis, on which the
# names are 1 apart.
_APART = 0.14


def study_figure(
  rows: Sequence[Mapping[str, Any]],
  paper: Mapping[str, Mapping[Any, float]],
  *,
  x: str,
  y: str,
  lines: str = "",
  log: bool = False,
  title: str = "",
  names: Mapping[str, str] | None = None,
) -> Figure:
  """Draws a score by a column, a line for each value of another column.

  Rows that differ in other columns, such as the seed, become their mean, with
  bars of their sample standard deviation where there are several.

  Args:
    rows: The table, with a score between 0 and 1.
    paper: The paper's points, {line: {x: score}}. They are drawn below ours, on
      a scale of their own, since they are of other models or data.
    x: Column of the horizontal axis: numbers, or names in the table's order.
    y: Column of the score; rows without it are left out.
    lines: Column with a line for each of its values; "" draws one line.
    log: Whether the horizontal axis is logarithmic.
    names: Words for columns and values; other names are shown with spaces for
      underscores.
  """
  ours: dict[str, dict[Any, list[float]]] = {}
  for row in rows:
    if isinstance(row.get(y), int | float):
      line = ours.setdefault(str(row.get(lines, "")), {})
      line.setdefault(row[x], []).append(row[y])
  theirs = {
    name: {place: [score] for place, score in points.items()}
    for name, points in paper.items()
  }
  every = [*ours.values(), *theirs.values()]
  places = [*dict.fromkeys(place for line in every for place in line)]
  named = any(isinstance(place, str) for place in places)
  at = {place: k if named else place for k, place in enumerate(places)}
  # A line has the same colour and marker among ours and in the paper.
  order = [*dict.fromkeys([*ours, *theirs])]

  def text_of(name: Any) -> str:
    return short((names or {}).get(str(name), str(name).replace("_", " ")))

  both = bool(theirs)
  figure = figure_of(5.2, 4.8 if both else 3.2)
  ratios: Any = {"height_ratios": (3, 2)[: 1 + both]}
  panels = figure.subplots(1 + both, sharex=True, squeeze=False, **ratios)[:, 0]
  drawn: dict[int, tuple[Any, str]] = {}  # A line for each entry of the legend.
  for axes, part in zip(panels, (ours, theirs), strict=False):
    for name, line in part.items():
      number = order.index(name)
      offset = 0.0
      if named:
        offset = _APART * (number - (len(order) - 1) / 2)
      scores = {at[place] + offset: values for place, values in line.items()}
      bars = _draw_line(axes, scores, number, "" if named else "-")
      drawn.setdefault(number, (bars, text_of(name) or "ours"))
    axes.grid(axis="y", **PALE)
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
  if len(drawn) > 1:
    add_legend(figure, *zip(*drawn.values(), strict=True))
  label(panels[0], "", text_of(y), textwrap.fill(title, _TITLE))
  label(panels[-1], text_of(x), "", "In the paper" if theirs else "")
  if log:
    panels[0].set_xscale("log")
  if named or len(places) <= 8:
    shown = [text_of(place) if named else f"{place:,}" for place in places]
    panels[-1].set_xticks([*at.values()], shown)
    panels[-1].xaxis.set_minor_locator(NullLocator())
  return figure


def _draw_line(
  axes: Axes,
  scores: Mapping[float, Sequence[float]],
  number: int,
  style: str,
) -> ErrorbarContainer:
  """Draws the mean of the scores at each place, and their deviation."""
  deviations = np.array(
    [np.std(v, ddof=1) if len(v) > 1 else np.nan for v in scores.values()]
  )
  return axes.errorbar(
    [*scores],
    [np.mean(values) for values in scores.values()],
    # If no point has a bar, the legend shows no bar.
    yerr=None if np.isnan(deviations).all() else deviations,
    color=COLORS[number % 5],
    marker=_MARKERS[number % 5],
    markersize=4,
    linestyle=style,
    linewidth=1.2,
    capsize=2,
  )
