"""Contents of the figures, read back from their axes and pixels."""

import io

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tests import commands
from tests.rows import some_slow
from vit_jax.inspection import figures, fonts, overlay, panels

RNG = np.random.default_rng(0)
PHOTO = RNG.integers(0, 256, (32, 48, 3), dtype=np.uint8)
MAP = RNG.random((2, 3)).astype(np.float32)


def saved(figure):
  """Saves a figure and returns its size in pixels."""
  file = io.BytesIO()
  figure.savefig(file, format="png")
  return Image.open(file).size


def places(drawing, picture):
  """The rows and columns at which a picture begins in a drawing."""
  (H, W, _), whole = picture.shape, np.asarray(drawing.image)
  corners = np.argwhere((whole == picture[0, 0]).all(axis=-1)).tolist()
  return [
    (y, x)
    for y, x in corners
    if np.array_equal(whole[y : y + H, x : x + W], picture)
  ]


@pytest.fixture
def written(monkeypatch):
  """The texts that Pillow draws."""
  texts, draw = [], ImageDraw.ImageDraw.text

  def noted(self, place, text, *arguments, **options):
    texts.append(text)
    draw(self, place, text, *arguments, **options)

  monkeypatch.setattr(ImageDraw.ImageDraw, "text", noted)
  return texts


def test_overlay(written):
  maps = {"Rollout": MAP, "for $a_b": 1 - MAP}
  figure = figures.overlay_figure(PHOTO, maps, "cat.jpg | answer $1")
  ((top, left),) = places(figure, overlay.enlarged(PHOTO))
  for map_ in maps.values():
    ((y, x),) = places(figure, overlay.overlaid(PHOTO, map_ / map_.mean()))
    assert y == top and x > left
    left = x
  assert [t for t in written if t[:1].isalpha()] == [
    "cat.jpg | answer $1",
    "Input",
    "Rollout",
    "times the mean",
    "for $a_b",
    "times the mean",
  ]
  # A scale for each map, from its 2nd to its 98th percentile over its mean.
  ends = [float(text) for text in written if text[:1].isdigit()]
  for low, high, map_ in zip(ends[::3], ends[2::3], maps.values(), strict=True):
    expected = np.percentile(map_, (2, 98)) / map_.mean()
    np.testing.assert_allclose((low, high), expected, atol=0.06)


def test_a_photograph_keeps_its_pixels():
  image = RNG.integers(0, 256, (90, 1200, 3), dtype=np.uint8)
  figure = figures.overlay_figure(image, {"Rollout": MAP})
  assert len(places(figure, image)) == 1
  width, height = saved(figure)
  assert width >= 2 * 1200
  smaller = io.BytesIO()
  figure.savefig(smaller, dpi=75)
  assert Image.open(smaller).size == (round(width / 2), round(height / 2))
  written = io.BytesIO()
  figure.savefig(written)
  np.testing.assert_array_equal(Image.open(written), figure.image)


