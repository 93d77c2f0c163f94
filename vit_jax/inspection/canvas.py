"""Empty figures, and figures turned into pixels.

Nothing needs a display or changes matplotlib's global state.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_mixed import MixedModeRenderer
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.textpath import text_to_path

from vit_jax.inspection import fonts
from vit_jax.inspection.photograph import Photograph

TEXT = 9  # Font sizes, in points.
SMALL = 7
_LONGEST = 30  # The most characters shown of a name.
_LINES = 5  # The most lines of a legend.
_HANDLE = 0.36  # Inches of a legend's entry beside its text.
_LINE = 0.14  # Inches from one line of a legend to the next.


class _Figure(Figure):
  """A figure that draws each text in a font that has its characters.

  A text without such a font is spelled in Latin, or in SVG left to the browser.
  """

  _drawn_by: Any = None

  def draw(self, renderer: Any) -> None:
    """Draws the figure by a renderer that can write text of any script."""
    self._drawn_by = renderer
    with _any_script(renderer):
      super().draw(renderer)
    self._drawn_by = None

  def _get_renderer(self) -> Any:
    # The layout has to measure texts by the renderer that draws them.
    make: Any = super()
    return self._drawn_by or make._get_renderer()


@contextlib.contextmanager
def _any_script(renderer: Any) -> Iterator[None]:
  """Makes a renderer measure and draw text of any script."""
  measure, draw = renderer.get_text_width_height_descent, renderer.draw_text
  is_vector = isinstance(renderer, MixedModeRenderer)

  def measure_any(s: str, prop: FontProperties, ismath: Any) -> Any:
    s = fonts.stand_in(s) if is_vector and fonts.lacks_font(s) else s
    return measure(*_drawable(s, prop), ismath)

  def draw_any(
    gc: Any,
    x: float,
    y: float,
    s: str,
    prop: FontProperties,
    angle: float,
    ismath: Any = False,
    mtext: Any = None,
  ) -> None:
    """Draws a text as `RendererBase.draw_text`, in a font that has it."""
    if is_vector and fonts.lacks_font(s):
      with rc_context({"svg.fonttype": "none"}):  # As text, not its outlines.
        draw(gc, x, y, s, prop, angle, ismath, mtext)
    else:
      draw(gc, x, y, *_drawable(s, prop), angle, ismath, mtext)

  # While it lays out, matplotlib itself replaces some of these by functions
  # that draw nothing.
  before = dict(vars(renderer))
  renderer.get_text_width_height_descent = measure_any
  renderer.draw_text = draw_any
  try:
    yield
  finally:
    for name in ("get_text_width_height_descent", "draw_text"):
      delattr(renderer, name)
      if name in before:
        setattr(renderer, name, before[name])


def _drawable(text: str, font: FontProperties) -> tuple[str, FontProperties]:
  """The text in characters that a font has, and this font."""
  text = fonts.readable(text)
  if path := fonts.font_file(text):
    font = FontProperties(fname=path, size=font.get_size())
  return text, font


def width_of(text: Text) -> float:
  """The width of a text in inches, if it is not rotated."""
  string = text.get_text()
  string = fonts.stand_in(string) if fonts.lacks_font(string) else string
  drawn = _drawable(string, text.get_fontproperties())
  width, *_ = text_to_path.get_text_width_height_descent(*drawn, False)
  return width / 72


def figure_of(width: float, height: float) -> Figure:
  """Makes an empty figure; width and height are in inches."""
  return _Figure(figsize=(width, height), dpi=150, layout="constrained")


def chart_of(
  width: float, height: float, x: str, y: str = "", title: str = ""
) -> tuple[Figure, Axes]:
  """Makes an empty chart with small labels, and no frame on top and right.

  Width and height are in inches. Returns the figure and its only axes.
  """
  figure = figure_of(width, height)
  axes = figure.add_subplot()
  label(axes, x, y, title)
  return figure, axes


def label(axes: Axes, x: str = "", y: str = "", title: str = "") -> None:
  """Writes the title and names of axes that are given, and styles a chart."""
  small = {"fontsize": SMALL, "parse_math": False}
  if x:
    axes.set_xlabel(x, **small)
  if y:
    axes.set_ylabel(y, **small)
  if title:
    axes.set_title(title, fontsize=TEXT, loc="left", parse_math=False)
  axes.tick_params(labelsize=SMALL)
  axes.spines[["top", "right"]].set_visible(False)


def add_legend(
  figure: Figure, handles: Sequence[Artist], names: Sequence[str]
) -> None:
  """Adds a legend of at most five lines outside of a figure's axes.

  It stands to the right, at half the height, as a title may be as wide as the
  figure. With more than five names, or if the chart would be left less than two
  thirds of the width, it stands below the chart, which gets taller by its
  lines. Names for which there is no room are counted in the last entry.
  """
  handles = [*handles]
  names = [short(name) for name in names]
  small = FontProperties(size=SMALL)
  entry = _HANDLE + max(width_of(Text(text=n, font=small)) for n in names)
  width = figure.get_figwidth()
  is_beside = len(names) <= _LINES and entry <= width / 3
  columns = 1 if is_beside else min(len(names), max(1, int(width / entry)))
  if len(names) > (most := _LINES * columns):
    names = [*names[: most - 1], f"and {len(names) - most + 1} more"]
    handles = [*handles[: most - 1], Line2D([], [], linestyle="")]
  if not is_beside:
    lines = -(-len(names) // columns)
    figure.set_figheight(figure.get_figheight() + _LINE * lines)
  place = "outside center right" if is_beside else "outside lower left"
  style: Any = {"fontsize": SMALL, "frameon": False, "columnspacing": 0.8}
  style |= {"handlelength": 1.6, "handletextpad": 0.4, "loc": place}
  legend = figure.legend(handles, names, ncols=columns, **style)
  for text in legend.get_texts():
    text.set_parse_math(False)


def short(name: str) -> str:
  """A name, shortened in the middle if it is long."""
  return fonts.shortened(name, lambda some: len(some) <= _LONGEST)


def pixels(figure: Figure) -> Photograph:
  """Renders a figure as an image with 100 pixels per inch."""
  figure.set_dpi(100)
  for axes in figure.axes:
    if any(fonts.lacks_font(x.get_text()) for x in axes.get_xticklabels()):
      # Names that are spelled in Latin are long.
      axes.tick_params(axis="x", rotation=90)
  canvas = FigureCanvasAgg(figure)
  canvas.draw()
  return np.array(canvas.buffer_rgba())[..., :3]
