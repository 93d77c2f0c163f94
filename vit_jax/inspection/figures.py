"""Matplotlib figures of the arrays of `attention_maps` and `embedding_maps`.

They can be read in black and white, with higher values lighter. They need no
display and leave matplotlib's global state alone.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from PIL import Image

_PANEL = 3.0  # Longer side of a photograph, in inches.
TEXT = 9  # Font sizes, in points.
SMALL = 7
_DARKEST = 0.2  # Brightness of a photograph where its map is 0.
_GRAY = "0.35"
_COLORS = "viridis"  # It gets lighter with the value, and is never white.
_LONGEST = 30  # Most characters shown of a name.

Photograph = UInt8[np.ndarray, "H W 3"]


def overlay_figure(
  image: Photograph, maps: Mapping[str, Float[np.ndarray, "h w"]]
) -> Figure:
  """Draws a photograph, then once for each map lit by it (Fig. 6 and 14)."""
  height, width = _panel(image)
  figure = figure_of((1 + len(maps)) * width, height + 0.3)
  first, *others = figure.subplots(1, 1 + len(maps), squeeze=False)[0]
  _photograph(first, image, "Input")
  for axes, (title, map_) in zip(others, maps.items(), strict=True):
    _photograph(axes, lit(image, map_), title)
  return figure


def heads_figure(maps: Float[np.ndarray, "k h w"], title: str) -> Figure:
  """Draws a layer's raw attention, with a map for each head."""
  columns = _columns(len(maps))
  rows = -(-len(maps) // columns)
  ratio = maps.shape[1] / maps.shape[2]
  figure = figure_of(1.4 * columns, (1.4 * ratio + 0.25) * rows + 0.4)
  figure.suptitle(title, fontsize=TEXT, parse_math=False)
  every = [*figure.subplots(rows, columns, squeeze=False).flat]
  for axes in every:
    axes.axis("off")
  for head, (axes, map_) in enumerate(zip(every, maps, strict=False), 1):
    axes.imshow(map_, cmap=_COLORS, vmin=0)
    axes.set_title(f"head {head}", fontsize=SMALL, pad=2)
  return figure


def filters_figure(components: Float[np.ndarray, "n P P 3"]) -> Figure:
  """Draws principal components of the embedding filters (Fig. 7, left)."""
  columns = _columns(len(components), most=7)
  rows = -(-len(components) // columns)
  figure = figure_of(0.7 * columns + 0.6, 0.7 * rows + 0.5)
  figure.suptitle("RGB embedding filters", fontsize=TEXT)
  every = [*figure.subplots(rows, columns, squeeze=False).flat]
  for axes in every:
    axes.axis("off")
  for axes, component in zip(every, components, strict=False):
    axes.imshow(component, vmin=0, vmax=1)
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
  figure = figure_of(max(_PANEL, 0.3 * w), max(_PANEL * H / W, 0.3 * w * H / W))
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
  title: str = "Input",
) -> Figure:
  """Draws a photograph, its likeliest classes and its attention rollout.

  The rollout is None for a model without attention, and is then left out.
  """
  height, width = _panel(image)
  widths = [width, 3.2] if rollout is None else [width, 3.2, width]
  figure = figure_of(sum(widths) + 0.4, height + 0.3)
  parts = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
  _photograph(parts[0], image, title)
  _bars(parts[1], labels, probabilities)
  if rollout is not None:
    _photograph(parts[2], lit(image, rollout), "Attention rollout")
  return figure


def pixels(figure: Figure) -> Photograph:
  """Renders a figure as an image with 100 pixels per inch."""
  figure.set_dpi(100)
  canvas = FigureCanvasAgg(figure)
  canvas.draw()
  return np.array(canvas.buffer_rgba())[..., :3]


def lit(image: Photograph, map_: Float[np.ndarray, "h w"]) -> Photograph:
  """Darkens a photograph where a map is low, but not its highest patch."""
  highest = max(map_.max(), np.finfo(np.float32).tiny)
  light = Image.fromarray(np.float32(map_ / highest)).resize(
    image.shape[1::-1], Image.Resampling.BILINEAR
  )
  shade = _DARKEST + (1 - _DARKEST) * np.asarray(light)[..., None]
  return np.round(image * shade.clip(0, 1)).astype(np.uint8)


def small_png(figure: Figure, dpi: float = 72) -> bytes:
  """Renders a figure as a PNG with at most 256 colours, e.g. for a notebook."""
  drawn, small = io.BytesIO(), io.BytesIO()
  figure.savefig(drawn, format="png", dpi=dpi)
  image = Image.open(drawn).convert("RGB").quantize(256)
  image.save(small, "PNG", optimize=True)
  return small.getvalue()


def short(name: str) -> str:
  """Shortens a name to fit beside a bar or above a photograph."""
  if len(name) <= _LONGEST:
    return name
  half = _LONGEST // 2  # Keeps both ends: names that begin alike may differ.
  return f"{name[: half - 1]}…{name[-half:]}"


def figure_of(width: float, height: float) -> Figure:
  """Makes an empty figure; width and height are in inches."""
  return Figure(figsize=(width, height), dpi=150, layout="constrained")


def _panel(image: Photograph) -> tuple[float, float]:
  """Height and width of a photograph's panel in inches, each at least one."""
  H, W, _ = image.shape
  return max(_PANEL * H / max(H, W), 1), max(_PANEL * W / max(H, W), 1)


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


def _bars(
  axes: Axes, labels: Sequence[str], probabilities: Sequence[float]
) -> None:
  """Draws a horizontal bar for each class, with the likeliest on top."""
  places = range(len(labels))
  axes.barh(places, probabilities, color=_GRAY, height=0.6)
  axes.set_yticks(places)
  axes.set_yticklabels(
    [short(label) for label in labels], fontsize=TEXT, parse_math=False
  )
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
