"""Names in any script: a font that has them, or Latin letters."""

import io
import pathlib
import re
import warnings

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from PIL import Image, ImageDraw

from vit_jax.inspection import canvas, charts, fonts


def square(side):
  pen = TTGlyphPen(None)
  pen.moveTo((0, 0))
  for corner in ((0, side), (side, side), (side, 0)):
    pen.lineTo(corner)
  pen.closePath()
  return pen.glyph()


@pytest.fixture
def machine(monkeypatch, tmp_path):
  """Fills the machine's folder of fonts, with squares for its characters."""
  monkeypatch.setattr(fonts, "FOLDERS", (str(tmp_path),))

  def install(name, characters):
    characters = f"{characters}{fonts.BESIDE}"
    order = [".notdef", *(f"c{n}" for n in range(len(characters)))]
    builder = FontBuilder(1000)
    builder.setupGlyphOrder(order)
    codes = map(ord, characters)
    builder.setupCharacterMap(dict(zip(codes, order[1:], strict=True)))
    sides = [300, *(700 for _ in characters)]
    glyphs = map(square, sides)
    builder.setupGlyf(dict(zip(order, glyphs, strict=True)))
    builder.setupHorizontalMetrics(dict.fromkeys(order, (800, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": name, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(tmp_path / f"{name}.ttf")
    fonts.forget()
    return str(tmp_path / f"{name}.ttf")

  fonts.forget()
  yield install
  fonts.forget()


@pytest.mark.parametrize(
  "name, spelled",
  [
    ("cat", "cat"),
    ("Käse", "Käse"),
    ("Ягода", "Ягода"),
    ("ねこ", "neko"),
    ("コーヒー", "kohi"),
    ("고양이", "goyangi"),
    ("猫", "U+732B "),
    ("Ａ級", "AU+7D1A "),
  ],
)
def test_without_a_font_names_are_spelled(machine, name, spelled):
  assert fonts.readable(name) == spelled
  assert fonts.font_file(spelled) is None


def test_a_font_of_the_machine_is_taken_that_has_every_character(machine):
  machine("part", "ね")
  (pathlib.Path(fonts.FOLDERS[0]) / "bad.ttf").write_bytes(b"no font")
  whole = machine("whole", "ねこ ")
  assert fonts.readable("ねこ a") == "ねこ a"
  assert fonts.font_file("ねこ a") == whole
  assert fonts.readable("ねこ 猫") == "neko U+732B "
  sheet = Image.new("RGB", (200, 40), "white")
  fonts.write(ImageDraw.Draw(sheet), (0, 20), "ねこ", 30, 200, "lm")
  # Two squares of 0.7 of the size, 30 pixels, and not those of 0.3.
  black = (np.asarray(sheet) < 128).all(axis=-1).sum()
  assert black == pytest.approx(2 * 21**2, rel=0.1)


@pytest.mark.parametrize("has_font", [False, True])
def test_charts_draw_them_without_a_warning(machine, has_font):
  """As outlines of a font, or else by that of the browser: ね, and a mark."""
  names = ["ねこ", "คี่", "Käse", "cat"]
  if has_font:
    machine("both", "ねこคี่ 13")
  figure = charts.confusion_figure(np.eye(4, dtype=int), names)
  file = io.StringIO()
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    figure.savefig(file, format="svg")
    canvas.pixels(figure)
  drawn = re.findall("<text[^>]*>([^<]*)<", file.getvalue())
  of_browser = [] if has_font else ["ねこ", "คี่"]
  assert drawn == [*of_browser, *(f"{name} (1)" for name in of_browser)]
  # Latin ones keep their outlines, so that they look the same everywhere.
  assert "DejaVuSans" in file.getvalue()


def test_pictures_of_pixels_have_them_in_latin(machine):
  def drawn(name):
    figure = charts.curves_figure({"a": ([1, 2], [1, 2])}, name)
    return canvas.pixels(figure)

  np.testing.assert_array_equal(drawn("ねこ"), drawn("neko"))
  machine("kana", "ねこ")
  assert (drawn("ねこ") != drawn("neko")).any()


def test_room_is_made_for_them(machine):
  """A Chinese sign is as wide as it is high, and a mark takes no room."""
  (axes,) = charts.confusion_figure(np.eye(2, dtype=int), ["猫", "คี่"]).axes
  wide, narrow = axes.get_xticklabels()
  size = wide.get_fontsize() / 72
  assert canvas.width_of(wide) == pytest.approx(size, rel=0.05)
  assert 0.4 * size < canvas.width_of(narrow) < 0.8 * size


def test_a_long_name_is_shortened_in_the_middle():
  sheet = Image.new("RGB", (300, 40), "white")
  fonts.write(ImageDraw.Draw(sheet), (0, 20), 60 * "name ", 20, 150, "lm")
  black = (np.asarray(sheet) < 128).any(axis=(0, 2))
  assert 120 < np.flatnonzero(black).max() <= 150


@pytest.mark.parametrize("has_matplotlib", [False, True])
def test_umlauts_without_a_font_lose_their_dots(
  machine, monkeypatch, has_matplotlib
):
  if not has_matplotlib:
    monkeypatch.setattr(fonts.importlib.util, "find_spec", lambda name: None)
  assert fonts.readable("Käse") == ("Käse" if has_matplotlib else "Kase")
