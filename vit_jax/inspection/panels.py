"""Photographs side by side, with captions and colour scales, as one picture.

Pillow draws them: ten times as fast as matplotlib, and pixel for pixel.
"""

import dataclasses
import math
import pathlib
from collections.abc import Sequence
from typing import IO

import cv2
import numpy as np
from PIL import Image, ImageDraw

from vit_jax.inspection import overlay
from vit_jax.inspection.fonts import write
from vit_jax.inspection.overlay import Limits
from vit_jax.inspection.photograph import Photograph

DPI = 150  # Pixels per inch of a drawing.
_FAST = (
  cv2.IMWRITE_PNG_COMPRESSION,
  1,
  cv2.IMWRITE_PNG_STRATEGY,
  cv2.IMWRITE_PNG_STRATEGY_RLE,
  19,  # IMWRITE_PNG_FILTER, which OpenCV 4.11 ignores.
  32,  # IMWRITE_PNG_FILTER_UP.
)
PER_LINE = 64  # A picture is this many times as wide as its text is high.


@dataclasses.dataclass(frozen=True)
class Drawing:
  """A finished picture; it is saved as a matplotlib figure would be."""

  image: Image.Image

  def savefig(
    self, file: str | IO[bytes], *, format: str = "png", dpi: float = DPI
  ) -> None:
    """Writes a PNG, or a file of another format of Pillow.

    Its size in pixels is that of the drawing times `dpi` / 150.
    """
    image = self.image
    if dpi != DPI:
      width, height = (max(1, round(s * dpi / DPI)) for s in image.size)
      image = image.resize((width, height), Image.Resampling.LANCZOS)
    if format != "png":
      image.save(file, format)
      return
    # With `_FAST`, OpenCV takes half of Pillow's time for photographs.
    pixels = cv2.cvtColor(np.asarray(image), cv2.COLOR_RGB2BGR)
    encoded = cv2.imencode(".png", pixels, _FAST)[1].tobytes()
    if isinstance(file, str):
      pathlib.Path(file).write_bytes(encoded)
    else:
      file.write(encoded)


@dataclasses.dataclass(frozen=True)
class Panel:
  """A picture with a caption above it and the ends of its colours below it.

  The caption may have several lines.
  """

  picture: Photograph
  caption: str = ""
  between: Limits | None = None


def text_height(width: float) -> float:
  """The height of the text in a drawing of this width, both in pixels."""
  return max(11, width / PER_LINE)


def put_together(
  panels: Sequence[Panel],
  title: str = "",
  *,
  columns: int = 0,
  between: Limits | None = None,
) -> Drawing:
  """Draws panels of one height in rows, with the widths of the first row.

  Args:
    title: One or more lines above all panels.
    columns: Number of panels in a row; by default all.
    between: The ends of a colour scale that all panels share.
  """
  columns = columns or len(panels)
  rows = [panels[i : i + columns] for i in range(0, len(panels), columns)]
  widths = [panel.picture.shape[1] for panel in rows[0]]
  height = panels[0].picture.shape[0]
  gap = max(4, sum(widths) // 160)
  across = sum(widths) + gap * (columns + 1)
  size = text_height(across)
  line = math.ceil(1.35 * size)
  titles = title.splitlines()
  above = line * max(len(panel.caption.splitlines()) for panel in panels)
  below = 3 * line * any(panel.between is not None for panel in panels)
  each = above + height + below + gap
  top = gap + line * len(titles)
  tail = 3 * line * (between is not None)
  sheet = Image.new("RGB", (across, top + each * len(rows) + tail), "white")
  draw = ImageDraw.Draw(sheet)
  for number, text in enumerate(titles):
    place = across / 2, gap + line * (number + 0.5)
    write(draw, place, text, size, across - 2 * gap)
  for row, row_panels in enumerate(rows):
    x = gap
    y = top + row * each
    for panel, width in zip(row_panels, widths, strict=False):
      for number, text in enumerate(panel.caption.splitlines()):
        middle = x + width / 2, y + line * (number + 0.5)
        write(draw, middle, text, size, width)
      sheet.paste(Image.fromarray(panel.picture), (x, y + above))
      if panel.between is not None:
        _scale(sheet, (x, y + above + height), width, size, panel.between)
      x += width + gap
  if between is not None:
    wide = min(across - 2 * gap, max(across // 3, widths[0]))
    place = (across - wide) // 2, sheet.height - tail
    _scale(sheet, place, wide, size, between)
  return Drawing(sheet)


def _scale(
  sheet: Image.Image,
  place: tuple[int, int],
  width: int,
  size: float,
  between: Limits,
) -> None:
  """Draws a horizontal colour bar, whose unit is the mean of the map.

  `place` is its upper left corner, and `between` the values at its ends. The
  width of the bar and the height of its text, `size`, are in pixels.
  """
  draw = ImageDraw.Draw(sheet)
  x, y = place
  thick = round(0.4 * size)
  bar = Image.new("P", (256, 1))
  bar.putdata(range(256))
  bar.putpalette(overlay.palette())
  y += round(0.3 * size)
  sheet.paste(bar.convert("RGB").resize((width, thick)), (x, y))
  low, high = between
  digits = max(1, 1 - math.floor(math.log10(high - low)))
  y += thick + round(0.7 * size)
  labels = [
    (x, low, "lm"),
    (x + width / 2, (low + high) / 2, "mm"),
    (x + width, high, "rm"),
  ]
  for left, value, anchor in labels:
    text = f"{value:.{digits}f}"
    write(draw, (left, y), text, 0.85 * size, width / 3, anchor)
  middle = x + width / 2, y + 1.2 * size
  write(draw, middle, "times the mean", 0.85 * size, width)
