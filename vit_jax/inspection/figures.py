"""Figures of the arrays of `attention_maps` and `embedding_maps`.

They can be read in black and white, with higher values lighter. Photographs are
put together by Pillow, as a `panels.Drawing`, and charts are matplotlib's. They
need no display and leave matplotlib's global state alone.
"""

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image, ImageDraw

from vit_jax.inspection import fonts, overlay
from vit_jax.inspection.canvas import SMALL, TEXT, figure_of
from vit_jax.inspection.panels import PER_LINE, Drawing, Panel, put_together
from vit_jax.inspection.photograph import Photograph, in_colours

_COLORS = "viridis"  # Its colours get lighter with the value, but never white.
_RIGHT, _WRONG, _GREY = "#1f5fa8", "#b3261e", "#595959"
IN_A_GRID = 256  # Longest side of a photograph in a grid, in pixels.
ON_A_SHEET = 400  # Longest side of a photograph on a sheet, in pixels.
_A_FILTER = 192  # Side of a filter, in pixels.
_A_PATCH = 80  # Longer side of a numbered patch, in pixels.
_MOST = 1600  # Longest side of a photograph with numbered patches.


def overlay_figure(
  image: Photograph,
  maps: Mapping[str, Float[np.ndarray, "h w"]],
  title: str = "",
) -> Drawing:
  """Draws a photograph, then each map on it with its own scale (Fig. 6, 14).

  The unit of a scale is the mean of its map.
  """
  image = overlay.enlarged(image)
  grey = overlay.grey(image)
  panels = [Panel(image, "Input")]
  for name, map_ in maps.items():
    share = overlay.relative(map_)
    drawn = overlay.coloured(grey, share)
    panels.append(Panel(drawn, name, overlay.limits(share)))
  return put_together(panels, title)


def grid_figure(
  image: Photograph, maps: Mapping[str, Float[np.ndarray, "h w"]], title: str
) -> Drawing:
  """Draws many maps on a photograph, all with one scale: by head or by layer.

  The unit of the scale is the mean of all maps.
  """
  grey = overlay.grey(_small(image, IN_A_GRID))
  shares = overlay.relative(np.stack([*maps.values()]))
  between = overlay.limits(shares)
  panels = [
    Panel(overlay.coloured(grey, share, between), name)
    for name, share in zip(maps, shares, strict=True)
  ]
  columns = _columns(len(maps))
  return put_together(panels, title, columns=columns, between=between)


