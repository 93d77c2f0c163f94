"""Empty figures, and figures turned into pixels.

Nothing needs a display or touches matplotlib's global state.
"""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text

from vit_jax.inspection import fonts
from vit_jax.inspection.photograph import Photograph

TEXT = 9  # Font sizes, in points.
SMALL = 7
_LONGEST = 30  # Most characters shown of a name.


class _Figure(Figure):
  """Draws each text in a font that has its characters."""

  def draw(self, renderer: Any) -> None:
    for axes in self.axes:  # The ticks' texts are written when asked for.
      _ = axes.get_xticklabels(), axes.get_yticklabels()
    set_fonts(self.findobj(Text))
    super().draw(renderer)


def set_fonts(texts: Any) -> None:
  """Gives each text a font that has its characters."""
  for text in texts:
    if path := fonts.font_file(text.get_text()):
      font = FontProperties(fname=path, size=text.get_fontsize())
      text.set_fontproperties(font)


def figure_of(width: float, height: float) -> Figure:
  """Makes an empty figure; width and height are in inches."""
  return _Figure(figsize=(width, height), dpi=150, layout="constrained")


def chart_of(
  width: float, height: float, x: str, y: str = "", title: str = ""
) -> tuple[Figure, Axes]:
  """Makes an empty chart with small labels, and no frame on top and right."""
  figure = figure_of(width, height)
  axes = figure.add_subplot()
  label(axes, x, y, title)
  return figure, axes


def label(axes: Axes, x: str = "", y: str = "", title: str = "") -> None:
  """Writes the title and names of axes that are given, and styles a chart."""
  small = {"fontsize": SMALL, "parse_math": False}
  if x:
    axes.set_xlabel(fonts.readable(x), **small)
  if y:
    axes.set_ylabel(fonts.readable(y), **small)
  if title:
    axes.set_title(
      fonts.readable(title), fontsize=TEXT, loc="left", parse_math=False
    )
  axes.tick_params(labelsize=SMALL)
  axes.spines[["top", "right"]].set_visible(False)


def short(name: str) -> str:
  """A name as it fits beside a bar, in letters that a font has."""
  name = fonts.readable(name)
  return fonts.shortened(name, lambda some: len(some) <= _LONGEST)


def pixels(figure: Figure) -> Photograph:
  """Renders a figure as an image with 100 pixels per inch."""
  figure.set_dpi(100)
  canvas = FigureCanvasAgg(figure)
  canvas.draw()
  return np.array(canvas.buffer_rgba())[..., :3]
