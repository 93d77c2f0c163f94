"""Empty figures, and figures turned into pixels.

Nothing needs a display or touches matplotlib's global state.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vit_jax.inspection.photograph import Photograph

PANEL = 3.0  # Longer side of a photograph, in inches.
TEXT = 9  # Font sizes, in points.
SMALL = 7
_LONGEST = 30  # Most characters shown of a name.


def figure_of(
  width: float,
  height: float,
  image: Photograph | None = None,
  *,
  side: float = PANEL,
) -> Figure:
  """Makes an empty figure; width and height are in inches.

  Its resolution is 150 dpi, or what a photograph needs to keep all its pixels
  on a panel whose longer side has `side` inches.
  """
  dpi = 150 if image is None else max(150, max(image.shape) / side)
  return Figure(figsize=(width, height), dpi=dpi, layout="constrained")


def chart_of(
  width: float, height: float, x: str, y: str = "", title: str = ""
) -> tuple[Figure, Axes]:
  """Makes an empty chart with small labels, and no frame on top and right."""
  figure = figure_of(width, height)
  axes = figure.add_subplot()
  axes.set_xlabel(x, fontsize=SMALL, parse_math=False)
  axes.set_ylabel(y, fontsize=SMALL, parse_math=False)
  axes.set_title(title, fontsize=TEXT, loc="left", parse_math=False)
  axes.tick_params(labelsize=SMALL)
  axes.spines[["top", "right"]].set_visible(False)
  return figure, axes


def short(name: str) -> str:
  """Shortens a name to fit beside a bar or above a photograph."""
  if len(name) <= _LONGEST:
    return name
  half = _LONGEST // 2  # Keeps both ends: names that begin alike may differ.
  return f"{name[: half - 1]}…{name[-half:]}"


def pixels(figure: Figure) -> Photograph:
  """Renders a figure as an image with 100 pixels per inch."""
  figure.set_dpi(100)
  canvas = FigureCanvasAgg(figure)
  canvas.draw()
  return np.array(canvas.buffer_rgba())[..., :3]
