"""Matplotlib figures of the arrays of `attention_maps` and `embedding_maps`.

They can be read in black and white, with higher values lighter. They need no
display and leave matplotlib's global state alone.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from vit_jax.inspection import overlay
from vit_jax.inspection.canvas import PANEL, SMALL, TEXT, figure_of, short
from vit_jax.inspection.overlay import Limits
from vit_jax.inspection.photograph import Photograph, in_colours

_GRAY = "0.35"
_COLORS = "viridis"  # It gets lighter with the value, and is never white.


def overlay_figure(
  image: Photograph,
  maps: Mapping[str, Float[np.ndarray, "h w"]],
  title: str = "",
) -> Figure:
  """Draws a photograph, then each map on it with its own scale (Fig. 6, 14).

  The unit of the scales is the mean of the map, an even share.
  """
  image = overlay.enlarged(image)
  height, width = _panel(image)
  figure = figure_of((1 + len(maps)) * width, height + 0.9, image)
  if title:
    figure.suptitle(title, fontsize=TEXT, parse_math=False)
  ratios = height, 0.07
  above, below = figure.subplots(2, 1 + len(maps), height_ratios=ratios)
  _photograph(above[0], image, "Input")
  below[0].axis("off")
  for column, (name, map_) in enumerate(maps.items(), 1):
    share = overlay.relative(map_)
    _photograph(above[column], overlay.overlaid(image, share), name)
    _scale(figure, overlay.limits(share), cax=below[column])
  return figure


def grid_figure(
  image: Photograph, maps: Mapping[str, Float[np.ndarray, "h w"]], title: str
) -> Figure:
  """Draws many maps on a photograph, all with one scale: by head or by layer.

  The unit of the scale is the mean of all maps.
  """
  columns = _columns(len(maps))
  rows = -(-len(maps) // columns)
  image = overlay.enlarged(image)
  side = PANEL if len(maps) < 4 else 2.0
  height, width = (part * side / PANEL for part in _panel(image))
  figure = figure_of(
    columns * width, rows * (height + 0.25) + 0.9, image, side=side
  )
  figure.suptitle(title, fontsize=TEXT, parse_math=False)
  shares = overlay.relative(np.stack([*maps.values()]))
  between = overlay.limits(shares)
  every = _empty(figure, rows, columns)
  for axes, name, share in zip(every, maps, shares, strict=False):
    _photograph(axes, overlay.overlaid(image, share, between), name)
  _scale(figure, between, ax=every, fraction=0.05, pad=0.02, aspect=40)
  return figure


def filters_figure(components: Float[np.ndarray, "n P P C"]) -> Figure:
  """Draws principal components of the embedding filters (Fig. 7, left)."""
  columns = _columns(len(components), most=7)
  rows = -(-len(components) // columns)
  figure = figure_of(0.7 * columns + 0.6, 0.7 * rows + 0.5)
  title = "RGB embedding filters"
  if (channels := components.shape[-1]) != 3:
    title = f"Embedding filters of {channels} channel(s)"
  figure.suptitle(title, fontsize=TEXT)
  every = _empty(figure, rows, columns)
  for axes, component in zip(every, components, strict=False):
    axes.imshow(in_colours(component), vmin=0, vmax=1)
  return figure


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


def patches_figure(image: Photograph, grid: tuple[int, int]) -> Figure:
  """Draws the patches of a photograph, numbered in the model's order."""
  (H, W, _), (h, w) = image.shape, grid
  # The figure is wide enough for the numbers to fit.
  figure = figure_of(max(PANEL, 0.3 * w), max(PANEL * H / W, 0.3 * w * H / W))
  axes = figure.add_subplot()
  _photograph(axes, image)
  edge: Any = dict(color="white", linewidth=0.8)
  for x in range(1, w):
    axes.axvline(x * W / w - 0.5, **edge)
  for y in range(1, h):
    axes.axhline(y * H / h - 0.5, **edge)
  for number in range(h * w):
    row, column = divmod(number, w)
    axes.text(
      (column + 0.5) * W / w - 0.5,
      (row + 0.5) * H / h - 0.5,
      str(number + 1),
      color="white",
      fontsize=SMALL,
      ha="center",
      va="center",
      path_effects=[withStroke(linewidth=1.5, foreground="black")],
    )
  return figure


