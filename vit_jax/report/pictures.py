"""The pictures of a report, each with an alternative text."""

import base64
import dataclasses
import io
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from vit_jax.inspection import charts, figures, overlay
from vit_jax.inspection.canvas import SMALL
from vit_jax.inspection.panels import Drawing
from vit_jax.inspection.photograph import LONGEST, in_colours
from vit_jax.report.measure import Measured, ShownExample
from vit_jax.runtime.printable import printable_lines

# Pixels of an inch of a chart, if its text of `SMALL` points is 11 pixels high.
_PIXELS = 11 * 72 / SMALL
_SMALL_SIDE = 96  # Smaller photographs are shown with their pixels as squares.


@dataclasses.dataclass(frozen=True)
class Picture:
  """An image in the page.

  A `small` one is shown with its pixels as squares. A chart, whose colours are
  inverted in dark mode, has a `narrow` version for narrow screens. `least` is
  the width in pixels that its text needs; 0 if every screen is that wide.
  """

  uri: str
  alt: str
  caption: str = ""
  small: bool = False
  narrow: str = ""
  least: int = 0


def example(shown: ShownExample, longest: int) -> dict[str, Any]:
  """An example's `images`, `name` and `caption`, for the template."""
  alt = shown.example.alt
  if shown.drawn is not None:
    images = [photograph(shown.drawn, alt, longest)]
  else:
    images = [photograph(shown.photograph, alt, longest)]
  if shown.rollout is not None:
    drawn = overlay.overlaid(shown.photograph, shown.rollout)
    peak = _peak(shown.rollout)
    alt = f"Attention rollout on this photograph, highest {peak}"
    images.append(photograph(drawn, alt, longest))
  caption = shown.example.caption
  return {"images": images, "name": shown.name, "caption": caption}


def panels(measured: Measured) -> list[Picture]:
  """The pictures that the task draws of examples."""
  task_panels = measured.task.panels
  if task_panels is None:
    return []
  return [photograph(sheet, task_panels.alt) for sheet in measured.panels]


def augmented(measured: Measured) -> list[Picture]:
  """The first training examples, as the model was trained on them."""
  if measured.dataset is None:
    return []
  pictures = []
  for image, label in measured.dataset.augmented:
    text = measured.task.labels.describe(label, measured.class_names)
    alt = f"Augmented example of {text}"
    pictures.append(photograph(image, alt, caption=text))
  return pictures


def _peak(map_: np.ndarray) -> str:
  """Describes in words where on an image a map is highest."""
  place = np.array(np.unravel_index(map_.argmax(), map_.shape))
  row, column = (3 * (place + 0.5) / map_.shape).astype(int)
  part = ("top ", "", "bottom ")[row] + ("left", "", "right")[column]
  return f"at the {part.strip() or 'centre'}"


def embeddings(measured: Measured) -> list[Picture]:
  """The embedding filters and position similarities that the model has."""
  filters = measured.filters
  positions = measured.positions
  pictures = []
  if filters is not None and len(filters):
    alt = f"The first {len(filters)} principal components of the embedding "
    alt += "filters, shown as colours."
    caption = "Embedding filters: principal components (Fig. 7, left)"
    pictures.append(_png(figures.filters_figure(filters), alt, caption))
  if positions is not None:
    alt = "A grid of {} x {} grids, each with the cosine similarity of a "
    alt = alt.format(*positions.shape) + "position embedding to all others."
    caption = "Position embeddings: similarity of each to all (Fig. 7, centre)"
    pictures.append(_png(figures.positions_figure(positions), alt, caption))
  return pictures


def svg(figure: Figure, alt: str, caption: str = "") -> Picture:
  """Embeds a chart as SVG, which stays sharp, for wide and narrow screens."""

  def write(file: io.BytesIO) -> None:
    """Writes the figure at its present size."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", transparent=True)
    # A control character, as in a name, makes the file no XML.
    file.write(printable_lines(drawn.getvalue()).encode())

  uri = narrow = _uri("svg+xml", write)
  width, height = figure.get_size_inches()
  least = charts.narrowest(figure)
  if least < width:
    figure.set_size_inches(least, max(height * least / width, 2.3))
    narrow = _uri("svg+xml", write)
  needed = round(least * _PIXELS) if least > charts.NARROW else 0
  return Picture(uri, alt, caption, narrow=narrow, least=needed)


def _png(figure: Figure | Drawing, alt: str, caption: str) -> Picture:
  """Embeds a figure as PNG."""
  uri = _uri("png", lambda f: figure.savefig(f, format="png", dpi=100))
  return Picture(uri, alt, caption)


def photograph(
  image: np.ndarray, alt: str, longest: int = LONGEST, caption: str = ""
) -> Picture:
  """Embeds a photograph as JPEG, or as PNG if its pixels should be visible."""
  photo = Image.fromarray(in_colours(image))
  if max(photo.size) < _SMALL_SIDE:
    uri = _uri("png", lambda f: photo.save(f, "png"))
    return Picture(uri, alt, caption, small=True)
  photo.thumbnail((longest, longest))
  uri = _uri("jpeg", lambda f: photo.save(f, "jpeg", quality=85))
  return Picture(uri, alt, caption)


def _uri(kind: str, write: Callable[[io.BytesIO], Any]) -> str:
  """The data URI of what `write` writes; `kind` is the MIME subtype."""
  file = io.BytesIO()
  write(file)
  data = base64.b64encode(file.getvalue()).decode()
  return f"data:image/{kind};base64,{data}"