@pytest.mark.parametrize(
  "count, columns",
  some_slow(
    [(1, 1), (3, 3), (6, 3), (12, 6), (16, 8), (13, 8)],
    [(1, 1), (6, 3), (13, 8)],
  ),
)
def test_each_head_has_its_place_on_the_photograph(written, count, columns):
  maps = {
    f"head ${k}": map_ for k, map_ in enumerate(RNG.random((count, 2, 3)))
  }
  figure = figures.grid_figure(PHOTO, maps, "Layer $1")
  every = np.stack([*maps.values()])
  shares = every / every.mean()
  between = tuple(np.percentile(shares, (2, 98)))
  small = Image.fromarray(overlay.enlarged(PHOTO))
  small.thumbnail((256, 256))
  found = []
  for share in shares:
    drawn = overlay.coloured(overlay.grey(np.asarray(small)), share, between)
    found += places(figure, drawn)
  assert found == sorted(found) and len(found) == count  # In reading order.
  assert len({x for _, x in found}) == min(columns, count)
  assert written[: count + 1] == ["Layer $1", *maps]
  assert written.count("times the mean") == 1


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
  figure = figures.patches_figure(np.full_like(PHOTO, 90), (2, 3))
  whole = np.asarray(figure.image).astype(int)
  H, W, _ = whole.shape
  assert (whole[H // 2] == 255).all() and (whole[:, W // 3] == 255).all()
  font = fonts.pillow_font("0", round(0.36 * min(W / 3, H / 2)))
  for number in range(6):
    row, column = divmod(number, 3)
    y, x = round((row + 0.5) * H / 2), round((column + 0.5) * W / 3)
    patch = whole[y - H // 5 : y + H // 5, x - W // 8 : x + W // 8, 0]
    plain = Image.new("L", patch.shape[::-1])
    middle = patch.shape[1] / 2, patch.shape[0] / 2
    ImageDraw.Draw(plain).text(middle, str(number + 1), 255, font, "mm")
    assert (patch == 0).any()  # The edge.
    white, expected = patch == 255, np.asarray(plain) == 255
    assert (white & expected).sum() > 0.8 * max(white.sum(), expected.sum())


def test_numbers_of_patches_are_written_once(written):
  """Not anew for each photograph of nearly the same size."""
  for width in (47, 46):  # No other test has patches as small as these.
    figures.patches_figure(PHOTO[:, :width], (2, 40))
  assert written == [str(number) for number in range(1, 81)]
  # A photograph is enlarged to 1600 pixels at most: 448 by 3, and 640 by 2.
  for side, shown in ((448, 1344), (640, 1280), (1700, 1700)):
    flat = np.zeros((side, 9, 3), np.uint8)
    assert figures.patches_figure(flat, (64, 1)).image.height == shown
  # A patch of a square photograph at 224 is twice as wide as its number.
  many = figures.patches_figure(PHOTO[:, :32], (14, 14))
  assert min(many.image.size) >= 2 * 14 * 40


def test_rows_that_repeat_take_little_of_a_file():
  """Photographs in squares are most of what is written."""
  squares = overlay.in_squares(PHOTO, 3)
  assert np.array_equal(squares, PHOTO.repeat(3, axis=0).repeat(3, axis=1))
  file = io.BytesIO()
  panels.Drawing(Image.fromarray(squares)).savefig(file)
  assert np.array_equal(Image.open(file), squares)
  assert len(file.getvalue()) < 0.4 * squares.nbytes


def test_sheet(written):
  labels = ["sushi", "a $name_"]
  figure = figures.sheet_figure(PHOTO, labels, [0.996, 0.004], MAP, "a.jpg")
  assert len(places(figure, overlay.enlarged(PHOTO))) == 1
  assert len(places(figure, overlay.overlaid(PHOTO, MAP / MAP.mean()))) == 1
  bars = ["sushi", "99.6%", "a $name_", "0.4%"]
  assert [t for t in written if t in bars] == bars
  assert {"a.jpg", "Attention rollout", "times the mean"} <= {*written}
  # Its bar is longer by as much as the class is likelier.
  pixels = np.asarray(figure.image)
  grey = (pixels == np.array([0x59] * 3)).all(axis=-1).sum(axis=1)
  assert grey.max() > 200


@pytest.mark.parametrize(
  "true, names",
  [
    ({"dog"}, ["✗", "cat", "✓", "dog", "owl"]),
    ({"cat"}, ["✓", "cat", "dog", "owl"]),
    ({"emu"}, ["✗", "cat", "dog", "owl"]),
    (None, ["cat", "dog", "owl"]),
  ],
)
def test_a_wrong_answer_is_marked(written, true, names):
  labels, shares = ["cat", "dog", "owl"], [0.6, 0.3, 0.1]
  figures.sheet_figure(PHOTO, labels, shares, None, "", true)
  assert [text for text in written if text in ("✓", "✗", *labels)] == names


def test_components_are_beside_the_photograph_and_its_maps():
  colours = RNG.random((2, 3, 3))
  figure = figures.colours_figure(PHOTO, colours, {"Attention": MAP})
  whole = overlay.enlarged(PHOTO)
  squares = np.uint8(255 * colours + 0.5)
  H, W, _ = whole.shape
  squares = squares.repeat(H // 2, axis=0).repeat(W // 3, axis=1)
  found = [places(figure, p) for p in (whole, squares)]
  (left,), (right,) = found
  assert left[0] == right[0] and right[1] > 2 * W


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_filters_are_squares_and_say_what_they_are(written, channels):
  components = RNG.random((5, 4, 4, channels))
  figure = figures.filters_figure(components)
  told = "Embedding filters: principal components"
  more = "" if channels == 3 else f" of {channels} channel(s)"
  assert written[0] == told + more
  shown = components[..., [0, 0, 0] if channels < 3 else [0, 1, 2]]
  levels = np.uint8(255 * shown + 0.5)
  found = [places(figure, np.kron(x, np.ones((48, 48, 1)))) for x in levels]
  assert all(len(one) == 1 for one in found) and found == sorted(found)


@pytest.mark.slow
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