def sheet_figure(
  image: Photograph,
  labels: Sequence[str],
  probabilities: Sequence[float],
  rollout: Float[np.ndarray, "h w"] | None,
  title: str = "",
) -> Figure:
  """Draws a photograph, its likeliest classes and its attention rollout.

  The rollout is None for a model without attention, and is then left out, as
  are the classes of a model that has none.
  """
  image = overlay.enlarged(image)
  height, width = _panel(image)
  widths = [width, *[3.2] * bool(labels), *[width] * (rollout is not None)]
  figure = figure_of(sum(widths) + 0.4, height + 0.6, image)
  if title:
    figure.suptitle(title, fontsize=TEXT, parse_math=False)
  parts = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
  _photograph(parts[0], image, "Input")
  if labels:
    _bars(parts[1], labels, probabilities)
  if rollout is not None:
    drawn = overlay.overlaid(image, rollout)
    _photograph(parts[-1], drawn, "Attention rollout")
  return figure


def colours_figure(
  image: Photograph, colours: Float[np.ndarray, "h w 3"]
) -> Figure:
  """Draws a photograph beside the colours of its patches."""
  image = overlay.enlarged(image)
  height, width = _panel(image)
  figure = figure_of(2 * width, height + 0.4, image)
  left, right = figure.subplots(1, 2)
  _photograph(left, image, "Input")
  H, W, _ = image.shape
  right.imshow(colours, extent=(0, W, H, 0), interpolation="nearest")
  right.axis("off")
  right.set_title("Principal components", fontsize=TEXT)
  return figure


def _panel(image: Photograph) -> tuple[float, float]:
  """Height and width of a photograph's panel in inches, each at least one."""
  H, W, _ = image.shape
  return max(PANEL * H / max(H, W), 1), max(PANEL * W / max(H, W), 1)


def _empty(figure: Figure, rows: int, columns: int) -> list[Axes]:
  every = [*figure.subplots(rows, columns, squeeze=False).flat]
  for axes in every:
    axes.axis("off")
  return every


def _columns(count: int, most: int = 8) -> int:
  """Columns for a grid of `count` panels, with full rows where possible."""
  if count <= most:
    return count if count < 6 else -(-count // 2)
  fits = [n for n in range(most // 2, most + 1) if count % n == 0]
  return fits[-1] if fits else most


def _photograph(axes: Axes, image: Photograph, title: str = "") -> None:
  axes.imshow(image)
  axes.axis("off")
  if title:
    axes.set_title(short(title), fontsize=TEXT, parse_math=False)


def _scale(figure: Figure, between: Limits, **where: Any) -> None:
  """Draws a horizontal colour bar in units of an even share."""
  colors = ScalarMappable(Normalize(*between), overlay.COLORS)
  bar = figure.colorbar(colors, orientation="horizontal", **where)
  low, high = between
  digits = max(1, 1 - math.floor(math.log10(high - low)))
  ticks = (low, (low + high) / 2, high)
  bar.set_ticks(ticks, labels=[f"{tick:.{digits}f}" for tick in ticks])
  bar.ax.tick_params(labelsize=SMALL, length=2)
  for label, side in zip(
    bar.ax.get_xticklabels(), ("left", "center", "right"), strict=True
  ):
    label.set_horizontalalignment(side)
  bar.outline.set_visible(False)
  bar.set_label("times the mean", fontsize=SMALL, labelpad=1)


def _bars(
  axes: Axes, labels: Sequence[str], probabilities: Sequence[float]
) -> None:
  """Draws a horizontal bar for each class, with the likeliest on top."""
  places = range(len(labels))
  axes.barh(places, probabilities, color=_GRAY, height=0.6)
  names = [short(label) for label in labels]
  axes.set_yticks(places, names, fontsize=TEXT, parse_math=False)
  axes.set_ylim(len(labels) - 0.4, -0.6)
  axes.set_xlim(0, 1.2)  # Room for the number behind a full bar.
  axes.set_xticks([])
  for place, probability in zip(places, probabilities, strict=True):
    text = f" {probability:.1%}"
    axes.text(probability, place, text, fontsize=SMALL, va="center")
  axes.spines[["top", "right", "bottom"]].set_visible(False)


def _count(axis: Any, count: int) -> None:
  """Numbers the grids along an axis from 1, with at most about 15 labels."""
  every = -(-count // 15)
  grids = np.arange(0, count, every)
  middles = grids * (count + 1) + (count - 1) / 2
  axis.set_ticks(middles, [str(grid + 1) for grid in grids], fontsize=SMALL)
