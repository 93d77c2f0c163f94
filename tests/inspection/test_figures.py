"""Contents of the figures, read back from their axes and pixels."""

import io

import numpy as np
import pytest
from PIL import Image

from tests import commands
from vit_jax.inspection import figures, overlay

RNG = np.random.default_rng(0)
PHOTO = RNG.integers(0, 256, (32, 48, 3), dtype=np.uint8)
MAP = RNG.random((2, 3)).astype(np.float32)


def saved(figure):
  """Saves a figure and returns its size in pixels."""
  file = io.BytesIO()
  figure.savefig(file, format="png")
  return Image.open(file).size


def shown(axes):
  """The only image in the axes."""
  (image,) = axes.get_images()
  return np.asarray(image.get_array())


def texts(axes):
  return [text.get_text() for text in axes.texts]


def test_overlay():
  maps = {"Rollout": MAP, "for $a_b": 1 - MAP}
  figure = figures.overlay_figure(PHOTO, maps, "cat.jpg | answer $1")
  panels = [axes for axes in figure.axes if axes.get_images()]
  first, *others = panels
  np.testing.assert_array_equal(shown(first), overlay.enlarged(PHOTO))
  for axes, map_ in zip(others, maps.values(), strict=True):
    expected = overlay.overlaid(PHOTO, map_)
    np.testing.assert_allclose(shown(axes), expected, atol=5)
  titles = [axes.get_title() for axes in panels]
  assert titles == ["Input", "Rollout", "for $a_b"]
  assert figure.get_suptitle() == "cat.jpg | answer $1"
  # A scale for each map, from its 2nd to its 98th percentile over its mean.
  ticks = [
    [float(label.get_text()) for label in axes.get_xticklabels()]
    for axes in figure.axes
    if axes.get_xlabel() == "times the mean"
  ]
  for (low, _, high), map_ in zip(ticks, maps.values(), strict=True):
    expected = np.percentile(map_, (2, 98)) / map_.mean()
    np.testing.assert_allclose((low, high), expected, atol=0.06)
  saved(figure)


def test_a_photograph_keeps_its_pixels():
  image = np.zeros((900, 1200, 3), np.uint8)
  figure = figures.overlay_figure(image, {"Rollout": MAP})
  figure.draw_without_rendering()
  for axes in figure.axes:
    if axes.get_images():
      assert axes.get_images()[0].get_window_extent().width > 0.9 * 1200
  assert saved(figure)[0] >= 2 * 1200


@pytest.mark.parametrize(
  "count, columns", [(1, 1), (3, 3), (6, 3), (12, 6), (16, 8), (13, 8)]
)
def test_each_head_has_its_place_on_the_photograph(count, columns):
  maps = {
    f"head ${k}": map_ for k, map_ in enumerate(RNG.random((count, 2, 3)))
  }
  figure = figures.grid_figure(PHOTO, maps, "Layer $1")
  used = [axes for axes in figure.axes if axes.get_images()]
  every = np.stack([*maps.values()])
  between = tuple(np.percentile(every, (2, 98)))
  for axes, name in zip(used, maps, strict=True):
    expected = overlay.overlaid(PHOTO, maps[name], between)
    np.testing.assert_allclose(shown(axes), expected, atol=5)
    assert axes.get_title() == name
  assert used[0].get_subplotspec().get_gridspec().ncols == columns
  assert sum(a.get_xlabel() == "times the mean" for a in figure.axes) == 1


def test_each_position_has_a_grid_at_its_place():
  similarity = RNG.uniform(-1, 1, (2, 3, 2, 3)).astype(np.float32)
  figure = figures.positions_figure(similarity)
  tiles = np.ma.filled(figure.axes[0].get_images()[0].get_array(), np.nan)
  assert tiles.shape == (2 * 3 - 1, 3 * 4 - 1)
  for i in range(2):
    for j in range(3):
      tile = tiles[3 * i : 3 * i + 2, 4 * j : 4 * j + 3]
      np.testing.assert_array_equal(tile, similarity[i, j])
  assert np.isnan(tiles[2]).all() and np.isnan(tiles[:, [3, 7]]).all()
  labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
  assert labels == ["1", "2", "3"]
  assert figure.axes[0].get_xticks().tolist() == [1, 5, 9]
  saved(figure)


def test_distances_by_layer():
  distance = RNG.random((4, 3)) * 100
  figure = figures.distance_figure(distance)
  (axes,) = figure.axes
  points = axes.collections[0].get_offsets()
  expected = [(i + 1, d) for i in range(4) for d in distance[i]]
  np.testing.assert_allclose(points, expected)
  np.testing.assert_allclose(axes.lines[0].get_ydata(), distance.mean(axis=1))
  assert axes.get_ylim()[0] == 0
  saved(figure)
  saved(figures.distance_figure(np.zeros((1, 1))))


def test_patches_are_numbered_from_the_upper_left():
  figure = figures.patches_figure(PHOTO, (2, 3))
  (axes,) = figure.axes
  assert texts(axes) == ["1", "2", "3", "4", "5", "6"]
  places = [text.get_position() for text in axes.texts]
  assert places[0] == (7.5, 7.5) and places[3] == (7.5, 23.5)
  assert sorted(line.get_xdata()[0] for line in axes.lines)[-2:] == [15.5, 31.5]
  # A patch is wide enough for its number; 72 points are an inch.
  many = figures.patches_figure(PHOTO, (16, 24))
  assert many.get_figwidth() * 72 / 24 > 3 * 6


def test_sheet():
  labels = ["sushi", "a $name_"]
  figure = figures.sheet_figure(PHOTO, labels, [0.996, 0.004], MAP, "a.jpg")
  photo, bars, seen = figure.axes
  np.testing.assert_array_equal(shown(photo), overlay.enlarged(PHOTO))
  np.testing.assert_array_equal(shown(seen), overlay.overlaid(PHOTO, MAP))
  assert figure.get_suptitle() == "a.jpg"
  assert [bar.get_width() for bar in bars.patches] == [0.996, 0.004]
  assert texts(bars) == [" 99.6%", " 0.4%"]
  names = [label.get_text() for label in bars.get_yticklabels()]
  assert names == labels
  assert bars.get_ylim()[0] > bars.get_ylim()[1]  # The likeliest above.
  saved(figure)


def test_pyplot_stays_out():
  """pyplot has global state and may look for a display."""
  code = (
    "import io, sys, numpy\n"
    "from vit_jax.inspection import figures\n"
    "figure = figures.distance_figure(numpy.ones((2, 2)))\n"
    "figure.savefig(io.BytesIO(), format='png')\n"
    "assert 'matplotlib.pyplot' not in sys.modules\n"
  )
  assert commands.python("-c", code).returncode == 0