def filters_figure(components: Float[np.ndarray, "n P P C"]) -> Drawing:
  """Draws principal components of the embedding filters (Fig. 7, left)."""
  title = "Embedding filters: principal components"
  if (channels := components.shape[-1]) != 3:
    title += f" of {channels} channel(s)"
  levels: Any = np.uint8(255 * in_colours(components) + 0.5)
  times = max(1, _A_FILTER // levels.shape[1])
  panels = [Panel(overlay.in_squares(one, times)) for one in levels]
  return put_together(panels, title, columns=_columns(len(panels), most=7))


def positions_figure(similarity: Float[np.ndarray, "h w h w"]) -> Figure:
  """Draws each position's similarity to all others (Fig. 7, centre)."""
  h, w = similarity.shape[:2]
  # All grids are one image, with empty lines between them.
  tiles = np.full((h, h + 1, w, w + 1), np.nan, np.float32)
  tiles[:, :h, :, :w] = similarity.transpose(0, 2, 1, 3)
  tiles = tiles.reshape(h * (h + 1), w * (w + 1))[:-1, :-1]
  # Up to 12 inches, every tile gets at least a pixel.
  width = min(max(5.5, tiles.shape[1] / 100), 12)
  figure = figure_of(width, 0.85 * width * min(max(h / w, 0.3), 3))
  axes = figure.add_subplot()
  drawn = axes.imshow(tiles, cmap=_COLORS, vmin=similarity.min(), vmax=1)
  _count(axes.xaxis, w)
  _count(axes.yaxis, h)
  axes.set_xlabel("column of the patch", fontsize=TEXT)
  axes.set_ylabel("row of the patch", fontsize=TEXT)
  axes.set_title("Position embedding similarity", fontsize=TEXT)
  bar = figure.colorbar(drawn, ax=axes, shrink=0.8)
  bar.set_label("cosine similarity", fontsize=TEXT)
  bar.ax.tick_params(labelsize=SMALL)
  return figure


def distance_figure(distance: Float[np.ndarray, "L k"]) -> Figure:
  """Draws every head's mean attention distance by layer (Fig. 7, right)."""
  L, k = distance.shape
  figure = figure_of(4.5, 3.2)
  axes = figure.add_subplot()
  layer = np.arange(1, L + 1)
  axes.scatter(
    layer.repeat(k), distance.ravel(), s=14, c="black", alpha=0.5, linewidths=0
  )
  mean = distance.mean(axis=1)
  axes.plot(layer, mean, "k_", markersize=12, label="mean over heads")
  axes.set_ylim(bottom=0)
  axes.set_xlim(0.5, L + 0.5)
  axes.xaxis.set_major_locator(MaxNLocator(integer=True))
  axes.tick_params(labelsize=SMALL)
  axes.set_xlabel("layer", fontsize=TEXT)
  axes.set_ylabel("mean attention distance (pixels)", fontsize=TEXT)
  figure.legend(loc="outside upper right", fontsize=SMALL, frameon=False)
  return figure


def patches_figure(image: Photograph, grid: tuple[int, int]) -> Drawing:
  """Draws the patches of a photograph, numbered in the model's order."""
  H, W, _ = image.shape
  h, w = grid
  times = min(round(_A_PATCH * max(h / H, w / W)), _MOST // max(H, W))
  sheet = Image.fromarray(overlay.in_squares(image, max(1, times)))
  draw = ImageDraw.Draw(sheet)
  wide, tall = sheet.size
  thick = max(1, wide // 600)
  size = round(0.36 * min(wide / w, tall / h))
  for x in range(1, w):
    draw.line([x * wide / w, 0, x * wide / w, tall], "white", thick)
  for y in range(1, h):
    draw.line([0, y * tall / h, wide, y * tall / h], "white", thick)
  for index in range(h * w):
    number = _number(index + 1, size, thick)
    row, column = divmod(index, w)
    x = (column + 0.5) * wide / w
    y = (row + 0.5) * tall / h
    place = round(x - number.width / 2), round(y - number.height / 2)
    sheet.paste(number, place, number)
  return Drawing(sheet)


@functools.lru_cache(2048)
def _number(number: int, size: int, thick: int) -> Image.Image:
  """A white number with a black edge, on a transparent background."""
  text = str(number)
  font = fonts.pillow_font("0", size)
  wide = math.ceil(font.getlength(text)) + 4 * thick
  tall = 2 * size
  stamp = Image.new("RGBA", (wide, tall), (0, 0, 0, 0))
  edge: Any = {"stroke_width": 2 * thick, "stroke_fill": "black"}
  place = wide / 2, tall / 2
  ImageDraw.Draw(stamp).text(place, text, "white", font, "mm", **edge)
  return stamp


def sheet_figure(
  image: Photograph,
  labels: Sequence[str],
  probabilities: Sequence[float],
  rollout: Float[np.ndarray, "h w"] | None,
  title: str = "",
  true: Collection[str] | None = None,
) -> Drawing:
  """Draws a photograph, its likeliest classes and its attention rollout.

  The rollout is left out if it is None, as for a model without attention, and
  the classes if there are none. `true` has the right classes, if they are
  known: they get a tick, and the likeliest class gets a cross if it is wrong.
  """
  image = _small(image, ON_A_SHEET)
  panels = [Panel(image, "Input")]
  if labels:
    panels.append(Panel(_bars(image, labels, probabilities, true)))
  if rollout is not None:
    share = overlay.relative(rollout)
    drawn = overlay.overlaid(image, share)
    panels.append(Panel(drawn, "Attention rollout", overlay.limits(share)))
  return put_together(panels, title)


def colours_figure(
  image: Photograph,
  colours: Float[np.ndarray, "h w 3"],
  maps: Mapping[str, Float[np.ndarray, "h w"]],
) -> Drawing:
  """Draws a photograph, maps on it, and the colours of its patches."""
  image = overlay.enlarged(image)
  patches = Image.fromarray(np.uint8(255 * colours + 0.5))
  drawn = patches.resize(image.shape[1::-1], Image.Resampling.NEAREST)
  panels = [Panel(image, "Input")]
  for name, map_ in maps.items():
    panels.append(Panel(overlay.overlaid(image, map_), name))
  panels.append(Panel(np.asarray(drawn), "Principal components"))
  return put_together(panels)


def _columns(count: int, most: int = 8) -> int:
  """Columns for a grid of `count` panels, with full rows where possible."""
  if count <= most:
    return count if count < 6 else -(-count // 2)
  fits = [n for n in range(most // 2, most + 1) if count % n == 0]
  return fits[-1] if fits else most


def _small(image: Photograph, side: int) -> Photograph:
  """A photograph whose longer side has at most `side` pixels.

  Small ones are enlarged first, as by `overlay.enlarged`.
  """
  picture = Image.fromarray(overlay.enlarged(image))
  picture.thumbnail((side, side))
  return np.asarray(picture)


def _bars(
  image: Photograph,
  labels: Sequence[str],
  probabilities: Sequence[float],
  true: Collection[str] | None,
) -> Photograph:
  """A horizontal bar for each class, with the likeliest on top."""
  height = image.shape[0]
  width = round(1.1 * max(image.shape[:2]))
  drawn = Image.new("RGB", (width, height), "white")
  draw = ImageDraw.Draw(drawn)
  each = height / len(labels)
  size = min(0.36 * each, (2 * image.shape[1] + width) / PER_LINE)
  most = 0.75 * width  # Room for the number behind a full bar.
  answers = zip(labels, probabilities, strict=True)
  for number, (name, probability) in enumerate(answers):
    y = (number + 0.3) * each
    sign, color = "", _GREY
    if true is not None and name in true:
      sign, color = "✓", _RIGHT
    elif true is not None and not number:
      sign, color = "✗", _WRONG
    # The sign is written separately, as it may need another font.
    after = size / 2 + (1.1 * size if sign else 0)
    fonts.write(draw, (size / 2, y), sign, size, width, "lm", color)
    fonts.write(draw, (after, y), name, size, width - after, "lm", color)
    end = size / 2 + most * probability
    y += 0.6 * size
    draw.rectangle([size / 2, y, end, y + 0.3 * each], color)
    place = end + size / 2, y + 0.15 * each
    fonts.write(draw, place, f"{probability:.1%}", size, width, "lm")
  return np.asarray(drawn)


def _count(axis: Any, count: int) -> None:
  """Numbers `count` grids along an axis from 1, with at most about 15 labels.

  Each grid has `count` cells along the axis, and a gap of one follows it.
  """
  every = -(-count // 15)
  grids = np.arange(0, count, every)
  middles = grids * (count + 1) + (count - 1) / 2
  axis.set_ticks(middles, [str(grid + 1) for grid in grids], fontsize=SMALL)
